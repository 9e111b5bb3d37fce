//! What the threads of one engine tell each other.

use std::sync::Arc;
use std::time::Duration;

use diptych_core::explanation::Explanation;
use diptych_core::kv_events::KvEventsError;
use diptych_core::{Event, Request};
use diptych_text::Grammar;
use serde_json::{Map, Value};

use crate::arena::{Drawn, Score};
use crate::control::HostMessage;
use crate::engine::questions::{KvStored, KvTold};
use crate::frame::{Failure, FailureKind, Timings};
use crate::grammar::Compiled;
use crate::shared::{Open, Slot};
use crate::text::{Answer, ShownPrompt};

/// What the engine thread is told.
#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Submission>),
    Abort(u64),
    /// Masks were computed, or could not be, that no launched step waits for.
    Masks,
    /// Verdicts of the stop search.
    Acks(Vec<Verdict>),
    /// Ask the worker and put the answer into the slot.
    Ask(HostMessage, Arc<Slot<Vec<u8>>>),
    /// Why a request goes or went as it did.
    Explain(u64, Arc<Slot<Option<Explanation>>>),
    /// At most so many KV events from a number on.
    KvEvents {
        from: u64,
        limit: usize,
        slot: Arc<Slot<Result<KvTold, KvEventsError>>>,
    },
    KvSnapshot(Arc<Slot<KvStored>>),
    Close {
        limit: Duration,
    },
}

/// What the stop search says of one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) request: u64,
    pub(crate) choice: u32,
    /// Tokens searched.
    pub(crate) checked: u32,
    /// Where a stop string completed.
    pub(crate) stop_at: Option<u32>,
}

/// A request whose prompt is known.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) open: Arc<Open>,
    pub(crate) request: Request,
    /// What the output follows.
    pub(crate) grammar: Option<Grammar>,
    /// The same, once it is compiled.
    pub(crate) compiled: Option<Compiled>,
    /// One for each choice.
    pub(crate) answers: Vec<Answer>,
    /// Of the prompt, where something of it is wanted.
    pub(crate) shown: Option<ShownPrompt>,
    pub(crate) times: PromptTimes,
}

/// When a prompt was made ready, in nanoseconds; `rendered` is 0 where there is no conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptTimes {
    pub(crate) taken: u64,
    pub(crate) rendered: u64,
    pub(crate) tokenised: u64,
}

/// What the text thread is told.
#[derive(Debug)]
pub(crate) enum TextMessage {
    /// The core has taken a request.
    Accepted(Box<AcceptedStream>),
    /// What the core said at time `now`.
    Events {
        events: Vec<Event>,
        /// Of requests that ended and whose owners want to know why they went as they did.
        explanations: Vec<Explanation>,
        /// Log probabilities of tokens that asked for them; of some that the core dropped as well.
        scores: Vec<(Drawn, Score)>,
        now: u64,
    },
    /// A request cannot go on.
    Fail {
        request: u64,
        problem: Problem,
    },
    /// A request was aborted before the core had it.
    Aborted(u64),
    Close,
}

/// A request that the core has taken.
#[derive(Debug)]
pub(crate) struct AcceptedStream {
    pub(crate) open: Arc<Open>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) shown: Option<ShownPrompt>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) prompt_tokens: u32,
    pub(crate) prompt_ids: Option<Vec<u32>>,
    pub(crate) times: PromptTimes,
}

/// The part of a [`Failure`] that says what went wrong.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    pub(crate) details: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            details: Map::new(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn failure(self, timings: Timings, prompt_tokens: u32, completion: u32) -> Failure {
        Failure {
            kind: self.kind,
            message: self.message,
            details: self.details,
            timings: Timings {
                finished: crate::now_ns(),
                ..timings
            },
            prompt_tokens,
            completion_tokens: completion,
        }
    }
}
