//! From prompts to token ids, on threads apart from streaming.
//!
//! Two threads: one takes short prompts only, so that however many long ones wait, a short one waits for short ones alone. What cannot be
//! interrupted is bounded beforehand: see [`longest_prompt`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use diptych_core::Request;
use diptych_text::{
    AnswerParser, Grammar, Rendered, StreamOptions, TextError, TextStream, Tokenizer,
};

use crate::frame::FailureKind;
use crate::grammar::grammar;
use crate::messages::{Problem, PromptTimes, Submission};
use crate::now_ns;
use crate::options::{Limits, Prompt};
use crate::params::Params;
use crate::shared::{Open, Shared, lock};
use crate::text::{Answer, ShownPrompt};
use crate::urgency::after;

/// A prompt of at most this many bytes is short: well under a millisecond of work.
const SHORT: usize = 16 * 1024;

/// One prompt to turn into ids.
#[derive(Debug)]
pub(crate) struct PromptJob {
    pub(crate) open: Arc<Open>,
    pub(crate) prompt: Prompt,
    /// Drawn for requests without a seed of their own.
    pub(crate) seed: u64,
}

/// Jobs that wait for a thread.
#[derive(Debug)]
pub(crate) struct PromptJobs {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    short: VecDeque<PromptJob>,
    long: VecDeque<PromptJob>,
    closed: bool,
}

impl PromptJobs {
    pub(crate) fn new() -> Self {
        Self {
            waiting: Mutex::new(Waiting::default()),
            changed: Condvar::new(),
        }
    }

    /// Adds a job; gives it back once closed.
    pub(crate) fn push(&self, job: PromptJob) -> Result<(), PromptJob> {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return Err(job);
        }
        if job.prompt.bytes() <= SHORT {
            waiting.short.push_back(job);
        } else {
            waiting.long.push_back(job);
        }
        drop(waiting);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes no more jobs and gives back those that wait; the threads leave.
    pub(crate) fn close(&self) -> Vec<PromptJob> {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        let waiting = &mut *waiting;
        let rest = waiting
            .short
            .drain(..)
            .chain(waiting.long.drain(..))
            .collect();
        self.changed.notify_all();
        rest
    }

    fn next(&self, long: bool) -> Option<PromptJob> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.closed {
                return None;
            }
            let job = if long { waiting.long.pop_front() } else { None };
            if let Some(job) = job.or_else(|| waiting.short.pop_front()) {
                return Some(job);
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Prompt {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Chat(text) => text.len(),
            Self::Tokens(_) => 0,
        }
    }
}

/// Bytes that no prompt within the context can exceed: every token stands for at most the bytes of the longest one. A normaliser may
/// shorten the text on the way, composition of characters by up to three times, hence the factor.
pub(crate) fn longest_prompt(tokenizer: &Tokenizer, max_model_len: u32) -> usize {
    let table = tokenizer.table();
    let longest = (0..tokenizer.vocabulary())
        .filter_map(|id| table.bytes(id))
        .map(<[u8]>::len)
        .max();
    longest.unwrap_or(1).max(16) * 4 * max_model_len as usize
}

/// The life of one thread of the pool.
pub(crate) fn run_prompts(shared: &Shared, long: bool) {
    while let Some(job) = shared.prompts.next(long) {
        if !job.open.has_left_prompt() {
            run_job(shared, job);
        }
    }
}

/// Turns a prompt into ids and hands the request on, or fails it.
pub(crate) fn run_job(shared: &Shared, job: PromptJob) {
    let open = Arc::clone(&job.open);
    match catch_unwind(AssertUnwindSafe(|| prepare(shared, job))) {
        Ok(Ok(submission)) => shared.hand_on(submission),
        Ok(Err(problem)) => shared.fail_prompt(&open, problem),
        Err(_) => shared.fail_prompt(
            &open,
            Problem::new(
                FailureKind::EnginePanicked,
                "a bug in the engine made the tokenising of this prompt fail",
            ),
        ),
    }
}

/// Turns a job into what the engine thread needs.
fn prepare(shared: &Shared, job: PromptJob) -> Result<Box<Submission>, Problem> {
    let params = &job.open.params;
    let prepared = prepare_prompt(shared, job.prompt, &job.open)?;
    let prompt = prepared.ids;
    let limits = &shared.options.limits;
    let prompt_tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let remaining = limits.max_model_len.saturating_sub(prompt_tokens);
    let max_tokens = params.max_tokens.unwrap_or(remaining).max(1);
    if remaining > 0 && params.min_tokens > max_tokens {
        return Err(too_few_left(params.min_tokens, prompt_tokens, limits));
    }
    let shown = params.shows_prompt().then(|| {
        let table = shared.texts.tokenizer.table();
        ShownPrompt::of(table, &prompt, params.skip_special_tokens)
    });
    let shown = shown
        .transpose()
        .map_err(|error| Problem::new(FailureKind::Tokenizer, error.to_string()))?;
    let answers = answers(shared, params, &prompt, prepared.parser.as_ref())?;
    let mut stop_ids = params.stop_token_ids.clone();
    if !params.ignore_eos {
        stop_ids.extend_from_slice(&shared.options.eos_ids);
    }
    // Beam search looks at more continuations the more ids end an output.
    stop_ids.sort_unstable();
    stop_ids.dedup();
    let request = Request {
        submission: job.open.number,
        prompt,
        max_tokens,
        stop_ids,
        min_tokens: params.min_tokens,
        masked: prepared.grammar.is_some(),
        has_stop_strings: params.may_end_early(),
        namespace: shared.namespaces.of(&params.cache_salt),
        cache_ttl_ns: params.cache_ttl_ns(),
        retention: params.cache_retention,
        choices: params.n,
        beams: params.beams,
        target_itl_ns: params.target_itl_ns,
        priority: params.priority,
        tenant: params.tenant_number(),
        deadline: params
            .timeout
            .map(|seconds| after(job.open.arrived, seconds)),
        first_token_deadline: params
            .ttft_timeout
            .map(|seconds| after(job.open.arrived, seconds)),
        sampling: params.sampling(job.seed),
    };
    Ok(Box::new(Submission {
        open: Arc::clone(&job.open),
        request,
        grammar: prepared.grammar,
        compiled: None,
        answers,
        shown,
        times: prepared.times,
    }))
}

/// One for each choice.
fn answers(
    shared: &Shared,
    params: &Params,
    prompt: &[u32],
    parser: Option<&AnswerParser>,
) -> Result<Vec<Answer>, Problem> {
    let table = shared.texts.tokenizer.table();
    let options = StreamOptions {
        stop: params.stop.clone(),
        include_stop: params.include_stop_str_in_output,
        min_tokens: params.min_tokens,
        skip_special_tokens: params.skip_special_tokens,
        spaces_between_special_tokens: params.spaces_between_special_tokens,
        kept_special_ids: match parser {
            Some(_) => shared.texts.mark_ids.clone(),
            None => Vec::new(),
        },
    };
    let stream = TextStream::new(table, options, prompt)
        .map_err(|error| Problem::new(FailureKind::InvalidParameter, error.to_string()))?;
    let answers = (0..params.n).map(|_| Answer::new(stream.clone(), parser.cloned()));
    Ok(answers.collect())
}

/// A prompt as ids, and what follows from it for the answer.
struct Prepared {
    ids: Vec<u32>,
    parser: Option<AnswerParser>,
    grammar: Option<Grammar>,
    times: PromptTimes,
}

fn prepare_prompt(shared: &Shared, prompt: Prompt, open: &Open) -> Result<Prepared, Problem> {
    let mut times = PromptTimes {
        taken: now_ns(),
        ..PromptTimes::default()
    };
    let wanted = |rendered| grammar(&open.params, &shared.texts.formats, rendered);
    let mut parser = None;
    let follows;
    let ids = match prompt {
        Prompt::Tokens(ids) => {
            follows = wanted(None)?;
            ids
        }
        Prompt::Text(text) => {
            follows = wanted(None)?;
            encode(shared, &text, open.params.add_special_tokens)?
        }
        Prompt::Chat(json) => {
            let rendered = render(shared, &json)?;
            times.rendered = now_ns();
            parser = parser_for(shared, &rendered, open)?;
            follows = wanted(Some(&rendered))?;
            // Who has left meanwhile needs no ids: what is made here goes nowhere.
            if open.has_left_prompt() {
                Vec::new()
            } else {
                // The template writes the special tokens itself.
                encode(shared, &rendered.text, false)?
            }
        }
    };
    times.tokenised = now_ns();
    Ok(Prepared {
        ids,
        parser,
        grammar: follows,
        times,
    })
}

fn encode(shared: &Shared, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Problem> {
    check_length(shared, text.len())?;
    shared
        .texts
        .tokenizer
        .encode(text, add_special_tokens)
        .map_err(|error| Problem::new(FailureKind::Tokenizer, error.to_string()))
}

fn parser_for(
    shared: &Shared,
    prompt: &Rendered,
    open: &Open,
) -> Result<Option<AnswerParser>, Problem> {
    let formats = &shared.texts.formats;
    if !prompt.tool_names.is_empty() && formats.tools().is_none() {
        return Err(Problem::new(
            FailureKind::InvalidParameter,
            "tools: it is not known how this model writes tool calls (the setting tool_call_parser says it, and its chat \
             template does not): send no tools, or tool_choice \"none\"",
        ));
    }
    Ok(formats.parser(prompt, open.params.max_tool_calls))
}

fn render(shared: &Shared, json: &str) -> Result<Rendered, Problem> {
    // Every byte of the conversation takes at most six in JSON.
    check_length(shared, json.len() / 6)?;
    let Some(template) = &shared.texts.template else {
        return Err(Problem::new(
            FailureKind::Template,
            "the model has no chat template: use a completion with a prompt instead",
        ));
    };
    let limit = shared.texts.prompt_bytes;
    template
        .render_within(json, limit)
        .map_err(|error| match &error {
            TextError::RenderedTooLong { .. } => too_long(shared, &format!("more than {limit}")),
            TextError::NotShown { .. } | TextError::OwnVariable { .. } => {
                Problem::new(FailureKind::InvalidParameter, error.to_string())
            }
            TextError::InvalidChat { .. } => {
                Problem::new(FailureKind::InvalidPrompt, error.to_string())
            }
            _ => Problem::new(FailureKind::Template, error.to_string()),
        })
}

/// Without `max_tokens` an output may take what the prompt leaves of the context, and that is less than was asked for.
fn too_few_left(min_tokens: u32, prompt_tokens: u32, limits: &Limits) -> Problem {
    let max_model_len = limits.max_model_len;
    let message = format!(
        "min_tokens is {min_tokens}: {prompt_tokens} prompt tokens leave {} of the context of {max_model_len} tokens",
        max_model_len.saturating_sub(prompt_tokens)
    );
    Problem::new(FailureKind::InvalidParameter, message)
        .with("min_tokens", min_tokens)
        .with("prompt_tokens", prompt_tokens)
        .with("max_model_len", max_model_len)
}

fn check_length(shared: &Shared, bytes: usize) -> Result<(), Problem> {
    if bytes <= shared.texts.prompt_bytes {
        return Ok(());
    }
    Err(too_long(shared, &bytes.to_string()).with("prompt_bytes", bytes))
}

fn too_long(shared: &Shared, bytes: &str) -> Problem {
    let limit = shared.texts.prompt_bytes;
    let max_model_len = shared.options.limits.max_model_len;
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens, but the prompt has {bytes} bytes; no prompt of more than {limit} bytes fits, so it was not tokenised"
    );
    Problem::new(FailureKind::ContextLength, message)
        .with("max_prompt_bytes", limit)
        .with("max_model_len", max_model_len)
}
