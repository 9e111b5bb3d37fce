//! Admission, on the whole of a request's known tokens. Who is next, `waiting` says.
//!
//! The blocks that the prefix cache has are pinned first, so that they cannot be evicted for the
//! rest; then all further blocks of the known tokens are reserved at once, and one more must be
//! left for the first output.

use crate::active::State;
use crate::reason::{MatchEnd, WaitReason};
use crate::schedule::Budget;
use crate::waiting::Attempt;
use crate::{Core, Event};

impl Core {
    /// Returns what ended the admissions: those who still wait, wait for that.
    pub(crate) fn admit(&mut self, budget: &mut Budget, attempt: &mut Attempt) -> WaitReason {
        let limit = self.admit_in_order(budget, attempt);
        let stalled = self.plan.rows.is_empty() && self.launches.is_empty();
        if stalled && self.suspects.is_trial() && !self.waiting.is_empty() {
            self.release_parked();
            attempt.reopen();
            return self.admit_in_order(budget, attempt);
        }
        limit
    }

    pub(crate) fn admit_in_order(
        &mut self,
        budget: &mut Budget,
        attempt: &mut Attempt,
    ) -> WaitReason {
        while !self.waiting.is_empty() {
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
            let Some(slot) = self.next_candidate(attempt) else {
                return attempt.limit();
            };
            self.offer(slot, budget, attempt);
        }
        WaitReason::Step
    }

    /// Gives the request a row and blocks for all its known tokens, or nothing. The prefix that
    /// was found is remembered either way, so that the next attempt only looks at the difference.
    pub(crate) fn try_admit(&mut self, slot: u32) -> Result<(), WaitReason> {
        let request = &mut self.requests[slot];
        request.release(&self.accounts.clock, self.cache.now);
        if request.inflight > 0 {
            return Err(WaitReason::InFlight);
        }
        self.look_up(slot);
        let (private, first_output) = self.needed_blocks(slot);
        let (needed, available) = (private + first_output, self.available_blocks(slot));
        if available < needed {
            return Err(WaitReason::Blocks);
        }
        if available < needed + self.reserve() {
            return Err(WaitReason::Reserve);
        }
        self.take_in(slot, private);
        Ok(())
    }

    /// Blocks that a request needs besides those that were found, and for its first output.
    fn needed_blocks(&self, slot: u32) -> (u32, u32) {
        let request = &self.requests[slot];
        let block_size = self.config.block_size;
        let whole = request.known().div_ceil(block_size);
        let first_output = u32::from(request.footprint(block_size) > whole);
        (whole - request.path.len() as u32, first_output)
    }

    /// Blocks that can be handed out to a request beside those that were found.
    fn available_blocks(&self, slot: u32) -> u32 {
        let path = &self.requests[slot].path;
        self.cache.pool.allocatable() - self.cache.evictable_among(path)
    }

    /// Whether a request that was looked up fits, now or once the launched steps have retired.
    pub(crate) fn will_have_room(&self, slot: u32) -> bool {
        let (private, first_output) = self.needed_blocks(slot);
        let available = self.available_blocks(slot) + self.cache.pool.coming();
        let has_row = self.rows.has_free() || self.rows.is_one_coming();
        has_row && available >= private + first_output
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
        self.waiting.remove(request);
        self.running.insert(request.rank(), slot);
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

    pub(crate) fn grant_admitted(&mut self, slot: u32, budget: &mut Budget) {
        let request = &mut self.requests[slot];
        let ends = request.remaining() <= budget.tokens.min(budget.prefill);
        let words = request.side_words();
        request.side_granted = ends && request.is_in_ack_window() && words <= budget.side;
        if request.side_granted {
            budget.side -= words;
        }
    }
}
