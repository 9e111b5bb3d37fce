//! The engine's face: everything here may be called from any thread.

mod event_log;
mod grammars;
mod lateness;
mod link;
mod live;
mod logged_core;
mod poison;
pub(crate) mod questions;
mod refusal;
mod steps;
mod supervisor;
mod thread;
mod worker_state;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use diptych_core::config::HashMode;
use diptych_core::scoring::MOST_SCORING_ROWS;
use diptych_core::{Core, CoreConfig};
use diptych_text::{AnswerFormats, ChatTemplate, TextError, Tokenizer};

use crate::control::HostMessage;
use crate::engine::event_log::EventLog;
pub(crate) use crate::engine::event_log::EventLogStatus;
use crate::engine::thread::EngineThread;
use crate::frame::FailureKind;
use crate::grammar::{MASK_THREADS, run_clerk, run_masks};
use crate::layout::{Capacities, SCORING_WORDS};
use crate::messages::{Command, Problem, TextMessage};
use crate::options::{EngineOptions, WorkerKind};
use crate::params::Params;
use crate::prompts::{PromptJob, longest_prompt, run_job, run_prompts};
use crate::shared::{Owner, Shared, Slot, Texts, lock};
use crate::text::run_text;
use crate::urgency::tenant_number;
use crate::worker::{Port, PortError};
use crate::{EngineError, FrameQueue, Prompt, os, stats};

/// Time that a dropped engine gives its worker to leave.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Longest time that closing waits, so that the end of the wait is a moment that the clock knows.
const LONGEST_LIMIT: Duration = Duration::from_secs(1 << 32);

/// What the worker said when it had started.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Ready {
    /// KV blocks of the worker, the null block included.
    pub num_blocks: u32,
    /// The worker's description of itself.
    pub hello: serde_json::Value,
    /// Seconds of its start-up.
    pub timings: serde_json::Value,
}

/// A running engine. All calls may come from any thread; in a forked child they fail with [`EngineError::Forked`].
#[derive(Debug)]
pub struct Engine {
    owner: Owner,
    /// Until the engine is closed; its statistics remain.
    shared: Mutex<Result<Arc<Shared>, Vec<u8>>>,
    threads: Mutex<Option<Threads>>,
    inline: Arc<Mutex<Option<OwnedFd>>>,
    is_inline: bool,
    seeds: RandomState,
}

#[derive(Debug)]
struct Threads {
    prompts: Vec<JoinHandle<()>>,
    clerk: JoinHandle<()>,
    masks: Vec<JoinHandle<()>>,
    engine: JoinHandle<()>,
    text: JoinHandle<()>,
}

impl Engine {
    /// Starts the threads and the worker. Returns when the worker is ready; with an inline worker at once (see [`Engine::inline_port`]).
    ///
    /// # Errors
    /// [`EngineError::Options`], [`EngineError::Start`], [`EngineError::System`].
    pub fn start(options_json: &[u8]) -> Result<Self, EngineError> {
        let engine = Self::launch(options_json)?;
        if !engine.is_inline {
            // When this fails, dropping the engine gives everything back.
            engine.wait_ready()?;
        }
        Ok(engine)
    }

    /// Starts the threads and begins to start the worker; [`Engine::wait_ready`] says how that went, and closing the engine ends it at once.
    ///
    /// # Errors
    /// [`EngineError::Options`], [`EngineError::System`].
    pub fn launch(options_json: &[u8]) -> Result<Self, EngineError> {
        let options = EngineOptions::from_json(options_json)?;
        let capacities = Capacities::new(&options.limits, options.vocabulary)?;
        let core_config = core_config(&options, capacities)?;
        let texts = texts(&options)?;
        let event_log = options.event_log.as_ref().map(EventLog::create);
        let event_log = event_log.transpose()?;
        let is_inline = options.worker.kind == WorkerKind::Inline;
        let shared = Arc::new(Shared::new(options, texts)?);
        let inline = Arc::new(Mutex::new(None));
        let started = Arc::new(Slot::new());
        let thread = EngineThread::new(
            Arc::clone(&shared),
            (core_config, event_log),
            capacities,
            Arc::clone(&inline),
            Arc::clone(&started),
        );
        let threads = Threads::start(&shared, thread)
            .map_err(|error| EngineError::system("starting a thread", error))?;
        let engine = Self {
            owner: shared.owner,
            shared: Mutex::new(Ok(shared)),
            threads: Mutex::new(Some(threads)),
            inline,
            is_inline,
            seeds: RandomState::new(),
        };
        started.wait()?;
        Ok(engine)
    }

    fn shared(&self) -> Result<Arc<Shared>, EngineError> {
        self.owner.check()?;
        let shared = lock(&self.shared);
        let shared = shared
            .as_ref()
            .map_err(|_| EngineError::Closed("the engine"))?;
        Ok(Arc::clone(shared))
    }

    /// Waits until the worker is ready for the first time.
    ///
    /// # Errors
    /// [`EngineError::Start`] if it fails to, [`EngineError::Closed`] if the engine is closed meanwhile.
    pub fn wait_ready(&self) -> Result<Ready, EngineError> {
        self.shared()?.ready.wait()
    }

    /// As [`Engine::wait_ready`]; `None` if it takes longer than `limit`.
    ///
    /// # Errors
    /// Those of [`Engine::wait_ready`].
    pub fn ready_within(&self, limit: Duration) -> Result<Option<Ready>, EngineError> {
        self.shared()?.ready.wait_for(limit).transpose()
    }

    /// The port of an inline worker, once. To be called before the worker's thread starts; [`Port::next`] is the thread's whole life.
    ///
    /// # Errors
    /// [`PortError`] if the port cannot be opened.
    pub fn inline_port(&self) -> Result<Option<Port>, PortError> {
        let Some(socket) = lock(&self.inline).take() else {
            return Ok(None);
        };
        let (port, _host) = Port::from_socket(socket)?;
        Ok(Some(port))
    }

    /// A new queue for the frames of one reader.
    ///
    /// # Errors
    /// [`EngineError::System`] without a free descriptor, [`EngineError::Closed`].
    pub fn frame_queue(&self) -> Result<Arc<FrameQueue>, EngineError> {
        let shared = self.shared()?;
        let queue = FrameQueue::new(shared.next_queue(), self.owner, Arc::downgrade(&shared))?;
        Ok(Arc::new(queue))
    }

    /// Takes a request and returns its number. `arrived_ns` is the time of [`crate::now_ns`] at which it arrived.
    ///
    /// # Errors
    /// [`EngineError::InvalidRequest`] for parameters that are no JSON of the agreed shape or out of range, [`EngineError::Closed`].
    pub fn submit(
        &self,
        queue: &Arc<FrameQueue>,
        prompt: Prompt,
        params_json: &[u8],
        arrived_ns: u64,
    ) -> Result<u64, EngineError> {
        let shared = self.shared()?;
        let params = Params::from_json(params_json, shared.options.vocabulary)?;
        let max_running = shared.options.limits.max_running;
        if params.n > max_running {
            return Err(EngineError::InvalidRequest(format!(
                "n is {}: the outputs of one prompt run together, and at most max_running = {max_running} do",
                params.n
            )));
        }
        if shared.closed.load(Ordering::Acquire) {
            return Err(EngineError::Closed("the engine"));
        }
        // Ids without stop strings need no work worth another thread.
        let is_ready = matches!(prompt, Prompt::Tokens(_)) && params.stop.is_empty();
        let (open, problem) = shared.register(queue, params, arrived_ns);
        let number = open.number;
        if let Some(problem) = problem {
            shared.fail_prompt(&open, problem);
            return Ok(number);
        }
        let job = PromptJob {
            seed: self.seeds.hash_one(number),
            open: Arc::clone(&open),
            prompt,
        };
        if is_ready {
            run_job(&shared, job);
        } else if shared.prompts.push(job).is_err() {
            shared.fail_prompt(&open, closed());
        }
        Ok(number)
    }

    /// Ends a request in whatever state it is; an unknown or finished number is ignored.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn abort(&self, request: u64) -> Result<(), EngineError> {
        match self.shared() {
            Ok(shared) => {
                if let Some(open) = shared.find(request) {
                    shared.abort(&open);
                }
                Ok(())
            }
            Err(EngineError::Closed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gauges, counters and histograms as a JSON object; after the engine was closed, the last ones.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn stats_json(&self) -> Result<Vec<u8>, EngineError> {
        self.owner.check()?;
        match lock(&self.shared).as_ref() {
            Ok(shared) => Ok(statistics(shared)),
            Err(last) => Ok(last.clone()),
        }
    }

    /// Asks the worker to describe itself: a msgpack map of its own making. Waits until a step is over.
    ///
    /// # Errors
    /// [`EngineError::Closed`] if no worker runs or it ends meanwhile.
    pub fn worker_stats(&self) -> Result<Vec<u8>, EngineError> {
        self.ask(|slot| Command::Ask(HostMessage::Stats, slot))
    }

    /// Why a request goes or went as it did (of several outputs, the first), as a JSON object; `None` for one that the core has never had or has
    /// forgotten since it ended.
    /// Waits for the engine thread, which answers while a step runs.
    ///
    /// # Errors
    /// [`EngineError::Closed`], [`EngineError::Forked`].
    pub fn explain_json(&self, request: u64) -> Result<Option<Vec<u8>>, EngineError> {
        let explanation = self.ask(|slot| Command::Explain(request, slot))?;
        Ok(explanation.map(|explanation| to_json(&explanation)))
    }

    /// At most `limit` KV events from number `from` on, as a JSON object with `core`, `next` and `events`. The numbers begin again with
    /// another `core`, after a panic of the one before.
    ///
    /// # Errors
    /// [`EngineError::InvalidRequest`] if they are not kept, [`EngineError::Closed`], [`EngineError::Forked`].
    pub fn kv_events_json(&self, from: u64, limit: usize) -> Result<Vec<u8>, EngineError> {
        let told = self.ask(|slot| Command::KvEvents { from, limit, slot })?;
        told.map(|told| to_json(&told))
            .map_err(|error| EngineError::InvalidRequest(error.to_string()))
    }

    /// Every block that a prefix lookup can find, as a JSON object with `core`, `next` (the number of the next event) and `blocks`.
    ///
    /// # Errors
    /// [`EngineError::Closed`], [`EngineError::Forked`].
    pub fn kv_snapshot_json(&self) -> Result<Vec<u8>, EngineError> {
        Ok(to_json(&self.ask(Command::KvSnapshot)?))
    }

    fn ask<T: Clone>(
        &self,
        question: impl FnOnce(Arc<Slot<T>>) -> Command,
    ) -> Result<T, EngineError> {
        let slot = Arc::new(Slot::new());
        let question = question(Arc::clone(&slot));
        if self.shared()?.commands.push(question).is_err() {
            return Err(EngineError::Closed("the engine"));
        }
        slot.wait()
    }

    /// Process id of the worker, if it is a process and runs.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        let shared = self.shared().ok()?;
        lock(&shared.snapshot).worker_pid
    }

    /// Fails what is open, ends the worker within `limit`, gives every thread and descriptor back. Closing again does nothing; a call
    /// meanwhile waits. In a forked child nothing happens.
    pub fn close(&self, limit: Duration) {
        if self.owner.check().is_err() {
            return;
        }
        let mut threads = lock(&self.threads);
        let Some(threads) = threads.take() else {
            return;
        };
        if let Ok(shared) = self.shared() {
            shared.closed.store(true, Ordering::Release);
            threads.end(&shared, limit.min(LONGEST_LIMIT));
            let last = statistics(&shared);
            *lock(&self.shared) = Err(last);
            drop(lock(&self.inline).take());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close(DROP_LIMIT);
        // Left in a forked child only: handles of threads that do not exist there.
        if let Ok(mut threads) = self.threads.try_lock() {
            std::mem::forget(threads.take());
        }
    }
}

impl Threads {
    fn start(shared: &Arc<Shared>, engine: EngineThread) -> std::io::Result<Self> {
        let of = |life: fn(&Shared)| {
            let shared = Arc::clone(shared);
            move || life(&shared)
        };
        let spawn = || -> std::io::Result<Self> {
            let text = os::spawn_thread("diptych-text", of(run_text))?;
            let long = |shared: &Shared| run_prompts(shared, true);
            let short = |shared: &Shared| run_prompts(shared, false);
            let prompts = vec![
                os::spawn_thread("diptych-prompt", of(long))?,
                os::spawn_thread("diptych-prompt", of(short))?,
            ];
            let clerk = os::spawn_thread("diptych-grammar", of(run_clerk))?;
            let masks = (0..MASK_THREADS).map(|number| {
                let shared = Arc::clone(shared);
                os::spawn_thread("diptych-mask", move || run_masks(&shared, number))
            });
            let masks = masks.collect::<std::io::Result<_>>()?;
            let engine = os::spawn_thread("diptych-engine", move || engine.run())?;
            Ok(Self {
                prompts,
                clerk,
                masks,
                engine,
                text,
            })
        };
        spawn().inspect_err(|_| {
            // Those that were started leave.
            shared.prompts.close();
            shared.grammars.close();
            shared.grammars.masks.close();
            let _ = shared.text.push(TextMessage::Close);
        })
    }

    /// Ends the threads in the order in which work flows.
    fn end(self, shared: &Shared, limit: Duration) {
        for job in shared.prompts.close() {
            shared.fail_prompt(&job.open, closed());
        }
        for thread in self.prompts {
            join(thread);
        }
        shared.grammars.close();
        join(self.clerk);
        let _ = shared.commands.push(Command::Close { limit });
        join(self.engine);
        shared.grammars.masks.close();
        for thread in self.masks {
            join(thread);
        }
        let _ = shared.text.push(TextMessage::Close);
        join(self.text);
    }
}

fn join(thread: JoinHandle<()>) {
    let name = thread.thread().name().map(ToOwned::to_owned);
    let ended = thread.join();
    debug_assert!(ended.is_ok(), "thread {name:?} panicked");
}

fn closed() -> Problem {
    Problem::new(FailureKind::EngineClosed, "the engine was closed")
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers, names and lists are JSON")
}

fn statistics(shared: &Shared) -> Vec<u8> {
    let snapshot = lock(&shared.snapshot).clone();
    let statistics = lock(&shared.statistics).clone();
    stats::to_json(
        &snapshot,
        &statistics,
        shared.open_requests(),
        shared.options.limits.target_itl_ns,
    )
}

/// The core's configuration but for the number of blocks, which the worker says; everything else is checked now.
fn core_config(options: &EngineOptions, capacities: Capacities) -> Result<CoreConfig, EngineError> {
    let limits = &options.limits;
    let config = CoreConfig {
        block_size: limits.block_size,
        num_blocks: 2,
        max_running: limits.max_running,
        max_batched_tokens: limits.max_batched_tokens,
        max_prefill_tokens: limits.max_prefill_tokens,
        prefill_tile: limits.prefill_tile,
        target_itl_ns: limits.target_itl_ns,
        max_model_len: limits.max_model_len,
        // The number of open requests is bounded when they are registered, prompts that are being tokenised included; requests that the
        // text side has ended may stay in the core a little longer.
        max_queued_requests: u32::MAX,
        max_queued_tokens: limits.max_queued_tokens,
        max_ttft_ns: limits.max_ttft_ms.map(|limit| (limit * 1e6) as u64),
        prefill_order: limits.prefill_order,
        tenant_weights: limits
            .tenant_weights
            .iter()
            .map(|(name, weight)| (tenant_number(Some(name)), (weight * 1e3).round() as u32))
            .collect(),
        overlap_depth: limits.overlap_depth,
        prefix_cache: limits.prefix_cache,
        side_words: capacities.side_words - SCORING_WORDS * MOST_SCORING_ROWS,
        vocabulary: options.vocabulary,
        hash: HashMode::Keyed(RandomState::new().hash_one("prefix index")),
        eviction: limits.eviction()?,
        kv_events: limits.kv_events,
        admission: limits.admission(),
    };
    Core::new(config.clone(), 1)
        .map_err(|error| EngineError::Options(error.to_string()))
        .map(|_| config)
}

fn texts(options: &EngineOptions) -> Result<Texts, EngineError> {
    let folder = &options.model_folder;
    let refused = |error: TextError| EngineError::Options(error.to_string());
    let tokenizer = Tokenizer::from_folder(folder).map_err(refused)?;
    let template = ChatTemplate::from_folder(folder).map_err(refused)?;
    let formats = AnswerFormats::choose(
        &options.tool_call_parser,
        &options.reasoning_parser,
        template.as_ref(),
    )
    .map_err(refused)?;
    Ok(Texts {
        prompt_bytes: longest_prompt(&tokenizer, options.limits.max_model_len),
        template,
        formats,
        mark_ids: formats.mark_ids(&tokenizer.table()),
        tokenizer,
    })
}
