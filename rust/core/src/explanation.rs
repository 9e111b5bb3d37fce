//! What can be told about one request: why it waited, what the cache gave, what each step gave it.

use serde::Serialize;

use crate::reason::{ChunkLimit, MatchEnd, PreemptCause, WaitReason};

/// Everything that is known of why a request went as it did. Times are the core's nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The request's own number.
    pub submission: u64,
    /// Which of its outputs, from 0.
    pub choice: u32,
    /// When it was submitted.
    pub submitted: u64,
    /// When it ended; `None` while it is open.
    pub ended: Option<u64>,
    /// What it is kept from computing by now, if it is.
    pub waiting_for: Option<WaitReason>,
    /// What each limit cost it, those that cost nothing left out.
    pub waits: Vec<Wait>,
    /// What the prefix cache gave at the first admission; `None` before.
    pub cache: Option<CacheLookup>,
    /// Its chunks of prompt (and of output computed again) by what bounded them.
    pub chunks: Vec<Chunks>,
    /// How often it lost its blocks, by cause.
    pub preemptions: Vec<Preemptions>,
    /// The newest decisions, oldest first.
    pub decisions: Vec<Decision>,
    /// Older decisions that are only counted above.
    pub forgotten: u64,
}

/// What one limit cost a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The limit.
    pub reason: WaitReason,
    /// Nanoseconds.
    pub ns: u64,
    /// Plans that were made without the request because of it.
    pub steps: u64,
}

/// What the prefix cache gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheLookup {
    /// Tokens that were looked up.
    pub queried: u32,
    /// Tokens that were found.
    pub cached: u32,
    /// Why no more.
    pub end: MatchEnd,
}

/// Chunks that one limit bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// The limit.
    pub limit: ChunkLimit,
    /// How many.
    pub chunks: u32,
    /// Their tokens together.
    pub tokens: u64,
}

/// Losses of blocks by one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Preemptions {
    /// The cause.
    pub cause: PreemptCause,
    /// How often.
    pub count: u32,
}

/// One thing that the core decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The step that was being planned, or that had been planned last.
    pub step: u64,
    /// When.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub what: Decided,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Decided {
    /// It got a row and blocks; this many of its tokens were found in the prefix cache.
    Admitted { cached: u32 },
    /// A step computes `tokens` from position `start` on; it had `budget` tokens left for them.
    Chunk {
        start: u32,
        tokens: u32,
        budget: u32,
        limit: ChunkLimit,
    },
    /// It lost its blocks with the KV of `computed` tokens.
    Preempted { cause: PreemptCause, computed: u32 },
}
