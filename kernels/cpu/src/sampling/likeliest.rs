//! The log probabilities of a row: of its id, and of the likeliest ids.

use super::sampler::log_normaliser;
use crate::simd::InstructionSet;

/// Where a row's log probabilities go.
#[derive(Debug)]
pub struct Scores<'a> {
    /// That of the sampled id.
    pub logprob: &'a mut f32,
    /// The likeliest ids.
    pub ids: &'a mut [i32],
    /// Theirs.
    pub logprobs: &'a mut [f32],
}

impl Scores<'_> {
    /// Fills `ids` with the ids of the largest logits, largest first and among equal ones the lowest id first, and all log
    /// probabilities under the logits as they are. The row has a finite maximum and no NaN.
    ///
    /// # Panics
    /// If ids and log probabilities are not equally many, or more than the row has.
    pub(super) fn fill(self, set: InstructionSet, logits: &[f32], id: u32) {
        let count = self.ids.len();
        assert!(
            count == self.logprobs.len() && count <= logits.len(),
            "{count} ids and {} log probabilities of {} logits",
            self.logprobs.len(),
            logits.len()
        );
        let normaliser = log_normaliser(set, logits);
        let logprob = |logit: f32| (f64::from(logit) - normaliser) as f32;
        *self.logprob = logprob(logits[id as usize]);
        let places = self.ids.iter_mut().zip(self.logprobs);
        for ((logit, id), (to_id, to_logprob)) in largest(logits, count).into_iter().zip(places) {
            *to_id = id;
            *to_logprob = logprob(logit);
        }
    }
}

/// The largest logits with their ids, in the order of [`Scores::fill`].
fn largest(logits: &[f32], count: usize) -> Vec<(f32, i32)> {
    let mut best: Vec<(f32, i32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in (0..).zip(logits) {
        if best.len() == count && best.last().is_none_or(|&(least, _)| logit <= least) {
            continue;
        }
        // Behind those that are equal: their ids are lower.
        let place = best.partition_point(|&(other, _)| other >= logit);
        best.insert(place, (logit, id));
        best.truncate(count);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_come_in_the_order_of_their_ids() {
        let logits = [1.0, 0.0, 3.0, -0.0, 3.0, f32::NEG_INFINITY, 1.0];
        for set in InstructionSet::ALL
            .into_iter()
            .filter(|set| set.is_available())
        {
            let (mut logprob, mut ids, mut logprobs) = (0.0, [0; 7], [0.0; 7]);
            let scores = Scores {
                logprob: &mut logprob,
                ids: &mut ids,
                logprobs: &mut logprobs,
            };
            scores.fill(set, &logits, 6);
            assert_eq!(ids, [2, 4, 0, 6, 1, 3, 5]);
            assert_eq!(logprob.to_bits(), logprobs[3].to_bits());
            let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            for (id, logprob) in ids.into_iter().zip(logprobs) {
                let wanted = (f64::from(logits[id as usize]) - sum.ln()) as f32;
                assert!(
                    (logprob.exp() - wanted.exp()).abs() < 1e-6,
                    "{logprob} {wanted}"
                );
            }
            let first: Vec<i32> = largest(&logits, 3).into_iter().map(|it| it.1).collect();
            assert_eq!(first, [2, 4, 0]);
            assert!(largest(&logits, 0).is_empty());
        }
    }
}
