//! Rows of signed bytes: each group of 32 columns with its scale and sums side by side.
//!
//! The scale is a group's largest magnitude ÷ 127, so that one outlier costs the precision of 31 neighbours only.

use crate::simd::{Isa, LANES};

/// 32 columns of a row.
#[repr(C)]
pub(crate) struct Int8Group {
    /// −127..=127: the nearest integer to value ÷ scale, ties to even.
    pub(crate) codes: [i8; 32],
    /// What a code is multiplied with; NaN where a value of the group is not finite.
    pub(crate) scale: f32,
    /// Scale × sum of the codes.
    pub(crate) sum: f32,
    /// −Σ of the codes.
    pub(crate) minus_sum: i32,
    /// −Σ of the first 16 codes.
    pub(crate) minus_first_sum: i32,
}

/// Below, the reciprocal of the scale would overflow: such a group counts as zero.
const SMALLEST: f32 = 1e-36;

/// Bytes of a row.
pub(super) fn row_bytes(columns: usize) -> usize {
    columns / 32 * size_of::<Int8Group>()
}

/// Writes the 32 values of a group of two rows: the values, and `stride` bytes further what their rounding left.
///
/// # Safety
/// Both groups can be written and 32 values can be read.
#[inline(always)]
pub(super) unsafe fn put_pair<I: Isa>(
    isa: I,
    (line, stride): (*mut u8, usize),
    group: usize,
    values: *const f32,
) {
    put_group(isa, line, group, values);
    let from = line.cast::<Int8Group>().add(group).cast_const();
    let minus_scale = isa.splat(-(*from).scale);
    let codes = (&raw const (*from).codes).cast::<i8>();
    let mut rest = [0.0; 2 * LANES];
    for start in [0, LANES] {
        let code = isa.to_float(isa.load_i8(codes.add(start)));
        let left = isa.fma(minus_scale, code, isa.load(values.add(start)));
        isa.store(rest.as_mut_ptr().add(start), left);
    }
    put_group(isa, line.add(stride), group, rest.as_ptr());
}

/// Writes the 32 values of a group of the row that begins at `line`.
///
/// # Safety
/// The group can be written and 32 values can be read.
#[inline(always)]
pub(super) unsafe fn put_group<I: Isa>(isa: I, line: *mut u8, group: usize, values: *const f32) {
    let to = line.cast::<Int8Group>().add(group);
    let (low, high) = (isa.load(values), isa.load(values.add(LANES)));
    let finite = |value| !isa.any(isa.is_nan(isa.sub(value, value)));
    let (scale, inverse) = if finite(low) && finite(high) {
        let largest = isa.reduce_max(isa.max(isa.abs(low), isa.abs(high)));
        if largest > SMALLEST {
            (largest / 127.0, 127.0 / largest)
        } else {
            (0.0, 0.0)
        }
    } else {
        (f32::NAN, f32::NAN)
    };
    let zero = isa.splat(0.0);
    let inverse = isa.splat(inverse);
    let invalid = isa.is_nan(inverse);
    let round = |value| isa.to_int(isa.select(invalid, zero, isa.mul(value, inverse)));
    let (low, high) = (round(low), round(high));
    let codes = (&raw mut (*to).codes).cast::<i8>();
    isa.store_i8(codes, low);
    isa.store_i8(codes.add(LANES), high);
    // Sums of so few bytes are exact in f32.
    let first = isa.reduce_add(isa.to_float(low));
    let sum = first + isa.reduce_add(isa.to_float(high));
    (&raw mut (*to).scale).write(scale);
    (&raw mut (*to).sum).write(scale * sum);
    (&raw mut (*to).minus_sum).write(-sum as i32);
    (&raw mut (*to).minus_first_sum).write(-first as i32);
}
