//! Masks that come before their step, while it runs, or too late.

use diptych_core::{Error, StepPlan};

use super::{Checked, World};
use crate::entry::Entry;

impl World {
    fn has_mask_to_come(entry: &Entry) -> bool {
        entry.open() && entry.request.masked && entry.masks <= entry.committed
    }

    pub(super) fn mask(&mut self, number: u8) -> Checked {
        match self.select(number, Self::has_mask_to_come) {
            Some(index) => self.mask_next(index),
            None => Ok(()),
        }
    }

    /// The mask of a request's next output is known, if it is one with masks.
    pub(super) fn mask_next(&mut self, index: usize) -> Checked {
        let entry = &mut self.model.entries[index];
        if !Self::has_mask_to_come(entry) {
            return Ok(());
        }
        let next = entry.committed;
        entry.masks = next + 1;
        let handle = entry.handle;
        for other in self.model.dependents(index) {
            self.model.entries[other].masks = 1;
        }
        self.core
            .mask_ready(handle, next)
            .map_err(|error| format!("a right mask was refused: {error}"))?;
        self.expect_events(&[])
    }

    pub(super) fn wrong_mask(&mut self, number: u8) -> Checked {
        let Some(index) = self.select(number, Entry::open) else {
            return Ok(());
        };
        let entry = &self.model.entries[index];
        let wrong = if entry.request.masked {
            entry.committed + 1
        } else {
            entry.committed
        };
        match self.core.mask_ready(entry.handle, wrong) {
            Err(Error::Mask { .. }) => self.expect_events(&[]),
            other => Err(format!("a wrong mask was answered by {other:?}")),
        }
    }

    /// Of each sampling row: whether it has no mask when the step is launched, and gets none in time. Of
    /// those that have none, every other one does.
    pub(super) fn late_masks(&mut self, plan: &StepPlan) -> Result<Vec<bool>, String> {
        let late = plan.sampling.iter().map(|row| {
            let entry = self.model.entry((row.submission, row.choice_index))?;
            let missing = row.masked && entry.masks <= row.output_index;
            Ok(missing && (plan.step + u64::from(row.output_index)).is_multiple_of(2))
        });
        late.collect()
    }

    /// While a step runs, the masks come that are not late.
    pub(super) fn masks_in_time(&mut self, plan: &StepPlan, late: &[bool]) -> Checked {
        for (row, &late) in plan.sampling.iter().zip(late) {
            if row.masked && !late {
                let key = (row.submission, row.choice_index);
                let index = self.model.index(key)?;
                self.mask_next(index)?;
            }
        }
        Ok(())
    }
}
