//! What can be told of a worker without running it.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use diptych_core::RowStatus;

use super::{Suspect, Worker};

impl Worker {
    /// Who is alone in the unretired steps.
    pub(crate) fn lone_suspect(&self) -> Suspect {
        let touched = || self.launched.iter().flat_map(|step| &step.touched);
        let Some(&(_, first)) = touched().next() else {
            return Suspect::Nobody;
        };
        if touched().any(|&(_, who)| who != first) {
            return Suspect::Nobody;
        }
        let sampling = self.launched.iter().flat_map(|step| &step.sampling);
        // Of several choices, the first one computes.
        let last = sampling.max_by_key(|row| (row.output_index, Reverse(row.choice_index)));
        last.map_or(Suspect::Anybody, |row| {
            let key = (row.submission, row.choice_index);
            Suspect::Request(key, row.output_index + 1)
        })
    }

    /// Distinct blocks in the tables of the given occupants.
    pub(crate) fn blocks_of(&self, occupants: &[u64]) -> usize {
        let rows = self
            .rows
            .iter()
            .filter(|row| occupants.contains(&row.occupant));
        let blocks: HashSet<usize> = rows.flat_map(|row| row.table.iter().copied()).collect();
        blocks.len()
    }

    /// Whether a launched step will report a draw of this request as failed.
    pub(crate) fn refused(&self, key: (u64, u32)) -> bool {
        self.launched.iter().any(|step| {
            step.sampling
                .iter()
                .zip(&step.results)
                .any(|(row, &(status, id))| {
                    (row.submission, row.choice_index) == key
                        && (status != RowStatus::Ok || id >= self.vocabulary)
                })
        })
    }

    /// Feeds everything that decides the worker's future. Steps count from the oldest in flight.
    pub(crate) fn fingerprint(&self, hasher: &mut impl Hasher) {
        let base = self.launched.front().map_or(0, |step| step.step);
        let age = |step: u64| (step + 1).saturating_sub(base.max(1)).min(step);
        for slot in &self.kv {
            let (step, who) = slot.writer;
            let row = self.rows.iter().position(|row| row.occupant == who);
            (slot.token, age(step), row.filter(|_| step != 0)).hash(hasher);
        }
        for row in &self.rows {
            (&row.table, row.last, row.computed, row.retry, row.poisoned).hash(hasher);
        }
        for step in &self.launched {
            (&step.results, step.touched.len()).hash(hasher);
            for sampling in &step.sampling {
                (sampling.submission, sampling.choice_index).hash(hasher);
                (sampling.output_index, sampling.row).hash(hasher);
            }
        }
    }
}
