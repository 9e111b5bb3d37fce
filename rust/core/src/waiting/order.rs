//! In which order prompts are computed: those that run already, and those that wait.
//!
//! One order for both, so that a prompt that takes many steps keeps nobody out who is to go first.

use crate::Core;
use crate::active::{Active, State};
use crate::config::{Admission, PrefillOrder};
use crate::reason::PreemptCause;
use crate::schedule::Budget;
use crate::waiting::Attempt;

/// Age at which a request goes before all others of its tenant and class, and is bypassed no more:
/// a minute, in nanoseconds.
const OLD_NS: u64 = 60_000_000_000;

/// Later requests that may be admitted before one that is next.
pub(crate) const MOST_BYPASSES: u32 = 32;

/// Smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    priority: u8,
    /// Units above the least charged, where that is more than a lead (see `ledger`).
    ahead: u64,
    /// Uncached prompt tokens of the tenant that wait: of equals, who asks for least goes first.
    backlog: u64,
    /// What must run goes in order of arrival, before all of its tenant that need not: a tenant whose
    /// requests are all old is not served before others for that.
    may_wait: bool,
    measure: u64,
    arrival: u64,
}

impl Active {
    /// Whether it goes first in its lane, and is not bypassed: it ran already and was preempted, or
    /// too many were admitted before it, or it is too old.
    pub(crate) fn goes_first(&self, now: u64) -> bool {
        self.admitted || self.ticket.bypassed >= MOST_BYPASSES || self.is_old(now)
    }

    fn is_old(&self, now: u64) -> bool {
        now.saturating_sub(self.ticket.submitted) >= OLD_NS
    }

    /// Place by the order of prefills, smaller first.
    pub(crate) fn measure(&self, order: PrefillOrder, block_size: u32) -> u64 {
        let (cached, uncached) = match self.state {
            State::Waiting | State::Deferred | State::Unforked => {
                let cached = self.path.len() as u32 * block_size;
                (cached, self.known() - cached)
            }
            State::Running => (self.matched * block_size, self.remaining()),
        };
        match order {
            PrefillOrder::Fcfs => 0,
            PrefillOrder::ShortestUncached => u64::from(uncached),
            PrefillOrder::LongestCachedPrefix => u64::MAX - u64::from(cached),
        }
    }
}

impl Core {
    fn precedence(&self, slot: u32, now: u64) -> Precedence {
        let request = &self.requests[slot];
        let goes_first = match request.state {
            State::Waiting | State::Deferred | State::Unforked => request.goes_first(now),
            State::Running => request.is_old(now),
        };
        let measure = if goes_first {
            0
        } else {
            request.measure(self.config.prefill_order, self.config.block_size)
        };
        let ledger = &self.waiting.ledger;
        let counter = ledger.counter(request.ticket.account);
        Precedence {
            priority: request.ticket.priority,
            ahead: ledger.ahead(request.ticket.account, counter.min(request.ticket.start)),
            backlog: ledger.account(request.ticket.account).tokens,
            may_wait: !goes_first,
            measure,
            arrival: request.arrival,
        }
    }

    /// Places the chunks of running prompts, and before each of them the waiting requests that go
    /// first, if any may be admitted.
    pub(crate) fn place_prefills(&mut self, budget: &mut Budget, attempt: &mut Attempt) {
        let mut prefilling = std::mem::take(&mut self.scratch.slots);
        // With nothing but order of arrival, what runs came before what waits.
        let by_arrival =
            self.config.prefill_order == PrefillOrder::Fcfs && self.waiting.ledger.is_plain();
        if !by_arrival && prefilling.len() > 1 {
            prefilling.sort_by_cached_key(|&slot| self.precedence(slot, attempt.now));
        }
        if let Some((&first, others)) = prefilling.split_first() {
            if !by_arrival {
                self.admit_before(first, budget, attempt);
            }
            let served = self.place_first((first, others), budget, attempt);
            for &slot in others.iter().filter(|&&slot| Some(slot) != served) {
                if !by_arrival {
                    self.admit_before(slot, budget, attempt);
                }
                self.place_chunk(slot, budget);
            }
        }
        self.scratch.slots = prefilling;
    }

    fn admit_before(&mut self, running: u32, budget: &mut Budget, attempt: &mut Attempt) {
        while budget.has_prefill()
            && budget.has_time()
            && let Some(slot) = self.next_candidate(attempt)
            && self.precedence(slot, attempt.now) < self.precedence(running, attempt.now)
        {
            self.offer(slot, budget, attempt);
        }
    }

    /// Preempts less urgent requests for the most urgent one that waits, until there is or will be
    /// room for it. Before anything is placed: what a step names stays in it.
    pub(crate) fn make_way(&mut self, now: u64) {
        if self.config.admission == Admission::NoEviction {
            return;
        }
        let Some(least) = self
            .running
            .last()
            .map(|slot| self.requests[slot].ticket.priority)
        else {
            return;
        };
        let Some(slot) = self.most_urgent(least, now) else {
            return;
        };
        let priority = self.requests[slot].ticket.priority;
        while !self.will_have_room(slot)
            && let Some(victim) = self.less_urgent(priority)
        {
            self.preempt(victim, PreemptCause::MoreUrgent);
        }
    }

    /// The newest of the least urgent running requests, if it is less urgent than `priority`.
    fn less_urgent(&self, priority: u8) -> Option<u32> {
        let newest_first = self.running.newest_first();
        newest_first
            .take_while(|&slot| self.requests[slot].ticket.priority > priority)
            .find(|&slot| !self.requests[slot].ticket.kept)
    }
}
