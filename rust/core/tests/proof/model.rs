//! What the outside must see, computed naively from the requests alone.

mod scheduling;

use std::hash::{Hash, Hasher};

use diptych_core::{CoreConfig, Event, FinishReason, Handle, Request, RowStatus, StepPlan};

use crate::entry::{Entry, check_parameters};
use crate::worker::{Draw, Launched, Suspect};

type Checked = Result<(), String>;

/// All accepted requests, by submission.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) entries: Vec<Entry>,
    pub(crate) admissions: Vec<u64>,
    /// Prompt tokens looked up and found at first admissions.
    pub(crate) lookups: (u64, u64),
    pub(crate) preemptions: u64,
    /// Requests that came back to the queue, preempted, lost with a worker, or drawn from a prompt that is gone: each is
    /// admitted again, which is not seen.
    pub(crate) returns: u64,
    /// Priorities of first admissions, in their order.
    admitted_classes: Vec<u8>,
    pub(crate) now: u64,
}

impl Model {
    pub(crate) fn accept(
        &mut self,
        request: Request,
        stop: Option<u32>,
        named: (u32, Handle),
        vocabulary: u32,
    ) {
        let entry = Entry::new(request, stop, named, vocabulary);
        self.entries.push(entry);
    }

    pub(crate) fn index(&self, key: (u64, u32)) -> Result<usize, String> {
        let index = self.entries.partition_point(|entry| entry.key() < key);
        let entry = self.entries.get(index);
        entry
            .filter(|entry| entry.key() == key)
            .map(|_| index)
            .ok_or_else(|| format!("submission and choice {key:?} were never accepted"))
    }

    pub(crate) fn entry(&mut self, key: (u64, u32)) -> Result<&mut Entry, String> {
        let index = self.index(key)?;
        Ok(&mut self.entries[index])
    }

    /// The open choices that depend on this entry: those whose prompt it computes.
    pub(crate) fn dependents(&self, index: usize) -> Vec<usize> {
        let key = self.entries[index].key();
        let behind = (index + 1..self.entries.len()).take_while(|_| key.1 == 0);
        behind
            .take_while(|&other| self.entries[other].submission() == key.0)
            .filter(|&other| self.entries[other].open() && !self.entries[other].forked)
            .collect()
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.open())
    }

    /// Time has passed; who has ended since the last call ended now.
    pub(crate) fn note_ends(&mut self) {
        for entry in &mut self.entries {
            if !entry.open() && entry.ended.is_none() {
                entry.ended = Some(self.now);
            }
        }
    }

    pub(crate) fn generated(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| u64::from(entry.committed))
            .sum()
    }

    /// Ends a request from outside or by the text side; what that must emit.
    pub(crate) fn finish(&mut self, index: usize, reason: FinishReason) -> Vec<Event> {
        if !self.entries[index].open() {
            return Vec::new();
        }
        let mut ended = vec![index];
        ended.extend(self.dependents(index));
        let finish = |index: usize| {
            let entry = &mut self.entries[index];
            entry.finished = Some(reason);
            Event::Finished {
                submission: entry.submission(),
                choice: entry.choice,
                reason,
            }
        };
        ended.into_iter().map(finish).collect()
    }

    /// Later lookups may find only what is computed from now on by requests that are admitted from
    /// now on, for the first time or again.
    pub(crate) fn forget_index(&mut self) {
        for entry in &mut self.entries {
            entry.indexed = entry.open() && entry.cached.is_some() && !entry.decoding;
        }
    }

    /// The worker died; `suspect` was alone in the steps that had not retired.
    pub(crate) fn suspect(&mut self, suspect: &Suspect) {
        for entry in &mut self.entries {
            let reach = match *suspect {
                Suspect::Nobody => None,
                Suspect::Anybody => Some(entry.committed + 1),
                Suspect::Request(key, reach) => (key == entry.key()).then_some(reach),
            };
            if entry.committed >= entry.lone_deaths.1 {
                entry.lone_deaths = (0, 0);
            }
            if let Some(reach) = reach {
                entry.lone_deaths = (entry.lone_deaths.0 + 1, reach);
            }
        }
    }

    /// Judges what the loss of the worker emitted and forgets what the worker held.
    pub(crate) fn lost(&mut self, events: &[Event]) -> Checked {
        let mut killer = None;
        for entry in &mut self.entries {
            let (submission, choice) = entry.key();
            let requeue = Event::Requeued { submission, choice };
            let requeued = events.iter().filter(|&&event| event == requeue).count();
            let reason = FinishReason::WorkerDied;
            let failed = events.contains(&Event::Finished {
                submission,
                choice,
                reason,
            });
            let guilty = entry.lone_deaths.0 >= 2 || (!entry.forked && killer == Some(submission));
            killer = killer.or(failed.then_some(submission));
            if failed && (!entry.open() || !guilty) {
                return Err(format!(
                    "{submission} failed after {} lone deaths",
                    entry.lone_deaths.0
                ));
            }
            // Running, or waiting while its tokens were in flight: computed again.
            let open = entry.open() && !failed;
            let least = usize::from(open && (entry.decoding || entry.in_flight > 0));
            let most = usize::from(open && entry.cached.is_some());
            if !(least..=most).contains(&requeued) {
                return Err(format!("{submission} was requeued {requeued} times"));
            }
            self.returns += requeued as u64;
            entry.finished = entry.finished.or(failed.then_some(reason));
            entry.in_flight = 0;
            entry.decoding = false;
            entry.moves = false;
        }
        let known = |event: &Event| match event {
            Event::Requeued { .. } => true,
            Event::Finished { reason, .. } => *reason == FinishReason::WorkerDied,
            _ => false,
        };
        self.forget_index();
        match events.iter().find(|event| !known(event)) {
            Some(event) => Err(format!("worker_lost emitted {event:?}")),
            None => Ok(()),
        }
    }

    /// Judges what `plan` emitted: ends of what is too late, admissions in order, hits that exist,
    /// victims that are not the oldest.
    pub(crate) fn planned_events(
        &mut self,
        events: &[Event],
        config: &CoreConfig,
        now: u64,
    ) -> Checked {
        let expired = self.expire(now);
        if !events.starts_with(&expired) {
            return Err(format!(
                "plan at {now} emitted {events:?}, not {expired:?} first"
            ));
        }
        for &event in &events[expired.len()..] {
            match event {
                Event::Admitted { submission, cached } => {
                    self.admitted(submission, cached, config)?;
                }
                Event::Preempted { submission, choice } => self.preempted((submission, choice))?,
                other => return Err(format!("plan emitted {other:?}")),
            }
        }
        Ok(())
    }

    /// Judges a launched step against what each of its requests must see next.
    pub(crate) fn launched(&mut self, plan: &StepPlan, draws: &[Draw]) -> Checked {
        for (sampling, draw) in plan.sampling.iter().zip(draws) {
            let index = sampling.output_index;
            let entry = self.entry((sampling.submission, sampling.choice_index))?;
            let submission = entry.submission();
            // Invariant 18: each output is drawn once, in order.
            if !entry.open() || index != entry.committed + entry.in_flight {
                return Err(format!(
                    "invariant 18: output {index} of {submission} is planned after {} committed and {} in flight",
                    entry.committed, entry.in_flight
                ));
            }
            // Invariants 19 and 48.
            if index >= entry.request.max_tokens || entry.past_window() {
                return Err(format!(
                    "invariants 19, 48: output {index} of {submission} is too far"
                ));
            }
            check_mask(entry)?;
            // Invariants 17 and 27: all known tokens lie before the draw, and nothing else.
            let expected = entry.tokens(index);
            if draw
                .prefix
                .as_ref()
                .is_some_and(|prefix| *prefix != expected)
            {
                return Err(format!(
                    "invariant 17: output {index} of {submission} follows {:?}, not {expected:?}",
                    draw.prefix
                ));
            }
            check_placeholder(plan, sampling.token, entry.in_flight > 0)?;
            check_parameters(plan, sampling, entry)?;
            entry.in_flight += 1;
            // Invariant 22: only the first output is drawn from another's logits.
            if draw.forks == entry.forked {
                return Err(format!(
                    "invariant 22: output {index} of {:?} is drawn from another's logits: {}",
                    entry.key(),
                    draw.forks
                ));
            }
            if draw.forks {
                continue;
            }
            let stays = entry.occupant == draw.occupant;
            if entry.decoding != (stays || std::mem::take(&mut entry.moves)) {
                return Err(format!(
                    "{submission}: its row changes exactly when it was preempted"
                ));
            }
            entry.indexed |= entry.occupant != draw.occupant;
            entry.occupant = draw.occupant;
            entry.decoding = true;
        }
        Ok(())
    }

    /// Invariant 18: exactly these events follow from a retired step.
    pub(crate) fn retired(
        &mut self,
        step: &Launched,
        vocabulary: u32,
    ) -> Result<Vec<Event>, String> {
        let mut events = Vec::new();
        // Whether the first choice, whose row comes before the others', has KV to share.
        let mut shares = false;
        // Whether it computes its last token again, and the others' with it.
        let mut again = false;
        let mut alone = 0;
        for (sampling, &(status, id)) in step.sampling.iter().zip(&step.results) {
            let (submission, choice) = (sampling.submission, sampling.choice_index);
            let entry = self.entry((submission, choice))?;
            if choice == 0 {
                again = status == RowStatus::NotSampled;
                shares = entry.decoding && !again;
            }
            // What was launched behind a token that was not sampled counts for nothing.
            if !entry.open() || sampling.output_index != entry.committed {
                continue;
            }
            entry.in_flight -= 1;
            if !entry.forked {
                entry.forked = status != RowStatus::NotSampled || !again;
                entry.decoding = shares && status != RowStatus::NotSampled;
                entry.moves = entry.decoding;
                alone += u64::from(entry.forked && !entry.decoding);
            }
            let failure = match status {
                RowStatus::NotSampled => {
                    entry.not_sampled();
                    continue;
                }
                RowStatus::Nan => Some(FinishReason::NanLogits),
                RowStatus::BadId => Some(FinishReason::BadToken),
                RowStatus::Ok if id >= vocabulary => Some(FinishReason::BadToken),
                RowStatus::Ok => None,
            };
            let mut reason = failure;
            if reason.is_none() {
                events.push(entry.commit(id)?);
                reason = entry.end_after(id);
            }
            if let Some(reason) = reason {
                entry.finished = Some(reason);
                events.push(Event::Finished {
                    submission,
                    choice,
                    reason,
                });
            }
        }
        self.returns += alone;
        Ok(events)
    }

    /// Feeds what decides the model's future.
    pub(crate) fn fingerprint(&self, hasher: &mut impl Hasher) {
        for entry in &self.entries {
            (entry.committed, entry.acknowledged, entry.in_flight).hash(hasher);
            entry.lone_deaths.hash(hasher);
            (
                entry.masks > entry.committed,
                entry.trusted_from.saturating_sub(entry.committed),
            )
                .hash(hasher);
            (
                entry.finished,
                entry.cached.is_some(),
                entry.decoding,
                entry.indexed,
            )
                .hash(hasher);
            (entry.forked, entry.moves).hash(hasher);
        }
    }
}

/// Its mask is known, or can come while the step runs.
fn check_mask(entry: &Entry) -> Checked {
    if entry.request.masked && entry.in_flight > 0 || entry.is_unmasked() {
        return Err(format!(
            "{:?} is planned and cannot have a mask",
            entry.key()
        ));
    }
    Ok(())
}

fn check_placeholder(plan: &StepPlan, token: u32, in_flight: bool) -> Checked {
    let placeholder = plan.token_ids[token as usize] == diptych_core::PLACEHOLDER;
    if placeholder == in_flight {
        Ok(())
    } else {
        Err(format!(
            "token {token}: placeholder {placeholder}, last output in flight {in_flight}"
        ))
    }
}
