//! A member's own memory.

use super::softmax::Summary;
use super::{AttentionPlan, PANELS, TILE};
use crate::kv::KvShape;
use crate::simd::LANES;

/// Rows that go through a tile together, at most.
pub(super) const ROWS: usize = 12;

/// Where a member's parts begin. All are aligned to 64 bytes.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// One head: padded dimensions.
    pub(super) head: *mut f32,
    /// One encoded key, and one value: 4 × padded dimensions bytes each.
    pub(super) codes: [*mut u8; 2],
    /// Factors of all rows' queries.
    pub(super) queries: *mut u32,
    /// [`ROWS`] × [`TILE`].
    pub(super) scores: *mut f32,
    /// Factors: [`ROWS`] × [`TILE`] words.
    pub(super) weights: *mut u32,
    /// [`ROWS`] × padded dimensions: a tile's result.
    pub(super) sums: *mut f32,
    /// Rows × padded dimensions: all tiles so far.
    pub(super) state: *mut f32,
    /// Rows.
    pub(super) summaries: *mut Summary,
    /// Panels of a tile as the pool's format has them, where its blocks have none.
    pub(super) gathered: [*mut u8; 2],
    /// Their scales: of [`TILE`] keys, then values.
    pub(super) scales: *mut f32,
    /// Panels of a tile, widened.
    pub(super) wide: [*mut u8; 2],
}

/// Bytes of each part, in the order of [`Scratch`].
fn parts(shape: &KvShape, group: usize, queries: usize) -> [usize; 13] {
    let (rows, dims) = (group * queries.max(1), shape.padded_dim());
    let panel = PANELS * LANES * dims * size_of::<f32>();
    let gathered = if shape.has_panels() { 0 } else { panel };
    [
        dims * 4,
        dims * 4,
        dims * 4,
        rows * dims * 4,
        ROWS * TILE * 4,
        ROWS * TILE * 4,
        ROWS * dims * 4,
        rows * dims * 4,
        rows * size_of::<Summary>(),
        gathered,
        gathered,
        2 * TILE * 4,
        2 * panel,
    ]
    .map(|bytes: usize| bytes.next_multiple_of(64))
}

/// Bytes that a member needs.
pub(super) fn bytes(shape: &KvShape, group: usize, queries: usize) -> usize {
    parts(shape, group, queries)
        .iter()
        .sum::<usize>()
        .next_multiple_of(4096)
}

impl Scratch {
    /// Of member `member`.
    pub(super) fn of(plan: &AttentionPlan, member: usize) -> Self {
        assert!(member < plan.members, "member {member} of {}", plan.members);
        let parts = parts(&plan.shape, plan.group, plan.queries);
        let mut place = member * bytes(&plan.shape, plan.group, plan.queries);
        let start = plan.scratch.address();
        let mut at = [std::ptr::null_mut::<u8>(); 13];
        for (at, bytes) in at.iter_mut().zip(parts) {
            // SAFETY: the region has as many bytes as all parts of all members.
            *at = unsafe { start.add(place) };
            place += bytes;
        }
        // SAFETY: the last part is two panels' bytes long.
        let second_wide = unsafe { at[12].add(parts[12] / 2) };
        Self {
            head: at[0].cast(),
            codes: [at[1], at[2]],
            queries: at[3].cast(),
            scores: at[4].cast(),
            weights: at[5].cast(),
            sums: at[6].cast(),
            state: at[7].cast(),
            summaries: at[8].cast(),
            gathered: [at[9], at[10]],
            scales: at[11].cast(),
            wide: [at[12], second_wide],
        }
    }
}
