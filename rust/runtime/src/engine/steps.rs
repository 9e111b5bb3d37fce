//! Steps: plans to the worker, its results to the core.

use diptych_core::StepResult;

use crate::arena::Outcome;
use crate::engine::thread::EngineThread;
use crate::now_ns;
use crate::shared::lock;

impl EngineThread {
    /// Takes the results that are there; whether there was one.
    pub(super) fn retire(&mut self) -> bool {
        let mut retired = false;
        let end = loop {
            let Some(link) = self.supervisor.running() else {
                break None;
            };
            let (step, outcome) = link.take_result(&mut self.outcomes);
            match outcome {
                Outcome::Pending => break None,
                Outcome::Rows { duration_ns } => {
                    retired = true;
                    if let Some(gap) = link.gap_ns() {
                        lock(&self.shared.statistics).step_gap(gap);
                    }
                    self.complete((step, duration_ns));
                }
                Outcome::Raised { class, message } => break Some((class, message)),
                Outcome::Garbage(why) => break Some(("GarbageResult".to_owned(), why)),
            }
        };
        if retired {
            self.supervisor.step_retired();
        }
        if let Some((class, message)) = end {
            self.supervisor.end_running(&class, message, false);
        }
        retired
    }

    /// Takes what a worker that has ended had published before.
    pub(super) fn retire_from(&mut self, link: &mut super::link::Link) {
        while let (step, Outcome::Rows { duration_ns }) = link.take_result(&mut self.outcomes) {
            self.complete((step, duration_ns));
            self.supervisor.step_retired();
        }
    }

    /// Launches what can be planned now. `at_once`: a step has just retired.
    pub(super) fn launch(&mut self, at_once: bool) {
        let panic_at = self.shared.options.test_faults.panic_at_step;
        let (Some(core), Some(link)) = (&mut self.core, self.supervisor.running()) else {
            return;
        };
        let followers = &self.followers;
        while link.may_plan_ahead()
            && let Some(plan) = core.plan(now_ns())
        {
            self.planned += 1;
            self.planned_ahead += u64::from(link.in_flight());
            assert!(
                panic_at != Some(self.planned),
                "test_faults.panic_at_step asked for this panic"
            );
            if let Err(overflow) = link.launch(plan, at_once, |drawn| followers.mask(drawn)) {
                panic!("{overflow}");
            }
        }
    }

    /// Gives the core the outcomes of a step: its number, and the nanoseconds it took.
    fn complete(&mut self, (step, duration_ns): (u64, Option<u64>)) {
        // Those that came while it ran.
        self.collect_masks();
        self.followers.judge(&mut self.outcomes);
        if let Some(core) = &mut self.core {
            let result = StepResult {
                epoch: self.epoch,
                step,
                duration_ns,
                rows: &self.outcomes.rows,
                candidates: &self.outcomes.candidates,
            };
            let completed = core.complete(&result, now_ns());
            assert!(completed.is_ok(), "step {step}: {completed:?}");
        }
    }
}
