//! Products of quantized weights with rows of signed bytes.
//!
//! Activations have a scale a for each 32 inputs under `Int8`, for each 16 under the others. The sum over the inputs of a
//! scale is an exact integer; it is then scaled and added to the output's f32 sum, in ascending order:
//!
//! | format | sum ← |
//! |---|---|
//! | Int8 | fma(dot, a, sum); × scale of the output at the end |
//! | `Q8_0`, `Q4_0`, `Q5_0` | for each half: fma(dot, d × a, sum) |
//! | `Q4_1` | the same, then fma(m, A, sum) |
//! | `Q4K` | for each half: fma(dot, (d × s) × a, sum), then fma(−(dmin × m), A, sum) |
//! | `Q6K` | for each half: fma(dot, (d × s) × a, sum) |
//!
//! A = Σ over the halves of a × Σ of their codes, rounded, of the group of 32.

mod formats;
#[cfg(test)]
mod tests;

use super::Product;
use crate::matrix::{Format, GROUP, Layout};
use crate::rows::Int8Group;
use crate::simd::{Isa, Kernel, LANES};
use formats::{Blocks, Codes, Int8, Q4_0, Q4_1, Q4K, Q5_0, Q6K, Q8_0};

/// As [`Product::run_inside`], checked.
#[inline(always)]
pub(super) unsafe fn run<I: Isa>(isa: I, product: &Product) {
    let task = Task::new(product);
    match product.matrix.format {
        Format::Q8_0 => isa.vectorize(Tiles(task, Q8_0)),
        Format::Q4_0 => isa.vectorize(Tiles(task, Q4_0)),
        Format::Q4_1 => isa.vectorize(Tiles(task, Q4_1)),
        Format::Q5_0 => isa.vectorize(Tiles(task, Q5_0)),
        Format::Q4K => isa.vectorize(Tiles(task, Q4K)),
        Format::Q6K => isa.vectorize(Tiles(task, Q6K)),
        _ => isa.vectorize(Tiles(task, Int8)),
    }
}

/// How far ahead of their use weights are asked for, in bytes of each panel.
const AHEAD: usize = 4096;

/// A product as addresses.
#[derive(Clone, Copy)]
struct Task {
    weights: *const u8,
    panel_bytes: usize,
    head_bytes: usize,
    groups: usize,
    rows: *const u8,
    row_stride: usize,
    panel_count: usize,
    row_count: usize,
    out: *mut f32,
    out_stride: usize,
    prefetch: bool,
}

impl Task {
    #[inline(always)]
    fn new(product: &Product) -> Self {
        let matrix = &product.matrix;
        let panel_bytes = matrix.format.panel_bytes(matrix.inputs);
        let row_stride = product.rows.stride();
        let groups = matrix.inputs.div_ceil(GROUP);
        let row = product.row_range.start * row_stride;
        Self {
            weights: matrix.bytes[product.panels.start * panel_bytes..].as_ptr(),
            panel_bytes,
            head_bytes: Layout::of(matrix.format).head_bytes(groups),
            groups,
            rows: product.rows.start().wrapping_add(row),
            row_stride,
            panel_count: product.panels.len(),
            row_count: product.row_range.len(),
            out: product.out,
            out_stride: product.out_stride,
            prefetch: product.prefetch && product.row_range.len() > 1,
        }
    }

    /// From panel `panel` and row `row` on.
    #[inline(always)]
    fn at(&self, panel: usize, row: usize) -> Self {
        Self {
            weights: self.weights.wrapping_add(panel * self.panel_bytes),
            rows: self.rows.wrapping_add(row * self.row_stride),
            out: self.out.wrapping_add(row * self.out_stride + panel * LANES),
            row_count: self.row_count - row,
            // The first rows bring the panel near for the others.
            prefetch: self.prefetch && row == 0,
            ..*self
        }
    }
}

struct Tiles<B>(Task, B);

impl<B: Blocks> Kernel for Tiles<B> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // SAFETY: promised to `Product::run`.
        unsafe { tiles::<I, B>(isa, &self.0) }
    }
}

/// Instruction sets with many registers take two panels at once, and then up to six rows.
#[inline(always)]
const fn is_wide<I: Isa>() -> bool {
    I::REGISTERS >= 32
}

#[inline(always)]
unsafe fn tiles<I: Isa, B: Blocks>(isa: I, task: &Task) {
    let mut panel = 0;
    if is_wide::<I>() {
        if task.row_count == 1 {
            while panel + 4 <= task.panel_count {
                tile::<I, B, 1, 4>(isa, &task.at(panel, 0));
                panel += 4;
            }
        }
        while panel + 2 <= task.panel_count {
            wide_rows::<I, B>(isa, &task.at(panel, 0));
            panel += 2;
        }
    }
    while panel < task.panel_count {
        rows::<I, B>(isa, &task.at(panel, 0));
        panel += 1;
    }
}

/// All rows with two panels.
#[inline(always)]
unsafe fn wide_rows<I: Isa, B: Blocks>(isa: I, task: &Task) {
    let mut row = 0;
    while row < task.row_count {
        let task = &task.at(0, row);
        row += match task.row_count {
            6.. => tile::<I, B, 6, 2>(isa, task),
            4.. => tile::<I, B, 4, 2>(isa, task),
            3 => tile::<I, B, 3, 2>(isa, task),
            2 => tile::<I, B, 2, 2>(isa, task),
            _ => tile::<I, B, 1, 2>(isa, task),
        };
    }
}

/// All rows with one panel.
#[inline(always)]
unsafe fn rows<I: Isa, B: Blocks>(isa: I, task: &Task) {
    let mut row = 0;
    while row < task.row_count {
        let task = &task.at(0, row);
        row += if I::REGISTERS >= 8 && task.row_count >= 4 {
            tile::<I, B, 4, 1>(isa, task)
        } else if I::REGISTERS >= 8 && task.row_count >= 2 {
            tile::<I, B, 2, 1>(isa, task)
        } else {
            tile::<I, B, 1, 1>(isa, task)
        };
    }
}

/// The sums of some rows and panels.
type Sums<I, const ROWS: usize, const PANELS: usize> = [[<I as Isa>::F; PANELS]; ROWS];

/// The sums of the first `ROWS` rows and `PANELS` panels; gives `ROWS`.
#[inline(always)]
unsafe fn tile<I: Isa, B: Blocks, const ROWS: usize, const PANELS: usize>(
    isa: I,
    task: &Task,
) -> usize {
    let layout = B::LAYOUT;
    let mut sums = [[isa.splat(0.0); PANELS]; ROWS];
    let mut place = Place::<B> {
        weights: task.weights.wrapping_add(task.head_bytes),
        panel_bytes: task.panel_bytes,
        rows: task.rows.cast::<B::Row>(),
        row_stride: task.row_stride,
        index: 0,
    };
    for unit in 0..task.groups.div_ceil(layout.unit) {
        // Closures would be compiled without the instruction set where they are not inlined.
        let mut headers = [B::header(isa, place.weights); PANELS];
        for panel in 1..PANELS {
            let unit = place.weights.wrapping_add(panel * task.panel_bytes);
            headers[panel] = B::header(isa, unit);
        }
        let heads = task.weights.wrapping_add(unit * layout.head_unit);
        place.weights = place.weights.wrapping_add(layout.header);
        place.index = 0;
        let left = task.groups - unit * layout.unit;
        while place.index < left.min(layout.unit) {
            if task.prefetch {
                place.prefetch::<I, PANELS>(isa);
            }
            place.add::<I, ROWS, PANELS>(isa, (heads, &headers), &mut sums);
            place.weights = place.weights.wrapping_add(layout.group);
            place.rows = place.rows.wrapping_add(1);
            place.index += 1;
        }
    }
    for row in 0..ROWS {
        for panel in 0..PANELS {
            let weights = task.weights.add(panel * task.panel_bytes);
            let to = task.out.add(row * task.out_stride + panel * LANES);
            isa.store(to, B::finish(isa, weights, sums[row][panel]));
        }
    }
    ROWS
}

/// A group of some panels and rows.
struct Place<B: Blocks> {
    /// Its codes in the first panel.
    weights: *const u8,
    panel_bytes: usize,
    /// Its activations in the first row.
    rows: *const B::Row,
    row_stride: usize,
    /// Among the groups of its unit.
    index: usize,
}

impl<B: Blocks> Place<B> {
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> &B::Row {
        &*self.rows.wrapping_byte_add(row * self.row_stride)
    }

    /// Four activations of a row, in all lanes.
    #[inline(always)]
    unsafe fn quad<I: Isa>(&self, isa: I, row: usize, quad: usize) -> I::B {
        let codes = self.row(row).codes().as_ptr().cast::<u32>();
        isa.splat_bytes(codes.add(quad).read())
    }

    #[inline(always)]
    unsafe fn prefetch<I: Isa, const PANELS: usize>(&self, isa: I) {
        for panel in 0..PANELS {
            let ahead = self.weights.wrapping_add(panel * self.panel_bytes + AHEAD);
            for line in 0..B::LAYOUT.group / 64 {
                isa.prefetch(ahead.wrapping_add(line * 64));
            }
        }
    }

    /// Adds the group's part to the sums.
    #[inline(always)]
    unsafe fn add<I: Isa, const ROWS: usize, const PANELS: usize>(
        &self,
        isa: I,
        (heads, headers): (*const u8, &[B::Header; PANELS]),
        sums: &mut Sums<I, ROWS, PANELS>,
    ) {
        for part in 0..B::Row::PARTS {
            let dots = match B::CODES {
                Codes::Offset => self.offset_dots::<I, ROWS, PANELS>(isa, part),
                Codes::Small { .. } => self.small_dots::<I, ROWS, PANELS>(isa, part),
            };
            for panel in 0..PANELS {
                let head = heads.wrapping_add(panel * self.panel_bytes);
                let scale = B::scale(isa, head, &headers[panel], (self.index, part));
                for row in 0..ROWS {
                    let activations = isa.splat(self.row(row).scale(part));
                    let dot = isa.to_float(dots[row][panel]);
                    let factor = match scale {
                        Some(scale) => isa.mul(scale, activations),
                        None => activations,
                    };
                    sums[row][panel] = isa.fma(dot, factor, sums[row][panel]);
                }
            }
        }
        if B::HAS_MINIMUM {
            for panel in 0..PANELS {
                let minimum = B::minimum(isa, &headers[panel], self.index);
                for row in 0..ROWS {
                    let sum = isa.splat(self.row(row).sum());
                    sums[row][panel] = isa.fma(minimum, sum, sums[row][panel]);
                }
            }
        }
    }

    /// Quads of a part.
    const QUADS: usize = 8 / B::Row::PARTS;

    /// Sums over the products of bytes of part `part` of the group.
    #[inline(always)]
    unsafe fn offset_dots<I: Isa, const ROWS: usize, const PANELS: usize>(
        &self,
        isa: I,
        part: usize,
    ) -> [[I::I; PANELS]; ROWS] {
        let mut dots = [[isa.splat_int(0); PANELS]; ROWS];
        for row in 0..ROWS {
            let minus_sum = isa.splat_int(self.row(row).minus_sum(part));
            dots[row] = [isa.offset_start(minus_sum); PANELS];
        }
        for quad in part * Self::QUADS..(part + 1) * Self::QUADS {
            let from = self.weights.wrapping_add(quad * 64);
            let mut weights = [isa.offset_bytes(isa.load_bytes(from)); PANELS];
            for panel in 1..PANELS {
                let from = from.wrapping_add(panel * self.panel_bytes);
                weights[panel] = isa.offset_bytes(isa.load_bytes(from));
            }
            for row in 0..ROWS {
                let activations = self.quad(isa, row, quad);
                for panel in 0..PANELS {
                    dots[row][panel] =
                        isa.dot_offset(dots[row][panel], weights[panel], activations);
                }
            }
        }
        dots
    }

    /// Sums over the products of part `part` of the group.
    #[inline(always)]
    unsafe fn small_dots<I: Isa, const ROWS: usize, const PANELS: usize>(
        &self,
        isa: I,
        part: usize,
    ) -> [[I::I; PANELS]; ROWS] {
        let mut dots = [[isa.splat_int(0); PANELS]; ROWS];
        for row in 0..ROWS {
            // −offset × Σ of the activations.
            let start = B::OFFSET.map_or(0, |offset| self.row(row).minus_sum(part) << offset);
            dots[row] = [isa.splat_int(start); PANELS];
        }
        let pairs = Self::QUADS / 2;
        let step = (B::CODES.quads(I::SMALL_LIMIT) / 2).min(pairs);
        for first in (part * pairs..(part + 1) * pairs).step_by(step) {
            let mut small = [[isa.small_start(dots[0][0]); PANELS]; ROWS];
            for row in 0..ROWS {
                for panel in 0..PANELS {
                    small[row][panel] = isa.small_start(dots[row][panel]);
                }
            }
            for pair in first..first + step {
                self.add_small::<I, ROWS, PANELS>(isa, pair, &mut small);
            }
            for row in 0..ROWS {
                for panel in 0..PANELS {
                    dots[row][panel] = isa.widen(dots[row][panel], small[row][panel]);
                }
            }
        }
        dots
    }

    /// Adds the products of two quads.
    #[inline(always)]
    unsafe fn add_small<I: Isa, const ROWS: usize, const PANELS: usize>(
        &self,
        isa: I,
        pair: usize,
        small: &mut [[I::S; PANELS]; ROWS],
    ) {
        let mut weights = [B::codes(isa, self.weights, pair); PANELS];
        for panel in 1..PANELS {
            let from = self.weights.wrapping_add(panel * self.panel_bytes);
            weights[panel] = B::codes(isa, from, pair);
        }
        for half in 0..2 {
            for row in 0..ROWS {
                let activations = self.quad(isa, row, 2 * pair + half);
                for panel in 0..PANELS {
                    let sum = small[row][panel];
                    small[row][panel] = isa.dot_small(sum, weights[panel][half], activations);
                }
            }
        }
    }
}
