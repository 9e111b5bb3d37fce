//! `plan`: which requests compute how many tokens in the next step.
//!
//! There is no prefill phase and no decode phase. Running requests that are short of one token come
//! first, then the chunks of running prompts and admissions in the order of `waiting`, until a budget
//! is spent. A request reserved the blocks of all its known tokens when it was admitted, so only
//! decoding can run out of memory.
//!
//! Where a decoding row has a target for the gap between its tokens, chunks are cut to the time that
//! is left as well (see `latency`). One giant prompt cannot take a step for itself alone: a tenth is
//! kept for those that are admitted and for the prompt that needs least.

use crate::Core;
use crate::active::Active;
use crate::latency::TimeBudget;
use crate::launches::Limit;
use crate::pool::NONE;
use crate::reason::{ChunkLimit, WaitReason};
use crate::scoring::MOST_SCORING_ROWS;
use crate::waiting::Attempt;

/// Tenths of a step's prefill that the oldest prompt leaves to others.
const SHARED_TENTHS: u32 = 1;

/// What is left of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) tokens: u32,
    pub(crate) prefill: u32,
    pub(crate) side: u32,
    /// Tokens of prompts whose log probabilities are wanted.
    pub(crate) scores: u32,
    /// Time for prefill, under a target.
    pub(crate) time: Option<TimeBudget>,
    /// Whether time kept tokens out that all else had room for.
    pub(crate) out_of_time: bool,
}

impl Budget {
    /// Whether tokens of prompts are left, time aside.
    pub(crate) fn has_prefill(&self) -> bool {
        self.tokens > 0 && self.prefill > 0
    }

    /// Whether there is time for tokens of a new prompt.
    pub(crate) fn has_time(&mut self) -> bool {
        let in_time = self.time.is_none_or(|time| time.has_room());
        self.out_of_time |= !in_time;
        in_time
    }

    /// What keeps a prompt from having more tokens of the step.
    fn token_limit(&self) -> ChunkLimit {
        if self.prefill < self.tokens {
            ChunkLimit::PrefillTokens
        } else {
            ChunkLimit::StepTokens
        }
    }

    /// Log probabilities that a chunk of so many tokens asks for.
    fn scores_of(request: &Active, count: u32) -> u32 {
        let wants = request.wants_scores().is_some();
        if wants { request.num_scores(count) } else { 0 }
    }

    /// As many tokens of a chunk as there is room for log probabilities, where they are wanted.
    fn within_scores(&self, request: &Active, count: u32) -> u32 {
        if Self::scores_of(request, count) > self.scores {
            self.scores
        } else {
            count
        }
    }

    fn spend(&mut self, request: &Active, count: u32) {
        self.tokens -= count;
        self.prefill -= count;
        let scores = Self::scores_of(request, count);
        self.scores -= scores;
        self.time = self.time.map(|time| time.less_logits(scores));
    }

    /// Takes a part off for others than the oldest prompt, in whole tiles; `None` where the step is
    /// too small to be shared.
    fn split(&mut self, tile: u32) -> Option<Self> {
        let room = self.tokens.min(self.prefill);
        if room < 2 * tile {
            return None;
        }
        let share = (room * SHARED_TENTHS / 10)
            .next_multiple_of(tile)
            .min(room / 2);
        let mut part = Self {
            tokens: share,
            prefill: share,
            ..*self
        };
        if let Some(time) = &mut self.time {
            part.time = Some(time.split(f64::from(SHARED_TENTHS))?);
        }
        self.tokens -= share;
        self.prefill -= share;
        Some(part)
    }

    /// Takes back what a part has left.
    fn merge(&mut self, part: &Self) {
        self.tokens += part.tokens;
        self.prefill += part.prefill;
        self.side = part.side;
        self.scores = part.scores;
        self.out_of_time |= part.out_of_time;
        if let (Some(time), Some(rest)) = (&mut self.time, &part.time) {
            time.merge(rest);
        }
    }
}

impl Core {
    pub(crate) fn plan_step(&mut self, now: u64) -> bool {
        self.expire(now);
        if self.launches.len() > usize::from(self.config.overlap_depth) || self.would_leave_behind()
        {
            return false;
        }
        self.plan.clear();
        self.draft = self.launches.draft(self.step + 1);
        let mut budget = Budget {
            tokens: self.config.max_batched_tokens,
            prefill: self.config.max_prefill_tokens.unwrap_or(u32::MAX),
            side: self.config.side_words,
            scores: MOST_SCORING_ROWS,
            time: None,
            out_of_time: false,
        };
        self.observe_prompt_rate(now);
        self.forecast.advance(self.step + 1);
        self.cache.expire();
        self.wake_stalled();
        let preempted = self.relieve_pressure();
        self.make_way(now);
        self.grant_side_data(&mut budget);
        let allowance = self.place_decodes(&mut budget);
        self.limit_time(&mut budget, allowance, now);
        let admits = !preempted || self.plan.rows.is_empty();
        let mut attempt = Attempt::new(now, !admits);
        self.place_prefills(&mut budget, &mut attempt);
        let limit = if admits || self.plan.rows.is_empty() {
            if !admits {
                attempt.reopen();
            }
            self.admit(&mut budget, &mut attempt)
        } else {
            WaitReason::Preemption
        };
        self.accounts.clock.plan_made(limit, now);
        if budget.time.is_some() {
            let kept_out = budget.out_of_time && self.draft.work.prefill_rows == 0;
            self.latency.planned(kept_out);
        }
        self.note_backlog(&budget, now);
        self.launch()
    }

    /// Whether a step planned now would leave out a row whose last token must be known first: it
    /// would run in every other step only. The next step waits for it instead.
    fn would_leave_behind(&self) -> bool {
        let waits = |slot: u32| {
            let request = &self.requests[slot];
            request.pending > 0 && request.waits_for_flight()
        };
        self.side_users > 0 && !self.launches.is_empty() && self.running.slots().any(waits)
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
            if request.has_side_data && ends && request.is_plannable() && request.is_ready() {
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

    /// Places the rows that decode; how long the step may last for the strictest of them.
    fn place_decodes(&mut self, budget: &mut Budget) -> Option<u64> {
        let (shift, now) = (self.block_shift, self.cache.now);
        let clock = &self.accounts.clock;
        let start = self
            .launches
            .iter()
            .fold(now, |start, launch| start.saturating_add(launch.predicted));
        let mut strictest: Option<u64> = None;
        let mut prefilling = std::mem::take(&mut self.scratch.slots);
        prefilling.clear();
        for slot in self.running.slots() {
            let (handle, request) = self.requests.get_mut(slot);
            if !request.is_plannable() {
                if let Some(reason) = request.waits_for() {
                    request.hold(reason, clock, now);
                }
                continue;
            }
            // All that is left to compute is sampled.
            let samples = request.remaining() == 1;
            if !request.is_decoding() && (!samples || request.may_sample()) {
                prefilling.push(slot);
                continue;
            }
            if !request.may_sample() {
                request.hold(request.sampling_limit().starving(), clock, now);
                continue;
            }
            if request.needs_block(shift) {
                if !self.cache.allocate(1, &mut request.blocks) {
                    request.hold(WaitReason::FencedBlock, clock, now);
                    continue;
                }
                self.forecast.grown(request);
            }
            request.release(clock, now);
            budget.tokens -= 1;
            if request.pace.target_ns.is_some() {
                let index = request.outputs() + request.pending;
                let allowance = request.pace.allowance(index, start);
                strictest = strictest.into_iter().chain(allowance).min();
            }
            self.draft.work.add_decode(request.target());
            if request.tail_source != NONE {
                self.plan.write_tail_copy(request, shift);
                self.cache
                    .release(request.tail_source, self.draft.step, request.terms);
                request.tail_source = NONE;
            }
            self.draft.place(&mut self.plan, request, handle, 1, shift);
        }
        self.plan.num_decode_rows = self.plan.rows.len() as u32;
        self.scratch.slots = prefilling;
        strictest
    }

    /// Solves the time for prefill from what the strictest decoding row allows.
    fn limit_time(&mut self, budget: &mut Budget, allowance: Option<u64>, now: u64) {
        let Some(allowance) = allowance else {
            return;
        };
        let time = self
            .latency
            .budget(&self.draft.work, allowance, self.config.prefill_tile);
        self.draft.limit = Some(Limit {
            planned: now,
            most: time.most(),
            floor: time.floor(),
        });
        budget.time = Some(time);
    }

    /// Places the prompt that goes first. Where it could take a whole step, a share goes to requests
    /// that are admitted now, then to the prompt that needs least, which is returned.
    pub(crate) fn place_first(
        &mut self,
        (first, others): (u32, &[u32]),
        budget: &mut Budget,
        attempt: &mut Attempt,
    ) -> Option<u32> {
        let waits = attempt.is_open() && self.waiting.has_candidates() && self.rows.has_free();
        let contended = waits || !others.is_empty();
        let room = budget.tokens.min(budget.prefill);
        let takes_all = budget.time.is_some() || self.requests[first].remaining() >= room;
        let mut served = None;
        if contended && takes_all {
            if let Some(mut share) = budget.split(self.config.prefill_tile) {
                self.place_chunk(first, budget);
                share.scores = budget.scores;
                served = self.serve_others(others, &mut share, attempt);
                budget.merge(&share);
                return served;
            }
            if budget.time.is_some_and(|time| time.has_room()) && self.latency.is_turn_of_others() {
                served = self.serve_others(others, budget, attempt);
            }
        }
        self.place_chunk(first, budget);
        served
    }

    /// Admits, then places the prompt that needs least; returns it if it has a chunk.
    fn serve_others(
        &mut self,
        others: &[u32],
        budget: &mut Budget,
        attempt: &mut Attempt,
    ) -> Option<u32> {
        if attempt.is_open() {
            self.admit_in_order(budget, attempt);
        }
        let rows = self.plan.rows.len();
        let least = others
            .iter()
            .copied()
            .min_by_key(|&slot| self.requests[slot].remaining())?;
        self.place_chunk(least, budget);
        (self.plan.rows.len() > rows).then_some(least)
    }

    /// Places as much of a prompt as the budget has room for. Where it may not be sampled yet, its
    /// last token stays behind.
    pub(crate) fn place_chunk(&mut self, slot: u32, budget: &mut Budget) {
        let part = self.part();
        let (handle, request) = self.requests.get_mut(slot);
        let remaining = request.remaining();
        let step_room = budget.tokens.min(budget.prefill);
        let own = self.waiting.ledger.part_left(request.ticket.account, part);
        let room = own.unwrap_or(step_room).min(step_room);
        let mut count = budget.within_scores(request, remaining.min(room));
        let scored_out = count < remaining.min(room);
        let mut in_time = true;
        if let Some(time) = &budget.time {
            // Its last chunk is sampled for the choices that wait for it as well.
            let scores = Budget::scores_of(request, count);
            let time = time.less_logits(request.num_forks() + scores);
            let tokens = time.grant(request.computed, count, remaining);
            in_time = tokens == count;
            budget.out_of_time |= !in_time;
            count = tokens;
        }
        let limit = if !in_time {
            ChunkLimit::StepTime
        } else if scored_out {
            ChunkLimit::PromptScores
        } else if count < remaining {
            if room < step_room {
                ChunkLimit::TenantShare
            } else {
                budget.token_limit()
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
        budget.spend(request, count);
        self.waiting.ledger.take(request.ticket.account, count);
        if let Some(time) = &mut budget.time {
            time.spend(request.computed, count, count == remaining);
            if count == remaining {
                *time = time.less_logits(request.num_forks());
            }
        }
        self.draft.work.add_chunk(request.computed, count);
        self.draft.work.logit_rows += self.plan.write_scoring(request, count);
        let shift = self.block_shift;
        self.draft
            .place(&mut self.plan, request, handle, count, shift);
        self.sample_unforked(slot);
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
        launch.predicted = self.latency.model.predict(&launch.work);
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
