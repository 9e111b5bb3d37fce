//! `complete`: what a retired step means for each request that it named.

use crate::active::State;
use crate::beam::Candidate;
use crate::forecast::Forecast;
use crate::launches::Entry;
use crate::waiting::OUTPUT_WEIGHT;
use crate::{Core, Error, Event, FinishReason, RowStatus, StepResult};

impl Core {
    pub(crate) fn complete_step(&mut self, result: &StepResult<'_>, now: u64) -> Result<(), Error> {
        self.validate_result(result)?;
        let Some(launch) = self.launches.pop() else {
            return Ok(());
        };
        self.cache.pool.retire(launch.step);
        self.rows.retire(launch.step);
        self.latency.retired(&launch, now, result.duration_ns);
        let mut entries = launch.entries.as_slice();
        let mut outcomes = result.rows;
        let mut candidates = result.candidates;
        while let Some((entry, rest)) = entries.split_first() {
            let forks = rest.iter().take_while(|entry| entry.fork).count();
            let (own, later) = outcomes.split_at(usize::from(entry.sampled) + forks);
            if forks > 0 {
                // The first choice may end with this step: before, the others take what they share.
                self.fork(entry, &rest[..forks], own);
            }
            let (named, others) = candidates.split_at(entry.candidates as usize);
            self.retire_entry(entry, own.first().copied(), named, now);
            for (choice, &outcome) in rest.iter().zip(own.iter().skip(1)) {
                self.retire_entry(choice, Some(outcome), &[], now);
            }
            candidates = others;
            entries = &rest[forks..];
            outcomes = later;
        }
        self.launches.recycle(launch);
        Ok(())
    }

    fn validate_result(&self, result: &StepResult<'_>) -> Result<(), Error> {
        let oldest = self.launches.oldest();
        match oldest {
            Some(launch) if result.epoch == self.epoch && result.step == launch.step => {
                let wanted = launch.entries.iter().map(|entry| entry.candidates as usize);
                let (planned, got) = (wanted.sum::<usize>(), result.candidates.len());
                if planned != got {
                    let step = result.step;
                    return Err(Error::ResultCandidates { step, planned, got });
                }
                if result.rows.len() == launch.samples {
                    return Ok(());
                }
                Err(Error::ResultRows {
                    step: result.step,
                    planned: launch.samples,
                    got: result.rows.len(),
                })
            }
            _ => Err(Error::StaleResult {
                epoch: result.epoch,
                step: result.step,
                expected_epoch: self.epoch,
                expected_step: oldest.map(|launch| launch.step),
            }),
        }
    }

    fn retire_entry(
        &mut self,
        entry: &Entry,
        outcome: Option<(RowStatus, u32)>,
        candidates: &[Candidate],
        now: u64,
    ) {
        let Some(slot) = self.requests.resolve(entry.handle) else {
            return;
        };
        let request = &mut self.requests[slot];
        request.inflight -= 1;
        let suspicion = &mut request.suspicion;
        let before = suspicion.standing;
        let over = self.suspects.step_retired(suspicion, entry.end);
        if suspicion.standing != before {
            self.waiting.regroup(request, slot);
        }
        if over {
            self.release_parked();
        }
        let request = &mut self.requests[slot];
        if request.lineage != entry.lineage {
            return;
        }
        let resident = request.residency == entry.residency;
        let vocabulary = self.config.vocabulary;
        match outcome {
            Some((RowStatus::Nan, _)) => return self.fail(slot, FinishReason::NanLogits),
            Some((RowStatus::BadId, _)) => return self.fail(slot, FinishReason::BadToken),
            Some((RowStatus::Ok, id)) if is_impossible(id, candidates, vocabulary) => {
                return self.fail(slot, FinishReason::BadToken);
            }
            Some((RowStatus::NotSampled, _)) => {
                // Later launched steps built on the missing token: they count for nothing, and
                // the last known token is computed again in its own slot.
                request.lineage = request.lineage.wrapping_add(1);
                request.pending = 0;
                // An unforked choice has no tokens yet.
                request.masks.missed(request.outputs());
                if resident {
                    request.retired = request.retired.max(entry.end - 1);
                    request.computed = entry.end - 1;
                    self.intern(slot);
                }
                return self.regroup_by_mask(slot);
            }
            Some((RowStatus::Ok, _)) | None => {}
        }
        if resident {
            request.retired = entry.end;
        }
        match outcome {
            Some(_) if entry.candidates > 0 && resident => self.report(slot, candidates, now),
            // What was computed is gone: its continuations are named again.
            Some(_) if entry.candidates > 0 => request.pending -= 1,
            Some((_, id)) => self.commit(slot, id, resident, now),
            None => self.intern(slot),
        }
    }

    /// Adds an output token; returns its index.
    pub(crate) fn append(&mut self, slot: u32, id: u32, now: u64) -> u32 {
        let request = &mut self.requests[slot];
        let index = request.outputs();
        request.tokens.push(id);
        request.ticket.look_up_again();
        self.waiting
            .ledger
            .charge(request.ticket.account, OUTPUT_WEIGHT);
        if index == 0 {
            self.deadlines.first_token(request, slot);
        }
        if request.state == State::Waiting {
            self.waiting.recount(request, request.ticket.backlog + 1);
        }
        if let Some(gap) = request.pace.commit(index, now) {
            self.latency.achieved.token(gap);
        }
        index
    }

    fn commit(&mut self, slot: u32, id: u32, resident: bool, now: u64) {
        let request = &mut self.requests[slot];
        request.pending -= 1;
        #[cfg(feature = "planted-faults")]
        if !resident && self.config.fault == Some(crate::Fault::DropInFlightOnPreemption) {
            return;
        }
        let index = self.append(slot, id, now);
        let request = &self.requests[slot];
        let stopped = request.stops_at(index, id);
        let exhausted = index + 1 == request.max_tokens;
        self.events.push(Event::Token {
            submission: request.submission(),
            choice: request.choice(),
            index,
            token: id,
        });
        self.counters.generated += 1;
        if resident {
            self.intern(slot);
        }
        if stopped {
            self.finish(slot, FinishReason::StopToken(id));
        } else if exhausted {
            self.finish(slot, FinishReason::Length);
        } else if resident && Forecast::is_outdated(&self.requests[slot]) {
            self.forecast.renew(&mut self.requests[slot]);
        }
    }
}

/// Whether what a step gave cannot be: an id outside the vocabulary, or no log probability.
fn is_impossible(id: u32, candidates: &[Candidate], vocabulary: u32) -> bool {
    let outside = |&(id, log): &Candidate| id >= vocabulary || log.is_nan();
    id >= vocabulary || candidates.iter().any(outside)
}
