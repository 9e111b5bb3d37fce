//! Attention over the paged cache.
//!
//! A row's context is cut into tiles of 256 positions, at absolute positions. Each tile is reduced with its own largest
//! score, and the tiles are joined in ascending order: the same in prefill and in decode, in one thread and in several,
//! so that the result depends on nothing else. What lies past a row's end is never computed with: its lanes are dropped.

pub mod bench;
mod lines;
mod plan;
mod product;
mod scratch;
mod softmax;
#[cfg(test)]
mod tests;
mod tile;
mod work;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use plan::{AttentionPlan, RowsError};

use crate::kv::{KvFormat, KvPool};
use crate::matrix::Arithmetic;
use crate::rope::Rope;
use crate::simd::{InstructionSet, Isa, Kernel, LANES};
use lines::{Bf16, Dot, F16, F32, Float, Int8, Lines};
use scratch::Scratch;
use work::Worker;

/// Positions that are reduced together.
pub(crate) const TILE: usize = 256;

/// Panels of a tile.
pub(crate) const PANELS: usize = TILE / LANES;

/// The token rows of a step, decode rows first: T tokens in R rows.
#[derive(Clone, Copy, Debug)]
pub struct StepRows<'a> {
    /// [T] absolute positions; those of a row follow each other.
    pub positions: &'a [i32],
    /// [T] block × `block_size` + offset, where each token's keys and values go.
    pub slots: &'a [i64],
    /// [R + 1] first tokens.
    pub query_starts: &'a [i32],
    /// [R] positions with this step's tokens.
    pub sequence_lengths: &'a [i32],
    /// [R] rows of `tables`.
    pub rows: &'a [i32],
    /// Block tables, `table_stride` blocks each.
    pub tables: &'a [i32],
    /// Blocks from one table to the next.
    pub table_stride: usize,
    /// Rows at the front with one token each.
    pub num_decode_rows: usize,
}

impl StepRows<'_> {
    /// R.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.sequence_lengths.len()
    }

    /// Blocks of row `row`.
    #[inline(always)]
    fn table(&self, row: usize) -> *const i32 {
        self.tables[self.rows[row] as usize * self.table_stride..].as_ptr()
    }
}

/// Parts of the kernel that can be left out, to measure what they gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Cache lines are asked for before they are needed.
    pub prefetch: bool,
    /// The query heads of a KV head read its keys and values together.
    pub share: bool,
}

impl Switches {
    /// Nothing left out.
    pub const ALL: Self = Self {
        prefetch: true,
        share: true,
    };
}

/// What one layer attends over.
#[derive(Clone, Copy)]
pub struct AttentionLayer<'a> {
    /// The cache.
    pub pool: &'a KvPool,
    /// Which of its layers.
    pub layer: usize,
    /// The step, as it was planned.
    pub rows: &'a StepRows<'a>,
    /// [T] × `qkv_stride`: query heads, key heads, value heads.
    pub qkv: *const f32,
    /// Values from one token to the next.
    pub qkv_stride: usize,
    /// Angles by which queries and keys are turned.
    pub rope: &'a Rope,
    /// Scores are multiplied by it: 1 ÷ √`head_dim`.
    pub scale: f32,
    /// How bfloat16 and byte caches are multiplied; the others always in float32.
    pub arithmetic: Arithmetic,
    /// [T] × heads × `head_dim`.
    pub out: *mut f32,
    /// [`Switches::ALL`], but for measurements.
    pub switches: Switches,
}

/// A member's share of a phase.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    /// Below [`AttentionPlan::phases`]; all members finish one before the next begins.
    pub phase: usize,
    /// Below the plan's members: each has scratch memory of its own.
    pub member: usize,
    /// The next piece of work, zero when the phase begins, shared by the members.
    pub claims: &'a AtomicUsize,
}

impl AttentionPlan {
    /// Does pieces of a phase until none is left.
    ///
    /// # Safety
    /// The pool and the step are those of the plan; `layer`'s pointers span what they say; no member has the same number
    /// as another; nobody else writes what is read here.
    pub unsafe fn run(&self, set: InstructionSet, turn: Turn<'_>, layer: &AttentionLayer<'_>) {
        set.run(Pieces {
            plan: self,
            turn,
            layer,
        });
    }
}

struct Pieces<'a> {
    plan: &'a AttentionPlan,
    turn: Turn<'a>,
    layer: &'a AttentionLayer<'a>,
}

impl Kernel for Pieces<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // SAFETY: as `AttentionPlan::run` demands.
        unsafe {
            match (self.layer.pool.shape().format, self.layer.arithmetic) {
                (KvFormat::F32, _) => self.claim::<I, Float<F32>>(isa),
                (KvFormat::F16, _) => self.claim::<I, Float<F16>>(isa),
                (KvFormat::Bf16, Arithmetic::F32) => self.claim::<I, Float<Bf16>>(isa),
                (KvFormat::Bf16, Arithmetic::Bf16) => self.claim::<I, Dot<Bf16>>(isa),
                (KvFormat::Int8, Arithmetic::F32) => self.claim::<I, Float<Int8>>(isa),
                (KvFormat::Int8, Arithmetic::Bf16) => self.claim::<I, Dot<Int8>>(isa),
            }
        }
    }
}

impl Pieces<'_> {
    #[inline(always)]
    unsafe fn claim<I: Isa, L: Lines>(self, isa: I) {
        let worker = Worker {
            isa,
            plan: self.plan,
            layer: self.layer,
            scratch: Scratch::of(self.plan, self.turn.member),
        };
        let writes = self.turn.phase + 1 < self.plan.phases();
        loop {
            let piece = self.turn.claims.fetch_add(1, Ordering::Relaxed);
            if writes {
                let Some(piece) = self.plan.writes().get(piece) else {
                    break;
                };
                worker.write(*piece);
            } else {
                let Some(piece) = self.plan.work().get(piece) else {
                    break;
                };
                worker.attend::<L>(*piece);
            }
        }
    }
}
