//! After a panic in the core.

use std::panic::{AssertUnwindSafe, catch_unwind};

use diptych_core::{Core, Stats};

use crate::engine::thread::EngineThread;
use crate::frame::FailureKind;
use crate::messages::Problem;

impl EngineThread {
    /// The core panicked: it is never used again.
    pub(super) fn poisoned(&mut self, panic: &(dyn std::any::Any + Send)) {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        let message = format!("a bug in the engine ended this request: {said}");
        self.events.clear();
        if let Some(core) = self.core.take() {
            add_counters(&mut self.retired_counters, &core);
        }
        self.fail_all(&Problem::new(FailureKind::EnginePanicked, message));
        self.supervisor.renew(said);
        if self.supervisor.has_served(self.epoch) {
            self.epoch += 1;
        }
        if self.supervisor.num_blocks().is_some() {
            match self.new_core() {
                Ok(core) => self.core = Some(core),
                Err(error) => self.unusable(&error),
            }
        }
    }
}

fn add_counters(total: &mut Stats, core: &Core) {
    // A core that panicked may not even be able to count.
    if let Ok(stats) = catch_unwind(AssertUnwindSafe(|| core.stats())) {
        sum_counters(total, &stats);
    }
}

pub(super) fn sum_counters(total: &mut Stats, more: &Stats) {
    total.prefix_queries += more.prefix_queries;
    total.prefix_hits += more.prefix_hits;
    total.preemptions += more.preemptions;
    total.steps += more.steps;
    total.generated += more.generated;
    total.paced_tokens += more.paced_tokens;
    total.late_tokens += more.late_tokens;
    total.expired_waiting += more.expired_waiting;
    total.expired_running += more.expired_running;
}
