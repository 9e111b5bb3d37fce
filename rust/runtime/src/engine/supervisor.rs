//! Starts the worker, notices its end, starts another.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::EngineError;
use crate::arena::{Outcome, Outcomes};
use crate::control::{HostMessage, WorkerMessage, decode};
use crate::engine::Ready;
use crate::engine::link::Link;
use crate::engine::worker_state::{Change, End, Hello, Look, State};
use crate::frame::FailureKind;
use crate::layout::{Capacities, LAYOUT_VERSION};
use crate::messages::Problem;
use crate::shared::{Shared, Slot, lock};
use crate::stats::Restart;

/// Start-ups that may fail in a row before open requests are failed.
const PATIENCE: u32 = 5;

/// Waiting time before the second restart without a retired step in between; doubles from there.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// Longest waiting time before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Supervisor {
    shared: Arc<Shared>,
    capacities: Capacities,
    state: State,
    num_blocks: Option<u32>,
    failed_starts: u32,
    /// Whether a worker came that cannot take the place of the one before.
    is_unfit: bool,
    restarts_without_step: u32,
    measured: Restart,
    pub(super) restarts: u64,
    pub(super) last_restart: Option<Restart>,
    pub(super) last_error: Option<String>,
    questions: VecDeque<Arc<Slot<Vec<u8>>>>,
    /// Where an inline worker's end of the socket is left for [`crate::Engine::inline_port`].
    inline: Arc<Mutex<Option<OwnedFd>>>,
}

impl Supervisor {
    pub(super) fn new(
        shared: Arc<Shared>,
        capacities: Capacities,
        inline: Arc<Mutex<Option<OwnedFd>>>,
    ) -> Self {
        Self {
            shared,
            capacities,
            state: State::Waiting(Instant::now()),
            num_blocks: None,
            failed_starts: 0,
            is_unfit: false,
            restarts_without_step: 0,
            measured: Restart::default(),
            restarts: 0,
            last_restart: None,
            last_error: None,
            questions: VecDeque::new(),
            inline,
        }
    }

    /// The worker, if it takes steps.
    pub(super) fn running(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            State::Running(link) => Some(link),
            _ => None,
        }
    }

    /// To be called before looking for results, so that none is slept over.
    pub(super) fn clear_results(&self) {
        if let State::Running(link) | State::Resetting { link, .. } = &self.state {
            link.clear_results();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Blocks of the worker's pool, once known.
    pub(super) fn num_blocks(&self) -> Option<u32> {
        self.num_blocks
    }

    pub(super) fn process_id(&self) -> Option<u32> {
        match &self.state {
            State::Starting { link, .. } | State::Running(link) => link.process_id(),
            _ => None,
        }
    }

    /// Why requests cannot be computed now or soon, if so.
    pub(super) fn hopeless(&self) -> Option<Problem> {
        match &self.state {
            State::Stopped(why) => Some(Problem::new(FailureKind::WorkerFailed, why.clone())),
            State::Running(_) => None,
            _ if self.failed_starts >= PATIENCE || self.is_unfit && self.failed_starts > 0 => {
                let why = format!(
                    "the worker cannot be started (failed starts in a row: {}), last: {}",
                    self.failed_starts,
                    self.last_error.as_deref().unwrap_or("unknown")
                );
                Some(Problem::new(FailureKind::WorkerDied, why))
            }
            _ => None,
        }
    }

    /// Whether the worker that is being collected or reset has computed steps of `epoch`.
    pub(super) fn has_served(&self, epoch: u64) -> bool {
        match &self.state {
            State::Dying(link, end) => end.served && link.epoch() == epoch,
            State::Resetting { link, .. } => link.epoch() == epoch,
            _ => false,
        }
    }

    /// What to wait for, where a message waits for room, and until when.
    pub(super) fn waits(&self) -> (Vec<BorrowedFd<'_>>, Option<BorrowedFd<'_>>, Option<Instant>) {
        match &self.state {
            State::Stopped(_) => (Vec::new(), None, None),
            State::Waiting(until) => (Vec::new(), None, Some(*until)),
            State::Starting { link, began, .. } => {
                let deadline = *began + self.start_limit();
                (link.descriptors(), link.writable(), Some(deadline))
            }
            State::Running(link) | State::Resetting { link, .. } => {
                (link.descriptors(), link.writable(), None)
            }
            State::Dying(link, _) => (vec![link.end_descriptor()], None, None),
        }
    }

    fn start_limit(&self) -> Duration {
        Duration::from_secs_f64(self.shared.options.worker.start_timeout_s.min(1e9))
    }

    /// Looks at everything that may have happened to the worker. To be called until it gives nothing.
    pub(super) fn advance(&mut self, epoch: u64) -> Option<Change> {
        loop {
            let stopped = State::Stopped(String::new());
            let (state, look) = match std::mem::replace(&mut self.state, stopped) {
                State::Waiting(until) if Instant::now() >= until => self.start(epoch),
                State::Starting { link, began, hello } => self.starting(link, began, hello),
                State::Running(link) => self.running_worker(link),
                State::Resetting { link, asked } => self.resetting(link, asked, epoch),
                State::Dying(link, end) => self.dying(link, end),
                unchanged => (unchanged, Look::Done(None)),
            };
            self.state = state;
            if let Look::Done(change) = look {
                return change;
            }
        }
    }

    fn start(&mut self, epoch: u64) -> (State, Look) {
        let began = Instant::now();
        match Link::start(&self.shared, self.capacities, epoch) {
            Ok((link, inline)) => {
                *lock(&self.inline) = inline;
                self.measured.spawn = began.elapsed();
                let state = State::Starting {
                    link: Box::new(link),
                    began: Instant::now(),
                    hello: None,
                };
                (state, Look::Again)
            }
            Err(error) => {
                let end = End::new("WorkerStartError", error.to_string(), false);
                self.note_failed_start(&end);
                let state = self.wait_to_restart();
                (state, Look::Done(Some(Change::NotStarted(end))))
            }
        }
    }

    fn starting(
        &mut self,
        mut link: Box<Link>,
        began: Instant,
        hello: Option<Hello>,
    ) -> (State, Look) {
        let failed = |class: &str, why: String| End::new(class, why, false);
        let end = match link.message() {
            Ok(Some(WorkerMessage::Hello {
                layout_version,
                info,
            })) => match self.check_hello(layout_version, &info) {
                Ok(hello) => {
                    let hello = Some(hello);
                    return (State::Starting { link, began, hello }, Look::Again);
                }
                Err(why) => failed("WorkerStartError", why),
            },
            Ok(Some(WorkerMessage::Ready { info })) => match (hello, decode(&info)) {
                (Some(hello), Ok(timings)) => return self.ready(link, began, hello, timings),
                (None, _) => failed("ProtocolError", "it was ready before hello".to_owned()),
                (_, Err(error)) => failed("ProtocolError", format!("its ready: {error}")),
            },
            Ok(Some(WorkerMessage::Failed { class, message })) => failed(&class, message),
            Ok(Some(WorkerMessage::Reply { name, .. })) => {
                failed("ProtocolError", format!("it answered {name} before ready"))
            }
            Ok(None) if began.elapsed() >= self.start_limit() => {
                let limit = self.start_limit();
                failed(
                    "WorkerStartTimeout",
                    format!("it was not ready after {limit:?}"),
                )
            }
            Ok(None) if link.process_has_ended() => {
                failed("WorkerDied", "it ended while it was starting".to_owned())
            }
            Ok(None) => return (State::Starting { link, began, hello }, Look::Done(None)),
            Err(error) => failed("WorkerDied", error.to_string()),
        };
        (self.kill(link, end), Look::Again)
    }

    fn running_worker(&mut self, mut link: Box<Link>) -> (State, Look) {
        let end = match link.message() {
            Ok(Some(WorkerMessage::Reply { payload, .. })) => {
                if let Some(slot) = self.questions.pop_front() {
                    slot.give(Ok(payload));
                }
                return (State::Running(link), Look::Again);
            }
            Ok(Some(WorkerMessage::Failed { class, message })) => End::new(&class, message, true),
            Ok(Some(WorkerMessage::Hello { .. } | WorkerMessage::Ready { .. })) => {
                End::new("ProtocolError", "it said hello or ready again", true)
            }
            Ok(None) if link.process_has_ended() => End::new("WorkerDied", "it ended", true),
            Ok(None) => return (State::Running(link), Look::Done(None)),
            Err(error) => End::new("WorkerDied", error.to_string(), true),
        };
        (self.kill(link, end), Look::Again)
    }

    fn resetting(&mut self, mut link: Box<Link>, asked: bool, epoch: u64) -> (State, Look) {
        let mut discarded = Outcomes::default();
        loop {
            match link.take_result(&mut discarded).1 {
                Outcome::Rows { .. } => {}
                Outcome::Pending => break,
                Outcome::Raised { class, message } => {
                    let end = End::new(&class, message, true);
                    return (self.kill(link, end), Look::Again);
                }
                Outcome::Garbage(why) => {
                    let end = End::new("GarbageResult", why, true);
                    return (self.kill(link, end), Look::Again);
                }
            }
        }
        if !asked && !link.in_flight() {
            // A broken socket is noticed at the next look.
            let _ = link.reset(epoch);
            return (State::Resetting { link, asked: true }, Look::Again);
        }
        let end = match link.message() {
            Ok(Some(WorkerMessage::Reply { name, .. })) if name == "reset" => {
                return (State::Running(link), Look::Again);
            }
            // The answer to a question of before.
            Ok(Some(WorkerMessage::Reply { .. })) => {
                return (State::Resetting { link, asked }, Look::Again);
            }
            Ok(None) => return (State::Resetting { link, asked }, Look::Done(None)),
            Ok(Some(_)) => End::new("ProtocolError", "it did not answer reset", true),
            Err(error) => End::new("WorkerDied", error.to_string(), true),
        };
        (self.kill(link, end), Look::Again)
    }

    fn dying(&mut self, mut link: Box<Link>, mut end: End) -> (State, Look) {
        if !link.ended_within(Duration::ZERO) {
            return (State::Dying(link, end), Look::Done(None));
        }
        end.message = format!("{} ({})", end.message, link.reap());
        self.measured.detect = end.noticed.elapsed();
        if end.served {
            self.last_error = Some(format!("{}: {}", end.class, end.message));
        } else {
            self.note_failed_start(&end);
        }
        let state = if link.is_replaceable() {
            self.wait_to_restart()
        } else {
            State::Stopped(format!(
                "the inline worker has ended ({}: {}) and cannot be replaced: start a new engine",
                end.class, end.message
            ))
        };
        (state, Look::Done(Some(Change::Ended(link, end))))
    }

    fn check_hello(&mut self, layout_version: u32, info: &[u8]) -> Result<Hello, String> {
        if layout_version != LAYOUT_VERSION {
            return Err(format!(
                "it speaks layout {layout_version}, the host {LAYOUT_VERSION}: install one version of diptych-core for both"
            ));
        }
        let info: Value = decode(info).map_err(|error| format!("its hello: {error}"))?;
        let num_blocks = info.get("num_blocks").and_then(Value::as_u64);
        let num_blocks = num_blocks
            .and_then(|blocks| u32::try_from(blocks).ok())
            .ok_or_else(|| "its hello has no num_blocks".to_owned())?;
        match self.num_blocks {
            Some(before) if before != num_blocks => {
                // Waiting would not help the requests that are open.
                self.is_unfit = true;
                Err(format!(
                    "it has {num_blocks} KV blocks, the worker before had {before}: set kv_cache_bytes so that restarts plan the same pool"
                ))
            }
            _ => Ok(Hello {
                said: Instant::now(),
                info,
                num_blocks,
            }),
        }
    }

    fn ready(
        &mut self,
        link: Box<Link>,
        began: Instant,
        hello: Hello,
        timings: Value,
    ) -> (State, Look) {
        if self.num_blocks.is_some() {
            self.measured.hello = hello.said - began;
            self.measured.ready = hello.said.elapsed();
            self.last_restart = Some(self.measured);
            self.restarts += 1;
        }
        self.num_blocks = Some(hello.num_blocks);
        self.failed_starts = 0;
        self.is_unfit = false;
        let ready = Ready {
            num_blocks: hello.num_blocks,
            hello: hello.info,
            timings,
        };
        (State::Running(link), Look::Done(Some(Change::Ready(ready))))
    }

    /// Ends the running worker because of what it did or because of a bug of ours.
    pub(super) fn end_running(&mut self, class: &str, message: String, trusted: bool) {
        match std::mem::replace(&mut self.state, State::Stopped(String::new())) {
            State::Running(link) => {
                let mut end = End::new(class, message, true);
                end.trusted = trusted;
                self.state = self.kill(link, end);
            }
            unchanged => self.state = unchanged,
        }
    }

    /// Takes the running worker out of an epoch whose core is lost: by its end, or if it cannot be replaced, by a reset.
    pub(super) fn renew(&mut self, why: &str) {
        match std::mem::replace(&mut self.state, State::Stopped(String::new())) {
            State::Running(link) if !link.is_replaceable() => {
                self.drop_questions();
                self.state = State::Resetting { link, asked: false };
            }
            unchanged => {
                self.state = unchanged;
                self.end_running("EnginePanicked", why.to_owned(), false);
            }
        }
    }

    fn kill(&mut self, link: Box<Link>, end: End) -> State {
        link.kill();
        self.drop_questions();
        State::Dying(link, end)
    }

    fn drop_questions(&mut self) {
        for slot in self.questions.drain(..) {
            slot.give(Err(EngineError::Closed("the worker's control socket")));
        }
    }

    fn note_failed_start(&mut self, end: &End) {
        self.failed_starts += 1;
        self.last_error = Some(format!("{}: {}", end.class, end.message));
    }

    fn wait_to_restart(&mut self) -> State {
        let backoff = match self.restarts_without_step {
            0 => Duration::ZERO,
            doublings => (FIRST_BACKOFF * 2_u32.pow((doublings - 1).min(16))).min(LONGEST_BACKOFF),
        };
        self.restarts_without_step = self.restarts_without_step.saturating_add(1);
        self.measured.backoff = backoff;
        State::Waiting(Instant::now() + backoff)
    }

    /// A step has retired: the worker works.
    pub(super) fn step_retired(&mut self) {
        self.restarts_without_step = 0;
    }

    /// Starts no worker any more.
    pub(super) fn stop(&mut self, why: String) {
        self.state = State::Stopped(why);
    }

    /// Sends a question; the answer, or why there is none, goes into `slot`.
    pub(super) fn ask(&mut self, question: &HostMessage, slot: Arc<Slot<Vec<u8>>>) {
        let Some(link) = self.running() else {
            slot.give(Err(EngineError::Closed("the worker's control socket")));
            return;
        };
        // A broken socket is noticed at the next look, which fails the question.
        let _ = link.send(question);
        self.questions.push_back(slot);
    }

    /// Ends the worker, by force after `limit`, and starts none any more.
    pub(super) fn close(&mut self, limit: Duration) {
        let closed = State::Stopped("the engine is closed".to_owned());
        let (mut link, asked) = match std::mem::replace(&mut self.state, closed) {
            State::Running(mut link) => {
                let asked = link.send(&HostMessage::Shutdown).is_ok();
                (link, asked)
            }
            State::Starting { link, .. }
            | State::Resetting { link, .. }
            | State::Dying(link, _) => (link, false),
            State::Stopped(_) | State::Waiting(_) => return,
        };
        drop(lock(&self.inline).take());
        for slot in self.questions.drain(..) {
            slot.give(Err(EngineError::Closed("the engine")));
        }
        if !(asked && link.leaves_before(Instant::now() + limit)) {
            link.kill();
        }
        link.reap();
    }
}
