//! In-flight dedupe: of requests that share an uncached prefix, one computes it and the others
//! wait.
//!
//! The first block of a running prompt that is not indexed yet is its *frontier*. A waiting request
//! whose own first uncached block is somebody's frontier, after the same prefix and with the same
//! tokens, leaves the queue and is put back once the last block that both share is indexed:
//!
//! ```text
//!   owner    │ indexed │ frontier │ shared │ shared │ its own ...
//!   deferred │ found   │ equal    │ equal  │ equal  │ other tokens ...
//!                                           ▲ ready: woken here, once
//! ```
//!
//! It is woken earlier when the owner ends, is preempted, can no longer be indexed, or is left out
//! of more than [`PATIENCE`] steps. Owners run and the deferred do not, so nobody waits in a circle;
//! a request is deferred at most [`DEFERRALS`] times, and never when it must run.

use crate::Core;
use crate::active::{Active, State};
use crate::prefix::{NodeRef, ROOT};
use crate::reason::WaitReason;

/// Steps without a chunk of the owner for which a request stays deferred.
pub(crate) const PATIENCE: u64 = 4;
/// Times that a request is deferred.
pub(crate) const DEFERRALS: u8 = 4;

/// A running prompt's first block that is not indexed. In order of hash, then of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frontier {
    hash: u64,
    arrival: u64,
    slot: u32,
}

/// A request that waits for the owner's first `ready` blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deferral {
    pub(crate) owner: u32,
    pub(crate) ready: u32,
    arrival: u64,
    pub(crate) slot: u32,
}

/// Frontiers and who waits for them, both sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dedupe {
    frontiers: Vec<Frontier>,
    deferred: Vec<Deferral>,
}

impl Dedupe {
    /// Requests that are deferred.
    pub(crate) fn len(&self) -> usize {
        self.deferred.len()
    }

    pub(crate) fn deferrals(&self) -> &[Deferral] {
        &self.deferred
    }

    pub(crate) fn clear(&mut self) {
        self.frontiers.clear();
        self.deferred.clear();
    }

    fn set_frontier(&mut self, frontier: Frontier) {
        if let Err(position) = self.frontiers.binary_search(&frontier) {
            self.frontiers.insert(position, frontier);
        }
    }

    fn remove_frontier(&mut self, frontier: Frontier) {
        if let Ok(position) = self.frontiers.binary_search(&frontier) {
            self.frontiers.remove(position);
        }
    }

    /// Slots with a frontier of this hash, oldest first.
    fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let first = self
            .frontiers
            .partition_point(|frontier| frontier.hash < hash);
        self.frontiers[first..]
            .iter()
            .take_while(move |frontier| frontier.hash == hash)
            .map(|frontier| frontier.slot)
    }

    fn defer(&mut self, deferral: Deferral) {
        let position = self.deferred.partition_point(|other| *other < deferral);
        self.deferred.insert(position, deferral);
    }

    /// Whom the owner's first `ready` blocks wake next.
    fn next_ready(&self, owner: u32, ready: u32) -> Option<Deferral> {
        let first = self
            .deferred
            .partition_point(|deferral| deferral.owner < owner);
        self.deferred
            .get(first)
            .filter(|deferral| deferral.owner == owner && deferral.ready <= ready)
            .copied()
    }

    fn remove(&mut self, deferral: Deferral) {
        if let Ok(position) = self.deferred.binary_search(&deferral) {
            self.deferred.remove(position);
        }
    }

    /// The first owner from slot `from` on for whom somebody waits.
    fn next_owner(&self, from: u32) -> Option<u32> {
        let first = self
            .deferred
            .partition_point(|deferral| deferral.owner < from);
        self.deferred.get(first).map(|deferral| deferral.owner)
    }

    /// Whether the slot has a frontier, for checks.
    pub(crate) fn has_frontier(&self, slot: u32, request: &Active) -> bool {
        request.frontier.is_some_and(|hash| {
            let frontier = Frontier {
                hash,
                arrival: request.arrival,
                slot,
            };
            self.frontiers.binary_search(&frontier).is_ok()
        })
    }

    pub(crate) fn frontiers(&self) -> usize {
        self.frontiers.len()
    }
}

fn parent(path: &[NodeRef]) -> NodeRef {
    path.last().copied().unwrap_or(ROOT)
}

impl Core {
    /// Takes a request out of the queue if a running one is computing its first uncached block.
    pub(crate) fn defer(&mut self, slot: u32) -> bool {
        let request = &self.requests[slot];
        if request.must_run() || request.deferrals >= DEFERRALS {
            return false;
        }
        let Some((owner, ready)) = self.owner_of_next_block(request) else {
            return false;
        };
        let arrival = request.arrival;
        self.waiting.remove(request);
        self.dedupe.defer(Deferral {
            owner,
            ready,
            arrival,
            slot,
        });
        let request = &mut self.requests[slot];
        request.state = State::Deferred;
        request.awaits = Some((owner, ready));
        request.deferrals += 1;
        request.hold(
            WaitReason::SharedPrefix,
            &self.accounts.clock,
            self.cache.now,
        );
        self.counters.deferrals += 1;
        true
    }

    /// Who computes the request's first uncached block, and how many leading blocks both share.
    fn owner_of_next_block(&self, request: &Active) -> Option<(u32, u32)> {
        let size = self.config.block_size as usize;
        let shareable = (request.known() as usize - 1) / size;
        let position = request.path.len();
        if self.dedupe.frontiers.is_empty() || position >= shareable {
            return None;
        }
        let block = |request: &Active, position: usize| -> Option<u64> {
            let tokens = request.tokens.get(position * size..(position + 1) * size)?;
            let above = parent(&request.path);
            Some(self.cache.index.hash(above, request.namespace, tokens))
        };
        let owner = self
            .dedupe
            .candidates(block(request, position)?)
            .find(|&slot| {
                let owner = &self.requests[slot];
                let range = position * size..(position + 1) * size;
                // Who is left out already is not waited for.
                self.step.saturating_sub(owner.last_step) <= PATIENCE
                    && owner.namespace == request.namespace
                    && parent(&owner.path) == parent(&request.path)
                    && owner.tokens.get(range.clone()) == request.tokens.get(range)
            })?;
        let other = &self.requests[owner];
        let most = shareable.min(other.promised() as usize / size);
        let equal = |at: &usize| {
            let range = at * size..(at + 1) * size;
            other.tokens[range.clone()] == request.tokens[range]
        };
        let shared = (position + 1..most).take_while(equal).count();
        Some((owner, (position + 1 + shared) as u32))
    }

    /// Says which block the running request will index next, and wakes who waited for the last.
    pub(crate) fn move_frontier(&mut self, slot: u32) {
        let size = self.config.block_size as usize;
        let request = &mut self.requests[slot];
        let arrival = request.arrival;
        let position = request.path.len();
        let end = (position + 1) * size;
        let next = (request.cacheable && end <= request.promised() as usize).then(|| {
            let tokens = &request.tokens[position * size..end];
            let above = parent(&request.path);
            self.cache.index.hash(above, request.namespace, tokens)
        });
        let frontier = |hash| Frontier {
            hash,
            arrival,
            slot,
        };
        let last = std::mem::replace(&mut request.frontier, next);
        if let Some(hash) = last {
            self.dedupe.remove_frontier(frontier(hash));
        }
        if let Some(hash) = next {
            self.dedupe.set_frontier(frontier(hash));
        }
        let ready = if next.is_some() {
            position as u32
        } else {
            u32::MAX
        };
        self.wake(slot, ready);
    }

    /// The request computes for nobody any more.
    pub(crate) fn drop_frontier(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        if let Some(hash) = request.frontier.take() {
            let arrival = request.arrival;
            self.dedupe.remove_frontier(Frontier {
                hash,
                arrival,
                slot,
            });
            self.wake(slot, u32::MAX);
        }
    }

    /// Puts back into the queue who waits for at most `ready` blocks of the owner.
    fn wake(&mut self, owner: u32, ready: u32) {
        while let Some(deferral) = self.dedupe.next_ready(owner, ready) {
            self.dedupe.remove(deferral);
            let request = &mut self.requests[deferral.slot];
            request.state = State::Waiting;
            request.awaits = None;
            request.release(&self.accounts.clock, self.cache.now);
            self.waiting.insert(request, deferral.slot);
        }
    }

    /// Wakes who waits for somebody whom no step has advanced for too long.
    pub(crate) fn wake_stalled(&mut self) {
        let mut from = 0;
        while let Some(owner) = self.dedupe.next_owner(from) {
            if self.step - self.requests[owner].last_step > PATIENCE {
                self.wake(owner, u32::MAX);
            }
            from = owner + 1;
        }
    }

    /// Everybody waits in the queue again, nobody computes anything.
    pub(crate) fn wake_all(&mut self) {
        while let Some(owner) = self.dedupe.next_owner(0) {
            self.wake(owner, u32::MAX);
        }
        self.dedupe.clear();
    }

    /// Takes a deferred request, which ends, off the list.
    pub(crate) fn forget_deferral(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        if let Some((owner, ready)) = request.awaits.take() {
            self.dedupe.remove(Deferral {
                owner,
                ready,
                arrival: request.arrival,
                slot,
            });
        }
    }
}
