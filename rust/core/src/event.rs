//! What a core tells its caller.

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop id was sampled.
    StopToken(u32),
    /// The text side found a stop string.
    StopString,
    /// `max_tokens` were sampled.
    Length,
    /// The caller aborted.
    Aborted,
    /// The request's deadline passed; what there was of its output stands.
    Timeout,
    /// The deadline of its first token passed, and there was none.
    FirstTokenTimeout,
    /// The worker computed NaN for this request.
    NanLogits,
    /// The worker sampled an impossible id for this request.
    BadToken,
    /// The worker died twice while this was the only unretired request.
    WorkerDied,
}

/// One thing that happened to one choice of one request, in order. `submission` is the request's
/// own number, `choice` counts its outputs from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// First admission, of all choices at once: `cached` prompt tokens came from the prefix cache.
    Admitted { submission: u64, cached: u32 },
    /// Output token `index` (from 0) was committed.
    Token {
        submission: u64,
        choice: u32,
        index: u32,
        token: u32,
    },
    /// Blocks were taken from the choice; it waits and is computed again. The first choice stands
    /// for all as long as they share its prefill.
    Preempted { submission: u64, choice: u32 },
    /// The worker was lost while the choice was open; it is computed again.
    Requeued { submission: u64, choice: u32 },
    /// The last event of a choice. With stop strings, `StopToken` and `Length` are provisional: the text side settles them.
    Finished {
        submission: u64,
        choice: u32,
        reason: FinishReason,
    },
}

/// Counters since the core was built, and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Choices of admitted requests that are neither finished nor waiting again.
    pub running: u32,
    /// Choices that wait for admission.
    pub waiting: u32,
    /// Uncached prompt tokens that wait for admission.
    pub waiting_tokens: u64,
    /// Blocks of the pool without the null block.
    pub blocks: u32,
    /// Blocks that requests own or a launched step may still touch.
    pub used_blocks: u32,
    /// Unowned blocks that the prefix index can still find.
    pub cached_blocks: u32,
    /// Prompt tokens looked up at first admissions.
    pub prefix_queries: u64,
    /// Prompt tokens found at first admissions.
    pub prefix_hits: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Requests that were preempted at least once.
    pub preempted_requests: u64,
    /// Times that a request waited for another one to compute what both share.
    pub deferrals: u64,
    /// Steps planned.
    pub steps: u64,
    /// Committed output tokens.
    pub generated: u64,
    /// Median of the last few thousand gaps between tokens, in nanoseconds; 0 before there was one.
    pub itl_p50_ns: u64,
    /// The gap that 99 of 100 of these do not exceed, in nanoseconds.
    pub itl_p99_ns: u64,
    /// Tokens of requests with a target, first ones left out.
    pub paced_tokens: u64,
    /// Those of them that came later than k targets after their request's first token.
    pub late_tokens: u64,
    /// Waiting requests that were looked at, each as often as it was: the work of admission.
    pub considered: u64,
    /// Requests refused because too many waited.
    pub refused_queue_full: u64,
    /// Requests refused because too many tokens waited.
    pub refused_queued_tokens: u64,
    /// Requests refused because their first token would have come too late.
    pub refused_first_token: u64,
    /// Requests that waited when one of their deadlines passed.
    pub expired_waiting: u64,
    /// Requests that ran when one of their deadlines passed.
    pub expired_running: u64,
}
