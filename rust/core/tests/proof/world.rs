//! The real core between a ghost worker, a text side and a naive model: applies one operation at a
//! time and judges everything that comes back.

mod judge;
mod masks;

use diptych_core::latency::Coefficients;
use diptych_core::{
    Core, CoreConfig, Error, Event, FinishReason, Request, RowStatus, StepPlan, StepResult,
};

use crate::entry::Entry;
use crate::model::Model;
use crate::operation::{Draft, Operation};
use crate::plan_rules;
use crate::router::Router;
use crate::submission::{Answer, answer, names_the_mistake};
use crate::worker::{Launched, Misbehaviour, Worker};

type Checked = Result<(), String>;

/// Everything that crossed the boundary, for comparing two runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Journal {
    pub(crate) plans: Vec<StepPlan>,
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) config: CoreConfig,
    pub(crate) core: Core,
    pub(crate) worker: Worker,
    pub(crate) model: Model,
    pub(crate) journal: Option<Journal>,
    /// Whether the core's own `check_all` may speak; without it only the outside judges.
    pub(crate) inspect: bool,
    /// One that follows from the start, and one that begins anew with a snapshot now and then.
    routers: [Router; 2],
    /// Nanoseconds that pass before each operation.
    pub(crate) tick: u64,
    epoch: u64,
    step: u64,
    now: u64,
    submissions: u64,
}

impl World {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let core = Core::new(config.clone(), 1).expect("the harness makes usable configurations");
        Self {
            config: config.clone(),
            core,
            worker: Worker::new(config),
            model: Model::default(),
            journal: None,
            inspect: true,
            routers: Default::default(),
            tick: 1_000,
            epoch: 1,
            step: 0,
            now: 0,
            submissions: 0,
        }
    }

    /// Does one thing and checks every promise that can be checked now.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Checked {
        self.model.note_ends();
        self.now += self.tick;
        self.model.now = self.now;
        match operation {
            Operation::Submit(draft) => self.submit(draft)?,
            Operation::Abort(number) => self.abort(*number)?,
            Operation::Plan(fault) => self.plan(*fault).map(|_| ())?,
            Operation::Complete => self.complete()?,
            Operation::Stale(kind) => self.stale(*kind)?,
            Operation::Acknowledge { request, tokens } => self.acknowledge(*request, *tokens)?,
            Operation::WrongAcknowledge(request) => self.wrong_acknowledge(*request)?,
            Operation::Mask(request) => self.mask(*request)?,
            Operation::WrongMask(request) => self.wrong_mask(*request)?,
            Operation::WorkerLost => self.worker_lost()?,
            Operation::ResetPrefixCache => self.reset_prefix_cache(),
            Operation::Wait(microseconds) => self.now += u64::from(*microseconds) * 1_000,
        }
        self.model.now = self.now;
        self.model.note_ends();
        self.check()?;
        self.follow()
    }

    /// When the last operation happened.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Submits a request as it stands; `stop` is the token where the text side finds a stop string.
    pub(crate) fn submit_request(
        &mut self,
        request: &Request,
        stop: Option<u32>,
    ) -> Result<(), Error> {
        self.submissions = self.submissions.max(request.submission + 1);
        let first = self.core.submit(request.clone(), self.now)?;
        for choice in 0..request.choices {
            let handle = self.core.choice(first, choice);
            let handle = handle.expect("every choice has a handle");
            let named = (choice, handle);
            self.model
                .accept(request.clone(), stop, named, self.config.vocabulary);
        }
        Ok(())
    }

    fn submit(&mut self, draft: &Draft) -> Checked {
        let request = draft.request(self.submissions, &self.config, self.now);
        let expected = answer(&request, &self.core.stats(), &self.config);
        let stop = draft
            .stop_string
            .map(|id| u32::from(id) % self.config.vocabulary);
        match (self.submit_request(&request, stop), expected) {
            (Ok(()), Answer::Accepted | Answer::Either) => self.expect_events(&[]),
            (Err(error), Answer::Refused | Answer::Either) => {
                if names_the_mistake(&error, &request, &self.config) {
                    self.expect_events(&[])
                } else {
                    Err(format!("{request:?} was refused by {error:?}"))
                }
            }
            (Ok(()), Answer::Refused) => Err(format!("{request:?} was accepted")),
            (Err(error), Answer::Accepted) => Err(format!("{request:?} was refused: {error}")),
        }
    }

    fn abort(&mut self, number: u8) -> Checked {
        let Some(index) = self.select(number, |_| true) else {
            return Ok(());
        };
        self.core.abort(self.model.entries[index].handle, self.now);
        let expected = self.model.finish(index, FinishReason::Aborted);
        self.expect_events(&expected)
    }

    /// Plans and launches; whether there was anything to launch.
    pub(crate) fn plan(&mut self, fault: Option<(u8, Misbehaviour)>) -> Result<bool, String> {
        let in_flight = self.worker.launched.len();
        let plan = self.core.plan(self.now).cloned();
        let events = self.events();
        self.model.planned_events(&events, &self.config, self.now)?;
        let full = in_flight > usize::from(self.config.overlap_depth);
        if let Some(plan) = &plan {
            if full {
                return Err(format!("a step was planned with {in_flight} in flight"));
            }
            self.launch(plan, fault)?;
        } else if in_flight == 0 {
            self.check_idle()?;
        }
        if !full {
            self.check_no_stall(plan.as_ref())?;
        }
        Ok(plan.is_some())
    }

    fn launch(&mut self, plan: &StepPlan, fault: Option<(u8, Misbehaviour)>) -> Checked {
        if (plan.epoch, plan.step) != (self.epoch, self.step + 1) {
            return Err(format!(
                "epoch {} step {} planned after epoch {} step {}",
                plan.epoch, plan.step, self.epoch, self.step
            ));
        }
        self.step = plan.step;
        plan_rules::check(plan, &self.config)?;
        self.check_time(plan)?;
        let late = self.late_masks(plan)?;
        let draws = self.worker.launch(plan, fault, &late)?;
        self.model.launched(plan, &draws)?;
        self.masks_in_time(plan, &late)?;
        if let Some(journal) = &mut self.journal {
            journal.plans.push(plan.clone());
        }
        Ok(())
    }

    pub(crate) fn complete(&mut self) -> Checked {
        let Some(step) = self.worker.retire() else {
            return Ok(());
        };
        let result = StepResult {
            epoch: step.epoch,
            step: step.step,
            duration_ns: self.duration(&step),
            rows: &step.results,
            candidates: &[],
        };
        self.core
            .complete(&result, self.now)
            .map_err(|error| format!("step {} was refused: {error}", step.step))?;
        let expected = self.model.retired(&step, self.config.vocabulary)?;
        self.expect_events(&expected)
    }

    /// How long the worker says it took: about what the work costs, at times ten times that, at
    /// times nothing is said. Time passes only where a target can make it matter.
    fn duration(&mut self, step: &Launched) -> Option<u64> {
        self.config.target_itl_ns?;
        let mixed = step.step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let time = Coefficients::default().step_ns(&step.work) as u64;
        let outlier = if mixed.is_multiple_of(31) { 10 } else { 1 };
        let duration = (time + time * (mixed % 300) / 1_000) * outlier;
        self.now += duration;
        self.model.now = self.now;
        (!mixed.is_multiple_of(7)).then_some(duration)
    }

    /// Results of another epoch, another step or another shape change nothing.
    fn stale(&mut self, kind: u8) -> Checked {
        let front = self.worker.launched.front();
        let step = front.map_or(self.step, |step| step.step);
        let rows = front.map_or(0, |step| step.results.len());
        let surplus = vec![(RowStatus::Ok, 0); rows + 1];
        let (epoch, step, rows) = match kind % 4 {
            0 => (self.epoch - 1, step, rows),
            1 => (self.epoch, step + 1, rows),
            2 => (self.epoch, step - 1.min(step), rows),
            _ if front.is_some() => (self.epoch, step, rows + 1),
            _ => (self.epoch, step, rows),
        };
        let result = StepResult {
            epoch,
            step,
            duration_ns: None,
            rows: &surplus[..rows],
            candidates: &[],
        };
        match self.core.complete(&result, self.now) {
            Err(Error::StaleResult { .. } | Error::ResultRows { .. }) => self.expect_events(&[]),
            other => Err(format!("a wrong result was answered by {other:?}")),
        }
    }

    fn acknowledge(&mut self, number: u8, tokens: u8) -> Checked {
        let Some(index) = self.select(number, |entry| entry.stop_token.is_some()) else {
            return Ok(());
        };
        let entry = &self.model.entries[index];
        let fresh = entry.committed - entry.acknowledged;
        let checked = entry.acknowledged + u32::from(tokens) % (fresh + 1);
        self.acknowledge_to(index, checked)
    }

    /// The text side has searched the first `checked` outputs of a request.
    pub(crate) fn acknowledge_to(&mut self, index: usize, checked: u32) -> Checked {
        let entry = &mut self.model.entries[index];
        let outputs = &entry.outputs[..checked as usize];
        let stop_at = outputs
            .iter()
            .position(|&token| Some(token) == entry.stop_token)
            .map(|position| position as u32 + 1);
        entry.acknowledged = checked;
        let handle = entry.handle;
        self.core
            .text_ack(handle, checked, stop_at)
            .map_err(|error| format!("a right acknowledgement was refused: {error}"))?;
        let expected = match stop_at {
            Some(_) => self.model.finish(index, FinishReason::StopString),
            None => Vec::new(),
        };
        self.expect_events(&expected)
    }

    fn wrong_acknowledge(&mut self, number: u8) -> Checked {
        let wanted = |entry: &Entry| entry.open() && entry.stop_token.is_some();
        let Some(index) = self.select(number, wanted) else {
            return Ok(());
        };
        let entry = &self.model.entries[index];
        let checked = match entry.acknowledged.checked_sub(1) {
            Some(earlier) if number.is_multiple_of(2) => earlier,
            _ => entry.committed + 1,
        };
        match self.core.text_ack(entry.handle, checked, None) {
            Err(Error::TextAck { .. }) => self.expect_events(&[]),
            other => Err(format!("a wrong acknowledgement was answered by {other:?}")),
        }
    }

    fn worker_lost(&mut self) -> Checked {
        for (epoch, kept) in [(self.epoch + 1, false), (self.epoch, true)] {
            let answer = self.core.worker_lost(epoch, kept, self.now);
            if !matches!(answer, Err(Error::WorkerLost { .. })) {
                return Err(format!(
                    "worker_lost({epoch}, {kept}) was answered by {answer:?}"
                ));
            }
        }
        self.core
            .worker_lost(self.epoch, false, self.now)
            .map_err(|error| error.to_string())?;
        self.epoch += 1;
        let late = self.worker.launched.front().cloned();
        self.model.suspect(&self.worker.lone_suspect());
        self.worker.restart();
        let events = self.events();
        self.model.lost(&events)?;
        // Invariant 47: nothing of the old epoch is left, and its results are errors.
        let stats = self.core.stats();
        if stats.used_blocks + stats.cached_blocks != 0 {
            return Err(format!("invariant 47: {stats:?} after the worker was lost"));
        }
        let Some(late) = late else { return Ok(()) };
        let result = StepResult {
            epoch: late.epoch,
            step: late.step,
            duration_ns: None,
            rows: &late.results,
            candidates: &[],
        };
        match self.core.complete(&result, self.now) {
            Err(Error::StaleResult { .. }) => self.expect_events(&[]),
            other => Err(format!(
                "invariant 47: a late result was answered by {other:?}"
            )),
        }
    }

    fn reset_prefix_cache(&mut self) {
        let before = self.core.stats();
        self.core.reset_prefix_cache();
        self.model.forget_index();
        // Invariant 14: live rows keep their blocks.
        assert_eq!(
            self.core.stats().used_blocks,
            before.used_blocks,
            "invariant 14"
        );
    }

    fn select(&self, number: u8, wanted: impl Fn(&Entry) -> bool) -> Option<usize> {
        let candidates: Vec<usize> = (0..self.model.entries.len())
            .filter(|&index| wanted(&self.model.entries[index]))
            .collect();
        (!candidates.is_empty()).then(|| candidates[usize::from(number) % candidates.len()])
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.core.take_events(&mut events);
        if let Some(journal) = &mut self.journal {
            journal.events.extend_from_slice(&events);
        }
        events
    }

    fn expect_events(&mut self, expected: &[Event]) -> Checked {
        let events = self.events();
        if events == expected {
            Ok(())
        } else {
            Err(format!(
                "invariant 18: events {events:?}, expected {expected:?}"
            ))
        }
    }
}
