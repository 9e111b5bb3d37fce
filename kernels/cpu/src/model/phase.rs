//! Phases that members share: rows prepared for a product, and the product with what follows it.

use super::buffers::{Buffers, Floats, Forms, ROW_BLOCK, Scratch, TILE_PANELS};
use super::settings::Settings;
use crate::epilogue::{AddBias, AddResidual, SwiGlu, Tile};
use crate::matrix::{Form, Matrix};
use crate::norm::{Norm, NormInto, Prepare};
use crate::pool::Member;
use crate::product::Product;
use crate::rows::{RowBuffer, Rows};
use crate::sampling::Best;
use crate::simd::{Isa, Kernel, LANES};

/// Rows of f32 that a product is to read.
pub(super) struct Source<'a> {
    /// Where they lie.
    pub(super) from: &'a Floats,
    /// Which of them, or all from the first on.
    pub(super) chosen: Option<&'a [usize]>,
    /// How many.
    pub(super) count: usize,
    /// Values of a row.
    pub(super) size: usize,
    /// Weight of their norm, filled up to a multiple of 32; null where they are taken as they are.
    pub(super) norm: *const f32,
    /// Of the norm.
    pub(super) epsilon: f32,
    /// The form that the product reads.
    pub(super) form: Form,
}

impl Source<'_> {
    fn row(&self, row: usize) -> *const f32 {
        self.from.row(self.chosen.map_or(row, |chosen| chosen[row]))
    }

    fn norm(&self, row: usize) -> Norm {
        Norm {
            input: self.row(row),
            weight: self.norm,
            size: self.size,
            epsilon: self.epsilon,
        }
    }
}

/// A product with all its rows, shared by the members.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) matrix: Matrix<'a>,
    pub(super) rows: Rows<'a>,
    /// The first row among `rows`.
    pub(super) first: usize,
    /// How many.
    pub(super) count: usize,
    /// Panels, the first of the matrix.
    pub(super) panels: usize,
    /// 16 values a panel, or null.
    pub(super) bias: *const f32,
    pub(super) then: Then<'a>,
}

/// What happens to the sums; rows count from the job's first.
#[derive(Clone, Copy)]
pub(super) enum Then<'a> {
    /// They are kept as they are, bias added: `[count][stride]`.
    Store(*mut f32, usize),
    /// They are added to the residual stream: `[count][stride]`.
    Residual(*mut f32, usize),
    /// silu(gate) × up becomes rows of the next product.
    SwiGlu(&'a RowBuffer),
    /// Logits: the first rows are kept whole, of the others the best. Vocabulary; rows kept; `[rows kept][stride]`.
    Logits(usize, usize, &'a Floats),
}

/// The best logits of a tile's rows.
struct SeeBest {
    tile: Tile,
    /// One for each row.
    best: *mut Best,
    first_id: u32,
}

impl Kernel for SeeBest {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for row in 0..self.tile.rows {
            // SAFETY: within the tile; one `Best` for each of its rows.
            unsafe {
                let logits = self.tile.sums.add(row * self.tile.stride);
                (*self.best.add(row)).see(isa, self.first_id, logits, self.tile.columns);
            }
        }
    }
}

/// What phases need.
pub(super) struct Phases<'a> {
    pub(super) settings: &'a Settings,
    pub(super) buffers: &'a Buffers,
    pub(super) scratch: &'a [Scratch],
}

impl Phases<'_> {
    /// Prepares rows for a product, and waits until all of them are there.
    ///
    /// # Safety
    /// Called by all members alike; nobody writes the source, or reads what was prepared before, meanwhile.
    pub(super) unsafe fn prepare<'b>(
        &self,
        member: &Member,
        source: &Source,
        forms: &'b Forms,
    ) -> Rows<'b> {
        let into = forms.get(source.form);
        each_row(member, source.count, |row| {
            if source.norm.is_null() {
                self.settings.set.run(Prepare {
                    input: source.row(row),
                    size: source.size,
                    into,
                    row,
                });
            } else {
                let norm = source.norm(row);
                self.settings.set.run(NormInto { norm, into, row });
            }
        });
        into.rows()
    }

    /// Computes a product with what follows, and waits until all of it is there.
    ///
    /// # Safety
    /// Called by all members alike; nobody writes the rows or touches the results meanwhile.
    pub(super) unsafe fn product(&self, member: &Member, job: &Job) {
        let blocks = job.count.div_ceil(ROW_BLOCK);
        let block = job.count.div_ceil(blocks);
        // SwiGLU writes whole groups of 32 columns: two panels of the gate, two of up.
        let unit = if matches!(job.then, Then::SwiGlu(_)) {
            TILE_PANELS
        } else {
            1
        };
        let units = job.panels.div_ceil(unit);
        while let Some(run) = member.claim_run(blocks * units, units, TILE_PANELS / unit) {
            let first = run.start / units * block;
            let rows = block.min(job.count - first);
            let panel = run.start % units * unit;
            let panels = (run.len() * unit).min(job.panels - panel);
            self.tile(member, job, (first, rows), (panel, panels));
        }
        member.wait();
    }

    /// One tile: rows and panels are (first, count).
    unsafe fn tile(
        &self,
        member: &Member,
        job: &Job,
        (first, rows): (usize, usize),
        (panel, panels): (usize, usize),
    ) {
        let (column, columns) = (panel * LANES, panels * LANES);
        let place = |to: *mut f32, stride: usize| to.add(first * stride + column);
        let (sums, stride) = match job.then {
            Then::Store(to, stride) => (place(to, stride), stride),
            Then::Logits(_, kept, logits) if first + rows <= kept => {
                (place(logits.row(0), logits.stride()), logits.stride())
            }
            _ => (self.scratch[member.index()].tile.row(0), columns),
        };
        let start = job.first + first;
        let product = Product {
            matrix: job.matrix,
            rows: job.rows,
            row_range: start..start + rows,
            panels: panel..panel + panels,
            out: sums,
            out_stride: stride,
            prefetch: self.settings.fusions.prefetch && job.count > 1,
        };
        product.run(self.settings.set);
        let bias = if job.bias.is_null() {
            job.bias
        } else {
            job.bias.add(column)
        };
        let tile = Tile {
            sums,
            stride,
            rows,
            columns,
            bias,
        };
        self.finish(member, job, tile, (first, column));
    }

    /// What follows a tile at (row, column) of the job.
    unsafe fn finish(&self, member: &Member, job: &Job, tile: Tile, (row, column): (usize, usize)) {
        let set = self.settings.set;
        match job.then {
            Then::Store(..) if tile.bias.is_null() => (),
            Then::Store(..) => set.run(AddBias(tile)),
            Then::Residual(to, stride) => set.run(AddResidual {
                tile,
                residual: to.add(row * stride + column),
                stride,
            }),
            Then::SwiGlu(into) => set.run(SwiGlu {
                tile,
                into,
                row,
                column: column / 2,
            }),
            Then::Logits(vocabulary, kept, logits) => {
                let kept_here = kept.saturating_sub(row).min(tile.rows);
                let direct = kept_here == tile.rows;
                for index in 0..if direct { 0 } else { kept_here } {
                    let to = logits.row(row + index).add(column);
                    let from = tile.sums.add(index * tile.stride);
                    std::ptr::copy_nonoverlapping(from, to, tile.columns);
                }
                let best = self.scratch[member.index()].best();
                set.run(SeeBest {
                    tile: Tile {
                        sums: tile.sums.add(kept_here * tile.stride),
                        rows: tile.rows - kept_here,
                        columns: tile.columns.min(vocabulary - column),
                        ..tile
                    },
                    best: best.add(row + kept_here),
                    first_id: column as u32,
                });
            }
        }
    }
}

/// Runs `work` for each row, shared by the members, and waits until all are done.
pub(super) fn each_row(member: &Member, count: usize, mut work: impl FnMut(usize)) {
    while let Some(rows) = member.claim_run(count, count, 8) {
        rows.for_each(&mut work);
    }
    member.wait();
}
