//! Masks that come before their step, while it runs, or too late.

use super::{Open, Soak};
use crate::{Core, RowStatus, StepPlan};

impl Open {
    /// The mask of the next output comes.
    pub(super) fn mask(&mut self, core: &mut Core) {
        core.mask_ready(self.handle, self.outputs).unwrap();
        self.masks = self.outputs + 1;
    }
}

impl Soak {
    /// Of the rows that have no mask, every other one gets it in time.
    pub(super) fn mask_rows(&mut self, plan: &StepPlan, result: &mut [(RowStatus, u32)]) {
        for (row, outcome) in plan.sampling.iter().zip(result) {
            let open = self.open.get_mut(&(row.submission, row.choice_index));
            let open = open.filter(|open| row.masked && open.masks <= row.output_index);
            match open {
                Some(open) if self.random.below(2) == 0 => open.mask(&mut self.core),
                Some(_) => *outcome = (RowStatus::NotSampled, 0),
                None => {}
            }
        }
    }
}
