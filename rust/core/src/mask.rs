//! Which outputs of a request may be drawn: each under a mask that somebody else computes.
//!
//! A row is planned before its mask is known, so that the mask can be computed while the step runs.
//! Where it comes too late the worker samples nothing ([`crate::RowStatus::NotSampled`]), the row sits out
//! until the mask is there, and its next outputs are planned only once their masks are: computing
//! them in vain would cost the others' time.
//!
//! Nobody else waits, not for what such a row holds either: who has sat out for [`PATIENCE`] steps, or
//! sits out while nothing else could run, gives row and blocks back as soon as others have use for them,
//! and is in no queue until its mask is there. But where nobody may be preempted
//! ([`Admission::NoEviction`]) it keeps them.

use crate::account::WaitClock;
use crate::active::{Active, State};
use crate::config::Admission;
use crate::reason::{PreemptCause, WaitReason};
use crate::waiting::Berth;
use crate::{Core, Error, Handle};

/// Steps that leave a row out before others may have what it holds: most late masks come within one.
pub(crate) const PATIENCE: u64 = 4;

/// Outputs after a late mask that are not planned before their masks are known.
const WARY: u32 = 8;

/// The masks of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// Whether every output is drawn under one.
    pub(crate) wanted: bool,
    /// Outputs whose masks are known: those before this index.
    pub(crate) known: u32,
    /// First output that is planned whether or not its mask is known.
    pub(crate) trusted_from: u32,
}

impl Masks {
    pub(crate) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Whether the output of this index may be planned.
    pub(crate) fn allow(self, index: u32) -> bool {
        !self.wanted || index < self.known || index >= self.trusted_from
    }

    /// The mask of this output came too late.
    pub(crate) fn missed(&mut self, index: u32) {
        if self.wanted {
            self.trusted_from = index + WARY;
        }
    }
}

impl Active {
    /// Whether it sits out for want of its mask, and a plan that is made after step `step` may take what it
    /// holds. `at_once`: nothing else runs.
    fn gives_way(&self, step: u64, at_once: bool) -> bool {
        let sat_out = at_once || step >= self.last_step + PATIENCE;
        sat_out && self.inflight == 0 && self.is_unmasked()
    }

    /// Says why it waits apart, if it does for its mask.
    pub(crate) fn wait_for_mask(&mut self, clock: &WaitClock, now: u64) {
        if self.ticket.berth == Berth::Unmasked {
            self.hold(WaitReason::Mask, clock, now);
        }
    }
}

impl Core {
    /// Takes row and blocks of the newest running request that sits out for its mask. False: there is none.
    pub(crate) fn park_unmasked(&mut self, at_once: bool) -> bool {
        if self.side_users == 0 || self.config.admission == Admission::NoEviction {
            return false;
        }
        let gives_way = |slot: &u32| self.requests[*slot].gives_way(self.step, at_once);
        let Some(victim) = self.running.newest_first().find(gives_way) else {
            return false;
        };
        self.preempt(victim, PreemptCause::Mask);
        true
    }

    /// A mask has come, or came too late: where a request that waits belongs may have changed.
    pub(crate) fn regroup_by_mask(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        if request.state != State::Waiting {
            return;
        }
        let before = request.ticket.berth;
        self.waiting.regroup(request, slot);
        if before == Berth::Unmasked {
            request.release(&self.accounts.clock, self.cache.now);
        }
        request.wait_for_mask(&self.accounts.clock, self.cache.now);
    }

    pub(crate) fn know_mask(&mut self, handle: Handle, index: u32) -> Result<(), Error> {
        let Some(slot) = self.requests.resolve(handle) else {
            return Ok(());
        };
        let request = &mut self.requests[slot];
        let committed = request.outputs();
        if !request.masks.wanted || index > committed {
            return Err(Error::Mask {
                index,
                committed,
                wanted: request.masks.wanted,
            });
        }
        request.masks.known = request.masks.known.max(index + 1);
        // Choices that have no output yet all begin alike.
        let others = std::mem::take(&mut request.unforked);
        for &other in &others {
            self.requests[other].masks.known = 1;
        }
        self.requests[slot].unforked = others;
        self.regroup_by_mask(slot);
        Ok(())
    }
}
