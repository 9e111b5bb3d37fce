//! Writing one request's share of a step into the plan's arrays.

use crate::active::Active;
use crate::launches::{Entry, Launch};
use crate::plan::COPY_WITHIN_POOL;
use crate::pool::NONE;
use crate::template::Draw;
use crate::{Handle, StepPlan};

impl StepPlan {
    /// Empties every array and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.step = 0;
        self.num_decode_rows = 0;
        self.token_ids.clear();
        self.positions.clear();
        self.slots.clear();
        self.rows.clear();
        self.query_starts.clear();
        self.query_starts.push(0);
        self.sequence_lengths.clear();
        self.delta_rows.clear();
        self.delta_starts.clear();
        self.delta_counts.clear();
        self.delta_blocks.clear();
        self.block_copies.clear();
        self.sampling.clear();
        self.scoring.clear();
        self.side.clear();
    }

    /// Tells the worker the blocks that it does not know yet: append-only, from 0 after admission.
    fn write_table_delta(&mut self, request: &mut Active) {
        let sent = request.table_sent as usize;
        let new = &request.blocks[sent..];
        if new.is_empty() {
            return;
        }
        self.delta_rows.push(request.row as i32);
        self.delta_starts.push(sent as i32);
        self.delta_counts.push(new.len() as i32);
        self.delta_blocks
            .extend(new.iter().map(|&block| block as i32));
        request.table_sent = request.blocks.len() as u32;
    }

    fn write_tokens(&mut self, request: &Active, count: u32, block_shift: u32) {
        let offset_mask = (1 << block_shift) - 1;
        for position in request.computed..request.computed + count {
            let block = request.blocks[(position >> block_shift) as usize];
            let slot = i64::from(block) << block_shift | i64::from(position & offset_mask);
            self.token_ids.push(request.token_at(position));
            self.positions.push(position as i32);
            self.slots.push(slot);
        }
        self.rows.push(request.row as i32);
        self.query_starts.push(self.token_ids.len() as i32);
        self.sequence_lengths
            .push((request.computed + count) as i32);
    }

    /// Puts a beginning of a shared block into a request's own, before anything is computed.
    pub(crate) fn write_tail_copy(&mut self, request: &Active, block_shift: u32) {
        let last = request.blocks.last().expect("a forked tail has a block");
        let count = request.computed & ((1 << block_shift) - 1);
        self.block_copies.push([
            request.tail_source as i32,
            *last as i32,
            count as i32,
            COPY_WITHIN_POOL,
        ]);
    }

    fn write_sampling(&mut self, request: &Active) {
        let penalty_offset = request.has_penalties.then_some(self.side.len() as u32);
        if penalty_offset.is_some() {
            self.side.push(request.prompt);
            self.side.push(request.outputs());
            self.side.extend_from_slice(&request.tokens);
        }
        let bias_offset = self.write_bias(request);
        let draw = Draw {
            token: self.token_ids.len() as u32 - 1,
            row: request.row,
            output_index: request.outputs() + request.pending,
            penalty_offset,
            bias_offset,
        };
        self.sampling.push(request.template.row(&draw));
    }

    /// A bias of minus infinity keeps stop ids away before `min_tokens`; an id may be named twice, biases add up.
    fn write_bias(&mut self, request: &Active) -> Option<u32> {
        if !request.has_side_data {
            return None;
        }
        let offset = self.side.len();
        self.side.push(0);
        self.side.extend(request.bias().iter().map(|&(id, _)| id));
        self.side.extend(request.banned());
        let count = self.side.len() - offset - 1;
        if count == 0 {
            self.side.truncate(offset);
            return None;
        }
        self.side[offset] = count as u32;
        self.side
            .extend(request.bias().iter().map(|&(_, value)| value.to_bits()));
        self.side
            .resize(offset + 1 + 2 * count, f32::NEG_INFINITY.to_bits());
        Some(offset as u32)
    }
}

impl Launch {
    /// Puts the next `count` tokens of a request into the step; what reaches the end of its
    /// tokens is sampled.
    pub(crate) fn place(
        &mut self,
        plan: &mut StepPlan,
        request: &mut Active,
        handle: Handle,
        count: u32,
        block_shift: u32,
    ) {
        plan.write_table_delta(request);
        plan.write_tokens(request, count, block_shift);
        let sampled = count == request.remaining();
        self.work.logit_rows += u32::from(sampled);
        if sampled {
            plan.write_sampling(request);
            request.pending += 1;
            if request.has_side_data {
                request.side_step = self.step;
            }
        }
        // With `pending` raised, `remaining` is 1 again: the token that is being sampled.
        request.computed += count;
        request.last_step = self.step;
        request.inflight += 1;
        self.entries.push(Entry {
            handle,
            residency: request.residency,
            lineage: request.lineage,
            end: request.computed,
            sampled,
            candidates: if sampled && request.group != NONE {
                request.template.candidates
            } else {
                0
            },
            fork: false,
        });
    }
}
