//! What one unit of each kind of work costs.

use crate::latency::{StepKind, Work};

/// Number of coefficients.
pub(super) const COUNT: usize = 9;

/// Places in the vectors of the fit. The constants of the three kinds come first, in their order.
pub(super) mod place {
    pub(crate) const PREFILL_TOKEN: usize = 3;
    pub(crate) const PREFILL_PAIR: usize = 4;
    pub(crate) const PREFILL_ROW: usize = 5;
    pub(crate) const DECODE_ROW: usize = 6;
    pub(crate) const DECODE_CONTEXT: usize = 7;
    pub(crate) const LOGIT_ROW: usize = 8;
}

/// Nanoseconds for one unit of each feature of a [`Work`]; a step's time is their sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// Constant of a step that only decodes.
    pub decode_step: f64,
    /// Constant of a step that only prefills.
    pub prefill_step: f64,
    /// Constant of a step that does both.
    pub mixed_step: f64,
    /// A token of a chunk.
    pub prefill_token: f64,
    /// A query-key pair of prefill attention: there are q × (h + q / 2) for q tokens after h.
    pub prefill_pair: f64,
    /// A chunk.
    pub prefill_row: f64,
    /// A row that decodes.
    pub decode_row: f64,
    /// A token of context that a decoding row attends to.
    pub decode_context: f64,
    /// A row of logits, and sampling from it.
    pub logit_row: f64,
}

impl Default for Coefficients {
    /// Where nothing is known yet: a small model on a few CPU cores. A GPU is found to be faster
    /// with its first steps; the other way round the first steps would miss their targets.
    fn default() -> Self {
        Self {
            decode_step: 10e6,
            prefill_step: 10e6,
            mixed_step: 10e6,
            prefill_token: 500e3,
            prefill_pair: 100.0,
            prefill_row: 50e3,
            decode_row: 500e3,
            decode_context: 200.0,
            logit_row: 200e3,
        }
    }
}

impl Coefficients {
    /// Time of a step with this work in nanoseconds.
    #[must_use]
    pub fn step_ns(&self, work: &Work) -> f64 {
        dot(&self.to_array(), &features(work))
    }

    /// Constant of a step of this kind in nanoseconds.
    #[must_use]
    pub const fn constant(&self, kind: StepKind) -> f64 {
        match kind {
            StepKind::Decode => self.decode_step,
            StepKind::Prefill => self.prefill_step,
            StepKind::Mixed => self.mixed_step,
        }
    }

    pub(super) const fn to_array(self) -> [f64; COUNT] {
        [
            self.decode_step,
            self.prefill_step,
            self.mixed_step,
            self.prefill_token,
            self.prefill_pair,
            self.prefill_row,
            self.decode_row,
            self.decode_context,
            self.logit_row,
        ]
    }

    pub(super) const fn from_array(values: [f64; COUNT]) -> Self {
        let [
            decode_step,
            prefill_step,
            mixed_step,
            prefill_token,
            prefill_pair,
            prefill_row,
            decode_row,
            decode_context,
            logit_row,
        ] = values;
        Self {
            decode_step,
            prefill_step,
            mixed_step,
            prefill_token,
            prefill_pair,
            prefill_row,
            decode_row,
            decode_context,
            logit_row,
        }
    }
}

/// What each coefficient is multiplied with.
pub(super) fn features(work: &Work) -> [f64; COUNT] {
    let mut features = [0.0; COUNT];
    features[work.kind().index()] = 1.0;
    features[place::PREFILL_TOKEN] = f64::from(work.prefill_tokens);
    features[place::PREFILL_PAIR] = work.prefill_pairs_doubled as f64 * 0.5;
    features[place::PREFILL_ROW] = f64::from(work.prefill_rows);
    features[place::DECODE_ROW] = f64::from(work.decode_rows);
    features[place::DECODE_CONTEXT] = work.decode_context as f64;
    features[place::LOGIT_ROW] = f64::from(work.logit_rows);
    features
}

/// Sum of products in ascending order, so that equal inputs give equal bits everywhere.
pub(super) fn dot(left: &[f64; COUNT], right: &[f64; COUNT]) -> f64 {
    let mut sum = 0.0;
    for index in 0..COUNT {
        sum += left[index] * right[index];
    }
    sum
}
