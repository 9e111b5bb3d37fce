//! Attention by itself: the steps of some sequences over a cache of their own.

use std::sync::atomic::AtomicUsize;

use diptych_cpu::attention::{AttentionLayer, AttentionPlan, StepRows, Switches, Turn};
use diptych_cpu::kv::{KvPool, KvShape};
use diptych_cpu::rope::Rope;
use pyo3::prelude::*;
use serde::Deserialize;

use super::settings::kv_format;
use super::{OptionsError, arithmetic, instruction_set, items, read_options};
use crate::array::Array;
use crate::errors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttentionOptions {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    block_size: usize,
    num_blocks: usize,
    kv: String,
    arithmetic: String,
    instruction_set: Option<String>,
    /// Angle per position of each pair of dimensions.
    frequencies: Vec<f32>,
    scale: f32,
    /// Block tables one after the other, `table_stride` blocks each.
    tables: Vec<i32>,
    table_stride: usize,
    steps: Vec<Step>,
}

/// As in a plan.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    positions: Vec<i32>,
    slots: Vec<i64>,
    rows: Vec<i32>,
    query_starts: Vec<i32>,
    sequence_lengths: Vec<i32>,
    num_decode_rows: usize,
}

/// Runs steps one after the other over a cache that is NaN at first. qkv: f32, for each token of each step query heads,
/// key heads and value heads, not turned yet; gives f32, for each token its heads.
#[pyfunction]
pub(crate) fn attention(qkv: &Bound<'_, PyAny>, options: &[u8]) -> PyResult<Array> {
    let options: AttentionOptions = read_options(options)?;
    let qkv = items::<f32>(qkv)?;
    attend(&qkv, &options)
        .map(Array::from)
        .map_err(|error| errors::options(&error))
}

fn attend(qkv: &[f32], options: &AttentionOptions) -> Result<Vec<f32>, OptionsError> {
    let width = (options.heads + 2 * options.kv_heads) * options.head_dim;
    let tokens: usize = options.steps.iter().map(|step| step.positions.len()).sum();
    if qkv.len() != tokens * width {
        let (found, wanted) = (qkv.len(), tokens * width);
        return Err(OptionsError::Length {
            name: "qkv",
            found,
            wanted,
        });
    }
    let shape = KvShape {
        layers: 1,
        blocks: options.num_blocks,
        block_size: options.block_size,
        kv_heads: options.kv_heads,
        head_dim: options.head_dim,
        format: kv_format(&options.kv)?,
    };
    let pool = KvPool::new(shape, false)?;
    // SAFETY: nobody else has the pool yet.
    unsafe { pool.fill(0xff) };
    let last = options.tables.len().max(1) * options.block_size;
    let mut rope = Rope::new(&options.frequencies, last)?;
    let mut plan = AttentionPlan::new(&shape, options.heads, 1)?;
    let mut out = vec![0.0; tokens * options.heads * options.head_dim];
    let mut done = 0;
    for step in &options.steps {
        let at = done * options.heads * options.head_dim;
        attend_step(
            &mut Parts {
                options,
                pool: &pool,
                rope: &mut rope,
                plan: &mut plan,
            },
            step,
            &qkv[done * width..],
            &mut out[at..],
        )?;
        done += step.positions.len();
    }
    Ok(out)
}

struct Parts<'a> {
    options: &'a AttentionOptions,
    pool: &'a KvPool,
    rope: &'a mut Rope,
    plan: &'a mut AttentionPlan,
}

fn attend_step(
    parts: &mut Parts<'_>,
    step: &Step,
    qkv: &[f32],
    out: &mut [f32],
) -> Result<(), OptionsError> {
    let options = parts.options;
    let rows = StepRows {
        positions: &step.positions,
        slots: &step.slots,
        query_starts: &step.query_starts,
        sequence_lengths: &step.sequence_lengths,
        rows: &step.rows,
        tables: &options.tables,
        table_stride: options.table_stride,
        num_decode_rows: step.num_decode_rows,
    };
    parts.plan.plan(&rows, parts.rope)?;
    let layer = AttentionLayer {
        pool: parts.pool,
        layer: 0,
        rows: &rows,
        qkv: qkv.as_ptr(),
        qkv_stride: (options.heads + 2 * options.kv_heads) * options.head_dim,
        rope: parts.rope,
        scale: options.scale,
        arithmetic: arithmetic(&options.arithmetic)?,
        out: out.as_mut_ptr(),
        switches: Switches::ALL,
    };
    let set = instruction_set(options.instruction_set.as_deref())?;
    for phase in 0..parts.plan.phases() {
        let turn = Turn {
            phase,
            member: 0,
            claims: &AtomicUsize::new(0),
        };
        // SAFETY: the plan is of these rows and this pool, the arrays span the step's tokens, and all is this thread's.
        unsafe { parts.plan.run(set, turn, &layer) };
    }
    Ok(())
}
