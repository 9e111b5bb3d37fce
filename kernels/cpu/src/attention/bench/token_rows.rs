//! The plain alternative: a cache of one row for each token and head, scores by sums across lanes.

use super::{AttentionLayer, HEAD_DIM, HEADS, KV_HEADS};
use crate::attention::TILE;
use crate::attention::lines::{Bf16, Dot};
use crate::attention::softmax::{Summary, finish, join, weights};
use crate::simd::{Isa, Kernel, LANES};

const GROUP: usize = HEADS / KV_HEADS;
const GROUPS: usize = HEAD_DIM / LANES;

/// Decodes every row of a layer whose bfloat16 blocks are read as plain rows. Nothing is turned or written.
pub(super) struct TokenRows<'a>(pub(super) &'a AttentionLayer<'a>);

struct Scratch {
    scores: [f32; GROUP * TILE],
    weights: [u32; GROUP * TILE],
    sums: [f32; GROUP * HEAD_DIM],
    state: [f32; GROUP * HEAD_DIM],
}

impl Kernel for TokenRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let mut scratch = Scratch {
            scores: [0.0; GROUP * TILE],
            weights: [0; GROUP * TILE],
            sums: [0.0; GROUP * HEAD_DIM],
            state: [0.0; GROUP * HEAD_DIM],
        };
        for row in 0..self.0.rows.num_rows() {
            for head in 0..KV_HEADS {
                // SAFETY: the bench's buffers are of the load's size.
                unsafe { self.attend(isa, row, head, &mut scratch) };
            }
        }
    }
}

impl TokenRows<'_> {
    #[inline(always)]
    unsafe fn attend<I: Isa>(&self, isa: I, row: usize, head: usize, scratch: &mut Scratch) {
        let context = self.0.rows.sequence_lengths[row] as usize;
        let nothing = Summary {
            largest: 0.0,
            sum: 0.0,
        };
        let mut summaries = [nothing; GROUP];
        for tile in 0..context.div_ceil(TILE) {
            let count = (context - tile * TILE).min(TILE);
            self.score(isa, (row, head), tile, count, scratch);
            let mut parts = [nothing; GROUP];
            for member in 0..GROUP {
                let scores = scratch.scores.as_mut_ptr().add(member * TILE);
                let to = scratch.weights.as_mut_ptr().add(member * TILE / 2);
                parts[member] = weights::<I, Dot<Bf16>>(isa, scores, count, None, to);
            }
            self.sum(isa, (row, head), tile, count, scratch);
            for member in 0..GROUP {
                let state = scratch.state.as_mut_ptr().add(member * HEAD_DIM);
                let sums = scratch.sums.as_ptr().add(member * HEAD_DIM);
                if tile == 0 {
                    std::ptr::copy_nonoverlapping(sums, state, HEAD_DIM);
                    summaries[member] = parts[member];
                } else {
                    let next = (parts[member], sums);
                    summaries[member] = join(isa, (summaries[member], state), next, GROUPS);
                }
            }
        }
        for member in 0..GROUP {
            let state = scratch.state.as_mut_ptr().add(member * HEAD_DIM);
            let out = self
                .0
                .out
                .add((row * HEADS + head * GROUP + member) * HEAD_DIM);
            finish(isa, summaries[member], state, out, HEAD_DIM);
        }
    }

    /// Rows of keys and of values of the block at `position`.
    #[inline(always)]
    unsafe fn block(&self, (row, head): (usize, usize), position: usize) -> [*const u16; 2] {
        let size = self.0.pool.shape().block_size;
        let block = *self.0.rows.table(row).add(position / size) as usize;
        let part = self.0.pool.head_block(self.0.layer, block, head);
        let offset = position % size * HEAD_DIM;
        [part.keys, part.values].map(|rows| rows.cast::<u16>().cast_const().wrapping_add(offset))
    }

    #[inline(always)]
    unsafe fn score<I: Isa>(
        &self,
        isa: I,
        place: (usize, usize),
        tile: usize,
        count: usize,
        scratch: &mut Scratch,
    ) {
        let query = self
            .0
            .qkv
            .add(place.0 * self.0.qkv_stride + place.1 * GROUP * HEAD_DIM);
        let mut pairs = [[isa.splat_pair(0); 2]; GROUP];
        for (member, pairs) in pairs.iter_mut().enumerate() {
            for (part, pair) in pairs.iter_mut().enumerate() {
                let from = query.add(member * HEAD_DIM + part * 2 * LANES);
                *pair = isa.pack_pairs(isa.load(from), isa.load(from.add(LANES)));
            }
        }
        for index in 0..count {
            let key = self.block(place, tile * TILE + index)[0];
            let (first, second) = (isa.load_pairs(key), isa.load_pairs(key.add(2 * LANES)));
            for member in 0..GROUP {
                let sum = isa.dot_bf16(isa.splat(0.0), first, pairs[member][0]);
                let sum = isa.dot_bf16(sum, second, pairs[member][1]);
                scratch.scores[member * TILE + index] = isa.reduce_add(sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum<I: Isa>(
        &self,
        isa: I,
        place: (usize, usize),
        tile: usize,
        count: usize,
        scratch: &mut Scratch,
    ) {
        let mut sums = [[isa.splat(0.0); GROUPS]; GROUP];
        for index in 0..count {
            let value = self.block(place, tile * TILE + index)[1];
            for group in 0..GROUPS {
                let value = isa.load_bf16(value.add(group * LANES));
                for member in 0..GROUP {
                    let pair = scratch.weights[member * TILE / 2 + index / 2];
                    let bits = if index % 2 == 0 {
                        pair << 16
                    } else {
                        pair & 0xffff_0000
                    };
                    let weight = isa.splat(f32::from_bits(bits));
                    sums[member][group] = isa.fma(value, weight, sums[member][group]);
                }
            }
        }
        for (member, sums) in sums.iter().enumerate() {
            for (group, sum) in sums.iter().enumerate() {
                let at = member * HEAD_DIM + group * LANES;
                isa.store(scratch.sums.as_mut_ptr().add(at), *sum);
            }
        }
    }
}
