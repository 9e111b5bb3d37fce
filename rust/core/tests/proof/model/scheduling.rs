//! Who may be ended, admitted and preempted by a plan, as the outside can tell.

use diptych_core::{CoreConfig, Event, FinishReason};

use super::{Checked, Model};
use crate::entry::Entry;

impl Model {
    /// Ends what is past its deadline, in order of deadline, submission and choice; with a prompt those who wait for it.
    pub(super) fn expire(&mut self, now: u64) -> Vec<Event> {
        let mut due: Vec<(u64, (u64, u32), FinishReason)> = Vec::new();
        for entry in self.open() {
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
            due.push((moment.min().unwrap_or(now), entry.key(), reason));
        }
        due.sort_unstable_by_key(|&(moment, key, _)| (moment, key));
        due.into_iter()
            .flat_map(|(_, key, reason)| match self.index(key) {
                Ok(index) => self.finish(index, reason),
                Err(_) => Vec::new(),
            })
            .collect()
    }

    /// Classes in order; within a tenant and class, an older request is bypassed 32 times at most.
    fn judge_order(&mut self, submission: u64, config: &CoreConfig) -> Checked {
        let deferred: Vec<u64> = self
            .open()
            .filter(|entry| self.may_be_deferred(entry, config))
            .map(Entry::submission)
            .collect();
        let admitted = self.entry((submission, 0))?.request.clone();
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
            if request.priority < admitted.priority && passed + self.returns < 64 {
                return Err(format!(
                    "{submission} was admitted before the more urgent {}, after {passed} others and {} returns",
                    request.submission, self.returns
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

    pub(super) fn admitted(
        &mut self,
        submission: u64,
        cached: u32,
        config: &CoreConfig,
    ) -> Checked {
        self.judge_order(submission, config)?;
        let index = self.index((submission, 0))?;
        let request = self.entries[index].request.clone();
        // Invariants 9, 12 and 48: whole retired blocks of the same tokens, never the last token.
        let allowed = cached.is_multiple_of(config.block_size)
            && (cached as usize) < request.prompt.len()
            && (config.prefix_cache || cached == 0);
        // Who found it there again has used it too, and may keep it for longer than who computed it.
        let source = || {
            let mut computed = self.entries.iter();
            let mut used = self.entries.iter();
            computed.any(|entry| entry.shares(&request, cached))
                && used.any(|entry| entry.keeps(&request, cached, self.now, config))
        };
        if !allowed || (cached > 0 && !source()) {
            return Err(format!(
                "invariants 9, 12, 48: {submission} found {cached} cached tokens that nobody may share"
            ));
        }
        self.admissions.push(submission);
        self.lookups.0 += request.prompt.len() as u64;
        self.lookups.1 += u64::from(cached);
        for entry in &mut self.entries[index..] {
            if entry.submission() != submission {
                break;
            }
            let again = entry.cached.replace(cached).is_some();
            if again || (entry.choice == 0 && !entry.open()) {
                return Err(format!("{submission} was admitted again"));
            }
            entry.indexed = true;
        }
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

    pub(super) fn preempted(&mut self, key: (u64, u32)) -> Checked {
        let rank = |entry: &Entry| (entry.request.priority, entry.key());
        let oldest = self.open().map(rank).min();
        if oldest.is_some_and(|(_, oldest)| oldest == key) && !self.entry(key)?.is_unmasked() {
            return Err(format!(
                "invariant 33: the oldest request of the most urgent class, {key:?}, was preempted"
            ));
        }
        self.preemptions += 1;
        self.returns += 1;
        let entry = self.entry(key)?;
        if !entry.open() || entry.cached.is_none() || !entry.forked {
            return Err(format!("{key:?} was preempted without running"));
        }
        entry.decoding = false;
        entry.moves = false;
        entry.indexed = true;
        Ok(())
    }
}
