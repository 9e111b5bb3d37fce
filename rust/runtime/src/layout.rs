//! Where everything stands in the plan, side and result arenas.
//!
//! Every array has a fixed place that follows from the [`Capacities`] alone, so both sides compute the same offsets and only counts travel in
//! the plan's header. All sections start on a 64-byte line. An arena holds `copies` such images, one per step that may be in flight.

use serde::{Deserialize, Serialize};

use diptych_core::scoring::MOST_SCORING_ROWS;

use crate::EngineError;
use crate::options::Limits;

/// Version of everything in this file and of the control messages.
pub const LAYOUT_VERSION: u32 = 3;

/// Sections start on a cache line.
const LINE: usize = 64;

/// Size of the plan's header: `u64` words, see [`plan_word`].
const PLAN_HEADER: usize = 128;

/// Size of the result's header: `u64` words, see [`result_word`].
const RESULT_HEADER: usize = 128;

/// Words of side data that name the token of a scoring row.
pub(crate) const SCORING_WORDS: u32 = 3;

/// Most continuations that a step names for one sampling row.
pub(crate) const CANDIDATES: usize = diptych_core::beam::MOST_CANDIDATES as usize;

/// Room for the class and the message of a step's error, in bytes.
pub(crate) const ERROR_TEXT: usize = 4096;

/// Indexes of the `u64` words of a plan's header.
pub(crate) mod plan_word {
    /// Step number, stored last with release order.
    pub(crate) const PUBLISHED: usize = 0;
    pub(crate) const EPOCH: usize = 1;
    pub(crate) const NUM_DECODE_ROWS: usize = 2;
    /// First of the counts, in the order of [`super::Count::ALL`].
    pub(crate) const COUNTS: usize = 3;
}

/// Indexes of the `u64` words of a result's header.
pub(crate) mod result_word {
    /// Step number, stored last with release order.
    pub(crate) const PUBLISHED: usize = 0;
    pub(crate) const EPOCH: usize = 1;
    /// Start, prefill done, decode done, end: nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) const TIMES: usize = 2;
    /// Bumped by a worker that makes progress within a step; only in the first copy.
    pub(crate) const PROGRESS: usize = 6;
    /// 0, or 1 for a step that raised.
    pub(crate) const ERROR: usize = 7;
    pub(crate) const CLASS_BYTES: usize = 8;
    pub(crate) const MESSAGE_BYTES: usize = 9;
}

const _: () = assert!((plan_word::COUNTS + Count::ALL.len()) * 8 <= PLAN_HEADER);
const _: () = assert!((result_word::MESSAGE_BYTES + 1) * 8 <= RESULT_HEADER);

/// What a count in the plan's header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Tokens,
    Rows,
    Deltas,
    DeltaBlocks,
    BlockCopies,
    Sampling,
    Side,
    Masks,
}

impl Count {
    /// In the order of the header.
    pub(crate) const ALL: [Self; 8] = [
        Self::Tokens,
        Self::Rows,
        Self::Deltas,
        Self::DeltaBlocks,
        Self::BlockCopies,
        Self::Sampling,
        Self::Side,
        Self::Masks,
    ];
}

/// Most entries of every array in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capacities {
    /// Images per arena.
    pub(crate) copies: u32,
    pub(crate) tokens: u32,
    pub(crate) rows: u32,
    pub(crate) deltas: u32,
    pub(crate) delta_blocks: u32,
    pub(crate) block_copies: u32,
    pub(crate) sampling: u32,
    pub(crate) side_words: u32,
    /// Words of one sampling row's mask: one that says whether it is there, then a bit for each id of the vocabulary.
    pub(crate) mask_words: u32,
}

impl Capacities {
    /// Enough for any step of a core with these limits, one that admits every row anew with a full block table included.
    ///
    /// A state row is at most once among a step's token rows and sampling rows, scoring rows aside, so `max_running` bounds both. Within one step a row's block
    /// table is given at most twice (for a request that is preempted and the one that takes its row), each time at most whole.
    pub(crate) fn new(limits: &Limits, vocabulary: u32) -> Result<Self, EngineError> {
        let table = limits.max_model_len.div_ceil(limits.block_size.max(1));
        let delta_blocks = u64::from(limits.max_running) * u64::from(table) * 2;
        let delta_blocks = i32::try_from(delta_blocks).map_err(|_| {
            EngineError::Options(format!(
                "max_running {} times max_model_len {} over block_size {} make block tables of {delta_blocks} entries: at most 2^31",
                limits.max_running, limits.max_model_len, limits.block_size
            ))
        })?;
        Ok(Self {
            copies: u32::from(limits.overlap_depth) + 1,
            tokens: limits.max_batched_tokens,
            rows: limits.max_running,
            deltas: limits.max_running * 2,
            delta_blocks: delta_blocks.cast_unsigned(),
            block_copies: limits.max_running,
            sampling: limits.max_running + MOST_SCORING_ROWS,
            side_words: side_words(limits, vocabulary) + SCORING_WORDS * MOST_SCORING_ROWS,
            mask_words: mask_words(vocabulary),
        })
    }

    pub(crate) fn of(&self, count: Count) -> usize {
        let capacity = match count {
            Count::Tokens => self.tokens,
            Count::Rows => self.rows,
            Count::Deltas => self.deltas,
            Count::DeltaBlocks => self.delta_blocks,
            Count::BlockCopies => self.block_copies,
            Count::Sampling => self.sampling,
            Count::Side => self.side_words,
            Count::Masks => return self.sampling as usize * self.mask_words as usize,
        };
        capacity as usize
    }
}

/// Words of side data per step: at least the largest single request (penalties over a full context and a bias on every id), else room for
/// all rows with penalties, capped. A step takes fewer rows when more is asked for, so this bounds speed, not correctness.
fn side_words(limits: &Limits, vocabulary: u32) -> u32 {
    const CAP: u64 = 1 << 24;
    let penalties = u64::from(limits.max_model_len) + 2;
    let largest = penalties + 1 + 2 * u64::from(vocabulary);
    let everybody = penalties * u64::from(limits.max_running);
    u32::try_from(largest.max(everybody.min(CAP))).unwrap_or(u32::MAX)
}

/// Whole cache lines, so that no two rows share one.
fn mask_words(vocabulary: u32) -> u32 {
    (1 + vocabulary.div_ceil(32)).next_multiple_of((LINE / 4) as u32)
}

/// Type of an array's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// 32-bit signed integers.
    I32,
    /// 64-bit signed integers.
    I64,
    /// 32-bit floating point numbers.
    F32,
    /// 32-bit unsigned integers.
    U32,
}

impl Item {
    /// Bytes of one item.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::I32 | Self::F32 | Self::U32 => 4,
        }
    }

    /// Its code in Python's `struct` module.
    #[must_use]
    pub const fn format(self) -> &'static std::ffi::CStr {
        match self {
            Self::I32 => c"i",
            Self::I64 => c"q",
            Self::F32 => c"f",
            Self::U32 => c"I",
        }
    }
}

/// One array of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) item: Item,
    pub(crate) count: Count,
    /// Items per counted entry.
    width: usize,
    /// Items beyond the counted entries.
    extra: usize,
}

impl Field {
    const fn new(name: &'static str, item: Item, count: Count) -> Self {
        Self {
            name,
            item,
            count,
            width: 1,
            extra: 0,
        }
    }

    /// Items for `entries` counted entries.
    pub(crate) fn items(&self, entries: usize) -> usize {
        entries * self.width + self.extra
    }
}

/// Number of arrays.
pub(crate) const NUM_FIELDS: usize = FIELDS.len();

/// Every array, in memory order; `side` and `masks` stand in the side arena. Masks are written while the step runs, the others
/// before it is published.
pub(crate) const FIELDS: [Field; 30] = [
    Field::new("token_ids", Item::I32, Count::Tokens),
    Field::new("positions", Item::I32, Count::Tokens),
    Field::new("slots", Item::I64, Count::Tokens),
    Field::new("rows", Item::I32, Count::Rows),
    Field {
        extra: 1,
        ..Field::new("query_starts", Item::I32, Count::Rows)
    },
    Field::new("sequence_lengths", Item::I32, Count::Rows),
    Field::new("delta_rows", Item::I32, Count::Deltas),
    Field::new("delta_starts", Item::I32, Count::Deltas),
    Field::new("delta_counts", Item::I32, Count::Deltas),
    Field::new("delta_blocks", Item::I32, Count::DeltaBlocks),
    Field {
        width: 4,
        ..Field::new("block_copies", Item::I32, Count::BlockCopies)
    },
    Field::new("sampling_tokens", Item::I32, Count::Sampling),
    Field::new("sampling_rows", Item::I32, Count::Sampling),
    Field::new("temperature", Item::F32, Count::Sampling),
    Field::new("top_k", Item::I32, Count::Sampling),
    Field::new("top_p", Item::F32, Count::Sampling),
    Field::new("min_p", Item::F32, Count::Sampling),
    Field::new("presence_penalty", Item::F32, Count::Sampling),
    Field::new("frequency_penalty", Item::F32, Count::Sampling),
    Field::new("repetition_penalty", Item::F32, Count::Sampling),
    Field::new("seed", Item::I64, Count::Sampling),
    Field::new("output_index", Item::I32, Count::Sampling),
    Field::new("choice_index", Item::I32, Count::Sampling),
    Field::new("submission", Item::I64, Count::Sampling),
    Field::new("penalty_offset", Item::I32, Count::Sampling),
    Field::new("bias_offset", Item::I32, Count::Sampling),
    Field::new("logprobs", Item::I32, Count::Sampling),
    Field::new("masked", Item::I32, Count::Sampling),
    Field::new("side", Item::U32, Count::Side),
    Field::new("masks", Item::U32, Count::Masks),
];

/// Index of the field called `name`.
pub(crate) fn field_index(name: &str) -> Option<usize> {
    FIELDS.iter().position(|field| field.name == name)
}

/// Indexes of the fields that stand in the side arena.
pub(crate) const SIDE: usize = NUM_FIELDS - 2;
pub(crate) const MASKS: usize = NUM_FIELDS - 1;

/// Offsets within one image of each arena, and the images' sizes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) capacities: Capacities,
    pub(crate) offsets: [usize; NUM_FIELDS],
    pub(crate) plan_bytes: usize,
    pub(crate) side_bytes: usize,
    pub(crate) error_text: usize,
    pub(crate) status: usize,
    pub(crate) ids: usize,
    pub(crate) logprobs: usize,
    /// `[S][CANDIDATES]` ids of each row's likeliest continuations, and their log probabilities.
    pub(crate) candidate_ids: usize,
    pub(crate) candidate_logprobs: usize,
    pub(crate) result_bytes: usize,
}

impl Layout {
    pub(crate) fn new(capacities: Capacities) -> Self {
        let mut offsets = [0; NUM_FIELDS];
        let mut end = PLAN_HEADER;
        for (offset, field) in offsets.iter_mut().zip(&FIELDS).take(SIDE) {
            *offset = end;
            let bytes = field.items(capacities.of(field.count)) * field.item.size();
            end = (end + bytes).next_multiple_of(LINE);
        }
        let row_bytes = (capacities.sampling as usize * 4).next_multiple_of(LINE);
        let status = RESULT_HEADER + ERROR_TEXT;
        let side_bytes = (capacities.side_words as usize * 4).next_multiple_of(LINE);
        offsets[SIDE] = 0;
        offsets[MASKS] = side_bytes;
        // Nobody touches the pages of masks that are not used.
        let side_bytes = side_bytes + capacities.of(Count::Masks) * 4;
        Self {
            capacities,
            offsets,
            plan_bytes: end,
            side_bytes: side_bytes.max(LINE),
            error_text: RESULT_HEADER,
            status,
            ids: status + row_bytes,
            logprobs: status + 2 * row_bytes,
            candidate_ids: status + 3 * row_bytes,
            candidate_logprobs: status + (3 + CANDIDATES) * row_bytes,
            result_bytes: status + (3 + 2 * CANDIDATES) * row_bytes,
        }
    }

    /// Images per arena.
    pub(crate) fn copies(&self) -> usize {
        self.capacities.copies as usize
    }

    /// The image that the `launch`-th launched step uses, counted from 0 in each incarnation of the worker.
    pub(crate) fn image(&self, launch: u64) -> usize {
        (launch % u64::from(self.capacities.copies)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            block_size: 16,
            max_running: 3,
            max_batched_tokens: 37,
            max_prefill_tokens: None,
            prefill_tile: 16,
            target_itl_ns: None,
            max_model_len: 100,
            max_queued_requests: 5,
            max_queued_tokens: None,
            max_ttft_ms: None,
            prefill_order: diptych_core::config::PrefillOrder::Fcfs,
            tenant_weights: std::collections::BTreeMap::new(),
            prefix_cache: true,
            overlap_depth: 1,
            admission: crate::options::AdmissionPolicy::default(),
            eviction: crate::options::EvictionPolicy::default(),
            cache_ttl: None,
            kv_events: 0,
        }
    }

    #[test]
    fn sections_are_aligned_and_do_not_overlap() {
        let layout = Layout::new(Capacities::new(&limits(), 50).unwrap());
        let mut previous_end = PLAN_HEADER;
        for (offset, field) in layout.offsets.iter().zip(&FIELDS).take(SIDE) {
            assert_eq!(offset % LINE, 0, "{}", field.name);
            assert!(*offset >= previous_end, "{}", field.name);
            previous_end =
                offset + field.items(layout.capacities.of(field.count)) * field.item.size();
        }
        assert!(layout.plan_bytes >= previous_end);
        assert_eq!(layout.plan_bytes % LINE, 0);
        assert_eq!(layout.ids % LINE, 0);
        assert!(layout.ids - layout.status >= 3 * 4);
    }

    #[test]
    fn side_data_holds_the_largest_single_request() {
        let capacities = Capacities::new(&limits(), 50).unwrap();
        assert!(capacities.side_words >= 102 + 1 + 100);
        assert_eq!(capacities.delta_blocks, 3 * 7 * 2);
    }

    #[test]
    fn block_tables_past_the_index_range_are_refused() {
        let limits = Limits {
            block_size: 1,
            max_running: 1 << 20,
            max_model_len: 1 << 20,
            ..limits()
        };
        let error = Capacities::new(&limits, 50).unwrap_err();
        assert!(error.to_string().contains("block tables"), "{error}");
    }
}
