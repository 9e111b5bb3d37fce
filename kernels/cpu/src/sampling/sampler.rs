//! One row: adjusted, then its best or a drawn token.

use super::adjust::{Counts, adjust};
use super::best::{Best, maximum};
use super::candidates::{Candidates, Scratch};
use super::likeliest::Scores;
use super::philox::uniform;
use super::row::{SamplingRow, Status};
use super::weights::{Scale, Whole};
use crate::simd::{InstructionSet, Isa, Kernel};

/// Candidates put in order at first, where top-k does not say how many.
const FIRST_CANDIDATES: usize = 512;

/// Samples rows one after the other, each as if it were alone; keeps memory for the largest.
#[derive(Debug)]
pub struct Sampler {
    counts: Counts,
    scratch: Scratch,
    /// Logits as they were.
    unchanged: Vec<f32>,
    /// Changes how much is put in order, never the token.
    pub(super) first_candidates: usize,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampler {
    /// Nothing allocated yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            counts: Counts::default(),
            scratch: Scratch::default(),
            unchanged: Vec::new(),
            first_candidates: FIRST_CANDIDATES,
        }
    }

    /// One token for a row of logits, one for each id that may be sampled; penalties and bias are applied in place.
    ///
    /// A row whose mask has not come gives [`Status::NotSampled`] and id 0, and is left as it is. Masked ids have -inf.
    ///
    /// A row with a NaN, with +inf or with nothing above -inf gives [`Status::Nan`] and id 0. Of a bias, ids outside the
    /// row are passed over: [`SamplingRow::check`] refuses them.
    pub fn sample(
        &mut self,
        set: InstructionSet,
        logits: &mut [f32],
        row: &SamplingRow,
    ) -> (Status, u32) {
        if row.waits_for_mask() {
            return (Status::NotSampled, 0);
        }
        adjust(logits, row, &mut self.counts);
        if !row.is_random() {
            return set.run(Greedy(logits));
        }
        let (best, nan) = set.run(Maximum(logits));
        if nan || !best.is_finite() {
            return (Status::Nan, 0);
        }
        (Status::Ok, self.draw(set, logits, row, best))
    }

    /// As [`Self::sample`]; if it finds an id, fills `scores` under the logits as they came, before penalties, bias and
    /// temperature. Summed in order of ids, so the same bits on every path.
    pub fn sample_scored(
        &mut self,
        set: InstructionSet,
        logits: &mut [f32],
        row: &SamplingRow,
        scores: Scores<'_>,
    ) -> (Status, u32) {
        let mut unchanged = std::mem::take(&mut self.unchanged);
        unchanged.clear();
        if row.changes_logits() {
            unchanged.extend_from_slice(logits);
        }
        let (status, id) = self.sample(set, logits, row);
        if status == Status::Ok {
            let plain = if row.changes_logits() {
                &unchanged
            } else {
                &*logits
            };
            scores.fill(set, plain, id);
        }
        self.unchanged = unchanged;
        (status, id)
    }

    fn draw(&mut self, set: InstructionSet, logits: &[f32], row: &SamplingRow, best: f32) -> u32 {
        let vocabulary = logits.len();
        let by_k = match usize::try_from(row.top_k) {
            Ok(k @ 1..) => k.min(vocabulary),
            _ => vocabulary,
        };
        let wanted = if by_k < vocabulary {
            by_k
        } else {
            self.first_candidates
        };
        let scale = Scale {
            maximum: f64::from(best),
            temperature: f64::from(row.temperature),
        };
        let mut candidates = Candidates::new(set, logits, scale, wanted, &mut self.scratch);
        let kept = keep(&mut candidates, row, by_k);
        let number = uniform(row.seed, row.output_index, row.choice_index);
        let target = number * candidates.mass(kept);
        let index = candidates.first_to_exceed(target);
        // Sums in another order may leave a little of the target: then the last that has a weight.
        let last = kept.min(candidates.reached()) - 1;
        candidates.id(index.map_or(last, |index| index.min(last)))
    }
}

/// What is taken off a logit to make it a log probability.
pub(super) fn log_normaliser(set: InstructionSet, logits: &[f32]) -> f64 {
    let (best, _) = set.run(Maximum(logits));
    let maximum = f64::from(best);
    let scale = Scale {
        maximum,
        temperature: 1.0,
    };
    maximum + set.run(Whole { logits, scale }).ln()
}

/// Length of the prefix that top-k (`by_k`), top-p and min-p keep; at least 1.
fn keep(candidates: &mut Candidates, row: &SamplingRow, by_k: usize) -> usize {
    let mut kept = by_k;
    if row.top_p < 1.0 {
        let reach = f64::from(row.top_p) * candidates.mass(by_k);
        if let Some(index) = candidates.first_to_reach(reach) {
            kept = kept.min(index + 1);
        }
    }
    if row.min_p > 0.0 {
        kept = kept.min(candidates.at_least(f64::from(row.min_p), kept));
    }
    kept.max(1)
}

struct Greedy<'a>(&'a [f32]);

impl Kernel for Greedy<'_> {
    type Output = (Status, u32);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let mut best = Best::new();
        // SAFETY: a slice's own values.
        unsafe { best.see(isa, 0, self.0.as_ptr(), self.0.len()) };
        best.finish()
    }
}

struct Maximum<'a>(&'a [f32]);

impl Kernel for Maximum<'_> {
    type Output = (f32, bool);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        maximum(isa, self.0)
    }
}
