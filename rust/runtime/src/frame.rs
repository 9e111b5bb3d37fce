//! What a caller gets back about its requests.

use diptych_core::explanation::Explanation;
use diptych_text::{AnswerDelta, CallDelta, merge_calls};

/// Everything that happened to one request since the last drain, merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// Number that `submit` returned.
    pub request: u64,
    /// Which of the prompt's outputs, from 0. What ends a request before the core has taken it, and a failure, ends all of them.
    pub choice: u32,
    /// Set once, in the first frame of choice 0, when the core has taken the request.
    pub accepted: Option<Accepted>,
    /// New text.
    pub text: String,
    /// New text of the model's reasoning, where that is told apart.
    pub reasoning: String,
    /// New tool calls, and more of the arguments of earlier ones.
    pub calls: Vec<CallDelta>,
    /// New output token ids.
    pub token_ids: Vec<u32>,
    /// For each of them, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// For each token of the prompt, if asked for: once, with the choice's first token or its end. Of the first token, which nothing
    /// precedes, it is 0.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Set once, in the choice's last frame.
    pub done: Option<Done>,
    /// Why it went as it did: with `done`, if that was asked for and the core has had the request.
    pub explanation: Option<Box<Explanation>>,
}

impl Frame {
    /// Adds what is new of the answer.
    pub(crate) fn add(&mut self, delta: AnswerDelta) {
        self.text.push_str(&delta.text);
        self.reasoning.push_str(&delta.reasoning);
        merge_calls(&mut self.calls, delta.calls);
    }

    /// Whether it tells anything but an end.
    pub(crate) fn has_news(&self) -> bool {
        self.accepted.is_some()
            || !self.token_ids.is_empty()
            || !self.prompt_logprobs.is_empty()
            || !self.text.is_empty()
            || !self.reasoning.is_empty()
            || !self.calls.is_empty()
    }
}

/// A token and its log probability: the model's own, before penalties, bias and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedLogprob {
    /// Its id.
    pub id: u32,
    /// Natural logarithm.
    pub logprob: f32,
    /// What the token is where others precede it; possibly a part of a character.
    pub bytes: Vec<u8>,
}

/// An output token and what else was likely in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Whole characters of the output's text before the token, if no stop string cuts it.
    pub offset: usize,
    /// The token.
    pub token: NamedLogprob,
    /// The likeliest ids, best first, as many as asked for.
    pub likeliest: Vec<NamedLogprob>,
}

/// The core has taken a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Length of the prompt in tokens.
    pub prompt_tokens: u32,
    /// The prompt's ids, if asked for.
    pub prompt_ids: Option<Vec<u32>>,
    /// The prompt's text, if asked for.
    pub prompt_text: Option<String>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// As its caller meant it to, or by abort.
    Finished(Finished),
    /// Otherwise.
    Failed(Failure),
}

/// Why a finished request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// End of sequence, stop id or stop string.
    Stop,
    /// The same, of an answer with tool calls that are complete. Where the caller named the function to call it is [`Self::Stop`],
    /// as in OpenAI's API.
    ToolCalls,
    /// `max_tokens` reached.
    Length,
    /// `timeout` passed; what there is of the output stands.
    Timeout,
    /// Aborted by the caller.
    Abort,
}

impl FinishReason {
    /// `"stop"`, `"tool_calls"`, `"length"`, `"timeout"` or `"abort"`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Timeout => "timeout",
            Self::Abort => "abort",
        }
    }
}

/// Times of a request in nanoseconds of `CLOCK_MONOTONIC`; 0 where it did not come that far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// As given to `submit`.
    pub arrived: u64,
    /// A thread took the prompt to make ids of it.
    pub prompt_taken: u64,
    /// The chat template was rendered.
    pub rendered: u64,
    /// Prompt ids known.
    pub tokenised: u64,
    /// First admitted to a step.
    pub admitted: u64,
    /// First output token committed.
    pub first_token: u64,
    /// Ended.
    pub finished: u64,
}

/// The end of a request that did what it was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// The stop string that was found.
    pub stop_string: Option<String>,
    /// The id of `stop_token_ids` that was sampled; `None` for an end-of-sequence id.
    pub stop_token: Option<u32>,
    /// Length of the prompt in tokens.
    pub prompt_tokens: u32,
    /// Output tokens, a stop id included.
    pub completion_tokens: u32,
    /// Prompt tokens found in the prefix cache at first admission.
    pub cached_tokens: u32,
    /// Mean log probability of the output tokens, if asked for.
    pub mean_logprob: Option<f64>,
    /// Output tokens that were reasoning, its tags included, where that is told apart.
    pub reasoning_tokens: Option<u32>,
    /// When.
    pub timings: Timings,
    /// How often its blocks were taken and its tokens computed again.
    pub preemptions: u32,
    /// The first 64 of: time in nanoseconds and `"preempted"` or `"worker_restarted"`.
    pub events: Vec<(u64, &'static str)>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Empty prompt, or an id outside the vocabulary.
    InvalidPrompt,
    /// Prompt and `max_tokens` exceed the context.
    ContextLength,
    /// The KV pool could not hold it even alone.
    NeverFits,
    /// Too many open requests.
    QueueFull,
    /// Too many open requests of one tenant.
    TenantQueueFull,
    /// Too many prompt tokens wait.
    QueuedTokens,
    /// The first token would come later than `max_ttft_ms`, or than the request can wait.
    TooLate,
    /// `timeout` passed before the first token.
    Timeout,
    /// `ttft_timeout` passed before the first token.
    TtftTimeout,
    /// The chat template refused the messages.
    Template,
    /// The tokenizer refused the text.
    Tokenizer,
    /// A parameter that only the core could judge.
    InvalidParameter,
    /// A grammar that is none, or too much work.
    InvalidGrammar,
    /// The output could not go on under its grammar: that took too much work.
    GrammarFailed,
    /// Too many grammars are being compiled.
    GrammarsBusy,
    /// The model computed NaN for this request.
    NanLogits,
    /// The worker sampled an impossible id for this request.
    BadToken,
    /// The worker died on this request, or cannot be started again.
    WorkerDied,
    /// The worker cannot go on.
    WorkerFailed,
    /// A bug in the engine.
    EnginePanicked,
    /// The engine was closed.
    EngineClosed,
}

impl FailureKind {
    /// Its name in `snake_case`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidPrompt => "invalid_prompt",
            Self::ContextLength => "context_length",
            Self::NeverFits => "never_fits",
            Self::QueueFull => "queue_full",
            Self::TenantQueueFull => "tenant_queue_full",
            Self::QueuedTokens => "queued_tokens",
            Self::TooLate => "too_late",
            Self::Timeout => "timeout",
            Self::TtftTimeout => "ttft_timeout",
            Self::Template => "template",
            Self::Tokenizer => "tokenizer",
            Self::InvalidParameter => "invalid_parameter",
            Self::InvalidGrammar => "invalid_grammar",
            Self::GrammarFailed => "grammar_failed",
            Self::GrammarsBusy => "grammars_busy",
            Self::NanLogits => "nan_logits",
            Self::BadToken => "bad_token",
            Self::WorkerDied => "worker_died",
            Self::WorkerFailed => "worker_failed",
            Self::EnginePanicked => "engine_panicked",
            Self::EngineClosed => "engine_closed",
        }
    }
}

/// The end of a request that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What was wrong and what to do.
    pub message: String,
    /// Numbers for machines: a JSON object.
    pub details: serde_json::Map<String, serde_json::Value>,
    /// When.
    pub timings: Timings,
    /// Length of the prompt in tokens, 0 if not known.
    pub prompt_tokens: u32,
    /// Output tokens delivered.
    pub completion_tokens: u32,
}
