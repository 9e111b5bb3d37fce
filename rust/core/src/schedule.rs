//! `plan`: which requests compute how many tokens in the next step.
//!
//! There is no prefill phase and no decode phase. Running requests that are short of one token come
//! first, then the chunks of running prompts, then admissions, each oldest first, until a budget is
//! spent. A request reserved the blocks of all its known tokens when it was admitted, so only
//! decoding can run out of memory.

use crate::{ChunkLimit, Core, WaitReason};

/// What is left of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) tokens: u32,
    pub(crate) prefill: u32,
    pub(crate) side: u32,
}

impl Core {
    pub(crate) fn plan_step(&mut self, now: u64) -> bool {
        if self.launches.len() > usize::from(self.config.overlap_depth) {
            return false;
        }
        self.plan.clear();
        self.draft = self.launches.draft(self.step + 1);
        let mut budget = Budget {
            tokens: self.config.max_batched_tokens,
            prefill: self.config.max_prefill_tokens.unwrap_or(u32::MAX),
            side: self.config.side_words,
        };
        let preempted = self.relieve_pressure();
        self.grant_side_data(&mut budget);
        self.place_decodes(&mut budget);
        self.place_prefills(&mut budget);
        let limit = if preempted && !self.plan.rows.is_empty() {
            WaitReason::Preemption
        } else {
            self.admit(&mut budget)
        };
        self.accounts.clock.plan_made(limit, now);
        self.launch()
    }

    /// Room in the side arena goes to those who were served longest ago, so that none starves.
    fn grant_side_data(&mut self, budget: &mut Budget) {
        if self.side_users == 0 {
            return;
        }
        let chunk = budget.tokens.min(budget.prefill);
        let mut side = std::mem::take(&mut self.scratch.side);
        side.clear();
        for slot in self.running.slots() {
            let request = &mut self.requests[slot];
            request.side_granted = false;
            let ends = request.is_decoding() || request.remaining() <= chunk;
            if request.has_side_data && ends && request.is_plannable() && request.is_in_ack_window()
            {
                side.push((request.side_step, request.arrival, slot));
            }
        }
        if side.len() > 1 {
            side.sort_unstable();
        }
        for &(_, _, slot) in &side {
            let request = &mut self.requests[slot];
            let words = request.side_words();
            if words <= budget.side {
                budget.side -= words;
                request.side_granted = true;
            }
        }
        self.scratch.side = side;
    }

    fn place_decodes(&mut self, budget: &mut Budget) {
        let (shift, now) = (self.block_shift, self.cache.now);
        let clock = &self.accounts.clock;
        let mut prefilling = std::mem::take(&mut self.scratch.slots);
        prefilling.clear();
        for slot in self.running.slots() {
            let (handle, request) = self.requests.get_mut(slot);
            if !request.is_plannable() {
                if request.waits_for_flight() {
                    request.hold(WaitReason::InFlight, clock, now);
                }
                continue;
            }
            if !request.is_decoding() {
                prefilling.push(slot);
                continue;
            }
            if !request.may_sample() {
                request.hold(request.sampling_limit().starving(), clock, now);
                continue;
            }
            if request.needs_block(shift) && !self.cache.allocate(1, &mut request.blocks) {
                request.hold(WaitReason::FencedBlock, clock, now);
                continue;
            }
            request.release(clock, now);
            budget.tokens -= 1;
            self.draft.place(&mut self.plan, request, handle, 1, shift);
        }
        self.plan.num_decode_rows = self.plan.rows.len() as u32;
        self.scratch.slots = prefilling;
    }

    fn place_prefills(&mut self, budget: &mut Budget) {
        let prefilling = std::mem::take(&mut self.scratch.slots);
        for &slot in &prefilling {
            self.place_chunk(slot, budget);
        }
        self.scratch.slots = prefilling;
    }

    /// Places as much of a prompt as the budget has room for. Where it may not be sampled yet, its
    /// last token stays behind.
    pub(crate) fn place_chunk(&mut self, slot: u32, budget: &mut Budget) {
        let (handle, request) = self.requests.get_mut(slot);
        let remaining = request.remaining();
        let room = budget.tokens.min(budget.prefill);
        let mut count = remaining.min(room);
        let limit = if count < remaining {
            if budget.prefill < budget.tokens {
                ChunkLimit::PrefillTokens
            } else {
                ChunkLimit::StepTokens
            }
        } else if request.may_sample() {
            ChunkLimit::Prompt
        } else {
            count -= 1;
            request.sampling_limit()
        };
        let now = self.cache.now;
        if count == 0 {
            request.hold(limit.starving(), &self.accounts.clock, now);
            return;
        }
        request.release(&self.accounts.clock, now);
        let chunk = (request.computed, count, room);
        request.account.chunk((self.draft.step, now), chunk, limit);
        budget.tokens -= count;
        budget.prefill -= count;
        let shift = self.block_shift;
        self.draft
            .place(&mut self.plan, request, handle, count, shift);
    }

    /// The plan is final: number it.
    fn launch(&mut self) -> bool {
        let mut launch = std::mem::take(&mut self.draft);
        if self.plan.rows.is_empty() {
            self.launches.recycle(launch);
            return false;
        }
        self.step += 1;
        self.counters.steps += 1;
        self.plan.epoch = self.epoch;
        self.plan.step = self.step;
        launch.samples = self.plan.sampling.len();
        #[cfg(feature = "planted-faults")]
        if self.config.fault == Some(crate::Fault::InternBeforeRetirement) {
            for entry in &launch.entries {
                let slot = entry.handle.slot;
                let known = self.requests[slot].known();
                self.intern_up_to(slot, entry.end.min(known));
            }
        }
        self.launches.push(launch);
        true
    }
}
