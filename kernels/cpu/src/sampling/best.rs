//! The best token of a row, found while its logits are made.

use super::row::Status;
use crate::simd::{Isa, LANES};

/// Chains of maxima: hide the instruction's latency.
const CHAINS: usize = 4;
/// Logits looked at before the place of a new best is searched.
const BLOCK: usize = 512;

/// The largest logit seen, the lowest id of equal ones. Parts of a row may be seen and merged in any order.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    value: f32,
    id: u32,
    nan: bool,
}

impl Default for Best {
    fn default() -> Self {
        Self::new()
    }
}

impl Best {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            value: f32::NEG_INFINITY,
            id: 0,
            nan: false,
        }
    }

    /// Looks at `count` logits of the ids from `first_id` on.
    ///
    /// # Safety
    /// `count` values can be read at `logits`.
    #[expect(clippy::float_cmp, reason = "equal logits are decided by their ids")]
    #[inline(always)]
    pub unsafe fn see<I: Isa>(&mut self, isa: I, first_id: u32, logits: *const f32, count: usize) {
        let logits = std::slice::from_raw_parts(logits, count);
        let mut first = first_id;
        for block in logits.chunks(BLOCK) {
            let (value, nan) = maximum(isa, block);
            self.nan |= nan;
            if value > self.value || (value == self.value && first < self.id) {
                let index = block.iter().position(|logit| *logit == value);
                self.take(value, first + index.unwrap_or(0) as u32);
            }
            first += BLOCK as u32;
        }
    }

    /// Joins what was seen of another part.
    pub fn merge(&mut self, other: Self) {
        self.nan |= other.nan;
        self.take(other.value, other.id);
    }

    /// The status and the id; 0 where it is not [`Status::Ok`].
    #[must_use]
    pub fn finish(self) -> (Status, u32) {
        if self.nan || !self.value.is_finite() {
            (Status::Nan, 0)
        } else {
            (Status::Ok, self.id)
        }
    }

    #[expect(clippy::float_cmp, reason = "equal logits are decided by their ids")]
    fn take(&mut self, value: f32, id: u32) {
        if value > self.value || (value == self.value && id < self.id) {
            (self.value, self.id) = (value, id);
        }
    }
}

/// The largest value that is a number, -inf if there is none, and whether one is NaN.
#[inline(always)]
pub(super) fn maximum<I: Isa>(isa: I, values: &[f32]) -> (f32, bool) {
    let lowest = isa.splat(f32::NEG_INFINITY);
    let mut chains = [lowest; CHAINS];
    // The largest of a and NaN is NaN only where NaN stands second, so it is looked for apart.
    let mut strange = [isa.splat(0.0); CHAINS];
    let (vectors, tail) = values.split_at(values.len() - values.len() % (CHAINS * LANES));
    let mut at = vectors.as_ptr();
    for _ in 0..vectors.len() / (CHAINS * LANES) {
        for chain in 0..CHAINS {
            // SAFETY: `vectors` has whole rounds of CHAINS vectors.
            let value = unsafe { isa.load(at.add(chain * LANES)) };
            chains[chain] = isa.max(value, chains[chain]);
            strange[chain] = isa.select(isa.is_nan(value), value, strange[chain]);
        }
        at = at.wrapping_add(CHAINS * LANES);
    }
    let best = isa.max(isa.max(chains[0], chains[1]), isa.max(chains[2], chains[3]));
    let strange = isa.add(
        isa.add(strange[0], strange[1]),
        isa.add(strange[2], strange[3]),
    );
    let mut value = isa.reduce_max(best);
    let mut nan = isa.any(isa.is_nan(strange));
    for logit in tail {
        value = if *logit > value { *logit } else { value };
        nan |= logit.is_nan();
    }
    (value, nan)
}
