//! Where a worker is between its start and its end, and what the engine thread hears of it.

use std::time::Instant;

use serde_json::Value;

use crate::engine::Ready;
use crate::engine::link::Link;

/// What the engine thread has to act on.
#[derive(Debug)]
pub(super) enum Change {
    /// The worker takes steps.
    Ready(Ready),
    /// The worker has ended and was collected.
    Ended(Box<Link>, End),
    /// No worker could be started.
    NotStarted(End),
}

/// Why and how a worker ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Exception class, or a name of ours.
    pub(super) class: String,
    pub(super) message: String,
    /// Whether it was ready before.
    pub(super) served: bool,
    /// Whether its last results may be used.
    pub(super) trusted: bool,
    pub(super) noticed: Instant,
}

/// Where a worker is between its start and its end.
#[derive(Debug)]
pub(super) enum State {
    /// No worker, and none will be started.
    Stopped(String),
    Waiting(Instant),
    Starting {
        link: Box<Link>,
        began: Instant,
        hello: Option<Hello>,
    },
    Running(Box<Link>),
    /// A worker that cannot be replaced finishes what was launched, then is asked to forget it.
    Resetting {
        link: Box<Link>,
        asked: bool,
    },
    Dying(Box<Link>, End),
}

/// A worker's description of itself, checked.
#[derive(Debug)]
pub(super) struct Hello {
    pub(super) said: Instant,
    pub(super) info: Value,
    pub(super) num_blocks: u32,
}

/// Whether [`super::supervisor::Supervisor::advance`] has to look once more before it answers.
pub(super) enum Look {
    Again,
    Done(Option<Change>),
}

impl End {
    pub(super) fn new(class: &str, message: impl Into<String>, served: bool) -> Self {
        Self {
            class: class.to_owned(),
            message: message.into(),
            served,
            trusted: served,
            noticed: Instant::now(),
        }
    }
}
