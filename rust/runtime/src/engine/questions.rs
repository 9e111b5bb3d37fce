//! What others are told about the core.

use diptych_core::explanation::Explanation;
use diptych_core::kv_events::{KvEvent, KvEventsError, StoredBlock};
use diptych_core::{Error, Event};
use serde::Serialize;

use crate::EngineError;
use crate::engine::event_log::EventLog;
use crate::engine::live::Live;
use crate::engine::logged_core::LoggedCore;
use crate::engine::poison::sum_counters;
use crate::engine::thread::EngineThread;
use crate::messages::TextMessage;
use crate::now_ns;
use crate::shared::lock;
use crate::stats::StepModel;

/// KV events of one core.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KvTold {
    /// Which of the engine's cores, from 1.
    core: u64,
    /// Number to go on from.
    next: u64,
    events: Vec<KvEvent>,
}

/// What one core's prefix index finds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KvStored {
    core: u64,
    next: u64,
    blocks: Vec<StoredBlock>,
}

impl EngineThread {
    /// The core of this epoch.
    pub(super) fn new_core(&mut self) -> Result<LoggedCore, Error> {
        self.cores += 1;
        let log = self.event_log.as_ref().and_then(EventLog::sender);
        LoggedCore::new(self.core_config.clone(), self.epoch, log)
    }

    /// Passes the core's events on.
    pub(super) fn tell(&mut self) {
        let Some(core) = &mut self.core else {
            return;
        };
        core.take_events(&mut self.events);
        let scores = std::mem::take(&mut self.outcomes.scores);
        if self.events.is_empty() && scores.is_empty() {
            return;
        }
        let mut explanations = Vec::new();
        for event in &self.events {
            let Event::Finished {
                submission, choice, ..
            } = event
            else {
                continue;
            };
            if self.explained.contains(submission) {
                explanations.extend(core.explain_ended(*submission, *choice));
            }
            if self.live.get_mut(submission).is_some_and(Live::ends) {
                self.live.remove(submission);
                self.explained.remove(submission);
            }
        }
        let events = std::mem::take(&mut self.events);
        self.followers.told();
        self.say(TextMessage::Events {
            events,
            explanations,
            scores,
            now: now_ns(),
        });
    }

    /// Of several choices the first: it computes the prompt for all.
    pub(super) fn explain(&self, request: u64) -> Option<Explanation> {
        let core = self.core.as_ref()?;
        let open = self.live.get(&request);
        let open = open.and_then(|live| core.explain(live.handle(0), now_ns()));
        open.or_else(|| core.explain_ended(request, 0))
    }

    pub(super) fn kv_events(
        &self,
        from: u64,
        limit: usize,
    ) -> Result<Result<KvTold, KvEventsError>, EngineError> {
        let core = self.core.as_ref().ok_or(NOT_READY)?;
        let mut events = Vec::new();
        let next = core.kv_events(from, limit, &mut events);
        Ok(next.map(|next| KvTold {
            core: self.cores,
            next,
            events,
        }))
    }

    pub(super) fn kv_snapshot(&self) -> Result<KvStored, EngineError> {
        let snapshot = self.core.as_ref().ok_or(NOT_READY)?.kv_snapshot();
        Ok(KvStored {
            core: self.cores,
            next: snapshot.next,
            blocks: snapshot.blocks,
        })
    }

    /// For the statistics.
    pub(super) fn publish_snapshot(&self) {
        let mut core = self
            .core
            .as_ref()
            .map(|core| core.stats())
            .unwrap_or_default();
        sum_counters(&mut core, &self.retired_counters);
        let mut snapshot = lock(&self.shared.snapshot);
        snapshot.core = core;
        snapshot.step_model = self.core.as_ref().map(|core| StepModel::of(core.latency()));
        snapshot.count_waiting(self.core.as_deref());
        snapshot.steps_ahead = self.planned_ahead;
        snapshot.epoch = self.epoch;
        snapshot.event_log = self.event_log.as_ref().map(EventLog::status);
        snapshot.worker_restarts = self.supervisor.restarts;
        snapshot.worker_alive = self.supervisor.is_running();
        snapshot.worker_pid = self.supervisor.process_id();
        snapshot.last_restart = self.supervisor.last_restart;
        snapshot
            .last_worker_error
            .clone_from(&self.supervisor.last_error);
    }
}

const NOT_READY: EngineError = EngineError::Closed("the core, until the worker is ready,");
