//! A step's plan as flat arrays, and its validation: nothing in it may read or write where it must not.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use super::settings::Settings;
use crate::sampling::{SamplingError, SamplingRow, read_bias, read_history};

/// Token id of a decode row that takes its last sampled id.
pub const PLACEHOLDER: i32 = -1;

/// Why a step is not run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct PlanError(pub(crate) String);

/// S sampling rows, one value a row in each array. Meanings as in the plan of `diptych-core`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SamplingInput<'a> {
    /// Index among the step's tokens.
    pub tokens: &'a [i32],
    /// State row that the sampled id belongs to.
    pub rows: &'a [i32],
    /// Below 1e-5 greedy.
    pub temperature: &'a [f32],
    /// Off below 1.
    pub top_k: &'a [i32],
    /// Off at 1.
    pub top_p: &'a [f32],
    /// Off at 0.
    pub min_p: &'a [f32],
    /// Added for ids among the output.
    pub presence_penalty: &'a [f32],
    /// Added for each time an id is among the output.
    pub frequency_penalty: &'a [f32],
    /// Divides logits of ids met before.
    pub repetition_penalty: &'a [f32],
    /// Key of the random numbers.
    pub seed: &'a [i64],
    /// Index of the output token.
    pub output_index: &'a [i32],
    /// Index of the choice.
    pub choice_index: &'a [i32],
    /// Word offset into `side` of prompt length, output length, prompt ids, output ids; −1 for none.
    pub penalty_offset: &'a [i32],
    /// Word offset into `side` of count, ids, bits of f32; −1 for none.
    pub bias_offset: &'a [i32],
    /// 0 where the log probability of the sampled id is wanted, above 0 where so many of the likeliest ids are wanted with
    /// theirs, else −1.
    pub logprobs: &'a [i32],
    /// 1 where the row is drawn under a mask, else 0.
    pub masked: &'a [i32],
    /// `[S][M]` masks as in [`SamplingRow::mask`]; empty where no row has one.
    pub masks: &'a [AtomicU32],
    /// Records of the rows.
    pub side: &'a [u32],
}

/// A step of T tokens in R rows, decode rows first, with N changes of block tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInput<'a> {
    /// `[T]` ids, or [`PLACEHOLDER`].
    pub token_ids: &'a [i32],
    /// `[T]` absolute positions.
    pub positions: &'a [i32],
    /// `[T]` block × block size + offset.
    pub slots: &'a [i64],
    /// `[R]` state rows, each at most once.
    pub rows: &'a [i32],
    /// `[R + 1]` prefix sums of the rows' tokens.
    pub query_starts: &'a [i32],
    /// `[R]` tokens in the cache, this step's included.
    pub sequence_lengths: &'a [i32],
    /// Leading rows that decode one token.
    pub num_decode_rows: usize,
    /// `[N]` state rows whose table changes, in order.
    pub delta_rows: &'a [i32],
    /// `[N]` first changed place.
    pub delta_starts: &'a [i32],
    /// `[N]` number of changed places.
    pub delta_counts: &'a [i32],
    /// Blocks of all changes.
    pub delta_blocks: &'a [i32],
    /// `[C][4]`, before anything is computed: source block, destination block, leading tokens that matter, 0.
    pub block_copies: &'a [i32],
    /// What is sampled.
    pub sampling: SamplingInput<'a>,
}

fn refuse<T>(message: String) -> Result<T, PlanError> {
    Err(PlanError(message))
}

fn require<T: Copy + Ord + std::fmt::Display>(
    name: &str,
    values: &[T],
    allowed: Range<T>,
) -> Result<(), PlanError> {
    let (Some(&least), Some(&most)) = (values.iter().min(), values.iter().max()) else {
        return Ok(());
    };
    if allowed.contains(&least) && allowed.contains(&most) {
        return Ok(());
    }
    let Range { start, end } = allowed;
    refuse(format!(
        "{name} from {least} to {most} in a plan: allowed {start} to below {end}"
    ))
}

fn length<T>(name: &str, values: &[T], wanted: usize) -> Result<(), PlanError> {
    if values.len() == wanted {
        return Ok(());
    }
    let found = values.len();
    refuse(format!(
        "{name} has {found} values in a plan: {wanted} are wanted"
    ))
}

impl StepInput<'_> {
    /// Checks all of it, block-table changes included.
    ///
    /// # Errors
    /// The first array that contradicts the settings or another, with its values.
    pub fn check(&self, settings: &Settings) -> Result<(), PlanError> {
        self.check_tokens(settings)?;
        self.check_rows(settings)?;
        self.check_deltas(settings)?;
        self.check_copies(settings)?;
        self.sampling.check(self.token_ids.len(), settings)
    }

    fn check_tokens(&self, settings: &Settings) -> Result<(), PlanError> {
        let (tokens, most) = (self.token_ids.len(), settings.max_tokens);
        if !(1..=most).contains(&tokens) {
            return refuse(format!("a step of {tokens} tokens: 1 to {most} are taken"));
        }
        length("positions", self.positions, tokens)?;
        length("slots", self.slots, tokens)?;
        let slots = settings.num_blocks * settings.block_size;
        require(
            "token_ids",
            self.token_ids,
            PLACEHOLDER..settings.vocabulary as i32,
        )?;
        require(
            "positions",
            self.positions,
            0..settings.max_model_len as i32,
        )?;
        require("slots", self.slots, 0..slots as i64)
    }

    fn check_rows(&self, settings: &Settings) -> Result<(), PlanError> {
        let (tokens, rows) = (self.token_ids.len(), self.rows.len());
        length("query_starts", self.query_starts, rows + 1)?;
        length("sequence_lengths", self.sequence_lengths, rows)?;
        require("rows", self.rows, 0..settings.max_running as i32)?;
        let lengths = 1..settings.max_model_len as i32 + 1;
        require("sequence_lengths", self.sequence_lengths, lengths)?;
        let mut seen = vec![false; settings.max_running];
        if let Some(twice) = self
            .rows
            .iter()
            .find(|&&row| std::mem::replace(&mut seen[row as usize], true))
        {
            return refuse(format!(
                "state row {twice} stands twice among the rows of a plan"
            ));
        }
        let decode = self.num_decode_rows;
        if decode > rows {
            return refuse(format!("{decode} decode rows among {rows} rows in a plan"));
        }
        let (first, last) = (self.query_starts[0], self.query_starts[rows]);
        if first != 0 || last != tokens as i32 {
            return refuse(format!(
                "query_starts go from {first} to {last} in a plan of {tokens} tokens"
            ));
        }
        for row in 0..rows {
            self.check_row(row)?;
        }
        if self.token_ids[decode..].contains(&PLACEHOLDER) {
            return refuse(
                "a placeholder stands among prefill tokens: only a decode row can take its last sampled id"
                    .to_string(),
            );
        }
        Ok(())
    }

    fn check_row(&self, row: usize) -> Result<(), PlanError> {
        let (start, end) = (self.query_starts[row], self.query_starts[row + 1]);
        let (tokens, length) = (self.token_ids.len() as i32, self.sequence_lengths[row]);
        if start >= end || end > tokens {
            return refuse(format!(
                "query_starts {start} and {end} of row {row} in a plan of {tokens} tokens: they must grow"
            ));
        }
        let count = end - start;
        if row < self.num_decode_rows && count != 1 {
            return refuse(format!(
                "decode row {row} of a plan has {count} tokens: one is wanted"
            ));
        }
        if count > length {
            return refuse(format!(
                "row {row} of a plan brings {count} tokens, but its sequence length is {length}"
            ));
        }
        for token in start..end {
            let (found, wanted) = (self.positions[token as usize], length - end + token);
            if found != wanted {
                return refuse(format!(
                    "positions: token {token} of row {row} stands at {found} in a plan, {wanted} follows from its sequence length {length}"
                ));
            }
        }
        Ok(())
    }

    fn check_deltas(&self, settings: &Settings) -> Result<(), PlanError> {
        let (changes, blocks) = (self.delta_rows.len(), self.delta_blocks.len());
        length("delta_starts", self.delta_starts, changes)?;
        length("delta_counts", self.delta_counts, changes)?;
        let most = settings.max_blocks();
        require(
            "delta_rows",
            self.delta_rows,
            0..settings.max_running as i32,
        )?;
        require("delta_counts", self.delta_counts, 0..most as i32 + 1)?;
        require("delta_starts", self.delta_starts, 0..most as i32 + 1)?;
        require(
            "delta_blocks",
            self.delta_blocks,
            0..settings.num_blocks as i32,
        )?;
        let mut announced = 0;
        for (&start, &count) in self.delta_starts.iter().zip(self.delta_counts) {
            let end = i64::from(start) + i64::from(count);
            require("delta_starts + delta_counts", &[end], 0..most as i64 + 1)?;
            announced += count as usize;
        }
        if announced != blocks {
            return refuse(format!(
                "block-table deltas announce {announced} blocks and bring {blocks}"
            ));
        }
        Ok(())
    }
}

impl StepInput<'_> {
    /// Source and destination of each block copy.
    pub(super) fn copies(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let copies = self.block_copies.chunks_exact(4);
        copies.map(|copy| (copy[0] as usize, copy[1] as usize))
    }

    fn check_copies(&self, settings: &Settings) -> Result<(), PlanError> {
        let found = self.block_copies.len();
        if !found.is_multiple_of(4) {
            return refuse(format!(
                "block_copies has {found} values in a plan: four make a copy"
            ));
        }
        for copy in self.block_copies.chunks_exact(4) {
            let (blocks, tokens) = (settings.num_blocks as i32, settings.block_size as i32);
            let exist = (0..blocks).contains(&copy[0]) && (1..blocks).contains(&copy[1]);
            let taken = (1..=tokens).contains(&copy[2]) && copy[3] == 0;
            if !exist || !taken || copy[0] == copy[1] {
                return refuse(format!(
                    "block copy {copy:?} in a plan: source, another block to copy to, of {blocks}, 1 to {tokens} tokens, and 0"
                ));
            }
        }
        Ok(())
    }
}

impl SamplingInput<'_> {
    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// None?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn check(&self, tokens: usize, settings: &Settings) -> Result<(), PlanError> {
        let count = self.len();
        let integers = [
            ("sampling_rows", self.rows),
            ("top_k", self.top_k),
            ("output_index", self.output_index),
            ("choice_index", self.choice_index),
            ("penalty_offset", self.penalty_offset),
            ("bias_offset", self.bias_offset),
            ("logprobs", self.logprobs),
            ("masked", self.masked),
        ];
        for (name, values) in integers {
            length(name, values, count)?;
        }
        let floats = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("repetition_penalty", self.repetition_penalty),
        ];
        for (name, values) in floats {
            length(name, values, count)?;
        }
        length("seed", self.seed, count)?;
        require("sampling_tokens", self.tokens, 0..tokens as i32)?;
        require("sampling_rows", self.rows, 0..settings.max_running as i32)?;
        require("output_index", self.output_index, 0..i32::MAX)?;
        require("choice_index", self.choice_index, 0..i32::MAX)?;
        let vocabulary = i32::try_from(settings.vocabulary).unwrap_or(i32::MAX);
        require("logprobs", self.logprobs, -1..vocabulary.saturating_add(1))?;
        require("masked", self.masked, 0..2)?;
        self.check_masks(settings.vocabulary)?;
        for row in 0..count {
            let refused = |error: SamplingError| PlanError(error.to_string());
            self.row(row)
                .and_then(|row| row.check(settings.vocabulary))
                .map_err(refused)?;
        }
        Ok(())
    }

    fn check_masks(&self, vocabulary: usize) -> Result<(), PlanError> {
        if !self.masked.contains(&1) {
            return Ok(());
        }
        let (found, rows) = (self.masks.len(), self.len());
        let least = 1 + vocabulary.div_ceil(32);
        if found.is_multiple_of(rows) && found / rows >= least {
            return Ok(());
        }
        refuse(format!(
            "masks has {found} words in a plan with {rows} sampling rows: each has as many, at least {least}"
        ))
    }

    fn mask(&self, row: usize) -> Option<&[AtomicU32]> {
        let words = self.masks.len() / self.len();
        let mask = &self.masks[row * words..(row + 1) * words];
        (self.masked[row] == 1).then_some(mask)
    }

    /// One row.
    pub(super) fn row(&self, row: usize) -> Result<SamplingRow<'_>, SamplingError> {
        Ok(SamplingRow {
            temperature: self.temperature[row],
            top_k: self.top_k[row],
            top_p: self.top_p[row],
            min_p: self.min_p[row],
            presence_penalty: self.presence_penalty[row],
            frequency_penalty: self.frequency_penalty[row],
            repetition_penalty: self.repetition_penalty[row],
            seed: self.seed[row] as u64,
            output_index: self.output_index[row] as u32,
            choice_index: self.choice_index[row] as u32,
            wants_logprob: self.logprobs[row] >= 0,
            candidates: self.logprobs[row].max(0) as u32,
            history: read_history(self.side, self.penalty_offset[row])?,
            bias: read_bias(self.side, self.bias_offset[row])?,
            mask: self.mask(row),
        })
    }
}
