//! The text side of one request.

use std::sync::Arc;

use diptych_core::FinishReason as CoreReason;
use diptych_core::explanation::Explanation;

use crate::arena::Score;
use crate::frame::{
    Accepted, Done, Failure, FailureKind, FinishReason, Finished, Frame, NamedLogprob, Timings,
    TokenLogprobs,
};
use crate::grammar::CallParams;
use crate::messages::{AcceptedStream, Problem, Verdict};
use crate::shared::{Open, empty_frame};
use crate::stats::Statistics;
use crate::text::answer::Answer;
use crate::text::shown_prompt::ShownPrompt;

/// Most entries in [`Finished::events`].
const MAX_EVENTS: usize = 64;

/// A choice that the core has taken and the text side has not ended.
#[derive(Debug)]
pub(super) struct Stream {
    open: Arc<Open>,
    choice: u32,
    answer: Answer,
    stop_ids: Arc<[u32]>,
    prompt_tokens: u32,
    timings: Timings,
    last_token: u64,
    completion_tokens: u32,
    sum_logprobs: f64,
    /// What is still to be told of the prompt.
    prompt: Option<ShownPrompt>,
    /// Of the token that comes next.
    score: Option<Score>,
    /// Characters of the text so far, without what is held back.
    characters: usize,
    cached_tokens: u32,
    preemptions: u32,
    events: Vec<(u64, &'static str)>,
    frame: Frame,
    /// Whether this side has ended the request, and the core must hear of it.
    is_cut: bool,
    /// Whether this request's stop search has something to say to the core.
    unacknowledged: bool,
    /// How it ended on this side, where its owner is told only with what the core knows.
    ending: Option<Done>,
}

impl Stream {
    /// One for each choice; the first one's first frame says that the request was taken.
    pub(super) fn of(accepted: AcceptedStream) -> Vec<Self> {
        let stop_ids: Arc<[u32]> = accepted.stop_ids.into();
        let timings = Timings {
            arrived: accepted.open.arrived,
            prompt_taken: accepted.times.taken,
            rendered: accepted.times.rendered,
            tokenised: accepted.times.tokenised,
            ..Timings::default()
        };
        let prompt_tokens = accepted.prompt_tokens;
        let answers = (0..).zip(accepted.answers);
        let mut streams: Vec<Self> = answers
            .map(|(choice, answer)| {
                let (open, stop_ids) = (Arc::clone(&accepted.open), Arc::clone(&stop_ids));
                Self::new((open, choice), answer, stop_ids, (prompt_tokens, timings))
            })
            .collect();
        let params = &accepted.open.params;
        let text = accepted.shown.as_ref().map(|shown| shown.text.clone());
        if params.prompt_logprobs.is_some() {
            for stream in &mut streams {
                stream.prompt.clone_from(&accepted.shown);
            }
        }
        streams[0].frame.accepted = Some(Accepted {
            prompt_tokens,
            prompt_ids: accepted.prompt_ids,
            prompt_text: text.filter(|_| params.return_prompt_text),
        });
        streams
    }

    fn new(
        (open, choice): (Arc<Open>, u32),
        answer: Answer,
        stop_ids: Arc<[u32]>,
        (prompt_tokens, timings): (u32, Timings),
    ) -> Self {
        let frame = empty_frame(open.number, choice);
        Self {
            open,
            choice,
            answer,
            stop_ids,
            prompt_tokens,
            timings,
            last_token: 0,
            completion_tokens: 0,
            sum_logprobs: 0.0,
            prompt: None,
            score: None,
            characters: 0,
            cached_tokens: 0,
            preemptions: 0,
            events: Vec::new(),
            frame,
            is_cut: false,
            unacknowledged: false,
            ending: None,
        }
    }

    /// Whether the owner wants to know why the request went as it did.
    pub(super) fn is_explained(&self) -> bool {
        self.open.params.explain
    }

    /// What the core knows of its way, told with its end.
    pub(super) fn explain(&mut self, explanation: Explanation) {
        self.frame.explanation = Some(Box::new(explanation));
    }

    /// It has ended on this side; what still comes of it is the core's explanation.
    pub(super) fn end_with_explanation(&mut self, done: Done) {
        self.ending = Some(done);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    pub(super) fn take_ending(&mut self) -> Option<Done> {
        self.ending.take()
    }

    pub(super) fn key(&self) -> (u64, u32) {
        (self.open.number, self.choice)
    }

    pub(super) fn choices(&self) -> u32 {
        self.open.params.n
    }

    pub(super) fn admitted(&mut self, cached: u32, now: u64, statistics: &mut Statistics) {
        self.cached_tokens = cached;
        self.timings.admitted = now;
        // All choices are admitted at once, with one prompt.
        if self.choice == 0 {
            statistics.admitted(&self.timings);
            statistics.prompt_tokens += u64::from(self.prompt_tokens);
        }
    }

    pub(super) fn preempted(&mut self, now: u64) {
        self.preemptions += 1;
        self.note(now, "preempted");
    }

    pub(super) fn restarted(&mut self, now: u64) {
        self.note(now, "worker_restarted");
    }

    fn note(&mut self, now: u64, event: &'static str) {
        if self.events.len() < MAX_EVENTS {
            self.events.push((now, event));
        }
    }

    /// Takes a token. `Some`: a stop string or the last tool call is complete, the request is over.
    pub(super) fn token(
        &mut self,
        token: u32,
        now: u64,
        statistics: &mut Statistics,
    ) -> Option<Done> {
        if self.completion_tokens == 0 {
            self.timings.first_token = now;
            // The request's first token: those of all choices come from one step.
            if self.choice == 0 {
                statistics.first_token(&self.timings);
            }
        } else {
            statistics.next_token(now.saturating_sub(self.last_token));
        }
        self.last_token = now;
        if let Some(mut prompt) = self.prompt.take() {
            match prompt.take_logprobs() {
                Some(logprobs) => self.frame.prompt_logprobs = logprobs,
                None => return Some(self.ended(CoreReason::NanLogits)),
            }
        }
        if self.open.params.drops_output() {
            return None;
        }
        self.completion_tokens += 1;
        self.frame.token_ids.push(token);
        self.take_logprobs(token);
        self.unacknowledged = self.open.params.may_end_early();
        if self.completion_tokens > self.least_tokens() && self.stop_ids.contains(&token) {
            self.answer.push_hidden(token);
            return None;
        }
        let known = self.frame.text.len();
        let stop = self.answer.push(token, &mut self.frame);
        if self.open.params.logprobs.is_some() {
            self.characters += self.frame.text[known..].chars().count();
        }
        if stop.is_none() && !self.answer.is_complete() {
            return None;
        }
        self.is_cut = true;
        self.answer.finish(&mut self.frame);
        let stop_index = stop.map(|stop| stop.stop_index);
        Some(self.finished(FinishReason::Stop, stop_index, None))
    }

    /// Output tokens before which a stop id ends nothing: a grammar's masks leave such ids out as long as they can.
    fn least_tokens(&self) -> u32 {
        let params = &self.open.params;
        if params.follows_grammar() {
            0
        } else {
            params.min_tokens
        }
    }

    pub(super) fn score_prompt(&mut self, position: u32, score: &Score) {
        if let Some(prompt) = &mut self.prompt {
            prompt.score(position, score.clone());
        }
    }

    /// The log probabilities of the token that comes next.
    pub(super) fn score(&mut self, score: Score) {
        self.sum_logprobs += f64::from(score.logprob);
        self.score = Some(score);
    }

    /// Adds what is wanted of a token's log probabilities to the frame.
    fn take_logprobs(&mut self, token: u32) {
        let score = self.score.take();
        if self.open.params.logprobs.is_none() {
            return;
        }
        let score = score.expect("rows that ask for log probabilities get them");
        let named = |(id, logprob)| NamedLogprob {
            id,
            logprob,
            bytes: self.answer.bytes_of(id).to_vec(),
        };
        let logprobs = TokenLogprobs {
            offset: self.characters + self.answer.num_held_back(),
            token: named((token, score.logprob)),
            likeliest: score.likeliest.into_iter().map(named).collect(),
        };
        self.frame.logprobs.push(logprobs);
    }

    fn mean_logprob(&self) -> Option<f64> {
        let wanted = self.open.params.mean_logprob && self.completion_tokens > 0;
        wanted.then(|| self.sum_logprobs / f64::from(self.completion_tokens))
    }

    /// Whether this side has ended the request by a token that the core knows, before the core did.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The core has ended the request, provisionally: what is still held back may complete a stop string.
    pub(super) fn ended(&mut self, reason: CoreReason) -> Done {
        if let Some(found) = self.answer.finish(&mut self.frame) {
            self.is_cut = true;
            return self.finished(FinishReason::Stop, Some(found.stop_index), None);
        }
        let reason = match reason {
            CoreReason::StopToken(_) if self.open.params.drops_output() => CoreReason::Length,
            reason => reason,
        };
        let stop_token = match reason {
            CoreReason::StopToken(id) => {
                let given = &self.open.params.stop_token_ids;
                Some(id).filter(|id| given.contains(id))
            }
            _ => None,
        };
        match reason {
            CoreReason::StopToken(_) => self.finished(FinishReason::Stop, None, stop_token),
            // This side told the core of the end and ended the request then.
            CoreReason::StopString => self.finished(FinishReason::Stop, None, None),
            CoreReason::Length => self.finished(FinishReason::Length, None, None),
            CoreReason::Timeout if self.completion_tokens > 0 => {
                self.finished(FinishReason::Timeout, None, None)
            }
            CoreReason::Timeout => self.failed(Problem::new(
                FailureKind::Timeout,
                "the request's timeout passed before its first token",
            )),
            CoreReason::FirstTokenTimeout => self.failed(Problem::new(
                FailureKind::TtftTimeout,
                "the request's ttft_timeout passed before its first token",
            )),
            CoreReason::Aborted => self.finished(FinishReason::Abort, None, None),
            CoreReason::NanLogits => self.failed(Problem::new(
                FailureKind::NanLogits,
                "the model computed NaN for this request",
            )),
            CoreReason::BadToken => self.failed(Problem::new(
                FailureKind::BadToken,
                "the worker sampled a token id outside the vocabulary for this request",
            )),
            CoreReason::WorkerDied => self.failed(Problem::new(
                FailureKind::WorkerDied,
                "the worker died twice while this was the only request that it computed",
            )),
        }
    }

    /// The request cannot go on: what is held back belongs to it still.
    pub(super) fn fail(&mut self, problem: Problem) -> Done {
        let _ = self.answer.finish(&mut self.frame);
        self.failed(problem)
    }

    /// As [`Self::fail`], leaving the text alone.
    pub(super) fn failed(&self, problem: Problem) -> Done {
        let prompt_tokens = self.prompt_tokens;
        let failure: Failure = problem.failure(self.timings, prompt_tokens, self.completion_tokens);
        Done::Failed(failure)
    }

    fn finished(
        &mut self,
        reason: FinishReason,
        stop_index: Option<usize>,
        stop_token: Option<u32>,
    ) -> Done {
        self.timings.finished = crate::now_ns();
        let named = self.open.params.calls.as_ref();
        let ends_for_calls =
            self.answer.has_whole_calls() && !named.is_some_and(CallParams::names_one);
        let reason = match reason {
            FinishReason::Stop if ends_for_calls => FinishReason::ToolCalls,
            reason => reason,
        };
        let stops = &self.open.params.stop;
        Done::Finished(Finished {
            reason,
            stop_string: stop_index.map(|index| stops[index].clone()),
            stop_token,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.cached_tokens,
            mean_logprob: self.mean_logprob(),
            reasoning_tokens: self.answer.reasoning_tokens(),
            timings: self.timings,
            preemptions: self.preemptions,
            events: std::mem::take(&mut self.events),
        })
    }

    /// The verdict on the tokens so far, once.
    pub(super) fn take_ack(&mut self, stopped: bool) -> Option<Verdict> {
        if !std::mem::take(&mut self.unacknowledged) {
            return None;
        }
        let checked = self.completion_tokens;
        Some(Verdict {
            request: self.open.number,
            choice: self.choice,
            checked,
            stop_at: stopped.then_some(checked),
        })
    }

    /// What happened since the last call.
    pub(super) fn take_frame(&mut self) -> Frame {
        let next = empty_frame(self.open.number, self.choice);
        std::mem::replace(&mut self.frame, next)
    }

    /// Gives what happened since the last call to the reader.
    pub(super) fn flush(&mut self) {
        let frame = self.take_frame();
        if frame.has_news() {
            self.open.queue.add(frame);
        }
    }
}
