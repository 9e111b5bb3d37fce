//! The seam between the harness and whatever decides what a step computes.

use crate::latency::Shape;

/// The id with which every output ends.
pub(crate) const END_OF_SEQUENCE: u32 = 0;
/// Ids that prompts and outputs are made of are below this, and above 0.
pub(crate) const VOCABULARY: u32 = 50_000;

/// A request as a scheduler sees it; how long its output will be it cannot see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Names the request in steps and outcomes; rises from submission to submission.
    pub submission: u64,
    /// Prompt ids, at least one.
    pub prompt: Vec<u32>,
    /// The most output tokens that the client asked for.
    pub max_tokens: u32,
    /// Whom the request belongs to, from 1.
    pub tenant: u64,
    /// Class of urgency, lower first; reference policies have none.
    pub priority: u8,
    /// When all output must be there, in nanoseconds; reference policies have no deadlines.
    pub deadline: Option<u64>,
    /// When the first token must be there.
    pub first_token_deadline: Option<u64>,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It could run, but not now.
    Overloaded(String),
    /// It can never run.
    Impossible(String),
}

/// What the next step computes.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What its time depends on.
    pub shape: Shape,
    /// Submissions that are sampled, in the order in which `complete` is given their ids.
    pub samples: Vec<u64>,
}

impl Step {
    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.shape = Shape::default();
        self.samples.clear();
    }
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// First admission, with this many prompt tokens from the prefix cache.
    Admitted {
        /// The request.
        submission: u64,
        /// Tokens found.
        cached: u32,
    },
    /// One more output token.
    Token {
        /// The request.
        submission: u64,
    },
    /// It lost its KV and will be computed again.
    Preempted {
        /// The request.
        submission: u64,
    },
    /// Its last outcome.
    Ended {
        /// The request.
        submission: u64,
        /// How.
        end: End,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With all of its output.
    Finished,
    /// By its client.
    Aborted,
    /// By one of its deadlines.
    Expired,
    /// In another way, which no request of a simulation should meet.
    Failed,
}

/// What a scheduler holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Admitted requests.
    pub running: u32,
    /// Requests that wait for admission.
    pub waiting: u32,
    /// Blocks that requests own.
    pub used_blocks: u32,
    /// All blocks.
    pub blocks: u32,
}

/// Decides what each step of one replica computes. Times are nanoseconds.
pub trait Scheduler {
    /// Takes a request and says by which ticket it can be aborted.
    ///
    /// # Errors
    /// [`Refusal`], with nothing changed.
    fn submit(&mut self, job: Job, now: u64) -> Result<u64, Refusal>;

    /// Ends a request; a ticket whose request has ended is ignored.
    fn abort(&mut self, ticket: u64, now: u64);

    /// Fills `step`, which is empty, with what is launched next. False: nothing can be.
    fn plan(&mut self, now: u64, step: &mut Step) -> bool;

    /// The oldest launched step has ended, took this long and sampled these ids.
    ///
    /// # Errors
    /// A broken rule in words.
    fn complete(&mut self, ids: &[u32], time_ns: u64, now: u64) -> Result<(), String>;

    /// Moves what happened since the last call to the end of `into`.
    fn take_outcomes(&mut self, into: &mut Vec<Outcome>);

    /// What it holds now.
    fn gauges(&self) -> Gauges;

    /// Recomputes every invariant; slow.
    ///
    /// # Errors
    /// The first violation in words.
    fn check(&self) -> Result<(), String>;
}
