//! Where the parts of a quantized panel lie.
//!
//! A panel is a head, then units of one or more groups of 32 inputs; a unit is a header (scales), then its groups one
//! after the other, so that a product reads a panel as one stream. The last unit may have fewer groups.
//!
//! | format | head | header of a unit | groups of a unit | bytes of a group |
//! |---|---|---|---|---|
//! | Int8 | scale of each output, f32 | – | 1 | 512 |
//! | `Q8_0` | – | scales of two groups, f16 | 2 | 512 |
//! | `Q4_0` | – | the same | 2 | 256 |
//! | `Q5_0` | – | the same | 2 | 256 + bit 4: 64 |
//! | `Q4_1` | – | scales, minima of the group, f16 | 1 | 256 |
//! | `Q4K` | – | d, dmin, f16; 16 6-bit numbers an output | 8 | 256 |
//! | `Q6K` | d of each block, f16 | 16 8-bit scales an output | 8 | 256 + bit 4: 64 + bit 5: 64 |
//!
//! Codes are unsigned: bytes less 128, or nibbles as the file has them. Four consecutive inputs of an output are
//! neighbours, as [`crate::simd::Isa::dot_bytes`] reads them, and the 16 outputs of such a quad fill 64 bytes. Nibbles of
//! quad 2i are the low halves of 64 bytes, those of quad 2i + 1 the high halves. A plane has one bit for each of those
//! bytes, quad after quad.
//!
//! The 6-bit numbers of a `Q4K` block are 256 bytes (number, output), numbers 0..8 being the scales and 8..16 the minima,
//! cut the same way: nibbles of 0..4 and 4..8 in the halves of 64 bytes, of 8..12 and 12..16 in 64 more, then the planes
//! of bit 4 and of bit 5, 32 bytes each.

use super::Format;

/// Inputs of a group.
pub(crate) const GROUP: usize = 32;

/// The measures of a format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes before the first unit, without those of `head_unit`.
    head: usize,
    /// Bytes in the head for each unit.
    pub(crate) head_unit: usize,
    /// Bytes before the groups of a unit.
    pub(crate) header: usize,
    /// Groups of a unit.
    pub(crate) unit: usize,
    /// Bytes of a group.
    pub(crate) group: usize,
}

impl Layout {
    /// The measures of a quantized format.
    pub(crate) const fn of(format: Format) -> Self {
        let (head, head_unit, header, unit, group) = match format {
            Format::Q8_0 => (0, 0, 64, 2, 512),
            Format::Q4_0 => (0, 0, 64, 2, 256),
            Format::Q4_1 => (0, 0, 64, 1, 256),
            Format::Q5_0 => (0, 0, 64, 2, 320),
            Format::Q4K => (0, 0, 256, 8, 256),
            Format::Q6K => (0, 32, 256, 8, 384),
            _ => (64, 0, 0, 1, 512),
        };
        Self {
            head,
            head_unit,
            header,
            unit,
            group,
        }
    }

    /// Bytes before the first unit of a panel.
    #[inline(always)]
    pub(crate) fn head_bytes(self, groups: usize) -> usize {
        (self.head + groups.div_ceil(self.unit) * self.head_unit).next_multiple_of(64)
    }

    /// Bytes of a whole unit.
    #[inline(always)]
    pub(crate) fn unit_bytes(self) -> usize {
        self.header + self.unit * self.group
    }

    /// Bytes of a panel.
    pub(crate) fn panel_bytes(self, groups: usize) -> usize {
        self.head_bytes(groups) + groups.div_ceil(self.unit) * self.header + groups * self.group
    }

    /// Where the unit of a group begins.
    pub(crate) fn unit_at(self, groups: usize, group: usize) -> usize {
        self.head_bytes(groups) + group / self.unit * self.unit_bytes()
    }
}
