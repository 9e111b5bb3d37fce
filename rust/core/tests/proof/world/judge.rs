//! Promises that are checked after every operation, and the end that every history must have.

use std::hash::{DefaultHasher, Hasher};

use diptych_core::StepPlan;
use diptych_core::config::Admission;
use diptych_core::latency::Work;

use super::{Checked, World};
use crate::entry::Entry;
use crate::operation::Operation;
use crate::router::Router;

impl World {
    /// Invariant 30: an idle core has nothing that could run. What waits for a mask holds nothing that others need,
    /// unless nobody may be preempted.
    pub(super) fn check_idle(&self) -> Checked {
        let keeps = self.config.admission == Admission::NoEviction;
        let open = self
            .model
            .open()
            .filter(|entry| !self.waits_for_mask(entry));
        let open = open.count();
        let blocked = self.model.open().any(|entry| {
            entry.cached.is_some() && (entry.past_window() || keeps && entry.is_unmasked())
        });
        if open == 0 || blocked {
            Ok(())
        } else {
            Err(format!(
                "invariant 30: {open} open requests and nothing is planned"
            ))
        }
    }

    /// Whether it, or the choice that computes its prompt, needs a mask first.
    fn waits_for_mask(&self, entry: &Entry) -> bool {
        let computes =
            |other: &Entry| other.submission() == entry.submission() && other.choice == 0;
        entry.is_unmasked()
            || !entry.forked
                && self
                    .model
                    .open()
                    .any(|other| computes(other) && other.is_unmasked())
    }

    /// Invariant 31: a decoding request is in the plan unless something that is named here forbids it.
    pub(super) fn check_no_stall(&self, plan: Option<&StepPlan>) -> Checked {
        let stats = self.core.stats();
        let full_pool = stats.used_blocks == stats.blocks;
        let is_planned = |key: (u64, u32)| {
            plan.is_some_and(|plan| {
                let mut rows = plan.sampling.iter();
                rows.any(|row| (row.submission, row.choice_index) == key)
            })
        };
        // Nobody runs ahead of a row whose next token needs the one in flight.
        if let Some(entry) = self
            .model
            .open()
            .find(|entry| entry.waits_for_flight() && !is_planned(entry.key()))
        {
            return match plan {
                None => Ok(()),
                Some(_) => Err(format!("invariant 31: {:?} was left behind", entry.key())),
            };
        }
        for entry in self.model.open().filter(|entry| entry.decoding) {
            let key = entry.key();
            let planned = is_planned(key);
            let known = entry.request.prompt.len() as u32 + entry.committed + entry.in_flight;
            let needs_block = (known - 1).is_multiple_of(self.config.block_size);
            // Nothing sampled yet (its first draw was refused) is still a prompt.
            let exempt = entry.committed + entry.in_flight == 0
                || entry.committed + entry.in_flight >= entry.request.max_tokens
                || entry.past_window()
                || entry.penalised()
                || entry.is_unmasked()
                || !entry.request.sampling.logit_bias.is_empty()
                || (needs_block && full_pool)
                || self.worker.refused(key);
            if !planned && !exempt {
                return Err(format!("invariant 31: decoding {key:?} is not in the plan"));
            }
        }
        Ok(())
    }

    /// Invariant 37: beside decoding rows with a target, more prefill than the one tile that is always
    /// allowed is planned only if the whole step is predicted to take at most a fifth more than the
    /// strictest target. A step without such rows knows no time.
    pub(super) fn check_time(&self, plan: &StepPlan) -> Checked {
        let work = Work::of(plan);
        let decoding = &plan.rows[..plan.num_decode_rows as usize];
        let rows = plan.sampling.iter();
        let strictest = rows
            .filter(|row| decoding.contains(&(row.row as i32)))
            .filter_map(|row| self.target_of(row.submission))
            .min();
        let predicted = self.core.latency().predict(&work);
        match strictest {
            Some(target) if work.prefill_tokens > self.config.prefill_tile => {
                if predicted <= target + target / 5 + 1 {
                    Ok(())
                } else {
                    Err(format!(
                        "invariant 37: {work:?} is predicted to take {predicted} ns, the target is {target}"
                    ))
                }
            }
            _ => Ok(()),
        }
    }

    fn target_of(&self, submission: u64) -> Option<u64> {
        let mut entries = self.model.entries.iter();
        let entry = entries.find(|entry| entry.submission() == submission)?;
        entry.request.target_itl_ns.or(self.config.target_itl_ns)
    }

    /// Invariants 1 to 16 from inside, and the books from outside.
    pub(super) fn check(&self) -> Checked {
        if self.inspect {
            self.core.check_all()?;
        }
        if self.config.admission == Admission::NoEviction && self.model.preemptions > 0 {
            return Err("invariant 36: somebody was preempted".into());
        }
        let stats = self.core.stats();
        let open = self.model.open().count() as u32;
        let books = stats.running + stats.waiting == open
            && stats.generated == self.model.generated()
            && stats.preemptions == self.model.preemptions
            && (stats.prefix_queries, stats.prefix_hits) == self.model.lookups
            && stats.blocks == self.config.num_blocks - 1
            && stats.used_blocks + stats.cached_blocks <= stats.blocks;
        // Invariant 1: an idle pool is whole.
        let idle = open == 0 && self.worker.launched.is_empty();
        if books && (!idle || stats.used_blocks == 0) {
            Ok(())
        } else {
            Err(format!(
                "{stats:?} with {open} open requests, lookups {:?}",
                self.model.lookups
            ))
        }
    }

    /// What the core tells beside its plans and events.
    pub(super) fn follow(&mut self) -> Checked {
        // No ring, or one that a single operation may overrun.
        if self.config.kv_events < 64 {
            return Ok(());
        }
        for entry in self.model.open() {
            crate::reasons::balances(&self.core, entry, self.now)?;
        }
        for router in &mut self.routers {
            router.follow(&self.core)?;
        }
        if self.now.is_multiple_of(16_000) {
            self.routers[1] = Router::from_snapshot(self.core.kv_snapshot())?;
        }
        Ok(())
    }

    /// Invariant 32: without arrivals everything ends in a bounded number of steps. Returns the steps.
    pub(crate) fn drain(&mut self) -> Result<usize, String> {
        let depth = usize::from(self.config.overlap_depth);
        let total: usize = self
            .model
            .open()
            .map(|entry| entry.request.prompt.len() + entry.request.max_tokens as usize)
            .sum();
        let bound = total * (depth + 2) + 32;
        for step in 0..bound {
            if self.model.open().next().is_none() && self.worker.launched.is_empty() {
                return Ok(step);
            }
            for index in 0..self.model.entries.len() {
                let entry = &self.model.entries[index];
                if entry.stop_token.is_some() && entry.open() {
                    self.acknowledge_to(index, entry.committed)?;
                }
                self.mask_next(index)?;
            }
            self.apply(&Operation::Plan(None))?;
            if self.worker.launched.len() > depth || step % 2 == 0 {
                self.apply(&Operation::Complete)?;
            }
        }
        Err(format!("invariant 32: not finished after {bound} steps"))
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.core.fingerprint(&mut hasher);
        self.worker.fingerprint(&mut hasher);
        self.model.fingerprint(&mut hasher);
        hasher.write_u64(self.submissions);
        hasher.finish()
    }
}
