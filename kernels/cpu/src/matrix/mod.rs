//! Weights as the kernels read them: panels of 16 outputs, one after the other, each with its inputs in order.
//!
//! One layout serves every instruction set, so a packed file does not depend on the machine.

mod float;
mod quantized;

use crate::simd::LANES;

/// How the numbers of a matrix are stored. Names and blocks of the `Q` formats are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half floats.
    F16,
    /// Signed bytes with one f32 scale per output.
    Int8,
    /// Signed bytes with a half-float scale per 32 inputs.
    Q8_0,
    /// Four bits with offset 8 and a half-float scale per 32 inputs.
    Q4_0,
    /// Four bits with a half-float scale and minimum per 32 inputs.
    Q4_1,
    /// Five bits with offset 16 and a half-float scale per 32 inputs.
    Q5_0,
    /// Four bits in blocks of 256 inputs: eight 6-bit scales and minima under two half floats.
    Q4K,
    /// Six bits in blocks of 256 inputs: sixteen 8-bit scales under one half float.
    Q6K,
}

/// What a product reads of its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As they are.
    F32,
    /// Rounded to bfloat16, for [`crate::simd::Isa::dot_bf16`].
    Bf16,
    /// Signed bytes with an f32 scale per 32 inputs.
    Int8,
}

/// Which arithmetic floating-point weights are multiplied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// float32 sums of products of float32 values.
    F32,
    /// float32 sums of products of bfloat16 values.
    Bf16,
}

impl Format {
    /// The form of the activations that this format is multiplied with. Only bfloat16 weights have a choice.
    #[must_use]
    pub fn form(self, arithmetic: Arithmetic) -> Form {
        match (self, arithmetic) {
            (Self::Bf16, Arithmetic::Bf16) => Form::Bf16,
            (Self::F32 | Self::Bf16 | Self::F16, _) => Form::F32,
            _ => Form::Int8,
        }
    }
}

/// A packed matrix, borrowed: `outputs` × `inputs`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// How it is stored.
    pub format: Format,
    /// Rows of the weight, as a checkpoint counts them.
    pub outputs: usize,
    /// Its columns.
    pub inputs: usize,
    /// [`packed_bytes`] bytes, aligned to 64.
    pub bytes: &'a [u8],
}

impl Matrix<'_> {
    /// Panels of 16 outputs; the last is filled up with zeros.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }
}
