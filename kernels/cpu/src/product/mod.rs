//! Products of activation rows with packed matrices.
//!
//! Every output is accumulated over its inputs in ascending order in one lane, whatever the rows, panels and threads: so
//! it depends on its own row and weight alone.

mod float;
mod integer;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::matrix::{Form, Format, Matrix};
use crate::rows::Rows;
use crate::simd::{InstructionSet, Isa, Kernel, LANES};

/// `out[r × out_stride + j]` = Σ over k of row `row_range.start` + r, input k × output 16 × `panels.start` + j, input k.
#[derive(Clone, Debug)]
pub struct Product<'a> {
    /// The weight.
    pub matrix: Matrix<'a>,
    /// Activations, in the form of the weight's format.
    pub rows: Rows<'a>,
    /// The rows to multiply.
    pub row_range: Range<usize>,
    /// The panels to multiply with.
    pub panels: Range<usize>,
    /// `row_range.len()` rows of 16 × `panels.len()` sums in f32; outputs that fill up the last panel give 0.
    pub out: *mut f32,
    /// Values from one row of sums to the next.
    pub out_stride: usize,
    /// Ask for weights ahead of their use.
    pub prefetch: bool,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // SAFETY: promised to `Product::run`.
        unsafe { self.run_inside(isa) }
    }
}

impl Product<'_> {
    /// Computes it on this thread.
    ///
    /// # Safety
    /// `out` can be written as described, and nobody writes the rows or touches these sums meanwhile.
    ///
    /// # Panics
    /// If shapes or forms do not fit each other, or the machine lacks the instruction set.
    pub unsafe fn run(self, set: InstructionSet) {
        set.run(self);
    }

    /// The same as part of a kernel: a call, each format being compiled once for each instruction set.
    ///
    /// # Safety
    /// As [`Product::run`].
    ///
    /// # Panics
    /// As [`Product::run`].
    #[inline(always)]
    pub unsafe fn run_inside<I: Isa>(self, isa: I) {
        self.check();
        if self.matrix.format.is_float() {
            float::run(isa, &self);
        } else {
            integer::run(isa, &self);
        }
    }

    fn check(&self) {
        let (matrix, form) = (&self.matrix, self.rows.form());
        let fits = match matrix.format {
            Format::F32 | Format::F16 => form == Form::F32,
            Format::Bf16 => matches!(form, Form::F32 | Form::Bf16),
            Format::Int8 => form == Form::Int8,
            _ => form == Form::Int8Halves,
        };
        assert!(fits, "{:?} weights × {form:?} rows", matrix.format);
        assert_eq!(matrix.inputs, self.rows.inputs());
        assert!(self.row_range.end <= self.rows.count());
        assert!(self.panels.end <= matrix.panels());
        assert!(self.out_stride >= self.panels.len() * LANES || self.row_range.len() <= 1);
        let bytes = matrix.panels() * matrix.format.panel_bytes(matrix.inputs);
        assert!(matrix.bytes.len() >= bytes);
    }
}
