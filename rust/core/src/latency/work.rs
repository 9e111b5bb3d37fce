//! What a step computes, in the few numbers on which its duration depends.

use crate::StepPlan;

/// Which of the two computations a step holds. Each has a constant of its own in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Only rows that decode one token.
    Decode,
    /// Only chunks of prompts.
    Prefill,
    /// Both.
    Mixed,
}

impl StepKind {
    /// All kinds, in the order of [`StepKind::index`].
    pub const ALL: [Self; 3] = [Self::Decode, Self::Prefill, Self::Mixed];

    /// Place in arrays with an entry a kind.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The features of one step. All counts are of tokens or rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Work {
    /// Rows that decode one token.
    pub decode_rows: u32,
    /// KV lengths of the decoding rows, summed: what decode attention reads.
    pub decode_context: u64,
    /// Rows with a chunk of a prompt.
    pub prefill_rows: u32,
    /// Tokens of all chunks.
    pub prefill_tokens: u32,
    /// Query-key pairs of all chunks, doubled to stay whole: q × (2 h + q) for q tokens after h.
    pub prefill_pairs_doubled: u64,
    /// Rows whose logits are computed and sampled.
    pub logit_rows: u32,
}

impl Work {
    /// The work of a whole plan.
    #[must_use]
    pub fn of(plan: &StepPlan) -> Self {
        let mut work = Self::default();
        for (index, &length) in plan.sequence_lengths.iter().enumerate() {
            let count = plan.query_starts[index + 1] - plan.query_starts[index];
            let (count, end) = (count as u32, length as u32);
            if index < plan.num_decode_rows as usize {
                work.add_decode(end);
            } else {
                work.add_chunk(end - count, count);
            }
        }
        work.logit_rows = (plan.sampling.len() + plan.scoring.len()) as u32;
        work
    }

    /// One more row that decodes a token and then has `length` tokens in KV; its logits not counted.
    pub fn add_decode(&mut self, length: u32) {
        self.decode_rows += 1;
        self.decode_context += u64::from(length);
    }

    /// One more chunk of `count` tokens after `history`; its logits not counted.
    pub fn add_chunk(&mut self, history: u32, count: u32) {
        let (history, count_wide) = (u64::from(history), u64::from(count));
        self.prefill_rows += 1;
        self.prefill_tokens += count;
        self.prefill_pairs_doubled += count_wide * (2 * history + count_wide);
    }

    /// Which computation it is; a step without rows counts as decode.
    #[must_use]
    pub const fn kind(&self) -> StepKind {
        match (self.decode_rows, self.prefill_rows) {
            (_, 0) => StepKind::Decode,
            (0, _) => StepKind::Prefill,
            _ => StepKind::Mixed,
        }
    }
}
