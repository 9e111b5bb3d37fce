//! Packing of quantized formats.
//!
//! Everything passes through [`Group`]: 32 weights of one output with what their codes mean. Files, floats and panels
//! each read or write groups.

mod blocks;
mod layout;
mod panel;
mod rounding;
#[cfg(test)]
mod tests;

use half::f16;

use super::{Encoding, Format, MatrixError, Source};
use crate::simd::{InstructionSet, LANES};

pub(crate) use layout::{GROUP, Layout};

/// 32 weights of one output.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Group {
    /// Unsigned, as stored: with an offset of 128 for bytes, else as ggml has them.
    pub(crate) codes: [u8; GROUP],
    /// Scale of the group, or of its block of 256.
    pub(crate) scale: f16,
    /// Minimum of the group, or of its block of 256.
    pub(crate) minimum: f16,
    /// `Q4K`: scale and minimum of the group, six bits; `Q6K`: signed scales of its halves.
    pub(crate) small: [u8; 2],
}

impl Group {
    /// The weights, by the definition of the format: each product is exact, so only `Q4_1`'s and `Q4K`'s sums round.
    fn values(&self, format: Format) -> [f32; GROUP] {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        let [first, second] = self.small;
        let code = |i: usize| f32::from(self.codes[i]);
        std::array::from_fn(|i| match format {
            Format::Q4_0 => scale * (code(i) - 8.0),
            Format::Q5_0 => scale * (code(i) - 16.0),
            Format::Q4_1 => scale * code(i) + minimum,
            Format::Q4K => scale * f32::from(first) * code(i) - minimum * f32::from(second),
            Format::Q6K => {
                let small = if i < 16 { first } else { second };
                scale * f32::from(small as i8) * (code(i) - 32.0)
            }
            _ => scale * (code(i) - 128.0),
        })
    }
}

/// What must divide the inputs.
pub(super) fn multiple(format: Format) -> usize {
    match format {
        Format::Int8 => 1,
        Format::Q4K | Format::Q6K => 256,
        _ => GROUP,
    }
}

/// Bytes of a panel.
pub(super) fn panel_bytes(format: Format, inputs: usize) -> usize {
    Layout::of(format).panel_bytes(inputs.div_ceil(GROUP))
}

/// The format whose groups an encoding's blocks are.
fn native(encoding: Encoding) -> Option<Format> {
    match encoding {
        Encoding::F32 | Encoding::Bf16 | Encoding::F16 => None,
        Encoding::Q4_0 => Some(Format::Q4_0),
        Encoding::Q4_1 => Some(Format::Q4_1),
        Encoding::Q5_0 => Some(Format::Q5_0),
        Encoding::Q8_0 => Some(Format::Q8_0),
        Encoding::Q4K => Some(Format::Q4K),
        Encoding::Q6K => Some(Format::Q6K),
    }
}

/// Numbers of a row of a file, in f32.
pub(super) fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    let Some(format) = native(encoding) else {
        unreachable!("{encoding:?} has no blocks");
    };
    for (index, values) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        *values = blocks::group(encoding, bytes, index).values(format);
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
    let from_floats = native(source.encoding).is_none();
    let roundable = !matches!(format, Format::Q5_0 | Format::Q4K | Format::Q6K);
    if !(from_floats && roundable || native(source.encoding) == Some(format)) {
        return Err(MatrixError::Conversion {
            encoding: source.encoding,
            format,
        });
    }
    let groups = source.inputs.div_ceil(GROUP);
    let panel_bytes = panel_bytes(format, source.inputs);
    let mut values = vec![0.0; groups * GROUP];
    let mut rounded = vec![Group::default(); groups];
    for (output, &row) in (first_output..).zip(order) {
        let panel = &mut out[output / LANES * panel_bytes..][..panel_bytes];
        let mut panel = panel::Panel::new(format, source.inputs, panel);
        let lane = output % LANES;
        if from_floats {
            source.decode(row as usize, &mut values[..source.inputs]);
            let scale = round(format, row, &values, &mut rounded)?;
            panel.put_scale(lane, scale);
        } else {
            for (index, group) in rounded.iter_mut().enumerate() {
                *group = blocks::group(source.encoding, source.row(row as usize), index);
                check_finite(format, row, index, group)?;
            }
        }
        for (index, group) in rounded.iter().enumerate() {
            panel.put(lane, index, group);
        }
    }
    Ok(())
}

/// Rounds a row of floats, padded with zeros to whole groups; the scale of the output, where it has one.
fn round(
    format: Format,
    row: u32,
    values: &[f32],
    rounded: &mut [Group],
) -> Result<f32, MatrixError> {
    let not_finite = |input: usize| MatrixError::NotFinite {
        row: row as usize,
        input,
        value: values[input],
        format,
    };
    if let Some(input) = values.iter().position(|value| !value.is_finite()) {
        return Err(not_finite(input));
    }
    let kernel = rounding::Round {
        format,
        values,
        groups: rounded,
    };
    let scale = InstructionSet::detect().run(kernel);
    if let Some(index) = rounded
        .iter()
        .position(|group| !(group.scale.is_finite() && group.minimum.is_finite()))
    {
        let inputs = index * GROUP..(index + 1) * GROUP;
        let magnitude = |&a: &usize, &b: &usize| values[a].abs().total_cmp(&values[b].abs());
        return Err(not_finite(inputs.max_by(magnitude).unwrap_or(0)));
    }
    Ok(scale)
}

/// A group of a row of a packed matrix, and the row's scale where it has one.
#[cfg(test)]
pub(crate) fn group_at(matrix: &super::Matrix, row: usize, index: usize) -> (Group, Option<f32>) {
    let groups = matrix.inputs.div_ceil(GROUP);
    let panel = matrix.panel(row / LANES);
    panel::read(matrix.format, (panel, groups), row % LANES, index)
}

/// A damaged file may hold scales that are no numbers.
fn check_finite(format: Format, row: u32, index: usize, group: &Group) -> Result<(), MatrixError> {
    for half in [group.scale, group.minimum] {
        if !half.is_finite() {
            return Err(MatrixError::NotFinite {
                row: row as usize,
                input: index * GROUP,
                value: half.to_f32(),
                format,
            });
        }
    }
    Ok(())
}

/// As [`super::read_row`], of one panel.
pub(super) fn read(format: Format, panel: &[u8], lane: usize, out: &mut [f32]) {
    let groups = out.len().div_ceil(GROUP);
    for (index, values) in out.chunks_mut(GROUP).enumerate() {
        let (group, scale) = panel::read(format, (panel, groups), lane, index);
        let decoded = match scale {
            None => group.values(format),
            Some(scale) => group.codes.map(|code| scale * (f32::from(code) - 128.0)),
        };
        values.copy_from_slice(&decoded[..values.len()]);
    }
}
