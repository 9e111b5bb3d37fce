//! The likeliest continuations of a row, which beam search chooses from.

use super::sampler::log_normaliser;
use crate::simd::InstructionSet;

/// Fills `ids` with the ids of the largest logits, largest first and among equal ones the lowest id first, and `logprobs`
/// with their log probabilities under the logits as they are. The row has a finite maximum and no NaN.
///
/// # Panics
/// If the two are not equally long, or longer than the row.
pub fn likeliest(set: InstructionSet, logits: &[f32], ids: &mut [i32], logprobs: &mut [f32]) {
    let count = ids.len();
    assert!(
        count == logprobs.len() && count <= logits.len(),
        "{count} ids and {} log probabilities of {} logits",
        logprobs.len(),
        logits.len()
    );
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
    let normaliser = log_normaliser(set, logits);
    for ((logit, id), (to_id, to_logprob)) in best.into_iter().zip(ids.iter_mut().zip(logprobs)) {
        *to_id = id;
        *to_logprob = (f64::from(logit) - normaliser) as f32;
    }
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
            let (mut ids, mut logprobs) = ([0; 7], [0.0; 7]);
            likeliest(set, &logits, &mut ids, &mut logprobs);
            assert_eq!(ids, [2, 4, 0, 6, 1, 3, 5]);
            let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            for (id, logprob) in ids.into_iter().zip(logprobs) {
                let wanted = (f64::from(logits[id as usize]) - sum.ln()) as f32;
                assert!(
                    (logprob.exp() - wanted.exp()).abs() < 1e-6,
                    "{logprob} {wanted}"
                );
            }
            likeliest(set, &logits, &mut ids[..3], &mut logprobs[..3]);
            assert_eq!(ids[..3], [2, 4, 0]);
        }
    }
}
