//! Everything a core refuses.

/// A refused call. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A configuration that contradicts itself.
    #[error("{field} = {value} is not usable: {expected}")]
    Config {
        field: &'static str,
        value: String,
        expected: &'static str,
    },
    /// No token to compute.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    UnknownToken { id: u32, vocabulary: u32 },
    /// `max_tokens` is 0.
    #[error("max_tokens is 0: ask for at least one token")]
    NoOutput,
    /// A target of 0 for the gap between tokens.
    #[error("target_itl_ns is 0: give at least 1 nanosecond, or none")]
    NoTime,
    /// No such class of cached content.
    #[error("retention class {retention} does not exist: give 0 to {most}")]
    Retention { retention: u8, most: u8 },
    /// Longer than the model's context.
    #[error(
        "This model's maximum context length is {max_model_len} tokens, but {prompt} prompt tokens and max_tokens {max_tokens} make {}",
        u64::from(*prompt) + u64::from(*max_tokens)
    )]
    ContextLength {
        prompt: u32,
        max_tokens: u32,
        max_model_len: u32,
    },
    /// Could not run even alone.
    #[error(
        "{prompt} prompt tokens and max_tokens {max_tokens} need {needed} KV blocks of {block_size} tokens, the pool has {available}: shorten the request or enlarge kv_cache_bytes"
    )]
    NeverFits {
        prompt: u32,
        max_tokens: u32,
        block_size: u32,
        needed: u32,
        available: u32,
    },
    /// No choice, or more than could run at once.
    #[error("{choices} choices of one prompt: from 1 to max_running, which is {max_running}")]
    Choices { choices: u32, max_running: u32 },
    /// Choices that could not even begin alone.
    #[error(
        "{choices} choices of {prompt} prompt tokens need {needed} KV blocks of {block_size} tokens at once, the pool has {available}: ask for fewer or enlarge kv_cache_bytes"
    )]
    ChoicesNeverFit {
        choices: u32,
        prompt: u32,
        block_size: u32,
        needed: u32,
        available: u32,
    },
    /// More continuations than a step names for a beam.
    #[error(
        "beam search of width {width} with {stop_ids} stop ids looks at {needed} continuations of each beam, at most {most} are named: take a smaller width or fewer stop ids"
    )]
    BeamWidth {
        width: u32,
        stop_ids: u32,
        needed: u32,
        most: u32,
    },
    /// More of the likeliest ids than a step names for a row, or some where no log probability is wanted.
    #[error(
        "log probabilities of the {wanted} likeliest ids are wanted beside each sampled one, here at most {most}"
    )]
    TopLogprobs { wanted: u32, most: u32 },
    /// Something that beam search knows nothing of.
    #[error("beam search goes by the log probabilities alone: leave out {what}")]
    BeamSampling { what: &'static str },
    /// Penalty or bias data, or banned stop ids, that no step could carry.
    #[error(
        "the request's penalties, logit bias and stop ids banned by min_tokens need {needed} words of side data, a step carries {available}"
    )]
    SideData { needed: u32, available: u32 },
    /// The waiting queue is full. `retry_after_ns`: until one of them is likely to be admitted;
    /// `None` before any prompt had to wait.
    #[error("{waiting} requests wait already (max_queued_requests): retry later")]
    QueueFull {
        waiting: u32,
        retry_after_ns: Option<u64>,
    },
    /// The waiting prompts are too long together. `retry_after_ns`: until there is room for this
    /// one, if that can be told.
    #[error(
        "{queued} uncached prompt tokens wait already, with {tokens} more they exceed max_queued_tokens {limit}: retry later"
    )]
    QueuedTokens {
        queued: u64,
        tokens: u32,
        limit: u64,
        retry_after_ns: Option<u64>,
    },
    /// The first token would come too late. `retry_after_ns`: until it would not, with no more
    /// requests than now.
    #[error(
        "the first token is predicted after {predicted_ns} ns, the limit is {limit_ns} ns (max_ttft, or the request's own): retry later"
    )]
    FirstTokenTooLate {
        predicted_ns: u64,
        limit_ns: u64,
        retry_after_ns: u64,
    },
    /// A result of an epoch or step that is not the next to retire.
    #[error(
        "result of epoch {epoch} step {step}, expected epoch {expected_epoch} step {expected_step:?}"
    )]
    StaleResult {
        epoch: u64,
        step: u64,
        expected_epoch: u64,
        expected_step: Option<u64>,
    },
    /// A result whose row count is not the plan's.
    #[error("step {step} planned {planned} sampling rows, its result has {got}")]
    ResultRows {
        step: u64,
        planned: usize,
        got: usize,
    },
    /// A result with another number of continuations than the plan asks for.
    #[error("step {step} asks for {planned} continuations of beams, its result has {got}")]
    ResultCandidates {
        step: u64,
        planned: usize,
        got: usize,
    },
    /// The text side acknowledged more than was committed, or went backwards.
    #[error(
        "text acknowledged {checked} tokens, {committed} are committed and {previous} were acknowledged"
    )]
    TextAck {
        checked: u32,
        committed: u32,
        previous: u32,
    },
    /// A mask for a token that cannot be next, or of a request that is drawn without masks (`wanted` is
    /// false).
    #[error(
        "the mask of output {index} is said to be known: {committed} are committed, masks wanted is {wanted}"
    )]
    Mask {
        index: u32,
        committed: u32,
        wanted: bool,
    },
    /// `worker_lost` for another epoch, or with KV that this build cannot keep.
    #[error(
        "worker_lost(epoch {epoch}, kv_kept {kv_kept}) in epoch {current}: only the current epoch without kept KV can be lost"
    )]
    WorkerLost {
        epoch: u64,
        kv_kept: bool,
        current: u64,
    },
}
