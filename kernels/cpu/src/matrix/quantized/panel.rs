//! Groups in a panel: [`super::layout`] says where each part lies.

use half::f16;

use super::{Format, GROUP, Group, Layout};
use crate::simd::LANES;

/// A panel to be written, all zero at first.
pub(super) struct Panel<'a> {
    format: Format,
    layout: Layout,
    groups: usize,
    bytes: &'a mut [u8],
}

impl<'a> Panel<'a> {
    pub(super) fn new(format: Format, inputs: usize, bytes: &'a mut [u8]) -> Self {
        Self {
            format,
            layout: Layout::of(format),
            groups: inputs.div_ceil(GROUP),
            bytes,
        }
    }

    /// Writes the scale of an output.
    pub(super) fn put_scale(&mut self, lane: usize, scale: f32) {
        if self.format == Format::Int8 {
            self.bytes[4 * lane..][..4].copy_from_slice(&scale.to_le_bytes());
        }
    }

    /// Writes a group of an output.
    pub(super) fn put(&mut self, lane: usize, index: usize, group: &Group) {
        let unit = self.layout.unit_at(self.groups, index);
        self.put_scales(lane, index, unit, group);
        let codes = unit + self.layout.header + index % self.layout.unit * self.layout.group;
        let codes = &mut self.bytes[codes..][..self.layout.group];
        for (input, &code) in group.codes.iter().enumerate() {
            put_code(self.format, codes, lane, input, code);
        }
    }

    fn put_half(&mut self, at: usize, lane: usize, half: f16) {
        self.bytes[at + 2 * lane..][..2].copy_from_slice(&half.to_le_bytes());
    }

    fn put_scales(&mut self, lane: usize, index: usize, unit: usize, group: &Group) {
        match self.format {
            Format::Q8_0 | Format::Q4_0 | Format::Q5_0 => {
                self.put_half(unit + index % 2 * 32, lane, group.scale);
            }
            Format::Q4_1 => {
                self.put_half(unit, lane, group.scale);
                self.put_half(unit + 32, lane, group.minimum);
            }
            Format::Q4K => {
                self.put_half(unit, lane, group.scale);
                self.put_half(unit + 32, lane, group.minimum);
                let packed = &mut self.bytes[unit + 64..][..192];
                put_six_bits(packed, (index % 8) * LANES + lane, group.small[0]);
                put_six_bits(packed, (8 + index % 8) * LANES + lane, group.small[1]);
            }
            Format::Q6K => {
                self.put_half(index / 8 * 32, lane, group.scale);
                for (half, small) in group.small.into_iter().enumerate() {
                    self.bytes[unit + (index % 8 * 2 + half) * LANES + lane] = small;
                }
            }
            _ => {}
        }
    }
}

/// The place of an input's code among bytes (or halves of bytes): byte, and shift of a nibble.
fn nibble_place(lane: usize, input: usize) -> (usize, usize) {
    let (quad, byte) = (input / 4, input % 4);
    (quad / 2 * 64 + 4 * lane + byte, quad % 2 * 4)
}

/// The byte and bit of an input in a plane.
fn plane_place(lane: usize, input: usize) -> (usize, usize) {
    let bit = input / 4 * 64 + 4 * lane + input % 4;
    (bit / 8, bit % 8)
}

/// Adds to zeroed bytes.
fn put_code(format: Format, codes: &mut [u8], lane: usize, input: usize, code: u8) {
    if matches!(format, Format::Int8 | Format::Q8_0) {
        codes[input / 4 * 64 + 4 * lane + input % 4] = code;
        return;
    }
    let (byte, shift) = nibble_place(lane, input);
    codes[byte] |= (code & 15) << shift;
    let (byte, bit) = plane_place(lane, input);
    if matches!(format, Format::Q5_0 | Format::Q6K) {
        codes[256 + byte] |= (code >> 4 & 1) << bit;
    }
    if format == Format::Q6K {
        codes[320 + byte] |= (code >> 5 & 1) << bit;
    }
}

fn get_code(format: Format, codes: &[u8], lane: usize, input: usize) -> u8 {
    if matches!(format, Format::Int8 | Format::Q8_0) {
        return codes[input / 4 * 64 + 4 * lane + input % 4];
    }
    let (byte, shift) = nibble_place(lane, input);
    let mut code = codes[byte] >> shift & 15;
    let (byte, bit) = plane_place(lane, input);
    if matches!(format, Format::Q5_0 | Format::Q6K) {
        code |= (codes[256 + byte] >> bit & 1) << 4;
    }
    if format == Format::Q6K {
        code |= (codes[320 + byte] >> bit & 1) << 5;
    }
    code
}

/// Number `index` of 256: its nibble's byte and shift, and the byte and bit of its planes.
fn six_bits_place(index: usize) -> ((usize, usize), (usize, usize)) {
    let (vector, place) = (index / 64, index % 64);
    (
        (vector / 2 * 64 + place, vector % 2 * 4),
        (128 + index / 8, index % 8),
    )
}

/// Adds to zeroed bytes.
fn put_six_bits(packed: &mut [u8], index: usize, value: u8) {
    let ((byte, shift), (plane, bit)) = six_bits_place(index);
    packed[byte] |= (value & 15) << shift;
    packed[plane] |= (value >> 4 & 1) << bit;
    packed[plane + 32] |= (value >> 5 & 1) << bit;
}

fn get_six_bits(packed: &[u8], index: usize) -> u8 {
    let ((byte, shift), (plane, bit)) = six_bits_place(index);
    packed[byte] >> shift & 15
        | (packed[plane] >> bit & 1) << 4
        | (packed[plane + 32] >> bit & 1) << 5
}

/// A group of an output of a panel of so many groups, and the output's scale where it has one.
pub(super) fn read(
    format: Format,
    (panel, groups): (&[u8], usize),
    lane: usize,
    index: usize,
) -> (Group, Option<f32>) {
    let layout = Layout::of(format);
    let unit = layout.unit_at(groups, index);
    let codes = unit + layout.header + index % layout.unit * layout.group;
    let codes = &panel[codes..][..layout.group];
    let half = |at: usize| f16::from_le_bytes([panel[at + 2 * lane], panel[at + 2 * lane + 1]]);
    let mut group = Group {
        codes: std::array::from_fn(|input| get_code(format, codes, lane, input)),
        ..Group::default()
    };
    match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 => group.scale = half(unit + index % 2 * 32),
        Format::Q4_1 | Format::Q4K => {
            group.scale = half(unit);
            group.minimum = half(unit + 32);
        }
        Format::Q6K => group.scale = half(index / 8 * 32),
        _ => {
            let scale = &panel[4 * lane..][..4];
            let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
            return (group, Some(scale));
        }
    }
    if format == Format::Q4K {
        let packed = &panel[unit + 64..][..192];
        group.small =
            [index % 8, 8 + index % 8].map(|number| get_six_bits(packed, number * LANES + lane));
    }
    if format == Format::Q6K {
        group.small = [0, 1].map(|part| panel[unit + (index % 8 * 2 + part) * LANES + lane]);
    }
    (group, None)
}
