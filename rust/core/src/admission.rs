//! Admission: first come, first served, on the whole of a request's known tokens.
//!
//! The blocks that the prefix cache has are pinned first, so that they cannot be evicted for the
//! rest; then all further blocks of the known tokens are reserved at once, and one more must be
//! left for the first output. The head of the queue is not bypassed, except by requests that a
//! trial (see `suspects`) does not hold back.

use crate::active::State;
use crate::schedule::Budget;
use crate::{Core, Event};

impl Core {
    pub(crate) fn admit(&mut self, budget: &mut Budget) {
        self.admit_in_order(budget);
        let stalled = self.plan.rows.is_empty() && self.launches.is_empty();
        if stalled && self.suspects.is_trial() && !self.waiting.is_empty() {
            self.release_parked();
            self.admit_in_order(budget);
        }
    }

    fn admit_in_order(&mut self, budget: &mut Budget) {
        let mut position = 0;
        while budget.tokens > 0
            && budget.prefill > 0
            && self.rows.has_free()
            && let Some(slot) = self.waiting.get(position)
        {
            if !self.suspects.admits(self.requests[slot].suspicion) {
                position += 1;
            } else if self.try_admit(slot) {
                self.grant_admitted(slot, budget);
                self.place_chunk(slot, budget);
            } else {
                return;
            }
        }
    }

    /// Gives the request a row and blocks for all its known tokens, or nothing. The prefix that
    /// was found is remembered either way, so that the next attempt only looks at the difference.
    fn try_admit(&mut self, slot: u32) -> bool {
        let block_size = self.config.block_size;
        let reserve = self.reserve();
        let request = &mut self.requests[slot];
        if request.inflight > 0 {
            return false;
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
        let fits = available >= private + first_output + reserve;
        if fits {
            self.take_in(slot, private);
        }
        fits
    }

    fn take_in(&mut self, slot: u32, private: u32) {
        let request = &mut self.requests[slot];
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
        if !request.admitted {
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
