//! How long a step takes, learnt from the steps that have retired.
//!
//! ```text
//! T(step) = c0[kind] + c1 · prefill tokens + c2 · Σ q (h + q / 2) + c3 · prefill rows
//!                    + c4 · decode rows    + c5 · Σ context       + c6 · logit rows
//! ```
//!
//! Decode rows and prefill tokens have prices of their own: the former ride on weights that are
//! read anyway, the latter are limited by arithmetic. Errors count in proportion to a step's time.

use crate::latency::coefficients::{COUNT, dot, features};
use crate::latency::fit::Fit;
use crate::latency::{Coefficients, StepKind, Work};

/// Residuals within this many times their usual size count fully; what is larger counts with the
/// square of the quotient, so that its pull falls again the farther it is off.
const CLIP: f64 = 3.0;

/// Factor by which the usual size of residuals moves towards each residual: it follows the median.
const SPREAD_GAIN: f64 = 1.1;
const LEAST_SPREAD: f64 = 0.01;
const LARGEST_SPREAD: f64 = 4.0;

/// Share of steps that keep within the margin, and how fast the margin follows.
const MARGIN_QUANTILE: f64 = 0.95;
const MARGIN_GAIN: f64 = 0.08;
const FIRST_MARGIN: f64 = 1.25;
const LARGEST_MARGIN: f64 = 4.0;

/// A latency model, fitted online. Deterministic: equal observations give equal predictions to the
/// bit.
#[derive(Clone, Debug)]
pub struct LatencyModel {
    prior: [f64; COUNT],
    fit: Fit,
    coefficients: Coefficients,
    /// Usual size of relative residuals, by kind.
    spread: [f64; 3],
    /// Quantile of time ÷ prediction, by kind.
    margin: [f64; 3],
    observations: [u64; 3],
}

impl Default for LatencyModel {
    fn default() -> Self {
        Self::new(&Coefficients::default())
    }
}

impl LatencyModel {
    /// A model that believes `prior` until it has seen steps. What is 0 there is taken as barely
    /// anything: it can still be learnt.
    #[must_use]
    pub fn new(prior: &Coefficients) -> Self {
        let prior = prior.to_array().map(|value| value.max(1e-3));
        Self {
            prior,
            fit: Fit::new(),
            coefficients: Coefficients::from_array(prior),
            spread: [1.0; 3],
            margin: [FIRST_MARGIN; 3],
            observations: [0; 3],
        }
    }

    /// A step with this work took `duration_ns` by the worker's own clock. One observation that is
    /// ten times off hardly moves the model, a lasting change does within some tens of steps.
    pub fn observe(&mut self, work: &Work, duration_ns: u64) {
        if duration_ns == 0 || work.decode_rows + work.prefill_rows == 0 {
            return;
        }
        let kind = work.kind().index();
        let duration = duration_ns as f64;
        let features = features(work);
        let predicted = dot(&self.coefficients.to_array(), &features).max(1.0);
        let ratio = duration / predicted;
        let residual = (ratio - 1.0).abs();
        let limit = CLIP * self.spread[kind];
        let part = if residual > limit {
            limit / residual
        } else {
            1.0
        };
        let row = std::array::from_fn(|index| features[index] * self.prior[index] / predicted);
        self.fit.observe(kind, &row, ratio, part * part);
        self.track_spread(kind, residual);
        self.track_margin(kind, ratio);
        self.observations[kind] += 1;
        self.borrow_constant();
        let estimate = &self.fit.estimate;
        let scaled = std::array::from_fn(|index| estimate[index] * self.prior[index]);
        self.coefficients = Coefficients::from_array(scaled);
    }

    fn track_spread(&mut self, kind: usize, residual: f64) {
        let spread = &mut self.spread[kind];
        *spread = if residual > *spread {
            (*spread * SPREAD_GAIN).min(LARGEST_SPREAD)
        } else {
            (*spread / SPREAD_GAIN).max(LEAST_SPREAD)
        };
    }

    fn track_margin(&mut self, kind: usize, ratio: f64) {
        let margin = &mut self.margin[kind];
        *margin = if ratio > *margin {
            (*margin * (1.0 + MARGIN_GAIN * MARGIN_QUANTILE)).min(LARGEST_MARGIN)
        } else {
            (*margin * (1.0 - MARGIN_GAIN * (1.0 - MARGIN_QUANTILE))).max(1.0)
        };
    }

    /// Until a mixed step was seen, it is expected to cost what decoding costs beside its prefill.
    fn borrow_constant(&mut self) {
        let [decode, _, mixed] = StepKind::ALL.map(StepKind::index);
        if self.observations[mixed] == 0 && self.observations[decode] > 0 {
            let constant = self.fit.estimate[decode] * self.prior[decode];
            self.fit.estimate[mixed] = constant / self.prior[mixed];
        }
    }

    /// Expected duration of a step with this work, in nanoseconds.
    #[must_use]
    pub fn predict(&self, work: &Work) -> u64 {
        self.coefficients.step_ns(work) as u64
    }

    /// As [`Self::predict`], with the margin that 19 of 20 steps keep.
    #[must_use]
    pub fn predict_upper(&self, work: &Work) -> u64 {
        (self.coefficients.step_ns(work) * self.margin(work.kind())) as u64
    }

    /// What steps of this kind take at most in 19 of 20 cases, as a multiple of their prediction.
    #[must_use]
    pub const fn margin(&self, kind: StepKind) -> f64 {
        self.margin[kind.index()]
    }

    /// Steps of this kind that were observed.
    #[must_use]
    pub const fn observations(&self, kind: StepKind) -> u64 {
        self.observations[kind.index()]
    }

    /// The present estimate.
    #[must_use]
    pub const fn coefficients(&self) -> &Coefficients {
        &self.coefficients
    }

    /// Every number that decides what the model will say.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = f64> + '_ {
        let tracked = self.spread.iter().chain(&self.margin).copied();
        let seen = self
            .observations
            .map(|count| f64::from(u8::from(count > 0)));
        self.fit.numbers().chain(tracked).chain(seen)
    }
}
