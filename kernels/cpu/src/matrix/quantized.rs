//! Packing of quantized formats.

use super::{Encoding, Format, MatrixError, Source};

/// What must divide the inputs.
pub(super) fn multiple(format: Format) -> usize {
    match format {
        Format::Q4K | Format::Q6K => 256,
        _ => 32,
    }
}

/// Bytes of a panel.
pub(super) fn panel_bytes(_format: Format, _inputs: usize) -> usize {
    64
}

/// Numbers of a row of a file, in f32.
pub(super) fn decode(_encoding: Encoding, _bytes: &[u8], out: &mut [f32]) {
    out.fill(f32::NAN);
}

/// As [`super::pack`], its arguments checked.
pub(super) fn pack(
    format: Format,
    source: &Source,
    _order: &[u32],
    _first_output: usize,
    _out: &mut [u8],
) -> Result<(), MatrixError> {
    Err(MatrixError::Conversion {
        encoding: source.encoding,
        format,
    })
}

/// As [`super::read_row`], of one panel.
pub(super) fn read(_format: Format, _panel: &[u8], _lane: usize, out: &mut [f32]) {
    out.fill(f32::NAN);
}
