//! The text side of one request.

use diptych_core::FinishReason as CoreReason;
use diptych_core::explanation::Explanation;

use crate::frame::{Accepted, Done, Failure, FailureKind, FinishReason, Finished, Frame, Timings};
use crate::messages::{AcceptedStream, Problem};
use crate::shared::empty_frame;
use crate::stats::Statistics;

/// Most entries in [`Finished::events`].
const MAX_EVENTS: usize = 64;

/// A request that the core has taken and the text side has not ended.
#[derive(Debug)]
pub(super) struct Stream {
    accepted: AcceptedStream,
    timings: Timings,
    last_token: u64,
    completion_tokens: u32,
    cached_tokens: u32,
    preemptions: u32,
    events: Vec<(u64, &'static str)>,
    frame: Frame,
    /// Whether this request's stop search has something to say to the core.
    unacknowledged: bool,
    /// How it ended on this side, where its owner is told only with what the core knows.
    ending: Option<Done>,
}

impl Stream {
    pub(super) fn new(mut accepted: AcceptedStream) -> Self {
        let mut frame = empty_frame(accepted.open.number);
        frame.accepted = Some(Accepted {
            prompt_tokens: accepted.prompt_tokens,
            prompt_ids: accepted.prompt_ids.take(),
        });
        let timings = Timings {
            arrived: accepted.open.arrived,
            tokenised: accepted.tokenised,
            ..Timings::default()
        };
        Self {
            accepted,
            timings,
            last_token: 0,
            completion_tokens: 0,
            cached_tokens: 0,
            preemptions: 0,
            events: Vec::new(),
            frame,
            unacknowledged: false,
            ending: None,
        }
    }

    /// Whether the owner wants to know why the request went as it did.
    pub(super) fn is_explained(&self) -> bool {
        self.accepted.open.params.explain
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

    pub(super) fn request(&self) -> u64 {
        self.accepted.open.number
    }

    pub(super) fn admitted(&mut self, cached: u32, now: u64, statistics: &mut Statistics) {
        self.cached_tokens = cached;
        self.timings.admitted = now;
        statistics.admitted(&self.timings);
        statistics.prompt_tokens += u64::from(self.accepted.prompt_tokens);
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

    /// Takes a token. `Some`: a stop string completed, the request is over.
    pub(super) fn token(
        &mut self,
        token: u32,
        now: u64,
        statistics: &mut Statistics,
    ) -> Option<Done> {
        if self.completion_tokens == 0 {
            self.timings.first_token = now;
            statistics.first_token(&self.timings);
        } else {
            statistics.next_token(now.saturating_sub(self.last_token));
        }
        self.last_token = now;
        self.completion_tokens += 1;
        self.frame.token_ids.push(token);
        self.unacknowledged = self.has_stop_strings();
        if self.accepted.stop_ids.contains(&token) {
            self.accepted.stream.push_hidden(token);
            return None;
        }
        let found = self
            .accepted
            .stream
            .push(token, &mut self.frame.text)?
            .stop_index;
        Some(self.finished(FinishReason::Stop, Some(found), None))
    }

    fn has_stop_strings(&self) -> bool {
        !self.accepted.open.params.stop.is_empty()
    }

    /// The core has ended the request, provisionally: what is still held back may complete a stop string.
    pub(super) fn ended(&mut self, reason: CoreReason) -> Done {
        let found = self.accepted.stream.finish(&mut self.frame.text);
        if let Some(found) = found {
            return self.finished(FinishReason::Stop, Some(found.stop_index), None);
        }
        let stop_token = match reason {
            CoreReason::StopToken(id) => {
                let given = &self.accepted.open.params.stop_token_ids;
                Some(id).filter(|id| given.contains(id))
            }
            _ => None,
        };
        match reason {
            CoreReason::StopToken(_) => self.finished(FinishReason::Stop, None, stop_token),
            // This side told the core of the stop string and ended the request then.
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
        let _ = self.accepted.stream.finish(&mut self.frame.text);
        self.failed(problem)
    }

    /// As [`Self::fail`], leaving the text alone.
    pub(super) fn failed(&self, problem: Problem) -> Done {
        let prompt_tokens = self.accepted.prompt_tokens;
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
        let stops = &self.accepted.open.params.stop;
        Done::Finished(Finished {
            reason,
            stop_string: stop_index.map(|index| stops[index].clone()),
            stop_token,
            prompt_tokens: self.accepted.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.cached_tokens,
            timings: self.timings,
            preemptions: self.preemptions,
            events: std::mem::take(&mut self.events),
        })
    }

    /// The verdict on the tokens so far, once.
    pub(super) fn take_ack(&mut self, stopped: bool) -> Option<(u64, u32, Option<u32>)> {
        if !std::mem::take(&mut self.unacknowledged) {
            return None;
        }
        let checked = self.completion_tokens;
        Some((self.request(), checked, stopped.then_some(checked)))
    }

    /// What happened since the last call.
    pub(super) fn take_frame(&mut self) -> Frame {
        let next = empty_frame(self.request());
        std::mem::replace(&mut self.frame, next)
    }

    /// Gives what happened since the last call to the reader.
    pub(super) fn flush(&mut self) {
        let frame = self.take_frame();
        if frame.accepted.is_some() || !frame.token_ids.is_empty() || !frame.text.is_empty() {
            self.accepted.open.queue.add(frame);
        }
    }
}
