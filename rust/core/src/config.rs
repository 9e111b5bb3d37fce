//! What a core is built with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How a block's content is hashed for lookup. A hit is verified token by token, so the choice
/// affects speed only; the degenerate modes exist to test exactly that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashMode {
    /// Keyed with a value that the host draws once per process.
    Keyed(u64),
    /// Every block has the same hash.
    Constant,
    /// The hash of a block is its first token.
    FirstToken,
}

/// In which order the prompts of one tenant and class are computed.
///
/// Between classes and tenants it changes nothing. Whatever the order, a request that was bypassed
/// by 32 later ones, or is a minute old, goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillOrder {
    /// In order of arrival.
    #[default]
    Fcfs,
    /// Least to compute first, what the prefix cache has not counted.
    ShortestUncached,
    /// What the prefix cache has most tokens of first.
    LongestCachedPrefix,
}

/// When a waiting request gets memory. Always all of its known tokens' blocks are taken at once,
/// never those of a first chunk, and one more must be free for its first output.
///
/// A request that was preempted twice must run: it is admitted for all of its `max_tokens`, and
/// others are preempted before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Nothing more is asked: what outputs will need is met by preemption.
    WholePrompt,
    /// The running requests and the new one must fit at the worst moment that is predicted from the
    /// lengths of earlier outputs. The quantile that predictions take is steered by preemptions.
    PredictedPeak {
        /// Preempted requests aimed at, in parts per thousand of all: 1 to 500.
        preempted_per_mille: u32,
        /// Blocks left free at that moment, in parts per thousand of the pool: at most 500.
        watermark_per_mille: u32,
    },
    /// All running requests must fit with all of their `max_tokens`: nobody is ever preempted.
    NoEviction,
}

impl Default for Admission {
    /// Predicted peak, five preempted requests in a thousand, one percent of the pool left free.
    fn default() -> Self {
        Self::PredictedPeak {
            preempted_per_mille: 5,
            watermark_per_mille: 10,
        }
    }
}

/// Which cached block is given up for a new one. Owned blocks never are, and no block before what
/// follows it. A request's `retention` comes first under every policy, its `cache_ttl_ns` too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    /// The one whose last use is longest ago.
    #[default]
    Lru,
    /// The same; besides, what was stored by requests that name no time to live is forgotten this
    /// long after its last use.
    LruWithTtl {
        /// Nanoseconds.
        ttl_ns: u64,
    },
    /// The one that was used least often lately, by powers of two of uses; among equals the one whose
    /// last use is longest ago. Uses are counted in a sketch of 4-bit counters that remembers what
    /// was evicted and fades (see `frequency`).
    FrequencyGuarded,
}

/// Sizes and limits of a [`crate::Core`], checked together by [`crate::Core::new`].
///
/// Stored by the names of its fields; one that is not there has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CoreConfig {
    /// Tokens per KV block: a power of two, 1 to 256.
    pub block_size: u32,
    /// Blocks of the worker's pool, the null block (id 0) included; at least 2.
    pub num_blocks: u32,
    /// Worker state rows: requests that may be admitted at once. At most `max_batched_tokens`.
    pub max_running: u32,
    /// Tokens per step, prefill and decode together.
    pub max_batched_tokens: u32,
    /// Cap on prefill tokens per step; `None` is unbounded.
    pub max_prefill_tokens: Option<u32>,
    /// Prefill tokens that are computed together well: chunks that time cuts short, and shares of a
    /// step, are multiples of it. At least 1; 16 suits CPUs, 64 GPUs.
    pub prefill_tile: u32,
    /// Target for the gap between two tokens of a request that has none of its own, in nanoseconds;
    /// at least 1. `None`: steps are bounded by their tokens alone.
    pub target_itl_ns: Option<u64>,
    /// Longest prompt + output of a request, in tokens.
    pub max_model_len: u32,
    /// Requests that may wait for admission; one more is refused.
    pub max_queued_requests: u32,
    /// Uncached prompt tokens that may wait for admission; a request that would exceed them is
    /// refused unless nobody waits. `None` is unbounded.
    pub max_queued_tokens: Option<u64>,
    /// A request whose first token is predicted to come later after its submission than this is
    /// refused, in nanoseconds; `None`: however late.
    pub max_ttft_ns: Option<u64>,
    /// Order of prompts within a tenant and class.
    pub prefill_order: PrefillOrder,
    /// Shares of tenants in thousandths, 10 to 100,000; 1,000 for those who are not named.
    pub tenant_weights: BTreeMap<u64, u32>,
    /// Steps that may be launched and not retired when a plan is made (0 is synchronous, 1, 2).
    pub overlap_depth: u8,
    /// Whether finished blocks are found again by later prompts.
    pub prefix_cache: bool,
    /// Capacity of a step's side data in u32 words.
    pub side_words: u32,
    /// Vocabulary size; a sampled id at or past it is the error [`crate::RowStatus::BadId`].
    pub vocabulary: u32,
    /// Lookup hash.
    pub hash: HashMode,
    /// Which cached block is given up for a new one.
    pub eviction: Eviction,
    /// KV events that are kept for readers; 0 is off.
    pub kv_events: u32,
    /// When memory is promised to one more request.
    pub admission: Admission,
    /// The deliberate bug to run with.
    #[cfg(feature = "planted-faults")]
    #[serde(skip)]
    pub fault: Option<Fault>,
}

impl Default for CoreConfig {
    /// The engine's own defaults; the sizes that a model and a machine set are those of a small one.
    fn default() -> Self {
        Self {
            block_size: 16,
            num_blocks: 1_025,
            max_running: 256,
            max_batched_tokens: 512,
            max_prefill_tokens: None,
            prefill_tile: 16,
            target_itl_ns: None,
            max_model_len: 8_192,
            max_queued_requests: 1_024,
            max_queued_tokens: None,
            max_ttft_ns: None,
            prefill_order: PrefillOrder::Fcfs,
            tenant_weights: BTreeMap::new(),
            overlap_depth: 0,
            prefix_cache: true,
            side_words: 1 << 16,
            vocabulary: 50_000,
            hash: HashMode::Keyed(0),
            eviction: Eviction::default(),
            kv_events: 0,
            admission: Admission::default(),
            #[cfg(feature = "planted-faults")]
            fault: None,
        }
    }
}

/// A bug that the interleaving search must be able to find.
#[cfg(feature = "planted-faults")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Freed blocks are handed out again although a launched step may still write them.
    NoFence,
    /// Full blocks enter the prefix index when planned instead of when their step has retired.
    InternBeforeRetirement,
    /// A preempted row's tokens that are still in flight are dropped when they arrive.
    DropInFlightOnPreemption,
}
