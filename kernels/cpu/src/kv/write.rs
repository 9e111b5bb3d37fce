//! Keys and values of a token into their places.

#[cfg(test)]
use half::{bf16, f16};

use super::{HeadBlock, KvFormat, KvShape, line_element};
use crate::simd::{Isa, LANES};

/// A row of one head as the pool's format has it: elements side by side, in `bytes`, and its scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowCode {
    pub(crate) bytes: *const u8,
    pub(crate) scale: f32,
}

/// Rounds `count` values (a multiple of 8) to `format`.
///
/// Signed bytes are x × 127 ÷ the largest magnitude, ties to even.
///
/// # Safety
/// `values` can be read, and 4 × `count` bytes at `out` written, up to the next multiple of 16 values.
#[inline(always)]
pub(crate) unsafe fn encode<I: Isa>(
    isa: I,
    format: KvFormat,
    values: *const f32,
    count: usize,
    out: *mut u8,
) -> RowCode {
    let scale = match format {
        KvFormat::Int8 => encode_bytes(isa, values, count, out.cast()),
        _ => encode_floats(isa, format, values, count, out),
    };
    RowCode { bytes: out, scale }
}

#[inline(always)]
unsafe fn encode_floats<I: Isa>(
    isa: I,
    format: KvFormat,
    values: *const f32,
    count: usize,
    out: *mut u8,
) -> f32 {
    let mut place = 0;
    while place < count {
        let value = isa.load(values.add(place));
        match format {
            KvFormat::F32 => isa.store(out.cast::<f32>().add(place), value),
            KvFormat::F16 => isa.store_f16(out.cast::<u16>().add(place), value),
            _ => isa.store_bf16(out.cast::<u16>().add(place), value),
        }
        place += LANES;
    }
    1.0
}

#[inline(always)]
unsafe fn encode_bytes<I: Isa>(isa: I, values: *const f32, count: usize, out: *mut i8) -> f32 {
    let wide = count / LANES * LANES;
    let mut largest = isa.splat(0.0);
    let mut place = 0;
    while place < count {
        let mut magnitude = isa.abs(isa.load(values.add(place)));
        if place == wide {
            magnitude = isa.select(isa.first(count - wide), magnitude, isa.splat(0.0));
        }
        largest = isa.max(largest, magnitude);
        place += LANES;
    }
    let largest = isa.reduce_max(largest);
    // So small a row counts as zero: its inverse would not be finite.
    let (scale, inverse) = if largest < 1e-30 {
        (0.0, 0.0)
    } else {
        (largest / 127.0, 127.0 / largest)
    };
    place = 0;
    while place < count {
        let value = isa.mul(isa.load(values.add(place)), isa.splat(inverse));
        isa.store_i8(out.add(place), isa.to_int(value));
        place += LANES;
    }
    scale
}

/// Writes the key and value rows of a token at `offset` in its block.
///
/// # Safety
/// The rows hold `head_dim` elements, and nobody else touches this token's place.
pub(crate) unsafe fn put_row(
    shape: &KvShape,
    block: &HeadBlock,
    offset: usize,
    key: RowCode,
    value: RowCode,
) {
    match shape.format {
        KvFormat::F32 => put::<u32>(shape, block, offset, key, value),
        KvFormat::Bf16 | KvFormat::F16 => put::<u16>(shape, block, offset, key, value),
        KvFormat::Int8 => {
            put::<u8>(shape, block, offset, key, value);
            *block.scales.add(offset) = key.scale;
            *block.scales.add(shape.block_size + offset) = value.scale;
        }
    }
}

unsafe fn put<T: Copy>(
    shape: &KvShape,
    block: &HeadBlock,
    offset: usize,
    key: RowCode,
    value: RowCode,
) {
    let (key, value) = (key.bytes.cast::<T>(), value.bytes.cast::<T>());
    let dims = shape.head_dim;
    if !shape.has_panels() {
        let (keys, values) = (block.keys.cast::<T>(), block.values.cast::<T>());
        std::ptr::copy_nonoverlapping(key, keys.add(offset * dims), dims);
        std::ptr::copy_nonoverlapping(value, values.add(offset * dims), dims);
        return;
    }
    let panel = offset / LANES;
    let keys = block.keys.add(panel * shape.key_panel_bytes());
    let values = block.values.add(panel * shape.value_panel_bytes());
    put_in_panel::<T>(shape, (keys, values), offset % LANES, key, value);
}

/// The same into a panel of keys and one of values, at one of its 16 positions.
///
/// # Safety
/// As [`put_row`]; the panels are of T elements in the shape's format.
#[inline(always)]
pub(super) unsafe fn put_in_panel<T: Copy>(
    shape: &KvShape,
    (keys, values): (*mut u8, *mut u8),
    position: usize,
    key: *const T,
    value: *const T,
) {
    let (keys, values) = (keys.cast::<T>(), values.cast::<T>());
    let format = shape.format;
    let groups = shape.padded_dim() / LANES;
    for dim in 0..shape.head_dim {
        *keys.add(line_element(format, dim / 2, position, dim % 2)) = *key.add(dim);
        let line = position / 2 * groups + dim / LANES;
        *values.add(line_element(format, line, dim % LANES, position % 2)) = *value.add(dim);
    }
}

/// Gathers a token's rows from a block of plain rows into panels, at one of their 16 positions.
///
/// # Safety
/// The block has plain rows and this token; the panels are of the shape's format.
pub(crate) unsafe fn gather_row(
    shape: &KvShape,
    block: &HeadBlock,
    offset: usize,
    panels: (*mut u8, *mut u8),
    position: usize,
) {
    let start = offset * shape.head_dim * shape.format.element_bytes();
    let (key, value) = (block.keys.add(start), block.values.add(start));
    match shape.format {
        KvFormat::F32 => {
            put_in_panel::<u32>(shape, panels, position, key.cast(), value.cast());
        }
        KvFormat::Bf16 | KvFormat::F16 => {
            put_in_panel::<u16>(shape, panels, position, key.cast(), value.cast());
        }
        KvFormat::Int8 => put_in_panel::<u8>(shape, panels, position, key, value),
    }
}

/// A stored element as f32, before its scale.
#[cfg(test)]
pub(crate) unsafe fn element(format: KvFormat, from: *const u8, index: usize) -> f32 {
    match format {
        KvFormat::F32 => *from.cast::<f32>().add(index),
        KvFormat::Bf16 => bf16::from_bits(*from.cast::<u16>().add(index)).to_f32(),
        KvFormat::F16 => f16::from_bits(*from.cast::<u16>().add(index)).to_f32(),
        KvFormat::Int8 => f32::from(*from.cast::<i8>().add(index)),
    }
}
