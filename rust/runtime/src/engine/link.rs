//! One incarnation of the worker as the host sees it: its arenas, its control socket and what it runs in.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use diptych_core::StepPlan;

use crate::arena::{Drawn, HostArenas, Outcome, Outcomes, Overflow};
use crate::control::{
    ControlError, ControlSocket, HostMessage, Init, WorkerMessage, decode, encode,
};
use crate::layout::{Capacities, LAYOUT_VERSION};
use crate::options::{EngineOptions, WorkerKind};
use crate::os::{self, EventFd, Process};
use crate::shared::Shared;
use crate::worker::{Port, run_scripted};

/// A worker between its start and its end.
#[derive(Debug)]
pub(super) struct Link {
    epoch: u64,
    arenas: HostArenas,
    control: ControlSocket,
    doorbell: EventFd,
    results: EventFd,
    body: Body,
}

/// What a worker runs in.
#[derive(Debug)]
enum Body {
    Process(Process),
    Thread(Option<JoinHandle<()>>),
    /// A thread of the host's; the socket's other end until its port is asked for.
    Inline,
}

/// Why a worker could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("{0}")]
    Control(#[from] ControlError),
    #[error("cannot run {python}: {error}")]
    Spawn {
        python: String,
        error: std::io::Error,
    },
}

impl Link {
    /// Makes fresh arenas and starts a worker on them. An inline worker's end of the socket comes back.
    pub(super) fn start(
        shared: &Shared,
        capacities: Capacities,
        epoch: u64,
    ) -> Result<(Self, Option<OwnedFd>), StartError> {
        let options = &shared.options;
        let desk = Arc::clone(&shared.grammars.desk);
        let (arenas, memory) = HostArenas::create(capacities, options.vocabulary, desk)?;
        let (doorbell, results) = (EventFd::new()?, EventFd::new()?);
        let (ours, theirs) = os::socket_pair()?;
        let mut control = ControlSocket::new(ours);
        let host = os::open_process(std::process::id())?;
        let (doorbell_fd, results_fd) = (doorbell.try_clone()?, results.try_clone()?);
        let descriptors = [
            memory[0].as_fd(),
            memory[1].as_fd(),
            memory[2].as_fd(),
            doorbell_fd.as_fd(),
            results_fd.as_fd(),
            host.as_fd(),
        ];
        let init = encode(&init(options, capacities, epoch))?;
        control.send_first(&init, &descriptors)?;
        let (body, inline) = start_body(options, theirs)?;
        let link = Self {
            epoch,
            arenas,
            control,
            doorbell,
            results,
            body,
        };
        Ok((link, inline))
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn process_id(&self) -> Option<u32> {
        match &self.body {
            Body::Process(process) => Some(process.id()),
            Body::Thread(_) | Body::Inline => None,
        }
    }

    /// Whether another worker can take this one's place.
    pub(super) fn is_replaceable(&self) -> bool {
        !matches!(self.body, Body::Inline)
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut descriptors = vec![self.control.as_fd(), self.results.as_fd()];
        if let Body::Process(process) = &self.body {
            descriptors.push(process.as_fd());
        }
        descriptors
    }

    /// What to wait for once it was killed.
    pub(super) fn end_descriptor(&self) -> BorrowedFd<'_> {
        match &self.body {
            Body::Process(process) => process.as_fd(),
            Body::Thread(_) | Body::Inline => self.control.as_fd(),
        }
    }

    /// Where the rest of a message waits for room.
    pub(super) fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.control.is_sending().then(|| self.control.as_fd())
    }

    /// The worker's next message, if one is there.
    pub(super) fn message(&mut self) -> Result<Option<WorkerMessage>, ControlError> {
        self.control.flush()?;
        let message = self.control.receive(false)?;
        message.map(|message| decode(&message)).transpose()
    }

    pub(super) fn send(&mut self, message: &HostMessage) -> Result<(), ControlError> {
        self.control.send_later(&encode(message)?)
    }

    /// Publishes a plan with the masks that are known and rings. `at_once`: the step before has just retired.
    pub(super) fn launch<'a>(
        &mut self,
        plan: &StepPlan,
        at_once: bool,
        masks: impl Fn(Drawn) -> Option<&'a [u32]>,
    ) -> Result<(), Overflow> {
        self.arenas.write_plan(plan, at_once, masks)?;
        self.doorbell.raise();
        Ok(())
    }

    /// The result of the oldest launched step, with its number.
    pub(super) fn take_result(&mut self, into: &mut Outcomes) -> (u64, Outcome) {
        self.arenas.take_result(self.epoch, into)
    }

    /// How long the worker waited for the plan of the step that retired last, if there was something to plan.
    pub(super) fn gap_ns(&self) -> Option<u64> {
        self.arenas.gap_ns()
    }

    /// Whether a launched step has not retired.
    pub(super) fn in_flight(&self) -> bool {
        self.arenas.in_flight()
    }

    /// Whether the steps in flight leave it worth while to plan one more.
    pub(super) fn may_plan_ahead(&self) -> bool {
        self.arenas.may_plan_ahead()
    }

    /// Takes the worker, which computes nothing now, into another epoch; it answers when it is there.
    pub(super) fn reset(&mut self, epoch: u64) -> Result<(), ControlError> {
        self.arenas.reset();
        self.epoch = epoch;
        self.send(&HostMessage::Reset { epoch })
    }

    /// To be called before looking for results, so that none is slept over.
    pub(super) fn clear_results(&self) {
        self.results.clear();
    }

    /// Makes the worker end: a process at once, a thread when it next looks.
    pub(super) fn kill(&self) {
        match &self.body {
            Body::Process(process) => process.kill(),
            Body::Thread(_) | Body::Inline => self.control.shut_down(),
        }
    }

    /// Whether the worker ended within `timeout`. An inline worker has ended when its port is closed.
    pub(super) fn ended_within(&self, timeout: Duration) -> bool {
        match &self.body {
            Body::Process(process) => process.ended_within(timeout),
            Body::Thread(_) | Body::Inline => {
                os::poll_readable(&[self.control.as_fd()], Some(timeout))[0]
            }
        }
    }

    /// Whether it is a process that has ended.
    pub(super) fn process_has_ended(&self) -> bool {
        matches!(&self.body, Body::Process(process) if process.ended_within(Duration::ZERO))
    }

    /// Whether a worker that was asked to leave did so before `deadline`.
    pub(super) fn leaves_before(&mut self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.ended_within(left) {
                return false;
            }
            if matches!(self.body, Body::Process(_)) || self.message().is_err() {
                return true;
            }
        }
    }

    /// Collects a worker that has ended or was killed; says how it ended.
    pub(super) fn reap(&mut self) -> String {
        match &mut self.body {
            Body::Process(process) => {
                // Whatever it has started goes with it.
                process.kill();
                process.reap()
            }
            Body::Thread(thread) => match thread.take().map(JoinHandle::join) {
                Some(Err(_)) => "its thread panicked".to_owned(),
                Some(Ok(())) | None => "its thread ended".to_owned(),
            },
            Body::Inline => "its port was closed".to_owned(),
        }
    }
}

fn init(options: &EngineOptions, capacities: Capacities, epoch: u64) -> Init {
    let limits = &options.limits;
    Init {
        kind: options.worker.kind.as_str().to_owned(),
        layout_version: LAYOUT_VERSION,
        capacities,
        epoch,
        block_size: limits.block_size,
        max_running: limits.max_running,
        max_batched_tokens: limits.max_batched_tokens,
        max_prefill_tokens: limits.max_prefill_tokens,
        max_model_len: limits.max_model_len,
        vocabulary: options.vocabulary,
        options: options.worker.options.clone(),
    }
}

fn start_body(
    options: &EngineOptions,
    socket: OwnedFd,
) -> Result<(Body, Option<OwnedFd>), StartError> {
    let worker = &options.worker;
    match worker.kind {
        WorkerKind::Process | WorkerKind::Scripted => {
            let process = Process::spawn(&worker.python, &worker.environment_remove, socket)
                .map_err(|error| StartError::Spawn {
                    python: worker.python.clone(),
                    error,
                })?;
            Ok((Body::Process(process), None))
        }
        WorkerKind::ScriptedThread => {
            let thread = os::spawn_thread("diptych-scripted", move || run_thread(socket))?;
            Ok((Body::Thread(Some(thread)), None))
        }
        WorkerKind::Inline => Ok((Body::Inline, Some(socket))),
    }
}

fn run_thread(socket: OwnedFd) {
    // The host sees an error as the end of the connection, and the worker has said before what it was.
    let _ = Port::from_socket(socket).and_then(|(port, _)| run_scripted(&port));
}
