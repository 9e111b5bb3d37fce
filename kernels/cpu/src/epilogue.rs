//! What follows a product while its sums are still near: bias, residual, `SwiGLU`.

use crate::math::silu;
use crate::rows::{GROUP, RowBuffer};
use crate::simd::{Isa, Kernel, LANES};

/// Sums of some rows × some columns, a multiple of 16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// The first sum.
    pub(crate) sums: *mut f32,
    /// Values from one row to the next.
    pub(crate) stride: usize,
    /// How many rows.
    pub(crate) rows: usize,
    /// How many columns.
    pub(crate) columns: usize,
    /// As many values, or null.
    pub(crate) bias: *const f32,
}

impl Tile {
    /// 16 sums, bias added.
    #[inline(always)]
    unsafe fn load<I: Isa>(&self, isa: I, row: usize, column: usize) -> I::F {
        let sums = isa.load(self.sums.add(row * self.stride + column));
        if self.bias.is_null() {
            sums
        } else {
            isa.add(sums, isa.load(self.bias.add(column)))
        }
    }
}

/// Adds the bias to the sums where they lie.
pub(crate) struct AddBias(pub(crate) Tile);

impl Kernel for AddBias {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let tile = self.0;
        for row in 0..tile.rows {
            let mut column = 0;
            while column < tile.columns {
                // SAFETY: within the tile, which whoever makes the kernel owns.
                unsafe {
                    let value = tile.load(isa, row, column);
                    isa.store(tile.sums.add(row * tile.stride + column), value);
                }
                column += LANES;
            }
        }
    }
}

/// Adds sums and bias to the residual stream.
pub(crate) struct AddResidual {
    pub(crate) tile: Tile,
    pub(crate) residual: *mut f32,
    pub(crate) stride: usize,
}

impl Kernel for AddResidual {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for row in 0..self.tile.rows {
            let mut column = 0;
            while column < self.tile.columns {
                // SAFETY: within the tile and the residual, which whoever makes the kernel owns there.
                unsafe {
                    let to = self.residual.add(row * self.stride + column);
                    let value = self.tile.load(isa, row, column);
                    isa.store(to, isa.add(isa.load(to), value));
                }
                column += LANES;
            }
        }
    }
}

/// silu(gate) × up of interleaved panels (16 of the gate, 16 of up, …), into the form that a product reads.
pub(crate) struct SwiGlu<'a> {
    pub(crate) tile: Tile,
    pub(crate) into: &'a RowBuffer,
    /// The first row written.
    pub(crate) row: usize,
    /// The first column written: a multiple of 32.
    pub(crate) column: usize,
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let mut group = [0.0; GROUP];
        for row in 0..self.tile.rows {
            let (mut from, mut count) = (0, 0);
            let mut column = self.column;
            while from < self.tile.columns {
                // SAFETY: within the tile; whoever makes the kernel owns these columns of these rows.
                unsafe {
                    let gate = self.tile.load(isa, row, from);
                    let up = self.tile.load(isa, row, from + LANES);
                    let value = isa.mul(silu(isa, gate), up);
                    isa.store(group.as_mut_ptr().add(count), value);
                    from += 2 * LANES;
                    count += LANES;
                    if count == GROUP || from == self.tile.columns {
                        let values = group.as_ptr();
                        self.into.put(isa, self.row + row, column, values, count);
                        column += count;
                        count = 0;
                    }
                }
            }
        }
    }
}
