//! Preemption: when decoding rows need more blocks than there are or will be, the newest requests
//! of the least urgent class give theirs back and are computed again later; those that must run, only
//! when nobody else is left.
//!
//! Fenced blocks count as coming: a row that waits for them sits out, nobody is preempted for it.
//! The oldest running request of the most urgent class is never preempted, and none is accepted
//! that the pool cannot hold alone, so it always finishes. But who waits for a mask that does not come
//! (see `mask`) goes first, whatever its place, and before anybody waits for what is coming: it makes no use of what it has.

use crate::active::State;
use crate::pool::NONE;
use crate::reason::PreemptCause;
use crate::{Core, Event};

/// Steps after a preemption in which admissions keep a reserve.
const RESERVE_STEPS: u64 = 8;

impl Core {
    /// Preempts until the blocks that there are or will be cover the decoding rows' need. True: somebody was.
    pub(crate) fn relieve_pressure(&mut self) -> bool {
        let shift = self.block_shift;
        if self.cache.pool.allocatable() as usize >= self.running.len() {
            return false;
        }
        let wants = |core: &Self, slot: u32| {
            let request = &core.requests[slot];
            request.needs_block(shift) && request.is_plannable() && request.is_ready()
        };
        let need = |core: &Self| {
            let wanting = core.running.slots().filter(|&slot| wants(core, slot));
            wanting.count() as u32
        };
        let mut preempted = false;
        loop {
            let (need, allocatable) = (need(self), self.cache.pool.allocatable());
            if allocatable < need && self.park_unmasked(false) {
                continue;
            }
            if allocatable + self.cache.pool.coming() >= need {
                break;
            }
            let Some(victim) = self.victim() else {
                break;
            };
            self.preempt(victim, PreemptCause::Blocks);
            self.reserve_until = self.step + RESERVE_STEPS;
            preempted = true;
        }
        preempted
    }

    /// Who gives its blocks back next: of the least urgent class, who need not run. Never the oldest
    /// of all, nor other beams of its search.
    fn victim(&self) -> Option<u32> {
        let others = self.running.len().saturating_sub(1);
        let spared = self.requests[self.running.slots().next()?].group;
        let may_go = |slot: &u32| spared == NONE || self.requests[*slot].group != spared;
        let mut candidates = self.running.newest_first().take(others).filter(may_go);
        let newest = candidates.next()?;
        let class = self.requests[newest].ticket.priority;
        std::iter::once(newest)
            .chain(candidates)
            .take_while(|&slot| self.requests[slot].ticket.priority == class)
            .find(|&slot| !self.requests[slot].must_run())
            .or(Some(newest))
    }

    /// Takes the blocks of a request, or of all beams of its search. Results that are in flight are
    /// kept: they are valid tokens and committed when they arrive.
    pub(crate) fn preempt(&mut self, slot: u32, cause: PreemptCause) {
        let Some(beams) = self.beams_of(slot).map(<[u32]>::to_vec) else {
            return self.preempt_alone(slot, cause);
        };
        for beam in beams {
            if self.requests[beam].state == State::Running {
                self.preempt_alone(beam, cause);
            }
        }
    }

    fn preempt_alone(&mut self, slot: u32, cause: PreemptCause) {
        let computed = self.requests[slot].computed;
        self.give_back(slot);
        let request = &mut self.requests[slot];
        let moment = (self.draft.step, self.cache.now);
        let clock = &self.accounts.clock;
        request.account.preempted(clock, moment, cause, computed);
        if cause == PreemptCause::Blocks {
            self.counters.preempted_requests += u64::from(request.preemptions == 0);
            request.count_preemption();
            self.forecast.preempted();
        }
        self.running.remove(request.rank());
        self.waiting.insert(request, slot);
        request.wait_for_mask(&self.accounts.clock, self.cache.now);
        self.events.push(Event::Preempted {
            submission: request.submission(),
            choice: request.choice(),
        });
        self.counters.preemptions += 1;
    }

    /// Blocks that an admission leaves untouched for the running requests to grow into.
    pub(crate) fn reserve(&self) -> u32 {
        if self.step >= self.reserve_until || self.plan.rows.is_empty() {
            return 0;
        }
        (self.cache.pool.len() / 100).max(self.running.len() as u32)
    }
}
