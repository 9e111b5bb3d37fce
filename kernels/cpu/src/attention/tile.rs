//! The panels of a tile, wherever their blocks lie.

use super::lines::{Element, Lines};
use super::product::Panels;
use super::scratch::Scratch;
use super::softmax::Scales;
use super::{PANELS, TILE};
use crate::kv::{KvFormat, KvPool, gather_row};
use crate::simd::{Isa, LANES};

/// Panels from the one that is read to the one that is asked for. Keys are read four at a time.
pub(super) const KEYS_AHEAD: usize = 4;
const VALUES_AHEAD: usize = 4;

/// A tile of one KV head.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) keys: Panels,
    pub(super) values: Panels,
    /// What to ask for while a panel of keys is read, and while one of values is.
    pub(super) ahead: [Panels; 2],
    pub(super) scales: Scales,
    pub(super) has_scales: bool,
}

/// Which tile of what.
#[derive(Clone, Copy)]
pub(super) struct TilePlace<'a> {
    pub(super) pool: &'a KvPool,
    pub(super) layer: usize,
    pub(super) head: usize,
    pub(super) table: *const i32,
    pub(super) tile: usize,
    /// Positions of the tile that are needed, 1 to 256.
    pub(super) count: usize,
}

impl Tile {
    /// Finds the panels, or gathers them from plain rows. Past the end, the last panel stands for all.
    ///
    /// # Safety
    /// The table's blocks, as far as needed, are in the pool.
    #[inline(always)]
    pub(super) unsafe fn find(place: &TilePlace<'_>, scratch: &Scratch) -> Self {
        let mut tile = Self {
            keys: [std::ptr::null(); PANELS],
            values: [std::ptr::null(); PANELS],
            ahead: [[std::ptr::null(); PANELS]; 2],
            scales: Scales {
                keys: [std::ptr::null(); PANELS],
                values: [std::ptr::null(); PANELS],
            },
            has_scales: matches!(place.pool.shape().format, KvFormat::Int8),
        };
        let panels = place.count.div_ceil(LANES);
        if place.pool.shape().has_panels() {
            tile.point(place, panels);
        } else {
            tile.gather(place, panels, scratch);
        }
        for panel in panels..PANELS {
            tile.keys[panel] = tile.keys[panels - 1];
        }
        tile.ahead = [tile.keys, tile.values];
        tile
    }

    /// Asks for panels before they are read: of this tile, of its values, and of the tile that comes next.
    pub(super) fn look_ahead(&mut self, panels: usize, next: Option<&Self>) {
        for panel in 0..panels {
            let at = panel + KEYS_AHEAD;
            self.ahead[0][panel] = match at.checked_sub(panels) {
                None => self.keys[at],
                Some(value) if value < panels => self.values[value],
                Some(_) => self.keys[panel],
            };
            let at = panel + VALUES_AHEAD;
            self.ahead[1][panel] = match (at.checked_sub(panels), next) {
                (None, _) => self.values[at],
                (Some(key), Some(next)) if key < PANELS => next.keys[key],
                _ => self.values[panel],
            };
        }
    }

    #[inline(always)]
    unsafe fn point(&mut self, place: &TilePlace<'_>, panels: usize) {
        let shape = place.pool.shape();
        let (key_bytes, value_bytes) = (shape.key_panel_bytes(), shape.value_panel_bytes());
        let shift = shape.block_size.trailing_zeros();
        for panel in 0..panels {
            let position = place.tile * TILE + panel * LANES;
            let block = *place.table.add(position >> shift) as usize;
            let part = place.pool.head_block(place.layer, block, place.head);
            let offset = position & (shape.block_size - 1);
            self.keys[panel] = part.keys.add(offset / LANES * key_bytes);
            self.values[panel] = part.values.add(offset / LANES * value_bytes);
            if self.has_scales {
                self.scales.keys[panel] = part.scales.add(offset);
                self.scales.values[panel] = part.scales.add(shape.block_size + offset);
            }
        }
    }

    #[inline(always)]
    unsafe fn gather(&mut self, place: &TilePlace<'_>, panels: usize, scratch: &Scratch) {
        let shape = place.pool.shape();
        let (key_bytes, value_bytes) = (shape.key_panel_bytes(), shape.value_panel_bytes());
        for panel in 0..panels {
            self.keys[panel] = scratch.gathered[0].add(panel * key_bytes);
            self.values[panel] = scratch.gathered[1].add(panel * value_bytes);
            self.scales.keys[panel] = scratch.scales.add(panel * LANES);
            self.scales.values[panel] = scratch.scales.add(TILE + panel * LANES);
        }
        for index in 0..place.count {
            let position = place.tile * TILE + index;
            let block = *place.table.add(position / shape.block_size) as usize;
            let part = place.pool.head_block(place.layer, block, place.head);
            let offset = position % shape.block_size;
            let panel = index / LANES;
            let to = (self.keys[panel].cast_mut(), self.values[panel].cast_mut());
            gather_row(shape, &part, offset, to, index % LANES);
            if self.has_scales {
                *scratch.scales.add(index) = *part.scales.add(offset);
                *scratch.scales.add(TILE + index) = *part.scales.add(shape.block_size + offset);
            }
        }
    }

    /// The same tile, its panels in the format that many rows read fastest.
    ///
    /// # Safety
    /// The tile is of `L`.
    #[inline(always)]
    pub(super) unsafe fn widen<I: Isa, L: Lines>(
        &self,
        isa: I,
        place: &TilePlace<'_>,
        scratch: &Scratch,
    ) -> Self {
        if L::IS_WIDE {
            return *self;
        }
        let shape = place.pool.shape();
        let key_lines = shape.head_dim / 2;
        let value_lines = shape.padded_dim() / 2;
        let panels = place.count.div_ceil(LANES);
        let mut wide = *self;
        for panel in 0..panels {
            let keys = scratch.wide[0].add(panel * key_lines * wide_bytes::<L>());
            let values = scratch.wide[1].add(panel * value_lines * wide_bytes::<L>());
            widen_panel::<I, L>(isa, self.keys[panel], keys, key_lines);
            widen_panel::<I, L>(isa, self.values[panel], values, value_lines);
            wide.keys[panel] = keys;
            wide.values[panel] = values;
        }
        for panel in panels..PANELS {
            wide.keys[panel] = wide.keys[panels - 1];
        }
        wide.ahead = [wide.keys, wide.values];
        wide
    }
}

/// Bytes of a widened line.
#[inline(always)]
const fn wide_bytes<L: Lines>() -> usize {
    <<L::Wide as Lines>::Element as Element>::BYTES
}

#[inline(always)]
unsafe fn widen_panel<I: Isa, L: Lines>(isa: I, from: *const u8, to: *mut u8, lines: usize) {
    for line in 0..lines {
        let numbers = L::load(isa, from.add(line * L::Element::BYTES));
        L::store_wide(isa, to.add(line * wide_bytes::<L>()), numbers);
    }
}
