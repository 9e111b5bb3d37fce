//! What the outside must see, computed naively from the requests alone.

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
    /// Priorities of first admissions, in their order.
    admitted_classes: Vec<u8>,
    pub(crate) now: u64,
}

impl Model {
    pub(crate) fn accept(
        &mut self,
        request: Request,
        stop: Option<u32>,
        handle: Handle,
        vocabulary: u32,
    ) {
        let entry = Entry::new(request, stop, handle, vocabulary);
        self.entries.push(entry);
    }

    pub(crate) fn entry(&mut self, submission: u64) -> Result<&mut Entry, String> {
        let index = self
            .entries
            .partition_point(|entry| entry.submission() < submission);
        self.entries
            .get_mut(index)
            .filter(|entry| entry.submission() == submission)
            .ok_or_else(|| format!("submission {submission} was never accepted"))
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
        let entry = &mut self.entries[index];
        if !entry.open() {
            return Vec::new();
        }
        entry.finished = Some(reason);
        vec![Event::Finished {
            submission: entry.submission(),
            reason,
        }]
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
                Suspect::Request(submission, reach) => {
                    (submission == entry.submission()).then_some(reach)
                }
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
        for entry in &mut self.entries {
            let submission = entry.submission();
            let requeued = events
                .iter()
                .filter(|&&event| event == Event::Requeued { submission })
                .count();
            let reason = FinishReason::WorkerDied;
            let failed = events.contains(&Event::Finished { submission, reason });
            if failed && (!entry.open() || entry.lone_deaths.0 < 2) {
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
            entry.finished = entry.finished.or(failed.then_some(reason));
            entry.in_flight = 0;
            entry.decoding = false;
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
                Event::Preempted { submission } => self.preempted(submission)?,
                other => return Err(format!("plan emitted {other:?}")),
            }
        }
        Ok(())
    }

    /// Ends what is past its deadline, in order of deadline and submission.
    fn expire(&mut self, now: u64) -> Vec<Event> {
        let mut due: Vec<(u64, u64, FinishReason)> = Vec::new();
        for entry in self.entries.iter_mut().filter(|entry| entry.open()) {
            let request = &entry.request;
            let first = request
                .first_token_deadline
                .filter(|_| entry.committed == 0);
            let passed = |moment: Option<u64>| moment.filter(|&moment| moment <= now);
            let reason = match (passed(request.deadline), passed(first)) {
                (None, None) => continue,
                (Some(_), _) => FinishReason::Timeout,
                (None, Some(_)) => FinishReason::FirstTokenTimeout,
            };
            let moment = passed(request.deadline).into_iter().chain(passed(first));
            due.push((moment.min().unwrap_or(now), request.submission, reason));
            entry.finished = Some(reason);
        }
        due.sort_unstable_by_key(|&(moment, submission, _)| (moment, submission));
        due.into_iter()
            .map(|(_, submission, reason)| Event::Finished { submission, reason })
            .collect()
    }

    /// Classes in order; within a tenant and class, an older request is bypassed 32 times at most.
    fn judge_order(&mut self, submission: u64, config: &CoreConfig) -> Checked {
        let deferred: Vec<u64> = self
            .open()
            .filter(|entry| self.may_be_deferred(entry, config))
            .map(Entry::submission)
            .collect();
        let admitted = self.entry(submission)?.request.clone();
        let newest_first = self.admitted_classes.iter().rev();
        let since = newest_first.take_while(|&&priority| priority != admitted.priority);
        let passed = since
            .filter(|&&priority| priority < admitted.priority)
            .count() as u64;
        for entry in &mut self.entries {
            let request = &entry.request;
            let held = deferred.contains(&request.submission);
            if !entry.open() || entry.cached.is_some() || held || request.submission == submission {
                continue;
            }
            if request.priority < admitted.priority && passed + self.preemptions < 64 {
                return Err(format!(
                    "{submission} was admitted before the more urgent {}",
                    request.submission
                ));
            }
            let same = (request.priority, request.tenant) == (admitted.priority, admitted.tenant);
            if same && request.submission < submission {
                entry.bypassed += 1;
                if entry.bypassed > 32 {
                    return Err(format!(
                        "invariant 34: {submission} bypassed {}, which was bypassed 32 times",
                        entry.submission()
                    ));
                }
            }
        }
        self.admitted_classes.push(admitted.priority);
        Ok(())
    }

    fn admitted(&mut self, submission: u64, cached: u32, config: &CoreConfig) -> Checked {
        self.judge_order(submission, config)?;
        let request = self.entry(submission)?.request.clone();
        // Invariants 9, 12 and 48: whole retired blocks of the same tokens, never the last token.
        let allowed = cached.is_multiple_of(config.block_size)
            && (cached as usize) < request.prompt.len()
            && (config.prefix_cache || cached == 0);
        let source = || {
            self.entries
                .iter()
                .any(|entry| entry.shares(&request, cached, self.now, config))
        };
        if !allowed || (cached > 0 && !source()) {
            return Err(format!(
                "invariants 9, 12, 48: {submission} found {cached} cached tokens that nobody may share"
            ));
        }
        self.admissions.push(submission);
        self.lookups.0 += request.prompt.len() as u64;
        self.lookups.1 += u64::from(cached);
        let entry = self.entry(submission)?;
        if !entry.open() || entry.cached.replace(cached).is_some() {
            return Err(format!("{submission} was admitted again"));
        }
        entry.indexed = true;
        Ok(())
    }

    /// Whether somebody who runs may be computing the request's first block.
    fn may_be_deferred(&self, entry: &Entry, config: &CoreConfig) -> bool {
        let size = config.block_size as usize;
        let first = |entry: &Entry| entry.request.prompt.get(..size).map(<[u32]>::to_vec);
        config.prefix_cache
            && entry.request.prompt.len() > size
            && self.open().any(|other| {
                other.cached.is_some()
                    && other.request.namespace == entry.request.namespace
                    && first(other) == first(entry)
            })
    }

    fn preempted(&mut self, submission: u64) -> Checked {
        let rank = |entry: &Entry| (entry.request.priority, entry.submission());
        let oldest = self.open().map(rank).min();
        if oldest.is_some_and(|(_, oldest)| oldest == submission) {
            return Err(format!(
                "invariant 33: the oldest request of the most urgent class, {submission}, was preempted"
            ));
        }
        self.preemptions += 1;
        let entry = self.entry(submission)?;
        if !entry.open() || entry.cached.is_none() {
            return Err(format!("{submission} was preempted without running"));
        }
        entry.decoding = false;
        entry.indexed = true;
        Ok(())
    }

    /// Judges a launched step against what each of its requests must see next.
    pub(crate) fn launched(&mut self, plan: &StepPlan, draws: &[Draw]) -> Checked {
        for (sampling, draw) in plan.sampling.iter().zip(draws) {
            let index = sampling.output_index;
            let entry = self.entry(sampling.submission)?;
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
            if entry.decoding != (entry.occupant == draw.occupant) {
                return Err(format!(
                    "{submission}: its row changes exactly when it was preempted"
                ));
            }
            entry.indexed |= entry.occupant != draw.occupant;
            entry.occupant = draw.occupant;
            entry.decoding = true;
            entry.in_flight += 1;
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
        for (sampling, &(status, id)) in step.sampling.iter().zip(&step.results) {
            let submission = sampling.submission;
            let entry = self.entry(submission)?;
            // What was launched behind a token that was not sampled counts for nothing.
            if !entry.open() || sampling.output_index != entry.committed {
                continue;
            }
            entry.in_flight -= 1;
            let failure = match status {
                RowStatus::NotSampled => {
                    entry.in_flight = 0;
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
                events.push(Event::Finished { submission, reason });
            }
        }
        Ok(events)
    }

    /// Feeds what decides the model's future.
    pub(crate) fn fingerprint(&self, hasher: &mut impl Hasher) {
        for entry in &self.entries {
            (entry.committed, entry.acknowledged, entry.in_flight).hash(hasher);
            entry.lone_deaths.hash(hasher);
            (
                entry.finished,
                entry.cached.is_some(),
                entry.decoding,
                entry.indexed,
            )
                .hash(hasher);
        }
    }
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
