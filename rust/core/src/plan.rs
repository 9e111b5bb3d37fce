//! A step's plan and its result: flat arrays, nothing per request that crosses as an object.

use serde::{Deserialize, Serialize};

use crate::scoring::ScoringRow;

/// Token id of a decode row whose last id the host does not know yet: the worker takes the last id
/// that it sampled for that row. Only at `overlap_depth` 1 and 2.
pub const PLACEHOLDER: i32 = -1;

/// Kind of a block copy whose source and destination are both blocks of the worker's pool.
pub(crate) const COPY_WITHIN_POOL: i32 = 0;

/// One draw from one logit row. Several sampling rows may name the same token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingRow {
    /// Index into the step's tokens whose logits are sampled.
    pub token: u32,
    /// Worker state row that the sampled id belongs to: that of the token, or of a choice that is
    /// forked from it.
    pub row: u32,
    /// Index of the output token that is drawn, from 0.
    pub output_index: u32,
    /// Index of the choice, from 0.
    pub choice_index: u32,
    /// Engine-wide number of the request.
    pub submission: u64,
    /// Key of the request's random numbers.
    pub seed: u64,
    /// See [`crate::Sampling`].
    pub temperature: f32,
    /// See [`crate::Sampling`].
    pub top_k: u32,
    /// See [`crate::Sampling`].
    pub top_p: f32,
    /// See [`crate::Sampling`].
    pub min_p: f32,
    /// See [`crate::Sampling`].
    pub presence_penalty: f32,
    /// See [`crate::Sampling`].
    pub frequency_penalty: f32,
    /// See [`crate::Sampling`].
    pub repetition_penalty: f32,
    /// Whether the sampled id's log probability is wanted: under the model's own logits, before
    /// penalties, bias and temperature.
    pub logprob: bool,
    /// How many of the likeliest ids are wanted with their log probabilities: beside the sampled one
    /// with `logprob`, instead of it for a beam.
    pub candidates: u32,
    /// Whether it is drawn under a mask, or not at all while there is none.
    pub masked: bool,
    /// Word offset into `side` of `[prompt_len, output_len, prompt ids.., output ids..]`.
    pub penalty_offset: Option<u32>,
    /// Word offset into `side` of `[count, ids.., f32 bits..]`.
    pub bias_offset: Option<u32>,
}

/// What the worker computes in one step. All vectors are reused from step to step.
///
/// With `T` tokens, `R` token rows, `N` block-table deltas. Token rows `0..num_decode_rows` decode
/// one token each; the rest are prefill chunks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// Incarnation of the worker.
    pub epoch: u64,
    /// Step number, from 1, never repeated within an epoch.
    pub step: u64,
    /// Leading token rows that decode one token.
    pub num_decode_rows: u32,
    /// `[T]` ids, or [`PLACEHOLDER`].
    pub token_ids: Vec<i32>,
    /// `[T]` absolute positions.
    pub positions: Vec<i32>,
    /// `[T]` KV slots: block × `block_size` + offset.
    pub slots: Vec<i64>,
    /// `[R]` worker state rows, each at most once.
    pub rows: Vec<i32>,
    /// `[R + 1]` prefix sums of the rows' token counts.
    pub query_starts: Vec<i32>,
    /// `[R]` KV lengths including this step's tokens.
    pub sequence_lengths: Vec<i32>,
    /// `[N]` state rows whose block table changes, in order of application.
    pub delta_rows: Vec<i32>,
    /// `[N]` first changed table position.
    pub delta_starts: Vec<i32>,
    /// `[N]` number of changed positions.
    pub delta_counts: Vec<i32>,
    /// Concatenated block ids of all deltas.
    pub delta_blocks: Vec<i32>,
    /// `[C]` block copies after the deltas and before the forward pass: source, destination,
    /// leading tokens, kind (0: both in the worker's pool).
    pub block_copies: Vec<[i32; 4]>,
    /// `[S]` sampling rows.
    pub sampling: Vec<SamplingRow>,
    /// At most [`MOST_SCORING_ROWS`](crate::scoring::MOST_SCORING_ROWS). They have no row in the step's result as the core
    /// takes it.
    pub scoring: Vec<ScoringRow>,
    /// Variable-length row data, in u32 words.
    pub side: Vec<u32>,
}

/// How one sampling row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowStatus {
    /// The id is valid.
    Ok,
    /// The logits held NaN or no finite maximum.
    Nan,
    /// The id is outside the vocabulary.
    BadId,
    /// The row was not ready; its token is computed again.
    NotSampled,
}

/// A retired step's outcome, aligned with the plan's sampling rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult<'a> {
    /// Epoch of the plan.
    pub epoch: u64,
    /// Step of the plan.
    pub step: u64,
    /// How long the worker computed by its own clock, in nanoseconds, if it said so. Fits the
    /// latency model.
    pub duration_ns: Option<u64>,
    /// `[S]` status and sampled id (meaningful for [`RowStatus::Ok`]).
    pub rows: &'a [(RowStatus, u32)],
    /// For each row that asks for them as many ids and log probabilities as it asks for, best first.
    pub candidates: &'a [(u32, f32)],
}
