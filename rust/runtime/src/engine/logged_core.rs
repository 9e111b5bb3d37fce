//! The core with everything that goes into it written down, if that is asked for.

use std::ops::Deref;

use diptych_core::{Core, CoreConfig, Error, Event, Handle, Request, StepPlan, StepResult};
use diptych_eventlog::{FIELDS, Record, StepCandidates, StepRows};

use crate::engine::event_log::EventLogSender;

/// A core. What only looks at it goes to [`Core`] itself; what changes it goes through here.
#[derive(Debug)]
pub(super) struct LoggedCore {
    core: Core,
    log: Option<EventLogSender>,
}

impl Deref for LoggedCore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl LoggedCore {
    pub(super) fn new(
        config: CoreConfig,
        epoch: u64,
        log: Option<EventLogSender>,
    ) -> Result<Self, Error> {
        if let Some(log) = &log {
            log.record(Record::Core {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                config: Box::new(config.clone()),
                epoch,
                plan_fields: FIELDS.map(str::to_owned).to_vec(),
            });
        }
        let core = Core::new(config, epoch)?;
        Ok(Self { core, log })
    }

    fn record(&self, record: impl FnOnce() -> Record) {
        if let Some(log) = &self.log {
            log.record(record());
        }
    }

    pub(super) fn submit(&mut self, request: Request, now: u64) -> Result<Handle, Error> {
        self.record(|| Record::Submit {
            now,
            request: Box::new(request.clone()),
        });
        let answer = self.core.submit(request, now);
        self.record(|| Record::Submitted {
            handle: answer.as_ref().ok().copied(),
        });
        answer
    }

    pub(super) fn abort(&mut self, handle: Handle, now: u64) {
        self.record(|| Record::Abort { now, handle });
        self.core.abort(handle, now);
    }

    pub(super) fn text_ack(
        &mut self,
        handle: Handle,
        (checked, stop_at): (u32, Option<u32>),
        now: u64,
    ) -> Result<(), Error> {
        self.record(|| Record::Ack {
            now,
            handle,
            checked,
            stop_at,
        });
        self.core.text_ack(handle, checked, stop_at)
    }

    pub(super) fn mask_ready(&mut self, handle: Handle, index: u32, now: u64) -> Result<(), Error> {
        self.record(|| Record::Mask { now, handle, index });
        self.core.mask_ready(handle, index)
    }

    pub(super) fn plan(&mut self, now: u64) -> Option<&StepPlan> {
        self.record(|| Record::Plan { now });
        let plan = self.core.plan(now);
        if let Some(log) = &self.log {
            log.planned(plan);
        }
        plan
    }

    pub(super) fn complete(&mut self, result: &StepResult<'_>, now: u64) -> Result<(), Error> {
        self.record(|| Record::Complete {
            now,
            epoch: result.epoch,
            step: result.step,
            duration_ns: result.duration_ns,
            rows: StepRows::new(result.rows),
            candidates: StepCandidates::new(result.candidates),
        });
        self.core.complete(result, now)
    }

    pub(super) fn worker_lost(&mut self, epoch: u64, now: u64) -> Result<(), Error> {
        self.record(|| Record::WorkerLost { now, epoch });
        self.core.worker_lost(epoch, false, now)
    }

    /// Recorded where it has something to do.
    pub(super) fn expire(&mut self, now: u64) {
        if self
            .core
            .next_deadline()
            .is_some_and(|moment| moment <= now)
        {
            self.record(|| Record::Expire { now });
            self.core.expire(now);
        }
    }

    pub(super) fn take_events(&mut self, into: &mut Vec<Event>) {
        self.core.take_events(into);
    }
}
