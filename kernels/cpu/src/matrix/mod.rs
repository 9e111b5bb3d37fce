//! Weights as the kernels read them: panels of 16 outputs, one after the other, each with its inputs in order.
//!
//! One layout serves every instruction set, so a packed file does not depend on the machine.

mod float;
mod quantized;
#[cfg(test)]
mod tests;

use crate::simd::LANES;

pub(crate) use quantized::{GROUP, Layout};
#[cfg(test)]
pub(crate) use quantized::{Group, group_at};

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
    /// Signed bytes with an f32 scale per 16 inputs.
    Int8Halves,
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
            (Self::Int8, _) => Form::Int8,
            _ => Form::Int8Halves,
        }
    }

    /// Weights are floating-point numbers.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::F16)
    }

    /// Bytes of a panel of 16 outputs; a multiple of 64.
    #[must_use]
    pub fn panel_bytes(self, inputs: usize) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => float::panel_bytes(self, inputs),
            _ => quantized::panel_bytes(self, inputs),
        }
    }

    /// Whether a matrix of so many inputs can be stored so.
    ///
    /// # Errors
    /// Names the multiple that is needed.
    pub fn check(self, inputs: usize) -> Result<(), MatrixError> {
        let multiple = match self {
            Self::F32 | Self::F16 => 1,
            Self::Bf16 => 2,
            _ => quantized::multiple(self),
        };
        if inputs == 0 || !inputs.is_multiple_of(multiple) {
            return Err(MatrixError::Inputs {
                format: self,
                inputs,
                multiple,
            });
        }
        Ok(())
    }
}

/// Bytes of a packed matrix: whole panels.
#[must_use]
pub fn packed_bytes(format: Format, outputs: usize, inputs: usize) -> usize {
    outputs.div_ceil(LANES) * format.panel_bytes(inputs)
}

/// How a file stores numbers: little-endian, with the blocks of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half floats.
    F16,
    /// 32 weights in 18 bytes.
    Q4_0,
    /// 32 weights in 20 bytes.
    Q4_1,
    /// 32 weights in 22 bytes.
    Q5_0,
    /// 32 weights in 34 bytes.
    Q8_0,
    /// 256 weights in 144 bytes.
    Q4K,
    /// 256 weights in 210 bytes.
    Q6K,
}

impl Encoding {
    /// Weights and bytes of a block.
    #[must_use]
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Bf16 | Self::F16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of a row of whole blocks.
    #[must_use]
    pub fn row_bytes(self, inputs: usize) -> usize {
        let (weights, bytes) = self.block();
        inputs / weights * bytes
    }
}

/// One weight as a file has it: row-major, `rows` × `inputs`, in the encoding's own blocks.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// How its numbers are stored.
    pub encoding: Encoding,
    /// Outputs.
    pub rows: usize,
    /// Inputs of each.
    pub inputs: usize,
    /// `rows` × [`Encoding::row_bytes`] bytes.
    pub bytes: &'a [u8],
}

impl<'a> Source<'a> {
    fn check(&self) -> Result<(), MatrixError> {
        let (block, _) = self.encoding.block();
        let wanted = self.rows * self.encoding.row_bytes(self.inputs);
        if !self.inputs.is_multiple_of(block) || self.bytes.len() != wanted {
            return Err(MatrixError::Source {
                encoding: self.encoding,
                rows: self.rows,
                inputs: self.inputs,
                block,
                bytes: self.bytes.len(),
            });
        }
        Ok(())
    }

    /// The bytes of one row.
    fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.encoding.row_bytes(self.inputs);
        &self.bytes[row * bytes..][..bytes]
    }

    /// The numbers of one row, in f32.
    pub(crate) fn decode(&self, row: usize, out: &mut [f32]) {
        match self.encoding {
            Encoding::F32 | Encoding::Bf16 | Encoding::F16 => {
                float::decode(self.encoding, self.row(row), out);
            }
            _ => quantized::decode(self.encoding, self.row(row), out),
        }
    }
}

/// Why a weight cannot be packed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MatrixError {
    /// The format's blocks do not divide the inputs.
    #[error(
        "format {format:?} needs a multiple of {multiple} inputs, not {inputs}: choose another format for this weight"
    )]
    Inputs {
        /// The format.
        format: Format,
        /// Inputs of the matrix.
        inputs: usize,
        /// What must divide them.
        multiple: usize,
    },
    /// The source's length or blocks do not fit its shape.
    #[error(
        "{bytes} bytes are not a weight of {rows} rows of {inputs} inputs in {encoding:?} (blocks of {block}): the file is damaged or of another kind"
    )]
    Source {
        /// How the source is stored.
        encoding: Encoding,
        /// Its rows.
        rows: usize,
        /// Its inputs.
        inputs: usize,
        /// Weights of a block.
        block: usize,
        /// Bytes found.
        bytes: usize,
    },
    /// The order names a row that is not there.
    #[error("row {row} is not among the {rows} of the source")]
    Row {
        /// The row named.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
    /// The packed matrix does not have room for these outputs.
    #[error("outputs {first}..{end} do not fit into {bytes} packed bytes")]
    Room {
        /// First output.
        first: usize,
        /// One past the last output.
        end: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// A weight that is no finite number in the format.
    #[error(
        "weight {value} at row {row}, input {input} has no finite value in {format:?}: the checkpoint is damaged, or needs a format of wider range"
    )]
    NotFinite {
        /// Row of the source.
        row: usize,
        /// Input.
        input: usize,
        /// The number.
        value: f32,
        /// The format.
        format: Format,
    },
    /// This encoding is never turned into this format.
    #[error(
        "a weight in {encoding:?} cannot be packed as {format:?}: keep its own format, or choose a float format"
    )]
    Conversion {
        /// How the source is stored.
        encoding: Encoding,
        /// The format.
        format: Format,
    },
}

/// Packs outputs `first_output`.. of a matrix from rows of `source`: output `first_output` + i is row `order[i]`.
///
/// `out` is the whole packed matrix, zeroed before the first call; several calls may fill it from several sources. Floats
/// are rounded to the nearest value, ties to even.
///
/// # Errors
/// Shapes that do not fit, numbers that are not finite, and conversions that would lose a quantized weight.
pub fn pack(
    format: Format,
    source: &Source,
    order: &[u32],
    first_output: usize,
    out: &mut [u8],
) -> Result<(), MatrixError> {
    format.check(source.inputs)?;
    source.check()?;
    let end = first_output + order.len();
    if packed_bytes(format, end, source.inputs) > out.len() {
        return Err(MatrixError::Room {
            first: first_output,
            end,
            bytes: out.len(),
        });
    }
    if let Some(row) = order.iter().find(|&&row| row as usize >= source.rows) {
        return Err(MatrixError::Row {
            row: *row as usize,
            rows: source.rows,
        });
    }
    if format.is_float() {
        float::pack(format, source, order, first_output, out)
    } else {
        quantized::pack(format, source, order, first_output, out)
    }
}

/// Row `row` in f32, exactly as the format means it, into `out` of length `matrix.inputs`.
///
/// # Panics
/// If there is no such row, or `out` has another length.
pub fn read_row(matrix: &Matrix, row: usize, out: &mut [f32]) {
    assert!(row < matrix.outputs, "row {row} of {}", matrix.outputs);
    assert_eq!(out.len(), matrix.inputs);
    let panel = matrix.panel(row / LANES);
    if matrix.format.is_float() {
        float::read(matrix.format, panel, row % LANES, out);
    } else {
        quantized::read(matrix.format, panel, row % LANES, out);
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

impl<'a> Matrix<'a> {
    /// Panels of 16 outputs; the last is filled up with zeros.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// The bytes of one panel.
    #[must_use]
    pub fn panel(&self, panel: usize) -> &'a [u8] {
        let bytes = self.format.panel_bytes(self.inputs);
        &self.bytes[panel * bytes..][..bytes]
    }
}
