//! Admission: first come, first served, on the whole of a request's known tokens.
//!
//! The blocks that the prefix cache has are pinned first, so that they cannot be evicted for the
//! rest; then all further blocks of the known tokens are reserved at once, and one more must be
//! left for the first output. The head of the queue is not bypassed, except by requests that a
//! trial (see `suspects`) does not hold back.

use crate::active::State;
use crate::schedule::Budget;
use crate::{Core, Event, MatchEnd, WaitReason};

impl Core {
    /// Returns what ended the admissions: those who still wait, wait for that.
    pub(crate) fn admit(&mut self, budget: &mut Budget) -> WaitReason {
        let limit = self.admit_in_order(budget);
        let stalled = self.plan.rows.is_empty() && self.launches.is_empty();
        if stalled && self.suspects.is_trial() && !self.waiting.is_empty() {
            self.release_parked();
            return self.admit_in_order(budget);
        }
        limit
    }

    pub(crate) fn admit_in_order(&mut self, budget: &mut Budget) -> WaitReason {
        let mut position = 0;
        while let Some(slot) = self.waiting.get(position) {
            if budget.tokens == 0 {
                return WaitReason::StepTokens;
            }
            if budget.prefill == 0 {
                return WaitReason::PrefillTokens;
            }
            if !self.rows.has_free() {
                return WaitReason::Rows;
            }
            if !budget.has_time() {
                return WaitReason::StepTime;
            }
            let request = &mut self.requests[slot];
            if !self.suspects.admits(request.suspicion) {
                request.hold(WaitReason::Trial, &self.accounts.clock, self.cache.now);
                position += 1;
                continue;
            }
            if let Err(limit) = self.try_admit(slot) {
                return limit;
            }
            self.grant_admitted(slot, budget);
            self.place_chunk(slot, budget);
        }
        WaitReason::Step
    }

    /// Gives the request a row and blocks for all its known tokens, or nothing. The prefix that
    /// was found is remembered either way, so that the next attempt only looks at the difference.
    fn try_admit(&mut self, slot: u32) -> Result<(), WaitReason> {
        let block_size = self.config.block_size;
        let reserve = self.reserve();
        let request = &mut self.requests[slot];
        request.release(&self.accounts.clock, self.cache.now);
        if request.inflight > 0 {
            return Err(WaitReason::InFlight);
        }
        let known = request.known();
        if self.config.prefix_cache {
            // At least one token is computed: somebody has to produce logits.
            let reusable = &request.tokens[..known as usize - 1];
            let namespace = request.namespace;
            self.cache
                .extend_path(namespace, reusable, &mut request.path);
        }
        let whole = known.div_ceil(block_size);
        let first_output = u32::from(request.footprint(block_size) > whole);
        let private = whole - request.path.len() as u32;
        let available = self.cache.pool.allocatable() - self.cache.evictable_among(&request.path);
        let needed = private + first_output;
        if available < needed {
            return Err(WaitReason::Blocks);
        }
        if available < needed + reserve {
            return Err(WaitReason::Reserve);
        }
        self.take_in(slot, private);
        Ok(())
    }

    fn take_in(&mut self, slot: u32, private: u32) {
        let request = &mut self.requests[slot];
        // Before the missing blocks are allocated, which may evict what explains the match.
        let match_end = (!request.admitted).then(|| {
            let reusable = &request.tokens[..request.tokens.len() - 1];
            if self.config.prefix_cache {
                let path = &request.path;
                self.cache.match_end(request.namespace, reusable, path)
            } else {
                MatchEnd::Off
            }
        });
        request.reserve_memory(self.config.block_size);
        for node in &request.path {
            self.cache.pool.acquire(node.block);
            request.blocks.push(node.block);
        }
        let allocated = self.cache.allocate(private, &mut request.blocks);
        debug_assert!(allocated, "the blocks were counted before");
        request.row = self.rows.take().expect("a free row was seen before");
        request.matched = request.path.len() as u32;
        request.cacheable = self.config.prefix_cache;
        request.computed = request.matched * self.config.block_size;
        request.retired = request.computed;
        request.state = State::Running;
        self.side_users += u32::from(request.has_side_data);
        self.waiting.remove(request.arrival);
        self.running.insert(request.arrival, slot);
        let (clock, now) = (&self.accounts.clock, self.cache.now);
        let step = self.draft.step;
        request.account.admitted(clock, now, step, request.computed);
        if let Some(end) = match_end {
            request
                .account
                .looked_up(request.prompt, request.computed, end);
            request.admitted = true;
            self.counters.prefix_queries += u64::from(request.prompt);
            self.counters.prefix_hits += u64::from(request.computed);
            self.events.push(Event::Admitted {
                submission: request.submission(),
                cached: request.computed,
            });
        }
    }

    fn grant_admitted(&mut self, slot: u32, budget: &mut Budget) {
        let request = &mut self.requests[slot];
        let ends = request.remaining() <= budget.tokens.min(budget.prefill);
        let words = request.side_words();
        request.side_granted = ends && request.is_in_ack_window() && words <= budget.side;
        if request.side_granted {
            budget.side -= words;
        }
    }
}
