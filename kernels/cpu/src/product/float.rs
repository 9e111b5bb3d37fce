//! Products of floating-point weights.
//!
//! A block of rows × panels keeps its sums in registers over all inputs. One row takes four panels at once, so that four
//! streams of weights are read and no sum waits for the one before; many rows share each weight that is loaded.

use super::Product;
use crate::matrix::{Form, Format};
use crate::simd::{Isa, Kernel, LANES};

/// One step over the inputs: what is loaded, and how it is multiplied.
trait Step {
    /// Bytes of a panel.
    const WEIGHTS: usize;
    /// Bytes of a row.
    const ROW: usize;
    /// Rows × one panel whose sums fit into 16 registers of half the width.
    const NARROW: usize = 6;
    /// Inputs.
    const INPUTS: usize;
    /// Weights of a panel, ready to be multiplied.
    type Weights<I: Isa>: Copy;
    /// A row's values in all lanes.
    type Values<I: Isa>: Copy;
    unsafe fn weights<I: Isa>(isa: I, from: *const u8) -> Self::Weights<I>;
    unsafe fn values<I: Isa>(isa: I, from: *const u8) -> Self::Values<I>;
    fn multiply<I: Isa>(
        isa: I,
        sum: I::F,
        weights: Self::Weights<I>,
        values: Self::Values<I>,
    ) -> I::F;
}

struct F32Step;

impl Step for F32Step {
    const WEIGHTS: usize = 64;
    const ROW: usize = 4;
    const INPUTS: usize = 1;
    type Weights<I: Isa> = I::F;
    type Values<I: Isa> = I::F;

    #[inline(always)]
    unsafe fn weights<I: Isa>(isa: I, from: *const u8) -> I::F {
        isa.load(from.cast())
    }
    #[inline(always)]
    unsafe fn values<I: Isa>(isa: I, from: *const u8) -> I::F {
        isa.splat(*from.cast())
    }
    #[inline(always)]
    fn multiply<I: Isa>(isa: I, sum: I::F, weights: I::F, values: I::F) -> I::F {
        isa.fma(weights, values, sum)
    }
}

struct F16Step;

impl Step for F16Step {
    const WEIGHTS: usize = 32;
    const ROW: usize = 4;
    const INPUTS: usize = 1;
    type Weights<I: Isa> = I::F;
    type Values<I: Isa> = I::F;

    #[inline(always)]
    unsafe fn weights<I: Isa>(isa: I, from: *const u8) -> I::F {
        isa.load_f16(from.cast())
    }
    #[inline(always)]
    unsafe fn values<I: Isa>(isa: I, from: *const u8) -> I::F {
        isa.splat(*from.cast())
    }
    #[inline(always)]
    fn multiply<I: Isa>(isa: I, sum: I::F, weights: I::F, values: I::F) -> I::F {
        isa.fma(weights, values, sum)
    }
}

/// bfloat16 weights × f32 values.
struct WideStep;

impl Step for WideStep {
    const NARROW: usize = 5;
    const WEIGHTS: usize = 64;
    const ROW: usize = 8;
    const INPUTS: usize = 2;
    type Weights<I: Isa> = (I::F, I::F);
    type Values<I: Isa> = (I::F, I::F);

    #[inline(always)]
    unsafe fn weights<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F) {
        let pairs = isa.load_pairs(from.cast());
        (isa.low(pairs), isa.high(pairs))
    }
    #[inline(always)]
    unsafe fn values<I: Isa>(isa: I, from: *const u8) -> (I::F, I::F) {
        let from = from.cast::<f32>();
        (isa.splat(*from), isa.splat(*from.add(1)))
    }
    #[inline(always)]
    fn multiply<I: Isa>(isa: I, sum: I::F, weights: (I::F, I::F), values: (I::F, I::F)) -> I::F {
        isa.fma(weights.1, values.1, isa.fma(weights.0, values.0, sum))
    }
}

/// bfloat16 weights × bfloat16 values.
struct PairStep;

impl Step for PairStep {
    const WEIGHTS: usize = 64;
    const ROW: usize = 4;
    const INPUTS: usize = 2;
    type Weights<I: Isa> = I::P;
    type Values<I: Isa> = I::P;

    #[inline(always)]
    unsafe fn weights<I: Isa>(isa: I, from: *const u8) -> I::P {
        isa.load_pairs(from.cast())
    }
    #[inline(always)]
    unsafe fn values<I: Isa>(isa: I, from: *const u8) -> I::P {
        isa.splat_pair(*from.cast())
    }
    #[inline(always)]
    fn multiply<I: Isa>(isa: I, sum: I::F, weights: I::P, values: I::P) -> I::F {
        isa.dot_bf16(sum, weights, values)
    }
}

/// As [`Product::run_inside`], checked.
#[inline(always)]
pub(super) unsafe fn run<I: Isa>(isa: I, product: &Product) {
    let task = Task::new(product);
    match (product.matrix.format, product.rows.form()) {
        (Format::F32, _) => isa.vectorize(Steps::<F32Step>(task, F32Step)),
        (Format::F16, _) => isa.vectorize(Steps::<F16Step>(task, F16Step)),
        (_, Form::Bf16) => isa.vectorize(Steps::<PairStep>(task, PairStep)),
        _ => isa.vectorize(Steps::<WideStep>(task, WideStep)),
    }
}

/// A product as addresses.
#[derive(Clone, Copy)]
struct Task {
    weights: *const u8,
    panel_bytes: usize,
    rows: *const u8,
    row_stride: usize,
    inputs: usize,
    panel_count: usize,
    row_count: usize,
    prefetch: bool,
    out: *mut f32,
    out_stride: usize,
}

impl Task {
    #[inline(always)]
    fn new(product: &Product) -> Self {
        let matrix = &product.matrix;
        let panel_bytes = matrix.format.panel_bytes(matrix.inputs);
        let row_stride = product.rows.stride();
        Self {
            weights: matrix.bytes[product.panels.start * panel_bytes..].as_ptr(),
            panel_bytes,
            rows: product
                .rows
                .start()
                .wrapping_add(product.row_range.start * row_stride),
            row_stride,
            inputs: matrix.inputs,
            panel_count: product.panels.len(),
            row_count: product.row_range.len(),
            prefetch: product.prefetch,
            out: product.out,
            out_stride: product.out_stride,
        }
    }

    /// From panel `panel` and row `row` on.
    #[inline(always)]
    fn at(&self, panel: usize, row: usize) -> Self {
        Self {
            weights: self.weights.wrapping_add(panel * self.panel_bytes),
            rows: self.rows.wrapping_add(row * self.row_stride),
            out: self.out.wrapping_add(row * self.out_stride + panel * LANES),
            ..*self
        }
    }
}

struct Steps<S>(Task, S);

impl<S: Step> Kernel for Steps<S> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // SAFETY: promised to `Product::run`.
        unsafe { all::<I, S>(isa, &self.0) }
    }
}

/// Panels that are read side by side.
const GROUP: usize = 4;
/// Bytes of rows that stay in the second cache while panels pass by.
const ROWS_BYTES: usize = 512 << 10;

#[inline(always)]
unsafe fn all<I: Isa, S: Step>(isa: I, task: &Task) {
    let most = (ROWS_BYTES / task.row_stride).max(48);
    let parts = task.row_count.div_ceil(most).max(1);
    let rows = task.row_count.div_ceil(parts).next_multiple_of(12);
    let mut row = 0;
    while row < task.row_count {
        let mut part = task.at(0, row);
        part.row_count = rows.min(task.row_count - row);
        panels::<I, S>(isa, &part);
        row += rows;
    }
}

#[inline(always)]
unsafe fn panels<I: Isa, S: Step>(isa: I, task: &Task) {
    let mut panel = 0;
    while panel + GROUP <= task.panel_count {
        rows::<I, S, GROUP>(isa, &task.at(panel, 0));
        panel += GROUP;
    }
    while panel < task.panel_count {
        rows::<I, S, 1>(isa, &task.at(panel, 0));
        panel += 1;
    }
}

/// All rows with the first `PANELS` panels, in blocks of as many rows as the registers hold.
#[inline(always)]
unsafe fn rows<I: Isa, S: Step, const PANELS: usize>(isa: I, task: &Task) {
    let mut row = 0;
    while row < task.row_count {
        let task = &task.at(0, row);
        row += if I::REGISTERS >= 32 {
            match task.row_count - row {
                12.. => wide_block::<I, S, 12, PANELS>(isa, task),
                8.. => wide_block::<I, S, 8, PANELS>(isa, task),
                6.. => wide_block::<I, S, 6, PANELS>(isa, task),
                4.. => block::<I, S, 4, PANELS>(isa, task),
                3 => block::<I, S, 3, PANELS>(isa, task),
                2 => block::<I, S, 2, PANELS>(isa, task),
                _ => block::<I, S, 1, PANELS>(isa, task),
            }
        } else {
            match task.row_count - row {
                6.. if S::NARROW == 6 => narrow_block::<I, S, 6, PANELS>(isa, task),
                5.. => narrow_block::<I, S, 5, PANELS>(isa, task),
                4.. => narrow_block::<I, S, 4, PANELS>(isa, task),
                3 => narrow_block::<I, S, 3, PANELS>(isa, task),
                2 => narrow_block::<I, S, 2, PANELS>(isa, task),
                _ => block::<I, S, 1, PANELS>(isa, task),
            }
        }
    }
}

/// Two panels after two: more sums would not fit into 32 registers.
#[inline(always)]
unsafe fn wide_block<I: Isa, S: Step, const ROWS: usize, const PANELS: usize>(
    isa: I,
    task: &Task,
) -> usize {
    if PANELS == 1 {
        return block::<I, S, ROWS, 1>(isa, task);
    }
    for panel in (0..PANELS).step_by(2) {
        block::<I, S, ROWS, 2>(isa, &task.at(panel, 0));
    }
    ROWS
}

/// One panel after the other: more sums would not fit into 16 registers.
#[inline(always)]
unsafe fn narrow_block<I: Isa, S: Step, const ROWS: usize, const PANELS: usize>(
    isa: I,
    task: &Task,
) -> usize {
    for panel in 0..PANELS {
        block::<I, S, ROWS, 1>(isa, &task.at(panel, 0));
    }
    ROWS
}

/// Bytes between a weight that is used and the one of its panel that is asked for meanwhile: the fewer panels are read
/// side by side, the further. Found by trying.
const fn ahead(rows: usize, panels: usize) -> usize {
    match (panels, rows) {
        (GROUP.., _) => 256,
        (2.., ..12) => 512,
        _ => 2048,
    }
}

/// The sums of the first `ROWS` rows and `PANELS` panels; gives `ROWS`.
#[inline(always)]
unsafe fn block<I: Isa, S: Step, const ROWS: usize, const PANELS: usize>(
    isa: I,
    task: &Task,
) -> usize {
    let mut sums = [[isa.splat(0.0); PANELS]; ROWS];
    let (mut panels, mut rows) = (task.weights, task.rows);
    let steps = task.inputs / S::INPUTS;
    let near = const { ahead(ROWS, PANELS) };
    let last = (near / S::WEIGHTS).min(steps);
    // At the end of these panels the next ones are asked for.
    let next = (PANELS - 1) * task.panel_bytes + near;
    for (steps, ahead) in [(steps - last, near), (last, next)] {
        for _ in 0..steps {
            let weights: [_; PANELS] =
                std::array::from_fn(|panel| S::weights(isa, panels.add(panel * task.panel_bytes)));
            if task.prefetch {
                for panel in 0..PANELS {
                    isa.prefetch(panels.wrapping_add(panel * task.panel_bytes + ahead));
                }
            }
            for row in 0..ROWS {
                let values = S::values(isa, rows.add(row * task.row_stride));
                for panel in 0..PANELS {
                    sums[row][panel] = S::multiply(isa, sums[row][panel], weights[panel], values);
                }
            }
            panels = panels.add(S::WEIGHTS);
            rows = rows.add(S::ROW);
        }
    }
    for row in 0..ROWS {
        for panel in 0..PANELS {
            let to = task.out.add(row * task.out_stride + panel * LANES);
            isa.store(to, sums[row][panel]);
        }
    }
    ROWS
}
