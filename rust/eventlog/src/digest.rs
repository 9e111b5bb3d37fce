//! A plan in few bytes: one hash for each of its fields.

use diptych_core::scoring::ScoringRow;
use diptych_core::{SamplingRow, StepPlan};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The fields of a plan in the order of [`PlanDigest::hashes`].
pub const FIELDS: [&str; 15] = [
    "epoch",
    "num_decode_rows",
    "token_ids",
    "positions",
    "slots",
    "rows",
    "query_starts",
    "sequence_lengths",
    "delta_rows",
    "delta_starts",
    "delta_counts",
    "delta_blocks",
    "block_copies",
    "sampling",
    "side",
];

/// What a log keeps of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDigest {
    /// The step's number.
    pub step: u64,
    /// Tokens of the step.
    pub tokens: u32,
    /// Token rows of the step.
    pub rows: u32,
    /// The low half of XXH3-64 over the little-endian bytes of each field of [`FIELDS`].
    pub hashes: Vec<u32>,
}

impl PlanDigest {
    /// The digest of `plan`.
    #[must_use]
    pub fn of(plan: &StepPlan) -> Self {
        // Named one by one, so that a new field of a plan cannot be forgotten here.
        let StepPlan {
            epoch,
            step,
            num_decode_rows,
            token_ids,
            positions,
            slots,
            rows,
            query_starts,
            sequence_lengths,
            delta_rows,
            delta_starts,
            delta_counts,
            delta_blocks,
            block_copies,
            sampling,
            scoring,
            side,
        } = plan;
        let mut hash = Hash::default();
        let hashes = vec![
            hash.of(&[*epoch], u64::to_le_bytes),
            hash.of(&[*num_decode_rows], u32::to_le_bytes),
            hash.of(token_ids, i32::to_le_bytes),
            hash.of(positions, i32::to_le_bytes),
            hash.of(slots, i64::to_le_bytes),
            hash.of(rows, i32::to_le_bytes),
            hash.of(query_starts, i32::to_le_bytes),
            hash.of(sequence_lengths, i32::to_le_bytes),
            hash.of(delta_rows, i32::to_le_bytes),
            hash.of(delta_starts, i32::to_le_bytes),
            hash.of(delta_counts, i32::to_le_bytes),
            hash.of(delta_blocks, i32::to_le_bytes),
            hash.of(block_copies.as_flattened(), i32::to_le_bytes),
            hash.of(&logit_words(sampling, scoring), u32::to_le_bytes),
            hash.of(side, u32::to_le_bytes),
        ];
        debug_assert_eq!(hashes.len(), FIELDS.len());
        Self {
            step: *step,
            tokens: token_ids.len() as u32,
            rows: rows.len() as u32,
            hashes,
        }
    }

    /// The first field in which `other` differs, `names` and [`FIELDS`] being the fields of `self`
    /// and `other`. Fields that only one of them knows are not compared.
    #[must_use]
    pub fn difference(&self, names: &[String], other: &Self) -> Option<String> {
        if self.step != other.step {
            return Some("step".to_owned());
        }
        let known = names.iter().zip(&self.hashes);
        let mut differing = known.filter(|(name, hash)| {
            let position = FIELDS.iter().position(|field| field == name);
            position.is_some_and(|position| other.hashes[position] != **hash)
        });
        differing.next().map(|(name, _)| name.clone())
    }
}

#[derive(Default)]
struct Hash {
    bytes: Vec<u8>,
}

impl Hash {
    fn of<T: Copy, const N: usize>(&mut self, values: &[T], bytes: fn(T) -> [u8; N]) -> u32 {
        self.bytes.clear();
        for &value in values {
            self.bytes.extend_from_slice(&bytes(value));
        }
        xxh3_64(&self.bytes) as u32
    }
}

/// Scoring rows only where there are any, as well.
fn logit_words(rows: &[SamplingRow], scoring: &[ScoringRow]) -> Vec<u32> {
    let mut words = sampling_words(rows);
    for row in scoring {
        let &ScoringRow {
            token,
            row,
            submission,
            position,
            id,
            candidates,
        } = row;
        let halves = [submission as u32, (submission >> 32) as u32];
        words.extend([3, token, row, position, id, candidates]);
        words.extend(halves);
    }
    words
}

fn sampling_words(rows: &[SamplingRow]) -> Vec<u32> {
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let mut words = Vec::with_capacity(rows.len() * 20);
    for row in rows {
        let SamplingRow {
            token,
            row,
            output_index,
            choice_index,
            submission,
            seed,
            temperature,
            top_k,
            top_p,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            logprob,
            candidates,
            masked,
            penalty_offset,
            bias_offset,
        } = row;
        words.extend([*token, *row, *output_index, *choice_index, *top_k]);
        words.extend(halves(*submission));
        words.extend(halves(*seed));
        for value in [
            temperature,
            top_p,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
        ] {
            words.push(value.to_bits());
        }
        for offset in [penalty_offset, bias_offset] {
            words.extend([u32::from(offset.is_some()), offset.unwrap_or_default()]);
        }
        // Only where it is asked for: logs that are older than it have the same digests.
        words.extend(logprob.then_some(1));
        words.extend(
            (*candidates > 0)
                .then_some([2, *candidates])
                .into_iter()
                .flatten(),
        );
        words.extend(masked.then_some(3));
    }
    words
}
