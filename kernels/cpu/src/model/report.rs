//! What an engine found on its machine, for logs and for those who compare figures.

use super::settings::Settings;
use super::weights::Weights;
use crate::kv::KvPool;
use crate::memory::huge_bytes;
use crate::pool::Team;

/// What was found and granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The instruction set in use.
    pub instruction_set: &'static str,
    /// Threads, the caller's included.
    pub threads: usize,
    /// Started threads keep to one processor each.
    pub pinned: bool,
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
            pinned: team.pinned(),
            weight_bytes: weights.step_bytes(),
            weight_huge_bytes: huge_bytes(&ranges),
            kv_bytes,
            kv_huge_bytes: huge_bytes(&[kv..kv.wrapping_add(kv_bytes)]),
        }
    }
}
