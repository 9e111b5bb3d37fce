//! Packing of floating-point formats: input k of all 16 outputs of a panel side by side, then input k + 1; bfloat16 in
//! pairs of inputs (k, k + 1) per output, as [`crate::simd::Isa::dot_bf16`] reads them.

use half::{bf16, f16};

use super::{Encoding, Format, MatrixError, Source};
use crate::simd::LANES;

/// Bytes of a panel.
pub(super) fn panel_bytes(format: Format, inputs: usize) -> usize {
    let bytes = if format == Format::F32 { 4 } else { 2 };
    (inputs * LANES * bytes).next_multiple_of(64)
}

/// Numbers of a row of a file, in f32.
pub(super) fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    if encoding == Encoding::F32 {
        for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        return;
    }
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = if encoding == Encoding::Bf16 {
            bf16::from_le_bytes(*bytes).to_f32()
        } else {
            f16::from_le_bytes(*bytes).to_f32()
        };
    }
}

/// Offset in a panel of input `input` of output `lane`.
fn place(format: Format, input: usize, lane: usize) -> usize {
    match format {
        Format::F32 => (input * LANES + lane) * 4,
        Format::Bf16 => ((input / 2 * LANES + lane) * 2 + input % 2) * 2,
        _ => (input * LANES + lane) * 2,
    }
}

/// As [`super::pack`], its arguments checked.
pub(super) fn pack(
    format: Format,
    source: &Source,
    order: &[u32],
    first_output: usize,
    out: &mut [u8],
) -> Result<(), MatrixError> {
    let mut values = vec![0.0; source.inputs];
    let panel_bytes = panel_bytes(format, source.inputs);
    for (output, &row) in (first_output..).zip(order) {
        source.decode(row as usize, &mut values);
        let panel = &mut out[output / LANES * panel_bytes..][..panel_bytes];
        let written = write(format, &values, output % LANES, panel);
        if let Err(input) = written {
            return Err(MatrixError::NotFinite {
                row: row as usize,
                input,
                value: values[input],
                format,
            });
        }
    }
    Ok(())
}

/// Writes one output of a panel; where a value has no finite counterpart, its input.
fn write(format: Format, values: &[f32], lane: usize, panel: &mut [u8]) -> Result<(), usize> {
    for (input, &value) in values.iter().enumerate() {
        let at = place(format, input, lane);
        let finite = match format {
            Format::F32 => {
                panel[at..at + 4].copy_from_slice(&value.to_le_bytes());
                value.is_finite()
            }
            Format::Bf16 => {
                let rounded = bf16::from_f32(value);
                panel[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
                rounded.is_finite()
            }
            _ => {
                let rounded = f16::from_f32(value);
                panel[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
                rounded.is_finite()
            }
        };
        if !finite {
            return Err(input);
        }
    }
    Ok(())
}

/// As [`super::read_row`], of one panel.
pub(super) fn read(format: Format, panel: &[u8], lane: usize, out: &mut [f32]) {
    for (input, value) in out.iter_mut().enumerate() {
        let at = place(format, input, lane);
        let two = || [panel[at], panel[at + 1]];
        *value = match format {
            Format::F32 => {
                f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
            }
            Format::Bf16 => bf16::from_le_bytes(two()).to_f32(),
            _ => f16::from_le_bytes(two()).to_f32(),
        };
    }
}
