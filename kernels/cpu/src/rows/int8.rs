//! Rows of signed bytes: each group of 32 columns with its scales and sums side by side.
//!
//! A scale is the largest magnitude of its columns ÷ 127, so that one outlier costs the precision of its neighbours only:
//! 31 of them in [`Whole`] groups, 15 in [`Halved`] ones, whose products take a third more time.

use crate::simd::{Isa, LANES};

/// 32 columns of a row as products read them.
pub(crate) trait Int8Group {
    /// Parts that have a scale of their own.
    const PARTS: usize;

    /// −127..=127: the nearest integer to value ÷ scale, ties to even.
    fn codes(&self) -> &[i8; 32];
    /// What a code of a part is multiplied with; NaN where a value of it is not finite.
    fn scale(&self, part: usize) -> f32;
    /// Scale × sum of the codes, of all parts.
    fn sum(&self) -> f32;
    /// −Σ of the codes of a part.
    fn minus_sum(&self, part: usize) -> i32;
    /// Rounds 32 values.
    ///
    /// # Safety
    /// They can be read, and the group can be written.
    unsafe fn put<I: Isa>(isa: I, to: *mut Self, values: *const f32);
}

/// 32 columns with one scale.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Whole {
    codes: [i8; 32],
    scale: f32,
    sum: f32,
    minus_sum: i32,
}

/// 32 columns with a scale for each 16.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Halved {
    codes: [i8; 32],
    scales: [f32; 2],
    sum: f32,
    minus_sums: [i32; 2],
}

impl Int8Group for Whole {
    const PARTS: usize = 1;

    #[inline(always)]
    fn codes(&self) -> &[i8; 32] {
        &self.codes
    }
    #[inline(always)]
    fn scale(&self, _part: usize) -> f32 {
        self.scale
    }
    #[inline(always)]
    fn sum(&self) -> f32 {
        self.sum
    }
    #[inline(always)]
    fn minus_sum(&self, _part: usize) -> i32 {
        self.minus_sum
    }

    #[inline(always)]
    unsafe fn put<I: Isa>(isa: I, to: *mut Self, values: *const f32) {
        let (low, high) = (isa.load(values), isa.load(values.add(LANES)));
        let largest = isa.reduce_max(isa.max(isa.abs(low), isa.abs(high)));
        let (scale, inverse) = scales(largest, is_finite(isa, low) && is_finite(isa, high));
        let codes = (&raw mut (*to).codes).cast::<i8>();
        // Sums of so few bytes are exact in f32.
        let sum =
            put_codes(isa, codes, low, inverse) + put_codes(isa, codes.add(LANES), high, inverse);
        (&raw mut (*to).scale).write(scale);
        (&raw mut (*to).sum).write(scale * sum);
        (&raw mut (*to).minus_sum).write(-sum as i32);
    }
}

impl Int8Group for Halved {
    const PARTS: usize = 2;

    #[inline(always)]
    fn codes(&self) -> &[i8; 32] {
        &self.codes
    }
    #[inline(always)]
    fn scale(&self, part: usize) -> f32 {
        self.scales[part]
    }
    #[inline(always)]
    fn sum(&self) -> f32 {
        self.sum
    }
    #[inline(always)]
    fn minus_sum(&self, part: usize) -> i32 {
        self.minus_sums[part]
    }

    #[inline(always)]
    unsafe fn put<I: Isa>(isa: I, to: *mut Self, values: *const f32) {
        let codes = (&raw mut (*to).codes).cast::<i8>();
        let mut total = 0.0;
        for half in 0..2 {
            let value = isa.load(values.add(half * LANES));
            let largest = isa.reduce_max(isa.abs(value));
            let (scale, inverse) = scales(largest, is_finite(isa, value));
            let sum = put_codes(isa, codes.add(half * LANES), value, inverse);
            total += scale * sum;
            (&raw mut (*to).scales).cast::<f32>().add(half).write(scale);
            (&raw mut (*to).minus_sums)
                .cast::<i32>()
                .add(half)
                .write(-sum as i32);
        }
        (&raw mut (*to).sum).write(total);
    }
}

/// Below, the reciprocal of the scale would overflow: such columns count as zero.
const SMALLEST: f32 = 1e-36;

#[inline(always)]
fn is_finite<I: Isa>(isa: I, value: I::F) -> bool {
    !isa.any(isa.is_nan(isa.sub(value, value)))
}

/// A scale and its reciprocal.
#[inline(always)]
fn scales(largest: f32, finite: bool) -> (f32, f32) {
    if !finite {
        (f32::NAN, f32::NAN)
    } else if largest > SMALLEST {
        (largest / 127.0, 127.0 / largest)
    } else {
        (0.0, 0.0)
    }
}

/// Writes 16 codes, zeros where the scale is NaN; gives their sum.
#[inline(always)]
unsafe fn put_codes<I: Isa>(isa: I, to: *mut i8, values: I::F, inverse: f32) -> f32 {
    let inverse = isa.splat(inverse);
    let exact = isa.select(
        isa.is_nan(inverse),
        isa.splat(0.0),
        isa.mul(values, inverse),
    );
    let codes = isa.to_int(exact);
    isa.store_i8(to, codes);
    isa.reduce_add(isa.to_float(codes))
}
