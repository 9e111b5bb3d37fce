//! `worker_lost`: the worker's memory is gone, the requests are not.

use crate::active::State;
use crate::reason::{PreemptCause, WaitReason};
use crate::suspects::{Standing, Suspects, Suspicion, halve};
use crate::waiting::Berth;
use crate::{Core, Event, FinishReason, Handle};

impl Core {
    pub(crate) fn lose_worker(&mut self) {
        self.epoch += 1;
        self.accounts.clock.turn(WaitReason::Worker, self.cache.now);
        self.reserve_until = 0;
        self.prompt_rate.observe(None);
        self.wake_all();
        if let Some(culprit) = self.accuse() {
            self.finish(culprit, FinishReason::WorkerDied);
        }
        while let Some(launch) = self.launches.pop() {
            self.cache.pool.retire(launch.step);
            self.rows.retire(launch.step);
            self.launches.recycle(launch);
        }
        self.cache.reset();
        self.rows.reset(self.config.max_running);
        self.side_users = 0;
        self.forecast.reset();
        self.requeue_all();
    }

    /// Suspects the rows of unretired steps; returns the one that is convicted.
    fn accuse(&mut self) -> Option<u32> {
        let mut named: Vec<(Handle, u32)> = Vec::new();
        let entries = self.launches.iter().flat_map(|launch| &launch.entries);
        // Who is forked from another's logits has computed nothing of its own.
        for entry in entries.filter(|entry| !entry.fork) {
            let slot = self.requests.resolve(entry.handle);
            // The beams of a search run together and end together: they are one suspect.
            let suspect = slot.map_or(entry.handle, |slot| {
                self.requests.handle(self.suspect_of(slot))
            });
            match named.iter_mut().find(|(known, _)| *known == suspect) {
                Some((_, end)) => *end = entry.end.min(*end),
                None => named.push((suspect, entry.end)),
            }
        }
        // A request that has ended meanwhile may be the killer: it counts as company.
        let alone = named.len() == 1;
        let mut culprit = None;
        let mut repeated = Vec::new();
        let mut open = false;
        for (handle, end) in named {
            let Some(slot) = self.requests.resolve(handle) else {
                continue;
            };
            open = true;
            let suspicion = &mut self.requests[slot].suspicion;
            if suspicion.standing != Standing::Clear {
                repeated.push(slot);
            }
            if suspicion.accuse(end, alone) {
                culprit = Some(slot);
            }
        }
        if open {
            self.hold_trial(&repeated);
        }
        culprit
    }

    fn hold_trial(&mut self, repeated: &[u32]) {
        let mut accused: Vec<(u64, bool, &mut Suspicion)> = self
            .requests
            .iter_mut()
            .filter(|(_, request)| request.suspicion.standing != Standing::Clear)
            .map(|(slot, request)| {
                let again = repeated.contains(&slot);
                (request.arrival, again, &mut request.suspicion)
            })
            .collect();
        accused.sort_by_key(|&(arrival, ..)| arrival);
        self.suspects = halve(
            accused
                .into_iter()
                .map(|(_, again, record)| (again, record))
                .collect(),
        );
    }

    /// Ends a trial: nobody is held back, suspicion stays until a retired step clears it.
    pub(crate) fn release_parked(&mut self) {
        for (slot, request) in self.requests.iter_mut() {
            request.suspicion.release();
            if matches!(request.state, State::Deferred | State::Unforked) {
                // Others than the trial hold it back.
                continue;
            }
            request.release(&self.accounts.clock, self.cache.now);
            if request.ticket.berth != Berth::Lane {
                self.waiting.regroup(request, slot);
                request.wait_for_mask(&self.accounts.clock, self.cache.now);
            }
        }
        self.suspects = Suspects::default();
    }

    /// Every request that ran, or whose results are lost, is computed again from its tokens.
    fn requeue_all(&mut self) {
        self.lose_unforked();
        self.groups.forget_reports();
        while let Some(slot) = self.running.last() {
            let request = &mut self.requests[slot];
            self.running.remove(request.rank());
            let moment = (self.step, self.cache.now);
            let cause = PreemptCause::WorkerLost;
            let clock = &self.accounts.clock;
            request
                .account
                .preempted(clock, moment, cause, request.computed);
            request.give_back();
            request.frontier = None;
            request.reported = false;
            request.inflight = request.inflight.max(1);
            self.waiting.insert(request, slot);
        }
        for slot in self.waiting.in_order(&self.requests) {
            let request = &mut self.requests[slot];
            if request.inflight > 0 {
                request.lineage = request.lineage.wrapping_add(1);
                request.pending = 0;
                request.inflight = 0;
                self.events.push(Event::Requeued {
                    submission: request.submission(),
                    choice: request.choice(),
                });
            }
            self.waiting.regroup(request, slot);
            if request.ticket.berth == Berth::Parked {
                request.hold(WaitReason::Trial, &self.accounts.clock, self.cache.now);
            }
            request.wait_for_mask(&self.accounts.clock, self.cache.now);
        }
    }
}
