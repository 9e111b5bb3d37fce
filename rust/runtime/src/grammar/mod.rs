//! Grammars: compiled before the core hears of a request, followed on threads of their own while it runs.

mod clerk;
mod desk;
mod masks;
mod wanted;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diptych_text::{Grammar, GrammarCompiler, Matcher};
use serde::Deserialize;

use crate::messages::Submission;
use crate::shared::lock;

use crate::grammar::clerk::Message;
pub(crate) use crate::grammar::clerk::run_clerk;
pub(crate) use crate::grammar::desk::MaskDesk;
use crate::grammar::masks::MaskJobs;
pub(crate) use crate::grammar::masks::{MASK_LIMIT, MaskDone, MaskJob, run_masks};
pub(crate) use crate::grammar::wanted::{CallParams, field, grammar};

/// Threads that compute masks: more than one, so that a slow grammar does not hold up the others.
pub(crate) const MASK_THREADS: usize = 2;

/// How an output must look, as a request says it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrammarParams {
    /// The field of the request that asks for it, for messages.
    pub(crate) field: String,
    #[serde(flatten)]
    source: Source,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    JsonObject(bool),
    JsonSchema(String),
    Regex(String),
    Choice(Vec<String>),
    Grammar(String),
}

impl GrammarParams {
    pub(crate) fn grammar(&self) -> Grammar {
        match self.source.clone() {
            Source::JsonObject(_) => Grammar::JsonObject,
            Source::JsonSchema(schema) => Grammar::JsonSchema(schema),
            Source::Regex(regex) => Grammar::Regex(regex),
            Source::Choice(choices) => Grammar::Choice(choices),
            Source::Grammar(lark) => Grammar::Lark(lark),
        }
    }
}

/// A request's matchers, one for each choice, and the mask that all of them begin with.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) matchers: Vec<Matcher>,
    pub(crate) mask: Vec<u32>,
}

/// What the threads of an engine share about grammars.
#[derive(Debug)]
pub(crate) struct Grammars {
    pub(crate) compiler: Arc<GrammarCompiler>,
    pub(crate) masks: MaskJobs,
    pub(crate) desk: Arc<MaskDesk>,
    sender: Sender<Message>,
    receiver: Mutex<Option<Receiver<Message>>>,
}

impl Grammars {
    pub(crate) fn new(compiler: GrammarCompiler) -> Self {
        let (sender, receiver) = channel();
        Self {
            compiler: Arc::new(compiler),
            masks: MaskJobs::default(),
            desk: Arc::default(),
            sender,
            receiver: Mutex::new(Some(receiver)),
        }
    }

    /// Has a request's grammar compiled and the request handed on; gives it back once closed.
    pub(crate) fn compile(&self, submission: Box<Submission>) -> Result<(), Box<Submission>> {
        self.sender
            .send(Message::Compile(submission))
            .map_err(|refused| match refused.0 {
                Message::Compile(submission) => submission,
                _ => unreachable!("it is what was sent"),
            })
    }

    /// Ends the clerk after it has failed what waits.
    pub(crate) fn close(&self) {
        // A clerk that was never started, or has left, needs no word.
        let _ = self.sender.send(Message::Close);
    }

    fn take_receiver(&self) -> Option<Receiver<Message>> {
        lock(&self.receiver).take()
    }

    /// Has the next masks of some choices computed.
    pub(crate) fn ask(&self, jobs: Vec<MaskJob>) {
        self.masks.push(jobs);
    }
}

/// A deliberate fault: what concerns this submission takes so many milliseconds longer.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Number of the request.
    pub submission: u64,
    /// Milliseconds.
    pub ms: u64,
}

/// Sleeps where a test asked for that.
fn delay(delay: Option<Delay>, submission: u64) {
    if let Some(delay) = delay.filter(|delay| delay.submission == submission) {
        std::thread::sleep(Duration::from_millis(delay.ms));
    }
}
