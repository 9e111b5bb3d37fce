//! What an engine found on its machine, for logs and for those who compare figures.

use super::settings::Settings;
use super::shape::ModelShape;
use super::weights::{LayerWeights, Weights};
use crate::kv::KvPool;
use crate::matrix::{Form, Matrix};
use crate::memory::huge_bytes;
use crate::pool::Team;

/// Bytes that a step of `tokens` tokens, `sampled` of them sampled greedily, moves at least between its passes: each
/// weight once, each activation once for being written and once for each time it is read. The cache is not counted.
#[must_use]
pub fn moved_bytes(
    shape: &ModelShape,
    weights: &Weights,
    settings: &Settings,
    (tokens, sampled): (usize, usize),
) -> usize {
    let (fusions, hidden, wide) = (settings.fusions, shape.hidden, shape.intermediate);
    let bytes = |form: Form| match form {
        Form::F32 => 4,
        Form::Bf16 => 2,
        Form::Int8 | Form::Int8Halves => 1,
    };
    let form = |matrix: &Matrix| bytes(matrix.format.form(settings.arithmetic));
    let unless = |fused: bool, values: usize| if fused { 0 } else { 2 * 4 * values };
    let row = |layer: &LayerWeights| {
        let norms = 2 * 4 * hidden;
        let prepared = hidden * (form(&layer.qkv[0]) + form(&layer.gate_up)) * 2;
        let attention = 2 * 4 * (shape.qkv_size() + shape.attended_size());
        let attended = shape.attended_size() * form(&layer.output) * 2;
        let mlp = unless(fusions.swiglu, 2 * wide) + 2 * wide * form(&layer.down);
        let residual = 2 * 2 * 4 * hidden;
        norms + prepared + attention + attended + mlp + residual
    };
    let layers: usize = weights.layers.iter().map(row).sum();
    let head =
        4 * hidden + 2 * hidden * form(&weights.head) + unless(fusions.argmax, settings.vocabulary);
    weights.step_bytes() + tokens * (layers + 2 * 4 * hidden) + sampled * head
}

/// What was found and granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The instruction set in use.
    pub instruction_set: &'static str,
    /// Threads, the caller's included.
    pub threads: usize,
    /// Bytes of weights that a step reads.
    pub weight_bytes: usize,
    /// How many of them huge pages back.
    pub weight_huge_bytes: usize,
    /// Bytes of the cache.
    pub kv_bytes: usize,
    /// How many of them huge pages back.
    pub kv_huge_bytes: usize,
}

impl Report {
    pub(super) fn new(settings: &Settings, weights: &Weights, pool: &KvPool, team: &Team) -> Self {
        let mut matrices = vec![weights.head];
        for layer in &weights.layers {
            matrices.extend(layer.matrices().copied());
        }
        let ranges: Vec<_> = matrices
            .iter()
            .map(|matrix| matrix.bytes.as_ptr_range())
            .collect();
        let (kv, kv_bytes) = (pool.region().address().cast_const(), pool.region().bytes());
        Self {
            instruction_set: settings.set.name(),
            threads: team.threads(),
            weight_bytes: weights.step_bytes(),
            weight_huge_bytes: huge_bytes(&ranges),
            kv_bytes,
            kv_huge_bytes: huge_bytes(&[kv..kv.wrapping_add(kv_bytes)]),
        }
    }
}
