//! The ends of a request: stop, length, abort, failure. Whatever state it is in, everything it
//! holds is given back once, and one [`Event::Finished`] is its last.

use crate::active::State;
use crate::pool::NONE;
use crate::{Core, Error, Event, FinishReason};

impl Core {
    /// Ends a choice; of beams, whose search is not over, all.
    pub(crate) fn finish(&mut self, slot: u32, reason: FinishReason) {
        if self.requests[slot].group == NONE {
            return self.finish_alone(slot, reason);
        }
        for beam in self.dissolve(slot) {
            // Those whose prompt another computes end with it.
            if self.requests.is_open(beam) {
                self.finish_alone(beam, reason);
            }
        }
    }

    fn finish_alone(&mut self, slot: u32, reason: FinishReason) {
        match self.requests[slot].state {
            State::Waiting => self.waiting.remove(&self.requests[slot]),
            State::Deferred => self.forget_deferral(slot),
            State::Running => {
                self.running.remove(self.requests[slot].rank());
                self.give_back(slot);
            }
            State::Unforked => self.detach(slot),
        }
        let unforked = std::mem::take(&mut self.requests[slot].unforked);
        self.unforked.waiting -= unforked.len() as u32;
        self.close(slot, reason);
        for choice in unforked {
            self.close(choice, reason);
        }
    }

    /// Says goodbye to a request that is in no queue and holds nothing.
    pub(crate) fn close(&mut self, slot: u32, reason: FinishReason) {
        let Some(request) = self.requests.remove(slot) else {
            return;
        };
        self.deadlines.forget(&request, slot);
        self.settle_account(&request);
        if self.suspects.dismiss(request.suspicion) {
            self.release_parked();
        }
        if request.admitted && says_a_length(reason) {
            self.forecast.ended(request.max_tokens, request.outputs());
        }
        self.events.push(Event::Finished {
            submission: request.submission(),
            choice: request.choice(),
            reason,
        });
        self.accounts.close(request.account, self.cache.now);
    }

    /// Gives back row and blocks, deepest block first, so that tails are evicted before heads. A
    /// launched step may still touch them: they are fenced until it has retired.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.withdraw(slot);
        self.drop_frontier(slot);
        let request = &mut self.requests[slot];
        self.forecast.leave(request);
        let fence = request.last_step;
        #[cfg(feature = "planted-faults")]
        let fence = if self.config.fault == Some(crate::Fault::NoFence) {
            0
        } else {
            fence
        };
        // Its content lies behind that of the blocks before it, which are released later.
        if request.tail_source != NONE {
            self.cache
                .release(request.tail_source, fence, request.terms);
        }
        self.cache
            .release_path(&request.blocks, &request.path, fence, request.terms);
        self.rows.give_back(request.row, request.last_step);
        self.side_users -= u32::from(request.uses_side_arena());
        request.give_back();
        self.unequip(slot);
    }

    /// NaN or an impossible id: nothing that this request computed is found again.
    pub(crate) fn fail(&mut self, slot: u32, reason: FinishReason) {
        let request = &self.requests[slot];
        let own = request
            .path
            .iter()
            .zip(&request.blocks)
            .skip(request.matched as usize)
            .find(|(node, block)| node.block == **block);
        if let Some((&node, _)) = own
            && self.cache.index.is_live(node)
        {
            self.cache.forget(node.block);
        }
        self.finish(slot, reason);
    }

    pub(crate) fn acknowledge(
        &mut self,
        slot: u32,
        checked: u32,
        stop_at: Option<u32>,
    ) -> Result<(), Error> {
        let request = &mut self.requests[slot];
        let committed = request.outputs();
        let previous = request.acked;
        if checked > committed || checked < previous || stop_at.is_some_and(|at| at > checked) {
            return Err(Error::TextAck {
                checked,
                committed,
                previous,
            });
        }
        request.acked = stop_at.unwrap_or(checked);
        self.intern(slot);
        if stop_at.is_some() {
            self.finish(slot, FinishReason::StopString);
        }
        Ok(())
    }

    /// Adds the nodes of blocks that have become final.
    pub(crate) fn intern(&mut self, slot: u32) {
        let limit = self.requests[slot].internable();
        self.intern_up_to(slot, limit);
    }

    pub(crate) fn intern_up_to(&mut self, slot: u32, limit: u32) {
        let block_size = self.config.block_size as usize;
        let request = &mut self.requests[slot];
        let full = limit as usize / block_size;
        if full <= request.path.len() || !request.cacheable {
            return;
        }
        let mut parent = crate::prefix::ROOT;
        if let Some(&last) = request.path.last() {
            // An equal block that the path ran through was evicted, or a failed request's blocks
            // were disowned: what follows stays private.
            if !self.cache.index.is_live(last) {
                request.cacheable = false;
                self.drop_frontier(slot);
                return;
            }
            parent = last;
        }
        for position in request.path.len()..full {
            let tokens = &request.tokens[position * block_size..(position + 1) * block_size];
            let block = request.blocks[position];
            let node = self.cache.intern(parent, request.namespace, tokens, block);
            self.cache.use_node(parent, node);
            request.path.push(node);
            parent = node;
        }
        if request.frontier.is_some() {
            self.move_frontier(slot);
        }
    }
}

/// Whether an end says how long outputs get: a client that leaves is as good as a stop.
fn says_a_length(reason: FinishReason) -> bool {
    match reason {
        FinishReason::StopToken(_)
        | FinishReason::StopString
        | FinishReason::Length
        | FinishReason::Aborted
        | FinishReason::Timeout => true,
        FinishReason::NanLogits
        | FinishReason::BadToken
        | FinishReason::FirstTokenTimeout
        | FinishReason::WorkerDied => false,
    }
}
