//! Root mean square norms (Zhang and Sennrich 2019), and rows prepared for products.

use crate::rows::{GROUP, RowBuffer};
use crate::simd::{Isa, Kernel, LANES};

/// One row's norm: value ÷ root mean square × weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    /// The row: `size` values, then zeros up to a multiple of 32.
    pub input: *const f32,
    /// The weight, filled up with zeros likewise.
    pub weight: *const f32,
    /// Values of a row.
    pub size: usize,
    /// Added to the mean square.
    pub epsilon: f32,
}

impl Norm {
    /// One divided by the root mean square. The sum runs in 32 lanes, whatever the instruction set.
    #[inline(always)]
    unsafe fn inverse<I: Isa>(&self, isa: I) -> f32 {
        let (mut even, mut odd) = (isa.splat(0.0), isa.splat(0.0));
        let mut column = 0;
        while column < self.size {
            let first = isa.load(self.input.add(column));
            let second = isa.load(self.input.add(column + LANES));
            even = isa.fma(first, first, even);
            odd = isa.fma(second, second, odd);
            column += GROUP;
        }
        let mean = isa.reduce_add(isa.add(even, odd)) / self.size as f32;
        1.0 / (mean + self.epsilon).sqrt()
    }

    /// The 32 normed values from `column` on.
    #[inline(always)]
    unsafe fn group<I: Isa>(&self, isa: I, inverse: f32, column: usize, out: *mut f32) {
        let inverse = isa.splat(inverse);
        let mut lane = 0;
        while lane < GROUP {
            let value = isa.mul(isa.load(self.input.add(column + lane)), inverse);
            let weight = isa.load(self.weight.add(column + lane));
            isa.store(out.add(lane), isa.mul(value, weight));
            lane += LANES;
        }
    }
}

/// A row's norm straight into the form that a product reads.
pub(crate) struct NormInto<'a> {
    pub(crate) norm: Norm,
    pub(crate) into: &'a RowBuffer,
    pub(crate) row: usize,
}

impl Kernel for NormInto<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (norm, mut group) = (self.norm, [0.0; GROUP]);
        // SAFETY: the row and its weight reach to a multiple of 32; whoever makes the kernel owns row `row`.
        unsafe {
            let inverse = norm.inverse(isa);
            let mut column = 0;
            while column < norm.size {
                norm.group(isa, inverse, column, group.as_mut_ptr());
                let count = GROUP.min(norm.size - column);
                self.into.put(isa, self.row, column, group.as_ptr(), count);
                column += GROUP;
            }
        }
    }
}

/// A row of f32 into the form that a product reads.
pub(crate) struct Prepare<'a> {
    pub(crate) input: *const f32,
    pub(crate) size: usize,
    pub(crate) into: &'a RowBuffer,
    pub(crate) row: usize,
}

impl Kernel for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // SAFETY: `input` has `size` values; whoever makes the kernel owns row `row`.
        unsafe { self.into.put(isa, self.row, 0, self.input, self.size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Form;
    use crate::simd::InstructionSet;

    fn row(size: usize, scale: f32) -> Vec<f32> {
        let mut values: Vec<f32> = (0..size)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * scale)
            .collect();
        values.resize(size.next_multiple_of(GROUP), 0.0);
        values
    }

    fn normed(set: InstructionSet, input: &[f32], weight: &[f32], size: usize) -> Vec<f32> {
        let norm = Norm {
            input: input.as_ptr(),
            weight: weight.as_ptr(),
            size,
            epsilon: 1e-5,
        };
        let buffer = RowBuffer::new(Form::F32, size, 2).unwrap();
        set.run(NormInto {
            norm,
            into: &buffer,
            row: 1,
        });
        let stored = buffer.rows().row(1).cast::<f32>();
        // SAFETY: the row has so many values.
        unsafe { std::slice::from_raw_parts(stored, size) }.to_vec()
    }

    #[test]
    fn a_norm_is_what_it_says_and_the_same_bits_everywhere() {
        for (size, scale) in [(48, 0.1), (576, 3.0), (40, 1e-4), (64, 1e6)] {
            let (input, weight) = (row(size, scale), row(size, 0.02));
            let wide = input.iter().map(|&x| f64::from(x) * f64::from(x));
            let root = (wide.sum::<f64>() / size as f64 + 1e-5).sqrt();
            let first = normed(InstructionSet::Portable, &input, &weight, size);
            for ((got, x), w) in first.iter().zip(&input).zip(&weight) {
                let want = f64::from(*x) / root * f64::from(*w);
                assert!((f64::from(*got) - want).abs() <= want.abs() * 1e-6);
            }
            for set in InstructionSet::ALL {
                if set.is_available() {
                    assert_eq!(normed(set, &input, &weight, size), first);
                }
            }
        }
    }
}
