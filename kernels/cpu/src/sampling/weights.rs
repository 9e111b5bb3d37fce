//! Weights of candidates: exp((logit - maximum) / temperature) in f64, at most 1, the same bits on every path.
//!
//! Written so that the compiler makes vectors of it under whichever instruction set is switched on. Only exactly
//! rounded operations occur, so the vectors' width changes nothing.

use super::order::logit_of;
use crate::simd::{Isa, Kernel};

/// Weights computed side by side.
const BLOCK: usize = 16;
/// Below this the weight is zero.
pub(super) const LOWEST: f64 = -746.0;

/// Adding it leaves the nearest integer in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts; the first has so few bits that its products with integers up to 2^20 are exact.
const LN_2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
/// 1 / n! from n = 13 down to 0.
const TAYLOR: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// eˣ for x ≤ 0, within an ulp; x = k ln 2 + r and the Taylor polynomial in r.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    let x = if x > LOWEST { x } else { LOWEST };
    let rounded = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let k = rounded - ROUND;
    let r = k.mul_add(-LN_2[1], k.mul_add(-LN_2[0], x));
    let mut sum = TAYLOR[0];
    let mut n = 1;
    while n < TAYLOR.len() {
        sum = sum.mul_add(r, TAYLOR[n]);
        n += 1;
    }
    // 2^(k + 64) is a normal number for every k; the last product rounds once where the weight is subnormal.
    let exponent = rounded.to_bits().wrapping_add(1023 + 64) << 52;
    sum * f64::from_bits(exponent) * f64::from_bits((1023 - 64) << 52)
}

/// What turns a row's logits into weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) maximum: f64,
    pub(super) temperature: f64,
}

impl Scale {
    #[inline(always)]
    fn weight(self, logit: f32) -> f64 {
        exp((f64::from(logit) - self.maximum) / self.temperature)
    }

    #[inline(always)]
    fn weights(self, logits: &[f32; BLOCK]) -> [f64; BLOCK] {
        let mut weights = [0.0; BLOCK];
        let mut i = 0;
        while i < BLOCK {
            weights[i] = self.weight(logits[i]);
            i += 1;
        }
        weights
    }
}

/// The sum of all weights in order of ids.
pub(super) struct Whole<'a> {
    pub(super) logits: &'a [f32],
    pub(super) scale: Scale,
}

impl Kernel for Whole<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Isa>(self, _: I) -> f64 {
        let mut sum = 0.0;
        let (blocks, tail) = self.logits.as_chunks::<BLOCK>();
        for block in blocks {
            for weight in self.scale.weights(block) {
                sum += weight;
            }
        }
        for logit in tail {
            sum += self.scale.weight(*logit);
        }
        sum
    }
}

/// Appends the weights of candidates, given by their keys, and their cumulated sums.
pub(super) struct Cumulate<'a> {
    pub(super) keys: &'a [u64],
    pub(super) scale: Scale,
    pub(super) weights: &'a mut Vec<f64>,
    pub(super) cumulated: &'a mut Vec<f64>,
}

impl Kernel for Cumulate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let mut sum = self.cumulated.last().copied().unwrap_or(0.0);
        for part in self.keys.chunks(BLOCK) {
            let mut logits = [0.0; BLOCK];
            for (logit, key) in logits.iter_mut().zip(part) {
                *logit = logit_of(*key);
            }
            for weight in &self.scale.weights(&logits)[..part.len()] {
                sum += weight;
                self.weights.push(*weight);
                self.cumulated.push(sum);
            }
        }
    }
}
