//! The engine thread: commands in, plans out, results in, events out.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diptych_core::{CoreConfig, Error, Event, Stats};

use crate::EngineError;
use crate::arena::Outcomes;
use crate::engine::event_log::EventLog;
use crate::engine::grammars::Followers;
use crate::engine::live::Live;
use crate::engine::logged_core::LoggedCore;
use crate::engine::refusal::refusal;
use crate::engine::supervisor::Supervisor;
use crate::engine::worker_state::{Change, End};
use crate::frame::FailureKind;
use crate::layout::Capacities;
use crate::messages::{AcceptedStream, Command, Problem, Submission, TextMessage};
use crate::now_ns;
use crate::os;
use crate::shared::{Shared, Slot};

/// What the engine thread owns.
pub(super) struct EngineThread {
    pub(super) shared: Arc<Shared>,
    pub(super) core_config: CoreConfig,
    pub(super) core: Option<LoggedCore>,
    /// Cores built so far.
    pub(super) cores: u64,
    pub(super) event_log: Option<EventLog>,
    pub(super) epoch: u64,
    pub(super) supervisor: Supervisor,
    pub(super) live: HashMap<u64, Live>,
    /// Those whose last frame says why they went as they did.
    pub(super) explained: HashSet<u64>,
    /// Those whose outputs follow grammars.
    pub(super) followers: Followers,
    /// The request that the core is being given.
    pub(super) submitting: Option<u64>,
    /// Submissions that came before the number of blocks was known.
    pub(super) early: Vec<Submission>,
    commands: VecDeque<Command>,
    pub(super) outcomes: Outcomes,
    pub(super) events: Vec<Event>,
    /// Counters of the cores that panicked.
    pub(super) retired_counters: Stats,
    pub(super) planned: u64,
    /// Those planned while another step ran.
    pub(super) planned_ahead: u64,
    /// Told once the first turn is over.
    started: Option<Arc<Slot<()>>>,
}

impl EngineThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        (core_config, event_log): (CoreConfig, Option<EventLog>),
        capacities: Capacities,
        inline: Arc<Mutex<Option<OwnedFd>>>,
        started: Arc<Slot<()>>,
    ) -> Self {
        Self {
            supervisor: Supervisor::new(Arc::clone(&shared), capacities, inline),
            shared,
            core_config,
            core: None,
            cores: 0,
            event_log,
            epoch: 1,
            live: HashMap::new(),
            explained: HashSet::new(),
            followers: Followers::default(),
            submitting: None,
            early: Vec::new(),
            commands: VecDeque::new(),
            outcomes: Outcomes::default(),
            events: Vec::new(),
            retired_counters: Stats::default(),
            planned: 0,
            planned_ahead: 0,
            started: Some(started),
        }
    }

    /// The life of the thread: until [`Command::Close`].
    pub(super) fn run(mut self) {
        let mut received = Vec::new();
        loop {
            self.shared.commands.take(&mut received);
            self.commands.extend(received.drain(..));
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(None) => {}
                Ok(Some(limit)) => return self.close(limit),
                Err(panic) => {
                    self.poisoned(panic.as_ref());
                    continue;
                }
            }
            if let Some(started) = self.started.take() {
                started.give(Ok(()));
            }
            self.wait();
        }
    }

    /// Everything there is to do now; the limit if the engine is to be closed.
    fn turn(&mut self) -> Option<Duration> {
        self.supervisor.clear_results();
        while let Some(command) = self.commands.pop_front() {
            if let Command::Close { limit } = command {
                return Some(limit);
            }
            self.command(command);
        }
        while let Some(change) = self.supervisor.advance(self.epoch) {
            self.change(change);
        }
        let retired = self.retire();
        self.collect_masks();
        self.expire();
        self.expire_masks();
        self.launch(retired);
        // The masks of what was launched: computed while it runs, and nobody waited for the threads to be woken.
        self.follow_grammars();
        // Whoever hears of an event finds it in the statistics.
        self.publish_snapshot();
        self.tell();
        None
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Abort(request) => {
                if let (Some(core), Some(live)) = (&mut self.core, self.live.get(&request)) {
                    live.abort(core);
                } else if let Some(index) = self
                    .early
                    .iter()
                    .position(|early| early.open.number == request)
                {
                    drop(self.early.remove(index));
                    self.say(TextMessage::Aborted(request));
                }
            }
            // They are collected in every turn.
            Command::Masks => {}
            Command::Acks(acks) => {
                for verdict in acks {
                    let live = self.live.get(&verdict.request);
                    if let (Some(core), Some(live)) = (&mut self.core, live) {
                        let handle = live.handle(verdict.choice);
                        let checked = (verdict.checked, verdict.stop_at);
                        let taken = core.text_ack(handle, checked, now_ns());
                        assert!(taken.is_ok(), "{verdict:?}: {taken:?}");
                    }
                }
            }
            Command::Ask(question, slot) => self.supervisor.ask(&question, slot),
            Command::Explain(request, slot) => slot.give(Ok(self.explain(request))),
            Command::KvEvents { from, limit, slot } => slot.give(self.kv_events(from, limit)),
            Command::KvSnapshot(slot) => slot.give(self.kv_snapshot()),
            Command::Close { .. } => unreachable!("the turn ends with it"),
        }
    }

    fn submit(&mut self, submission: Submission) {
        if let Some(problem) = self.supervisor.hopeless() {
            return self.fail(submission.open.number, problem);
        }
        let Some(core) = &mut self.core else {
            self.early.push(submission);
            return;
        };
        let Submission {
            open,
            request,
            grammar: _,
            compiled,
            answers,
            shown,
            times,
        } = submission;
        if open.aborted.load(Ordering::Acquire) {
            return self.say(TextMessage::Aborted(open.number));
        }
        let prompt_tokens = request.prompt.len() as u32;
        let prompt_ids = open
            .params
            .return_prompt_ids
            .then(|| request.prompt.clone());
        let stop_ids = request.stop_ids.clone();
        self.submitting = Some(open.number);
        let submitted = core.submit(request, now_ns());
        let panic_at = self.shared.options.test_faults.panic_at_submission;
        assert!(
            panic_at != Some(open.number),
            "test_faults.panic_at_submission asked for this panic"
        );
        self.submitting = None;
        match submitted {
            Ok(handle) => {
                self.live
                    .insert(open.number, Live::new(core, handle, &open));
                if let Some(compiled) = compiled {
                    self.followers.add(&open, &stop_ids, compiled);
                    let known = core.mask_ready(handle, 0, now_ns());
                    assert!(known.is_ok(), "request {}: {known:?}", open.number);
                }
                if open.params.explain {
                    self.explained.insert(open.number);
                }
                let accepted = AcceptedStream {
                    open,
                    answers,
                    shown,
                    stop_ids,
                    prompt_tokens,
                    prompt_ids,
                    times,
                };
                self.say(TextMessage::Accepted(Box::new(accepted)));
            }
            Err(error) => self.fail(open.number, refusal(&error)),
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Ready(ready) => {
                if self.core.is_none() {
                    self.core_config.num_blocks = ready.num_blocks;
                    match self.new_core() {
                        Ok(core) => self.core = Some(core),
                        Err(error) => return self.unusable(&error),
                    }
                }
                // Whoever is told that the worker is ready may look at once.
                self.publish_snapshot();
                self.shared.ready.give(Ok(ready));
                for submission in std::mem::take(&mut self.early) {
                    self.submit(submission);
                }
            }
            Change::Ended(mut link, end) => {
                if end.served && link.epoch() == self.epoch {
                    if end.trusted {
                        self.retire_from(&mut link);
                    }
                    self.worker_lost();
                }
                self.after_end(&end);
            }
            Change::NotStarted(end) => self.after_end(&end),
        }
    }

    fn worker_lost(&mut self) {
        if let Some(core) = &mut self.core {
            let lost = core.worker_lost(self.epoch, now_ns());
            assert!(lost.is_ok(), "{lost:?}");
        }
        self.epoch += 1;
    }

    fn after_end(&mut self, end: &End) {
        if self.core.is_none() && !end.served && self.supervisor.num_blocks().is_none() {
            let error = EngineError::Start {
                class: end.class.clone(),
                message: end.message.clone(),
            };
            self.supervisor.stop(error.to_string());
            self.shared.ready.give(Err(error));
        }
        if let Some(problem) = self.supervisor.hopeless() {
            self.tell();
            self.fail_all(&problem);
        }
    }

    /// The worker's description and the limits make no core.
    pub(super) fn unusable(&mut self, error: &Error) {
        let error = EngineError::Start {
            class: "ConfigError".to_owned(),
            message: error.to_string(),
        };
        self.supervisor.close(Duration::ZERO);
        self.supervisor.stop(error.to_string());
        self.fail_all(&Problem::new(FailureKind::WorkerFailed, error.to_string()));
        self.shared.ready.give(Err(error));
    }

    pub(super) fn say(&self, message: TextMessage) {
        // The text thread is closed after this one.
        let _ = self.shared.text.push(message);
    }

    pub(super) fn fail(&self, request: u64, problem: Problem) {
        self.say(TextMessage::Fail { request, problem });
    }

    pub(super) fn fail_all(&mut self, problem: &Problem) {
        self.publish_snapshot();
        let early = std::mem::take(&mut self.early);
        let early = early.iter().map(|submission| submission.open.number);
        let live = std::mem::take(&mut self.live);
        self.explained.clear();
        self.followers.clear();
        let requests: Vec<(u64, Option<Live>)> = live
            .into_iter()
            .map(|(request, live)| (request, Some(live)))
            .chain(early.map(|request| (request, None)))
            .collect();
        if let Some(request) = self.submitting.take() {
            self.fail(request, problem.clone());
        }
        for (request, live) in requests {
            if let (Some(core), Some(live)) = (&mut self.core, live) {
                live.abort(core);
            }
            self.fail(request, problem.clone());
        }
    }

    fn wait(&self) {
        let (mut descriptors, writable, until) = self.supervisor.waits();
        descriptors.push(self.shared.commands.signal().as_fd());
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = timeout.into_iter().chain(self.until_late());
        let timeout = timeout.chain(self.until_overdue()).min();
        os::poll(&descriptors, writable, timeout);
    }

    fn close(mut self, limit: Duration) {
        self.tell();
        let closed = Problem::new(FailureKind::EngineClosed, "the engine was closed");
        self.fail_all(&closed);
        self.shared.commands.close();
        let mut rest = Vec::new();
        self.shared.commands.take(&mut rest);
        for command in self.commands.drain(..).chain(rest) {
            match command {
                Command::Submit(submission) => {
                    let _ = self.shared.text.push(TextMessage::Fail {
                        request: submission.open.number,
                        problem: closed.clone(),
                    });
                }
                Command::Ask(_, slot) => slot.give(Err(EngineError::Closed("the engine"))),
                Command::Explain(_, slot) => slot.give(Err(EngineError::Closed("the engine"))),
                Command::KvEvents { slot, .. } => {
                    slot.give(Err(EngineError::Closed("the engine")));
                }
                Command::KvSnapshot(slot) => slot.give(Err(EngineError::Closed("the engine"))),
                Command::Abort(_) | Command::Acks(_) | Command::Masks | Command::Close { .. } => {}
            }
        }
        self.shared
            .ready
            .give(Err(EngineError::Closed("the engine")));
        self.supervisor.close(limit);
        self.core = None;
        self.publish_snapshot();
        // What is left of it is written before anybody is told that the engine is closed.
        self.event_log = None;
    }
}
