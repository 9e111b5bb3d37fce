//! Deadlines: work that nobody waits for any more is dropped, wherever it is.
//!
//! A request has up to two: until when its first token must be there, and until when all must. One
//! that has passed ends the request at the next [`Core::expire`], before its prompt costs anything
//! more. Finding them takes time for those that have passed, not for those that have not.

use std::collections::BTreeSet;

use crate::active::Active;
use crate::{Core, FinishReason};

/// Moments in order, each with arrival and slot of the request that it ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    moments: BTreeSet<(u64, u64, u32)>,
}

impl Deadlines {
    /// Watches a new request.
    pub(crate) fn watch(&mut self, request: &Active, slot: u32) {
        for moment in request.ticket.moments() {
            self.moments.insert((moment, request.arrival, slot));
        }
    }

    /// The request has ended.
    pub(crate) fn forget(&mut self, request: &Active, slot: u32) {
        for moment in request.ticket.moments() {
            self.moments.remove(&(moment, request.arrival, slot));
        }
    }

    /// The request has its first token.
    pub(crate) fn first_token(&mut self, request: &mut Active, slot: u32) {
        if let Some(moment) = request.ticket.first_token_deadline.take()
            && request.ticket.deadline != Some(moment)
        {
            self.moments.remove(&(moment, request.arrival, slot));
        }
    }

    /// The next moment at which something is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.moments.first().map(|&(moment, ..)| moment)
    }

    fn pop_due(&mut self, now: u64) -> Option<u32> {
        self.next().filter(|&moment| moment <= now)?;
        self.moments.pop_first().map(|(.., slot)| slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
        self.moments.iter().copied()
    }
}

impl Core {
    /// Ends every request one of whose deadlines is at `now` or before. [`Core::plan`] does the
    /// same first; the caller does it when no step is planned, at [`Core::next_deadline`].
    pub fn expire(&mut self, now: u64) {
        self.cache.now = now;
        let mut counted = None;
        while let Some(slot) = self.deadlines.pop_due(now) {
            let request = &self.requests[slot];
            // The choices of a request stand behind one another, and are one request.
            let is_counted = counted == Some(request.submission());
            counted = Some(request.submission());
            let passed = |moment: Option<u64>| moment.is_some_and(|moment| moment <= now);
            let reason = if passed(request.ticket.deadline) {
                FinishReason::Timeout
            } else {
                FinishReason::FirstTokenTimeout
            };
            let is_running = request.state == crate::active::State::Running;
            self.counters.expired_running += u64::from(is_running && !is_counted);
            self.counters.expired_waiting += u64::from(!is_running && !is_counted);
            self.finish(slot, reason);
        }
    }

    /// When [`Core::expire`] has something to do next, in nanoseconds of the same clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.next()
    }
}
