//! Penalties and logit bias, applied where they bear and nowhere else.

use std::sync::atomic::{AtomicU32, Ordering};

use super::row::SamplingRow;

/// Set in an id's count once its penalties are applied.
const APPLIED: u32 = 1 << 31;

/// How often each id was generated: zeros between calls.
#[derive(Debug, Default)]
pub(super) struct Counts(Vec<u32>);

/// Repetition over prompt and output, then frequency and presence over output, then mask and bias. Ids outside the
/// vocabulary count for nothing.
pub(super) fn adjust(logits: &mut [f32], row: &SamplingRow, counts: &mut Counts) {
    if let Some((prompt, output)) = row.history {
        counts.0.resize(logits.len(), 0);
        let counts = counts.0.as_mut_slice();
        for id in output {
            if let Some(count) = counts.get_mut(*id as usize) {
                *count += 1;
            }
        }
        for id in prompt.iter().chain(output) {
            penalise(logits, row, counts, *id as usize);
        }
        for id in prompt.iter().chain(output) {
            if let Some(count) = counts.get_mut(*id as usize) {
                *count = 0;
            }
        }
    }
    if let Some(words) = row.mask {
        apply_mask(logits, &words[1..]);
    }
    if let Some((ids, bits)) = row.bias {
        for (id, bits) in ids.iter().zip(bits) {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += f32::from_bits(*bits);
            }
        }
    }
}

fn apply_mask(logits: &mut [f32], words: &[AtomicU32]) {
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        let word = word.load(Ordering::Relaxed);
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

fn penalise(logits: &mut [f32], row: &SamplingRow, counts: &mut [u32], id: usize) {
    let Some(count) = counts.get_mut(id) else {
        return;
    };
    if *count & APPLIED != 0 {
        return;
    }
    let presence = if *count > 0 {
        row.presence_penalty
    } else {
        0.0
    };
    let logit = &mut logits[id];
    if *logit > 0.0 {
        *logit /= row.repetition_penalty;
    } else {
        *logit *= row.repetition_penalty;
    }
    *logit -= row.frequency_penalty * *count as f32 + presence;
    *count |= APPLIED;
}
