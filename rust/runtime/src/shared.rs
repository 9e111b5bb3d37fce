//! What the threads of one engine share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use diptych_text::{AnswerFormats, ChatTemplate, GrammarCompiler, Tokenizer};

use crate::engine::Ready;
use crate::frame::{Done, FailureKind, FinishReason, Finished, Frame, Timings};
use crate::grammar::Grammars;
use crate::mailbox::Mailbox;
use crate::messages::{Command, Problem, Submission, TextMessage};
use crate::options::{EngineOptions, Limits};
use crate::params::Params;
use crate::stats::{Snapshot, Statistics};
use crate::{EngineError, FrameQueue};

/// The process that started the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn this_process() -> Self {
        Self(std::process::id())
    }

    /// # Errors
    /// [`EngineError::Forked`] in any other process.
    pub(crate) fn check(self) -> Result<(), EngineError> {
        let pid = std::process::id();
        if pid == self.0 {
            return Ok(());
        }
        Err(EngineError::Forked { pid, owner: self.0 })
    }
}

/// A request from its submission to its last frame.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) number: u64,
    pub(crate) queue: Arc<FrameQueue>,
    pub(crate) params: Params,
    pub(crate) arrived: u64,
    /// The core's number of the tenant.
    tenant: u64,
    /// Who may end the request: see [`Stage`].
    stage: AtomicU8,
    pub(crate) aborted: AtomicBool,
    /// Choices without their last frame.
    unfinished: AtomicU32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its prompt waits for or is being turned into ids; an abort ends it on the spot.
    Prompt = 0,
    /// The engine thread has it or will find it in its mailbox; an abort is a command to that thread.
    Core = 1,
    /// Ended in the prompt stage.
    Ended = 2,
}

impl Open {
    pub(crate) fn new(number: u64, queue: Arc<FrameQueue>, params: Params, arrived: u64) -> Self {
        Self {
            number,
            queue,
            tenant: params.tenant_number(),
            unfinished: AtomicU32::new(params.n),
            params,
            arrived,
            stage: AtomicU8::new(Stage::Prompt as u8),
            aborted: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_left_prompt(&self) -> bool {
        self.stage.load(Ordering::Acquire) != Stage::Prompt as u8
    }

    /// Leaves the prompt stage; false if somebody else has done so.
    fn leave_prompt(&self, next: Stage) -> bool {
        let (from, to) = (Stage::Prompt as u8, next as u8);
        let moved = self
            .stage
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        moved.is_ok()
    }
}

/// A value that one thread gives and others wait for.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    value: Mutex<Option<Result<T, EngineError>>>,
    given: Condvar,
}

impl<T: Clone> Slot<T> {
    pub(crate) fn new() -> Self {
        Self {
            value: Mutex::new(None),
            given: Condvar::new(),
        }
    }

    /// Gives the value; only the first counts.
    pub(crate) fn give(&self, value: Result<T, EngineError>) {
        lock(&self.value).get_or_insert(value);
        self.given.notify_all();
    }

    pub(crate) fn wait(&self) -> Result<T, EngineError> {
        let mut value = lock(&self.value);
        loop {
            if let Some(value) = value.as_ref() {
                return value.clone();
            }
            value = self
                .given
                .wait(value)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`Self::wait`]; `None` if it takes longer than `limit`.
    pub(crate) fn wait_for(&self, limit: Duration) -> Option<Result<T, EngineError>> {
        let value = lock(&self.value);
        let (value, _) = self
            .given
            .wait_timeout_while(value, limit, |value| value.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        value.clone()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Everything behind these locks is replaced or added to in single assignments, so a panic elsewhere leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that more than one thread of an engine touches.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) owner: Owner,
    pub(crate) options: EngineOptions,
    pub(crate) commands: Mailbox<Command>,
    pub(crate) text: Mailbox<TextMessage>,
    pub(crate) prompts: crate::prompts::PromptJobs,
    pub(crate) texts: Texts,
    pub(crate) grammars: Grammars,
    pub(crate) namespaces: crate::namespaces::Namespaces,
    pub(crate) ready: Slot<Ready>,
    pub(crate) statistics: Mutex<Statistics>,
    pub(crate) snapshot: Mutex<Snapshot>,
    pub(crate) closed: AtomicBool,
    registry: Mutex<Registry>,
    queues: AtomicU64,
}

/// The model's tokenizer, its chat template, and how its answers are read.
pub(crate) struct Texts {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) formats: AnswerFormats,
    /// Special tokens that are marks of those formats.
    pub(crate) mark_ids: Vec<u32>,
    /// Longest prompt in bytes that is tokenised.
    pub(crate) prompt_bytes: usize,
}

impl std::fmt::Debug for Texts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Texts")
            .field("vocabulary", &self.tokenizer.vocabulary())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    /// Outputs that the open requests ask for.
    choices: usize,
    open: HashMap<u64, Arc<Open>>,
    /// Those of each tenant that has a name and any.
    tenants: HashMap<u64, usize>,
}

/// How many times as many outputs as there is room for others a tenant may have open: one that is
/// alone fills four fifths of the room (dynamic thresholds: Choudhury and Hahne, 1998).
const TENANT_SHARE: usize = 4;

impl Registry {
    fn insert(&mut self, open: Arc<Open>) {
        let choices = open.params.n as usize;
        self.choices += choices;
        if open.tenant != 0 {
            *self.tenants.entry(open.tenant).or_default() += choices;
        }
        self.open.insert(open.number, open);
    }

    fn remove(&mut self, request: u64) -> Option<Arc<Open>> {
        let open = self.open.remove(&request)?;
        let choices = open.params.n as usize;
        self.choices -= choices;
        if let Some(count) = self.tenants.get_mut(&open.tenant) {
            *count -= choices;
            if *count == 0 {
                self.tenants.remove(&open.tenant);
            }
        }
        Some(open)
    }

    /// Why no more outputs of a tenant are taken.
    fn refusal(&self, tenant: u64, limits: &Limits) -> Option<Problem> {
        let limit = limits.max_running as usize + limits.max_queued_requests as usize;
        let open = self.choices;
        let own = self.tenants.get(&tenant).copied().unwrap_or(0);
        let (kind, message) = if open >= limit {
            let message = format!(
                "{open} outputs are open, at most {limit} may be (max_running {} + max_queued_requests {}): retry later",
                limits.max_running, limits.max_queued_requests
            );
            (FailureKind::QueueFull, message)
        } else if own > 0 && own >= TENANT_SHARE * (limit - open) {
            let message = format!(
                "{own} outputs of this tenant are open, and the rest of the room for {limit} is kept for others: retry later"
            );
            (FailureKind::TenantQueueFull, message)
        } else {
            return None;
        };
        let problem = Problem::new(kind, message)
            .with("open_requests", open)
            .with("max_running", limits.max_running)
            .with("max_queued_requests", limits.max_queued_requests);
        Some(problem)
    }
}

impl Shared {
    pub(crate) fn new(options: EngineOptions, texts: Texts) -> Result<Self, EngineError> {
        let signal =
            || crate::os::EventFd::new().map_err(|error| EngineError::system("eventfd", error));
        let compiler = GrammarCompiler::new(
            texts.tokenizer.table(),
            options.vocabulary,
            &options.eos_ids,
        );
        let grammars = Grammars::new(compiler);
        Ok(Self {
            owner: Owner::this_process(),
            options,
            commands: Mailbox::new(signal()?),
            text: Mailbox::new(signal()?),
            prompts: crate::prompts::PromptJobs::new(),
            grammars,
            texts,
            namespaces: crate::namespaces::Namespaces::default(),
            ready: Slot::new(),
            statistics: Mutex::new(Statistics::new()),
            snapshot: Mutex::new(Snapshot::default()),
            closed: AtomicBool::new(false),
            registry: Mutex::new(Registry::default()),
            queues: AtomicU64::new(0),
        })
    }

    pub(crate) fn next_queue(&self) -> u64 {
        self.queues.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a request under the next number; with a problem if too many are open.
    pub(crate) fn register(
        &self,
        queue: &Arc<FrameQueue>,
        params: Params,
        arrived: u64,
    ) -> (Arc<Open>, Option<Problem>) {
        let mut registry = lock(&self.registry);
        let number = registry.next;
        registry.next += 1;
        let open = Arc::new(Open::new(number, Arc::clone(queue), params, arrived));
        let problem = registry.refusal(open.tenant, &self.options.limits);
        registry.insert(Arc::clone(&open));
        (open, problem)
    }

    pub(crate) fn open_requests(&self) -> usize {
        lock(&self.registry).open.len()
    }

    pub(crate) fn find(&self, request: u64) -> Option<Arc<Open>> {
        lock(&self.registry).open.get(&request).cloned()
    }

    /// Ends a choice with its last frame, and with the last of them or a failure the request. Whoever comes second does nothing.
    pub(crate) fn finish(&self, mut frame: Frame, done: Done) {
        let mut registry = lock(&self.registry);
        let Some(open) = registry.open.get(&frame.request).cloned() else {
            return;
        };
        let ends = matches!(done, Done::Failed(_));
        if ends || open.unfinished.fetch_sub(1, Ordering::Relaxed) == 1 {
            registry.remove(frame.request);
            lock(&self.statistics).done(&done);
        }
        drop(registry);
        frame.done = Some(done);
        open.queue.add(frame);
    }

    /// Gives a request whose prompt is known to the engine thread, by way of whoever compiles its grammar.
    pub(crate) fn hand_on(&self, submission: Box<Submission>) {
        if submission.grammar.is_none() {
            return self.hand_to_core(submission);
        }
        if let Err(submission) = self.grammars.compile(submission) {
            let closed = Problem::new(FailureKind::EngineClosed, "the engine was closed");
            self.fail_prompt(&submission.open, closed);
        }
    }

    /// Moves a request from the prompt stage to the engine thread, unless it was ended meanwhile.
    pub(crate) fn hand_to_core(&self, submission: Box<Submission>) {
        let open = Arc::clone(&submission.open);
        if !open.leave_prompt(Stage::Core) {
            return;
        }
        if self.commands.push(Command::Submit(submission)).is_err() {
            let closed = Problem::new(FailureKind::EngineClosed, "the engine was closed");
            self.fail(&open, closed);
        }
    }

    /// Fails a request in the prompt stage, unless it was ended meanwhile.
    pub(crate) fn fail_prompt(&self, open: &Open, problem: Problem) {
        if open.leave_prompt(Stage::Ended) {
            self.fail(open, problem);
        }
    }

    fn fail(&self, open: &Open, problem: Problem) {
        let timings = Timings {
            arrived: open.arrived,
            ..Timings::default()
        };
        let failure = problem.failure(timings, 0, 0);
        self.finish(empty_frame(open.number, 0), Done::Failed(failure));
    }

    /// Ends a request by its caller's wish.
    pub(crate) fn abort(&self, open: &Open) {
        if open.leave_prompt(Stage::Ended) {
            return self.finish_aborted(open);
        }
        // In this order: a submission that the engine thread finds after this command sees the flag.
        open.aborted.store(true, Ordering::Release);
        // A closed engine has ended the request.
        let _ = self.commands.push(Command::Abort(open.number));
    }

    /// The last frames of a request that was aborted before the core had it.
    pub(crate) fn finish_aborted(&self, open: &Open) {
        for choice in 0..open.params.n {
            let finished = Done::Finished(aborted_prompt(open));
            self.finish(empty_frame(open.number, choice), finished);
        }
    }

    /// Aborts everything that was submitted with one queue.
    pub(crate) fn abort_queue(&self, queue: u64) {
        let of_queue: Vec<Arc<Open>> = lock(&self.registry)
            .open
            .values()
            .filter(|open| open.queue.id() == queue)
            .cloned()
            .collect();
        for open in of_queue {
            self.abort(&open);
        }
    }
}

/// A frame without content.
pub(crate) fn empty_frame(request: u64, choice: u32) -> Frame {
    Frame {
        request,
        choice,
        ..Frame::default()
    }
}

fn aborted_prompt(open: &Open) -> Finished {
    Finished {
        reason: FinishReason::Abort,
        stop_string: None,
        stop_token: None,
        prompt_tokens: 0,
        completion_tokens: 0,
        cached_tokens: 0,
        mean_logprob: None,
        reasoning_tokens: None,
        timings: Timings {
            arrived: open.arrived,
            finished: crate::now_ns(),
            ..Timings::default()
        },
        preemptions: 0,
        events: Vec::new(),
    }
}
