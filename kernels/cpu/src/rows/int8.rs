//! Rows of signed bytes: per group of 32 a scale, and the sums of the codes of each half.

use crate::simd::Isa;

/// Bytes of a row: codes, scales (f32 per 32 columns), sums (i32 per 16 columns).
pub(super) fn row_bytes(columns: usize) -> usize {
    columns + columns / 32 * 4 + columns / 16 * 4
}

/// Where the parts of a row lie.
#[allow(dead_code, reason = "products of integers read them")]
#[derive(Clone, Copy)]
pub(crate) struct Int8Row {
    pub(crate) codes: *mut i8,
    pub(crate) scales: *mut f32,
    pub(crate) sums: *mut i32,
}

impl Int8Row {
    /// The row of `columns` columns that begins at `line`.
    #[inline(always)]
    pub(crate) unsafe fn new(line: *mut u8, columns: usize) -> Self {
        let scales = line.add(columns).cast::<f32>();
        Self {
            codes: line.cast(),
            scales,
            sums: scales.add(columns / 32).cast(),
        }
    }
}

/// Writes the 32 values of a group.
#[inline(always)]
pub(super) unsafe fn put_group<I: Isa>(_isa: I, _row: Int8Row, _group: usize, _values: *const f32) {
}
