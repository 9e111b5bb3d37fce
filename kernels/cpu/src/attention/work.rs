//! One member's work on one piece.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::lines::Lines;
use super::plan::{Piece, PieceKind, WritePiece};
use super::product::{Weighted, rows_at_once, scores, weighted};
use super::scratch::{ROWS, Scratch};
use super::softmax::{Summary, finish, join, weights};
use super::tile::{KEYS_AHEAD, Tile, TilePlace};
use super::{AttentionLayer, AttentionPlan, TILE};
use crate::kv::{encode, put_row};
use crate::rope::rotate;
use crate::simd::{Isa, Kernel, LANES};

/// A member at work on a layer.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a, I> {
    pub(super) isa: I,
    pub(super) plan: &'a AttentionPlan,
    pub(super) layer: &'a AttentionLayer<'a>,
    pub(super) scratch: Scratch,
}

/// Queries of one row and KV head, packed.
#[derive(Clone, Copy)]
struct Queries {
    row: usize,
    head: usize,
    /// First token.
    token: usize,
    /// Its position.
    position: usize,
    /// Queries × query heads of the KV head.
    rows: usize,
}

impl<I: Isa> Worker<'_, I> {
    /// Turns and stores keys and values of some tokens.
    #[inline(always)]
    pub(super) unsafe fn write(&self, piece: WritePiece) {
        for token in piece.first_token..piece.first_token + piece.tokens {
            for head in 0..self.plan.shape.kv_heads {
                self.write_head(token, head);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_head(&self, token: usize, head: usize) {
        let (layer, shape) = (self.layer, &self.plan.shape);
        let dims = shape.head_dim;
        let row = layer.qkv.add(token * layer.qkv_stride);
        let keys = row.add(self.plan.group * shape.kv_heads * dims);
        let values = keys.add(shape.kv_heads * dims);
        let position = *layer.rows.positions.get_unchecked(token) as usize;
        let to = self.scratch.head;
        self.turn(position, keys.add(head * dims), 1.0);
        let key = encode(self.isa, shape.format, to, dims, self.scratch.codes[0]);
        std::ptr::copy_nonoverlapping(values.add(head * dims), to, dims);
        let value = encode(self.isa, shape.format, to, dims, self.scratch.codes[1]);
        let slot = *layer.rows.slots.get_unchecked(token) as usize;
        let (block, offset) = (slot / shape.block_size, slot % shape.block_size);
        let block = layer.pool.head_block(layer.layer, block, head);
        put_row(shape, &block, offset, key, value);
    }

    /// Turns a head and multiplies it, into `scratch.head`.
    #[inline(always)]
    unsafe fn turn(&self, position: usize, from: *const f32, factor: f32) {
        let (dims, to) = (self.plan.shape.head_dim, self.scratch.head);
        let angles = (self.layer.rope.angles(position), dims / 2);
        rotate(self.isa, angles, from, to, factor);
    }

    /// Attends for a piece.
    #[inline(always)]
    pub(super) unsafe fn attend<L: Lines>(&self, piece: Piece) {
        let rows = self.layer.rows;
        let token = rows.query_starts[piece.row] as usize;
        let (first, queries) = match piece.kind {
            PieceKind::Prefill { first, queries } => (first, queries),
            _ => (0, 1),
        };
        let queries = Queries {
            row: piece.row,
            head: piece.head,
            token: token + first,
            position: rows.positions[token + first] as usize,
            rows: queries * self.plan.group,
        };
        let context = rows.sequence_lengths[piece.row] as usize;
        match piece.kind {
            PieceKind::Prefill { .. } => {
                self.pack::<L>(&queries);
                self.prefill::<L>(&queries);
            }
            PieceKind::Decode => {
                let mut first = self.begin(&queries, 0, context);
                self.write_head(queries.token, piece.head);
                self.pack::<L>(&queries);
                self.decode::<L>(&queries, &mut first, context);
                self.finish_rows(&queries);
            }
            PieceKind::Tiles { first, end, split } => {
                let begun = self.begin(&queries, first, context);
                if end == context.div_ceil(TILE) {
                    self.write_head(queries.token, piece.head);
                }
                self.pack::<L>(&queries);
                self.partial_tiles::<L>(&queries, (first..end, begun), split, context);
            }
        }
    }

    /// Turns, scales and rounds the queries into `scratch.queries`, in groups as the products take them.
    #[inline(always)]
    unsafe fn pack<L: Lines>(&self, queries: &Queries) {
        let (layer, group) = (self.layer, self.plan.group);
        let dims = self.plan.shape.head_dim;
        // Weights are powers of two, not of e.
        let factor = layer.scale * std::f32::consts::LOG2_E;
        let mut first = 0;
        while first < queries.rows {
            let some = self.rows_at_once(queries.rows - first);
            let to = self.scratch.queries.add(first * dims / 2 * L::WORDS);
            for row in 0..some {
                let (query, member) = ((first + row) / group, (first + row) % group);
                let token = layer.qkv.add((queries.token + query) * layer.qkv_stride);
                let from = token.add((queries.head * group + member) * dims);
                self.turn(queries.position + query, from, factor);
                let words = self.scratch.codes[0].cast::<u32>();
                for at in (0..dims).step_by(LANES) {
                    let value = self.isa.load(self.scratch.head.add(at));
                    L::store_factors(self.isa, words.add(at / 2 * L::WORDS), value);
                }
                for pair in 0..dims / 2 {
                    for word in 0..L::WORDS {
                        *to.add((pair * some + row) * L::WORDS + word) =
                            *words.add(pair * L::WORDS + word);
                    }
                }
            }
            first += some;
        }
    }

    /// Rows that go through a tile together, where `left` remain.
    #[inline(always)]
    fn rows_at_once(&self, left: usize) -> usize {
        if self.layer.switches.share {
            rows_at_once::<I>(left)
        } else {
            1
        }
    }

    #[inline(always)]
    fn place(&self, queries: &Queries, tile: usize, end: usize) -> TilePlace<'_> {
        TilePlace {
            pool: self.layer.pool,
            layer: self.layer.layer,
            head: queries.head,
            table: self.layer.rows.table(queries.row),
            tile,
            count: (end - tile * TILE).min(TILE),
        }
    }

    #[inline(always)]
    unsafe fn decode<L: Lines>(&self, queries: &Queries, next: &mut Option<Tile>, context: usize) {
        let tiles = context.div_ceil(TILE);
        for tile in 0..tiles {
            let found = self.find(queries, tile..tiles, context, next);
            self.all_rows::<L>(queries, &found, tile);
        }
    }

    /// Asks for the first panels of a tile, which will be there when the queries are packed.
    #[inline(always)]
    unsafe fn begin(&self, queries: &Queries, tile: usize, context: usize) -> Option<Tile> {
        let shape = &self.plan.shape;
        if !self.layer.switches.prefetch || !shape.has_panels() {
            return None;
        }
        let found = Tile::find(&self.place(queries, tile, context), &self.scratch);
        for panel in &found.keys[..KEYS_AHEAD] {
            for byte in (0..shape.key_panel_bytes()).step_by(64) {
                self.isa.prefetch_second(panel.add(byte));
            }
        }
        Some(found)
    }

    /// The first of `tiles`, which `next` may already be; leaves the second there, for it is asked for meanwhile.
    #[inline(always)]
    unsafe fn find(
        &self,
        queries: &Queries,
        tiles: Range<usize>,
        context: usize,
        next: &mut Option<Tile>,
    ) -> Tile {
        let place = self.place(queries, tiles.start, context);
        let mut found = match next.take() {
            Some(found) => found,
            None => Tile::find(&place, &self.scratch),
        };
        if self.layer.switches.prefetch && self.plan.shape.has_panels() {
            if tiles.start + 1 < tiles.end {
                let place = self.place(queries, tiles.start + 1, context);
                *next = Some(Tile::find(&place, &self.scratch));
            }
            found.look_ahead(place.count.div_ceil(LANES), next.as_ref());
        }
        found
    }

    #[inline(always)]
    unsafe fn prefill<L: Lines>(&self, queries: &Queries) {
        let count = queries.rows / self.plan.group;
        let end = queries.position + count;
        for tile in 0..end.div_ceil(TILE) {
            let place = self.place(queries, tile, end);
            let found = Tile::find(&place, &self.scratch);
            let wide = found.widen::<I, L>(self.isa, &place, &self.scratch);
            self.all_rows::<L::Wide>(queries, &wide, tile);
        }
        self.finish_rows(queries);
    }

    /// All rows of a piece over one tile, joined into their state.
    #[inline(always)]
    unsafe fn all_rows<L: Lines>(&self, queries: &Queries, found: &Tile, tile: usize) {
        let mut first = 0;
        while first < queries.rows {
            let some = self.rows_at_once(queries.rows - first);
            let summaries = self.some_rows::<L>(queries, found, tile, first, some);
            let dims = self.plan.shape.padded_dim();
            for (row, summary) in summaries.iter().enumerate().take(some) {
                let state = self.scratch.state.add((first + row) * dims);
                let sums = self.scratch.sums.add(row * dims);
                let kept = self.scratch.summaries.add(first + row);
                if tile == 0 {
                    std::ptr::copy_nonoverlapping(sums, state, dims);
                    *kept = *summary;
                } else {
                    *kept = join(self.isa, (*kept, state), (*summary, sums), dims / LANES);
                }
            }
            first += some;
        }
    }

    /// A group of rows over one tile, into `scratch.sums`. It has no vectors of its own, and need not be compiled for
    /// each of its callers.
    #[inline(never)]
    unsafe fn some_rows<L: Lines>(
        &self,
        queries: &Queries,
        found: &Tile,
        tile: usize,
        first: usize,
        some: usize,
    ) -> [Summary; ROWS] {
        let dims = self.plan.shape.head_dim;
        let mut counts = [0; ROWS];
        for (row, count) in counts.iter_mut().enumerate().take(some) {
            let position = queries.position + (first + row) / self.plan.group;
            *count = (position + 1 - tile * TILE).min(TILE);
        }
        self.isa.vectorize(Rows::<L> {
            found,
            queries: self.scratch.queries.add(first * dims / 2 * L::WORDS),
            counts: &counts[..some],
            dims,
            scratch: &self.scratch,
            lines: PhantomData,
        })
    }

    /// Every tile's result for itself; the last of the row's members joins them.
    #[inline(always)]
    unsafe fn partial_tiles<L: Lines>(
        &self,
        queries: &Queries,
        (tiles, mut next): (Range<usize>, Option<Tile>),
        split: usize,
        context: usize,
    ) {
        let split = self.plan.split(split);
        let (dims, group) = (self.plan.shape.padded_dim(), self.plan.group);
        let values = self.plan.partial_values();
        let partials = self.plan.partials().add(split.place);
        for tile in tiles.clone() {
            let found = self.find(queries, tile..tiles.end, context, &mut next);
            let mut first = 0;
            while first < group {
                let some = self.rows_at_once(group - first);
                let summaries = self.some_rows::<L>(queries, &found, tile, first, some);
                for (row, summary) in summaries.iter().enumerate().take(some) {
                    let to = partials.add((tile * group + first + row) * values);
                    std::ptr::copy_nonoverlapping(self.scratch.sums.add(row * dims), to, dims);
                    *to.add(dims).cast::<Summary>() = *summary;
                }
                first += some;
            }
        }
        if split.remaining.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        split.remaining.store(split.pieces, Ordering::Relaxed);
        for row in 0..group {
            let state = self.scratch.state.add(row * dims);
            let from = partials.add(row * values);
            std::ptr::copy_nonoverlapping(from, state, dims);
            let mut summary = *from.add(dims).cast::<Summary>();
            for tile in 1..context.div_ceil(TILE) {
                let next = from.add(tile * group * values);
                let part = (*next.add(dims).cast::<Summary>(), next.cast_const());
                summary = join(self.isa, (summary, state), part, dims / LANES);
            }
            *self.scratch.summaries.add(row) = summary;
        }
        self.finish_rows(queries);
    }

    /// Divides, and writes what the rows' tokens get.
    #[inline(always)]
    unsafe fn finish_rows(&self, queries: &Queries) {
        let (shape, group) = (&self.plan.shape, self.plan.group);
        let (dims, padded) = (shape.head_dim, shape.padded_dim());
        let stride = shape.kv_heads * group * dims;
        for row in 0..queries.rows {
            let token = queries.token + row / group;
            let head = queries.head * group + row % group;
            let out = self.layer.out.add(token * stride + head * dims);
            let sums = self.scratch.state.add(row * padded);
            finish(self.isa, *self.scratch.summaries.add(row), sums, out, dims);
        }
    }
}

/// Scores, weights and sums of a group of rows over a tile: one compiled function for each format.
struct Rows<'a, L> {
    found: &'a Tile,
    queries: *const u32,
    counts: &'a [usize],
    dims: usize,
    scratch: &'a Scratch,
    lines: PhantomData<L>,
}

impl<L: Lines> Kernel for Rows<'_, L> {
    type Output = [Summary; ROWS];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let nothing = Summary {
            largest: 0.0,
            sum: 0.0,
        };
        let (mut summaries, rows) = ([nothing; ROWS], self.counts.len());
        let longest = self.counts[rows - 1];
        let groups = self.dims.div_ceil(LANES);
        let scales = self.found.has_scales.then_some(&self.found.scales);
        // SAFETY: the scratch memory has room for `ROWS` rows, and the tile for the longest.
        unsafe {
            let queries = (self.queries, rows, self.dims / 2);
            let panels = longest.div_ceil(LANES);
            let keys = [&self.found.keys, &self.found.ahead[0]];
            scores::<I, L>(isa, keys, panels, queries, self.scratch.scores);
            for (row, count) in self.counts.iter().enumerate() {
                let from = self.scratch.scores.add(row * TILE);
                let to = self.scratch.weights.add(row * TILE / 2 * L::WORDS);
                summaries[row] = weights::<I, L>(isa, from, *count, scales, to);
            }
            for at in (0..rows * groups * LANES).step_by(LANES) {
                isa.store(self.scratch.sums.add(at), isa.splat(0.0));
            }
            let rows = Weighted {
                values: &self.found.values,
                ahead: &self.found.ahead[1],
                groups,
                weights: self.scratch.weights,
                sums: self.scratch.sums,
            };
            weighted::<I, L>(isa, rows, self.counts);
        }
        summaries
    }
}
