//! Scores of a tile into weights, and tiles into a row: the running softmax of Milakov and Gimelshein 2018.

use super::lines::Lines;
use super::{PANELS, TILE};
use crate::math::exp2_negative;
use crate::simd::{Isa, LANES};

/// Scales of the positions of a tile, by panel.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub(super) keys: [*const f32; PANELS],
    pub(super) values: [*const f32; PANELS],
}

/// Largest score and sum of the weights of a row over one tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

/// weights[i] = 2^(score − largest score) for the first `count` scores, zero up to a whole vector.
///
/// With `scales`, scores are multiplied by those of the keys first, and weights by those of the values last, after
/// they were summed.
///
/// # Safety
/// `scores` holds [`TILE`], `weights` as many pairs' factors; 1 ≤ `count` ≤ `TILE`.
#[inline(always)]
pub(super) unsafe fn weights<I: Isa, L: Lines>(
    isa: I,
    scores: *mut f32,
    count: usize,
    scales: Option<&Scales>,
    weights: *mut u32,
) -> Summary {
    debug_assert!((1..=TILE).contains(&count));
    let whole = count / LANES;
    let rest = isa.first(count % LANES);
    let lowest = isa.splat(f32::NEG_INFINITY);
    let mut largest = lowest;
    let panels = count.div_ceil(LANES);
    for panel in 0..panels {
        let at = scores.add(panel * LANES);
        let mut score = isa.load(at);
        if let Some(scales) = scales {
            score = isa.mul(score, isa.load(scales.keys[panel]));
            isa.store(at, score);
        }
        if panel == whole {
            score = isa.select(rest, score, lowest);
        }
        largest = isa.max(largest, score);
    }
    let largest = isa.reduce_max(largest);
    let mut sums = isa.splat(0.0);
    for panel in 0..panels {
        let score = isa.load(scores.add(panel * LANES));
        let mut weight = exp2_negative(isa, isa.sub(score, isa.splat(largest)));
        if panel == whole {
            weight = isa.select(rest, weight, isa.splat(0.0));
        }
        sums = isa.add(sums, weight);
        if let Some(scales) = scales {
            weight = isa.mul(weight, isa.load(scales.values[panel]));
            if panel == whole {
                weight = isa.select(rest, weight, isa.splat(0.0));
            }
        }
        L::store_factors(isa, weights.add(panel * (LANES / 2) * L::WORDS), weight);
    }
    Summary {
        largest,
        sum: isa.reduce_add(sums),
    }
}

/// A row over all tiles so far: `state` joined with the `next` tile, [16 × `groups`] sums each.
///
/// # Safety
/// The pointers hold that many values.
#[inline(always)]
pub(super) unsafe fn join<I: Isa>(
    isa: I,
    state: (Summary, *mut f32),
    next: (Summary, *const f32),
    groups: usize,
) -> Summary {
    let (old, new) = (state.0, next.0);
    let largest = isa.splat(if new.largest > old.largest {
        new.largest
    } else {
        old.largest
    });
    let keep = exp2_negative(isa, isa.sub(isa.splat(old.largest), largest));
    let take = exp2_negative(isa, isa.sub(isa.splat(new.largest), largest));
    for group in 0..groups {
        let at = state.1.add(group * LANES);
        let taken = isa.mul(isa.load(next.1.add(group * LANES)), take);
        isa.store(at, isa.fma(isa.load(at), keep, taken));
    }
    let sum = isa.fma(isa.splat(old.sum), keep, isa.mul(isa.splat(new.sum), take));
    Summary {
        largest: isa.reduce_max(largest),
        sum: isa.reduce_max(sum),
    }
}

/// out[dim] = sums[dim] ÷ sum for `dims` dimensions; `sums` is overwritten.
///
/// # Safety
/// `sums` holds whole vectors, `out` holds `dims`.
#[inline(always)]
pub(super) unsafe fn finish<I: Isa>(
    isa: I,
    summary: Summary,
    sums: *mut f32,
    out: *mut f32,
    dims: usize,
) {
    let sum = isa.splat(summary.sum);
    let whole = dims / LANES;
    for group in 0..whole {
        let at = group * LANES;
        isa.store(out.add(at), isa.div(isa.load(sums.add(at)), sum));
    }
    for dim in whole * LANES..dims {
        *out.add(dim) = *sums.add(dim) / summary.sum;
    }
}
