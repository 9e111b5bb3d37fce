//! Where a number lies within a block.

use super::{KvFormat, KvShape};
use crate::simd::LANES;

/// One head's part of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadBlock {
    pub(crate) keys: *mut u8,
    pub(crate) values: *mut u8,
    /// Of the keys [`block_size`], then of the values.
    pub(crate) scales: *mut f32,
}

impl KvShape {
    /// Blocks hold whole panels of 16 positions; else plain rows.
    pub(crate) fn has_panels(&self) -> bool {
        self.block_size >= LANES
    }

    /// Dimensions of a head in whole vectors.
    pub(crate) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of a panel of 16 positions of keys.
    pub(crate) fn key_panel_bytes(&self) -> usize {
        LANES * self.head_dim * self.format.element_bytes()
    }

    /// Bytes of a panel of 16 positions of values.
    pub(crate) fn value_panel_bytes(&self) -> usize {
        LANES * self.padded_dim() * self.format.element_bytes()
    }

    /// Bytes of the keys of a head in a block.
    pub(crate) fn key_bytes(&self) -> usize {
        self.block_size * self.head_dim * self.format.element_bytes()
    }

    /// Bytes of its values: rows are padded only where there are panels.
    pub(crate) fn value_bytes(&self) -> usize {
        let dims = if self.has_panels() {
            self.padded_dim()
        } else {
            self.head_dim
        };
        self.block_size * dims * self.format.element_bytes()
    }

    /// Bytes of a head in a block, a multiple of 64.
    pub(crate) fn head_bytes(&self) -> usize {
        let scales = match self.format {
            KvFormat::Int8 => 2 * self.block_size * size_of::<f32>(),
            _ => 0,
        };
        (self.key_bytes() + self.value_bytes() + scales).next_multiple_of(64)
    }
}

/// Index of an element among those of a panel: line `row`, lane `lane`, first or second (`half`) of the pair.
///
/// bfloat16 pairs lie side by side, as products of pairs want them; other formats keep 16 first, then 16 second halves.
#[inline(always)]
pub(crate) fn line_element(format: KvFormat, row: usize, lane: usize, half: usize) -> usize {
    let within = match format {
        KvFormat::Bf16 => 2 * lane + half,
        _ => LANES * half + lane,
    };
    2 * LANES * row + within
}
