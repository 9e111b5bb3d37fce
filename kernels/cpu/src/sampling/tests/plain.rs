//! The definition written plainly, with a full sort.

use crate::sampling::weights::exp;
use crate::sampling::{SamplingRow, Status, uniform};

/// Penalties and bias as the definition says, by a look at every id.
pub(super) fn adjusted(logits: &[f32], row: &SamplingRow) -> Vec<f32> {
    let (prompt, output) = row.history.unwrap_or_default();
    let mut logits = logits.to_vec();
    for (id, logit) in logits.iter_mut().enumerate() {
        let seen = |ids: &[u32]| ids.iter().filter(|seen| **seen as usize == id).count();
        let count = seen(output);
        if count + seen(prompt) > 0 {
            let factor = row.repetition_penalty;
            *logit = if *logit > 0.0 {
                *logit / factor
            } else {
                *logit * factor
            };
            let presence = if count > 0 { row.presence_penalty } else { 0.0 };
            *logit -= row.frequency_penalty * count as f32 + presence;
        }
    }
    let (ids, bits) = row.bias.unwrap_or_default();
    for (id, bits) in ids.iter().zip(bits) {
        logits[*id as usize] += f32::from_bits(*bits);
    }
    logits
}

/// Weights of a row, by id and in order.
struct Weights {
    by_id: Vec<f64>,
    ordered: Vec<f64>,
}

impl Weights {
    fn sum(&self, count: usize) -> f64 {
        let all = count == self.by_id.len();
        let part = if all {
            &self.by_id
        } else {
            &self.ordered[..count]
        };
        part.iter().fold(0.0, |sum, weight| sum + weight)
    }

    /// Length of the prefix that top-k, top-p and min-p keep.
    fn kept(&self, row: &SamplingRow) -> usize {
        let mut kept = self.by_id.len();
        if row.top_k >= 1 {
            kept = kept.min(row.top_k as usize);
        }
        let reach = f64::from(row.top_p) * self.sum(kept);
        if row.top_p < 1.0 {
            let mut before = 0.0;
            let inside = self.ordered.iter().take_while(|weight| {
                let inside = before < reach;
                before += **weight;
                inside
            });
            kept = kept.min(inside.count());
        }
        if row.min_p > 0.0 {
            let least = f64::from(row.min_p);
            let inside = self.ordered.iter().filter(|weight| **weight >= least);
            kept = kept.min(inside.count());
        }
        kept.max(1)
    }
}

/// The token of a row.
pub(super) fn sampled(logits: &[f32], row: &SamplingRow) -> (Status, u32) {
    let logits = adjusted(logits, row);
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if logits.iter().any(|logit| logit.is_nan()) || !best.is_finite() {
        return (Status::Nan, 0);
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Stable: equal logits stay in order of ids.
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap());
    if !row.is_random() {
        return (Status::Ok, order[0] as u32);
    }
    let weight =
        |logit: &f32| exp((f64::from(*logit) - f64::from(best)) / f64::from(row.temperature));
    let weights = Weights {
        by_id: logits.iter().map(weight).collect(),
        ordered: order.iter().map(|id| weight(&logits[*id])).collect(),
    };
    let kept = weights.kept(row);
    let target = uniform(row.seed, row.output_index, row.choice_index) * weights.sum(kept);
    let mut sum = 0.0;
    let index = weights.ordered.iter().position(|weight| {
        sum += weight;
        sum > target
    });
    let positive = weights.ordered.iter().filter(|weight| **weight > 0.0);
    let last = kept.min(positive.count()) - 1;
    (
        Status::Ok,
        order[index.map_or(last, |index| index.min(last))] as u32,
    )
}
