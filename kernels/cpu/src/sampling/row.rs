//! What one row of logits is sampled with.

use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

/// Below this temperature a row is greedy.
const GREEDY_TEMPERATURE: f32 = 1e-5;

/// How sampling a row ended, numbered as in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// A token was found.
    Ok = 0,
    /// A logit was NaN or +inf, or none was above -inf; the id is 0.
    Nan = 1,
    /// The row's mask was not there; the id is 0.
    NotSampled = 3,
}

/// Side data that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SamplingError {
    /// A bias for ids that are no token.
    #[error(
        "logit bias for ids {ids:?}: the vocabulary has {vocabulary}; give ids below that number"
    )]
    BiasOutside {
        /// The ids given that are outside.
        ids: Vec<u32>,
        /// Ids that may be sampled.
        vocabulary: usize,
    },
    /// A record that goes on past the side data.
    #[error(
        "{record} record at word {offset} of the side data needs {needed} words: there are {words}"
    )]
    RecordOutside {
        /// Which kind of record.
        record: &'static str,
        /// Where it begins, in words.
        offset: usize,
        /// Words up to its end.
        needed: usize,
        /// Words of the side data.
        words: usize,
    },
}

/// Two lists of words of the side data.
pub type Entries<'a> = (&'a [u32], &'a [u32]);

/// Parameters of one row, in the ranges that the service accepts.
#[derive(Clone, Copy, Debug)]
pub struct SamplingRow<'a> {
    /// Divides the logits; below 1e-5 the row is greedy.
    pub temperature: f32,
    /// Candidates kept; off below 1.
    pub top_k: i32,
    /// Share of the weight kept; off at 1.
    pub top_p: f32,
    /// Least weight kept, relative to the largest; off at 0.
    pub min_p: f32,
    /// Taken off the logits of ids generated before.
    pub presence_penalty: f32,
    /// Taken off for each time that an id was generated before.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of ids seen before.
    pub repetition_penalty: f32,
    /// Key of the random numbers.
    pub seed: u64,
    /// Place of the token in the output.
    pub output_index: u32,
    /// Which of the request's choices.
    pub choice_index: u32,
    /// The sampled id's log probability is asked for, and with it all logits.
    pub wants_logprob: bool,
    /// How many of the likeliest ids are asked for with their log probabilities, beside that of the sampled one.
    pub candidates: u32,
    /// Ids of the prompt and of the output so far, for penalties. Ids outside the vocabulary are filler.
    pub history: Option<Entries<'a>>,
    /// Ids and the bits of the f32 added to their logits.
    pub bias: Option<Entries<'a>>,
    /// Its mask, which another process may write until the first word says that it is there; from the second word on, bit
    /// `id % 32` of word `id / 32` allows an id.
    pub mask: Option<&'a [AtomicU32]>,
}

impl Default for SamplingRow<'_> {
    /// Greedy, nothing switched on.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            output_index: 0,
            choice_index: 0,
            wants_logprob: false,
            candidates: 0,
            history: None,
            bias: None,
            mask: None,
        }
    }
}

impl SamplingRow<'_> {
    /// A random number is drawn.
    #[must_use]
    pub fn is_random(&self) -> bool {
        self.temperature >= GREEDY_TEMPERATURE
    }

    /// Penalties, a mask or bias may change the logits.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        self.history.is_some() || self.bias.is_some() || self.mask.is_some()
    }

    /// Only the best of the unchanged logits is asked for: [`super::Best`] over parts of the row gives the answer.
    #[must_use]
    pub fn wants_argmax_only(&self) -> bool {
        (!self.is_random() || self.top_k == 1) && !self.wants_logprob && !self.changes_logits()
    }

    /// Whether there is a mask that has not come yet.
    #[must_use]
    pub fn waits_for_mask(&self) -> bool {
        self.mask
            .is_some_and(|words| words[0].load(Ordering::Acquire) == 0)
    }

    /// Whether the bias is for tokens only.
    ///
    /// # Errors
    /// [`SamplingError::BiasOutside`] with the ids from `vocabulary` on.
    pub fn check(&self, vocabulary: usize) -> Result<(), SamplingError> {
        let ids = self.bias.map_or(&[][..], |(ids, _)| ids);
        let outside = ids.iter().filter(|id| **id as usize >= vocabulary);
        let ids: Vec<u32> = outside.copied().collect();
        if ids.is_empty() {
            Ok(())
        } else {
            Err(SamplingError::BiasOutside { ids, vocabulary })
        }
    }
}

/// The penalty record at word `offset` of the side data, none below 0: prompt length, output length, prompt ids, output
/// ids. Gives prompt and output.
///
/// # Errors
/// [`SamplingError::RecordOutside`] if it is longer than the side data.
pub fn read_history(side: &[u32], offset: i32) -> Result<Option<Entries<'_>>, SamplingError> {
    let Ok(offset) = usize::try_from(offset) else {
        return Ok(None);
    };
    let lengths = words(side, "penalty", offset, 2)?;
    let (prompt, output) = (lengths[0] as usize, lengths[1] as usize);
    let ids = &words(side, "penalty", offset, 2 + prompt + output)?[2..];
    Ok(Some(ids.split_at(prompt)))
}

/// The bias record at word `offset` of the side data, none below 0: count, ids, bits of f32 values. Gives ids and bits.
///
/// # Errors
/// [`SamplingError::RecordOutside`] if it is longer than the side data.
pub fn read_bias(side: &[u32], offset: i32) -> Result<Option<Entries<'_>>, SamplingError> {
    let Ok(offset) = usize::try_from(offset) else {
        return Ok(None);
    };
    let count = words(side, "bias", offset, 1)?[0] as usize;
    let entries = &words(side, "bias", offset, 1 + 2 * count)?[1..];
    Ok(Some(entries.split_at(count)))
}

fn words<'a>(
    side: &'a [u32],
    record: &'static str,
    offset: usize,
    length: usize,
) -> Result<&'a [u32], SamplingError> {
    let needed = offset.saturating_add(length);
    side.get(offset..needed)
        .ok_or(SamplingError::RecordOutside {
            record,
            offset,
            needed,
            words: side.len(),
        })
}
