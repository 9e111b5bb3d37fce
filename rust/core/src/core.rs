//! The state machine itself: what it is made of, and its face.

use crate::account::Accounts;
use crate::beam::Groups;
use crate::cache::Cache;
use crate::dedupe::Dedupe;
use crate::explanation::Explanation;
use crate::forecast::Forecast;
use crate::fork::Unforked;
use crate::kv_events::{KvEvent, KvEventsError, KvSnapshot};
use crate::latency::{Latency, LatencyModel};
use crate::launches::{Launch, Launches, StateRows};
use crate::running::RunningQueue;
use crate::slab::Slab;
use crate::suspects::Suspects;
use crate::waiting::{Deadlines, PromptRate, Waiting};
use crate::{CoreConfig, Error, Event, FinishReason, Handle, Request, Stats, StepPlan, StepResult};

/// Owner of every request, every block and the prefix index. One thread calls it.
///
/// `now` is nanoseconds of a monotonic clock. Equal calls with equal times give equal plans. Targets
/// for the gap between tokens, deadlines, the age of what waits and the pace by which overload is
/// told depend on it.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) config: CoreConfig,
    pub(crate) epoch: u64,
    /// Last planned step.
    pub(crate) step: u64,
    /// Binary logarithm of the block size.
    pub(crate) block_shift: u32,
    pub(crate) arrivals: u64,
    pub(crate) requests: Slab,
    pub(crate) waiting: Waiting,
    pub(crate) deadlines: Deadlines,
    pub(crate) prompt_rate: PromptRate,
    pub(crate) running: RunningQueue,
    pub(crate) cache: Cache,
    pub(crate) rows: StateRows,
    pub(crate) launches: Launches,
    pub(crate) latency: Latency,
    pub(crate) suspects: Suspects,
    pub(crate) forecast: Forecast,
    pub(crate) dedupe: Dedupe,
    /// Choices whose prompt is still computed by the first one.
    pub(crate) unforked: Unforked,
    /// Beams that are searched together.
    pub(crate) groups: Groups,
    /// Running requests that use the side arena.
    pub(crate) side_users: u32,
    /// Admissions keep a reserve of blocks up to this step: something was preempted recently.
    pub(crate) reserve_until: u64,
    pub(crate) plan: StepPlan,
    /// The step that `plan` is being filled for.
    pub(crate) draft: Launch,
    pub(crate) scratch: Scratch,
    pub(crate) events: Vec<Event>,
    pub(crate) counters: Stats,
    pub(crate) accounts: Accounts,
}

/// Buffers that live for one call and are kept for their capacity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) slots: Vec<u32>,
    pub(crate) window: Vec<u32>,
    pub(crate) side: Vec<(u64, u64, u32)>,
}

/// Steps of prompt tokens that a tenant may be served more than another and still go before it.
const LEAD_STEPS: u32 = 4;

/// The lead, in weighted tokens: never more than the pool holds.
fn lead(config: &CoreConfig) -> u32 {
    let steps = config.max_batched_tokens.saturating_mul(LEAD_STEPS);
    steps.min(config.num_blocks.saturating_mul(config.block_size))
}

impl Core {
    /// Builds a core in epoch `epoch`.
    ///
    /// # Errors
    /// [`Error::Config`] names the first field that cannot work.
    pub fn new(config: CoreConfig, epoch: u64) -> Result<Self, Error> {
        crate::validate::config(&config)?;
        Ok(Self {
            epoch,
            step: 0,
            block_shift: config.block_size.trailing_zeros(),
            unforked: Unforked::default(),
            groups: Groups::default(),
            side_users: 0,
            arrivals: 0,
            requests: Slab::default(),
            waiting: Waiting::new(config.tenant_weights.clone(), lead(&config)),
            deadlines: Deadlines::default(),
            prompt_rate: PromptRate::default(),
            running: RunningQueue::default(),
            cache: Cache::new(&config),
            rows: StateRows::new(config.max_running),
            launches: Launches::default(),
            latency: Latency::default(),
            suspects: Suspects::default(),
            forecast: Forecast::new(&config),
            dedupe: Dedupe::default(),
            reserve_until: 0,
            plan: StepPlan::default(),
            draft: Launch::default(),
            scratch: Scratch::default(),
            events: Vec::new(),
            counters: Stats::default(),
            accounts: Accounts::new(config.max_running),
            config,
        })
    }

    /// Queues a request and returns the handle of its first choice; [`Core::choice`] has the
    /// others. Its events carry `request.submission`.
    ///
    /// # Errors
    /// Everything that can be said now: see [`Error`].
    pub fn submit(&mut self, mut request: Request, now: u64) -> Result<Handle, Error> {
        self.cache.now = now;
        crate::validate::request(&request, &self.config)?;
        request.target_itl_ns = request.target_itl_ns.or(self.config.target_itl_ns);
        self.enqueue(request, now)
    }

    /// Handle of choice `index` of the request whose first choice is `first`. Known until the
    /// prompt is computed: to be asked for after [`Core::submit`].
    #[must_use]
    pub fn choice(&self, first: Handle, index: u32) -> Option<Handle> {
        let slot = self.requests.resolve(first)?;
        if index == 0 {
            return Some(first);
        }
        let mut others = self.requests[slot].unforked.iter();
        let is_it = |&&slot: &&u32| self.requests[slot].choice() == index;
        others.find(is_it).map(|&slot| self.requests.handle(slot))
    }

    /// Ends a choice in whatever state it is; an unknown or finished handle is ignored. As long as
    /// the first choice computes the prompt for the others, they end with it; beams end together.
    pub fn abort(&mut self, handle: Handle, now: u64) {
        self.cache.now = now;
        if let Some(slot) = self.requests.resolve(handle) {
            self.finish(slot, FinishReason::Aborted);
        }
    }

    /// The text side searched the first `checked` output tokens; `stop_at` (a token count ≤
    /// `checked`) is where a stop string completed: the request ends there, what was sampled
    /// after it is discarded. A finished handle is ignored.
    ///
    /// # Errors
    /// [`Error::TextAck`].
    pub fn text_ack(
        &mut self,
        handle: Handle,
        checked: u32,
        stop_at: Option<u32>,
    ) -> Result<(), Error> {
        match self.requests.resolve(handle) {
            Some(slot) => self.acknowledge(slot, checked, stop_at),
            None => Ok(()),
        }
    }

    /// The mask of output `index` is known: what is planned from now on can be drawn under it. An earlier
    /// one's is a repetition; a finished handle is ignored. The first output has the same mask in all choices:
    /// as long as the first choice computes the prompt for the others, it is told for them as well.
    ///
    /// # Errors
    /// [`Error::Mask`].
    pub fn mask_ready(&mut self, handle: Handle, index: u32) -> Result<(), Error> {
        self.know_mask(handle, index)
    }

    /// Plans and thereby launches the next step, after it has ended what is past its deadline.
    /// `None`: nothing can be computed now, or `overlap_depth` + 1 steps are unretired, or a running
    /// row needs the token that it is sampling (it has penalties or a mask), and the step waits for that
    /// rather than leave it behind.
    pub fn plan(&mut self, now: u64) -> Option<&StepPlan> {
        self.cache.now = now;
        self.plan_step(now).then_some(&self.plan)
    }

    /// Retires the oldest launched step.
    ///
    /// # Errors
    /// [`Error::StaleResult`], [`Error::ResultRows`].
    pub fn complete(&mut self, result: &StepResult<'_>, now: u64) -> Result<(), Error> {
        self.cache.now = now;
        self.complete_step(result, now)
    }

    /// The worker of `epoch` is gone and reaped. Every unfinished row is queued again at its
    /// arrival key; the core is in `epoch + 1`. Step numbers go on.
    ///
    /// # Errors
    /// [`Error::WorkerLost`].
    pub fn worker_lost(&mut self, epoch: u64, kv_kept: bool, now: u64) -> Result<(), Error> {
        if epoch != self.epoch || kv_kept {
            return Err(Error::WorkerLost {
                epoch,
                kv_kept,
                current: self.epoch,
            });
        }
        self.cache.now = now;
        self.lose_worker();
        Ok(())
    }

    /// Makes every later prefix lookup miss; live rows keep their blocks.
    pub fn reset_prefix_cache(&mut self) {
        self.cache.forget_all();
        let mut running = std::mem::take(&mut self.scratch.slots);
        running.clear();
        running.extend(self.running.slots());
        for &slot in &running {
            self.requests[slot].cacheable = false;
            self.drop_frontier(slot);
        }
        self.scratch.slots = running;
    }

    /// Moves the events since the last call to the end of `into`.
    pub fn take_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    /// Why an open choice went as it did so far; `None` for a handle whose choice has ended.
    #[must_use]
    pub fn explain(&self, handle: Handle, now: u64) -> Option<Explanation> {
        let slot = self.requests.resolve(handle)?;
        let account = &self.requests[slot].account;
        Some(self.accounts.explain(account, now))
    }

    /// As [`Self::explain`] for this choice of the newest request of this number in which it has
    /// ended. The last 64 to 1,024 (as many as `max_running`) are remembered.
    #[must_use]
    pub fn explain_ended(&self, submission: u64, choice: u32) -> Option<Explanation> {
        self.accounts.explain_ended((submission, choice))
    }

    /// Appends at most `limit` KV events from number `from` on; returns the number to go on from.
    ///
    /// # Errors
    /// [`KvEventsError`]: without a ring, or when these events are not in it.
    pub fn kv_events(
        &self,
        from: u64,
        limit: usize,
        into: &mut Vec<KvEvent>,
    ) -> Result<u64, KvEventsError> {
        self.cache.events.read(from, limit, into)
    }

    /// Every block that a prefix lookup can find now, and the number of the event that comes next.
    #[must_use]
    pub fn kv_snapshot(&self) -> KvSnapshot {
        self.cache.snapshot()
    }

    /// What this core has learnt about the duration of steps.
    #[must_use]
    pub fn latency(&self) -> &LatencyModel {
        &self.latency.model
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let achieved = &self.latency.achieved;
        let [itl_p50_ns, itl_p99_ns] = achieved.quantiles([500, 990]);
        let blocks = self.cache.pool.len() - 1;
        Stats {
            running: self.running.len() as u32 + self.unforked.running,
            waiting: self.num_waiting(),
            waiting_tokens: self.waiting.tokens(),
            blocks,
            used_blocks: blocks - self.cache.pool.allocatable(),
            cached_blocks: self.cache.pool.cached(),
            itl_p50_ns,
            itl_p99_ns,
            paced_tokens: achieved.paced,
            late_tokens: achieved.late,
            ..self.counters
        }
    }

    pub(crate) fn num_waiting(&self) -> u32 {
        self.waiting.len() + self.dedupe.len() as u32 + self.unforked.waiting
    }

    /// Recomputes every invariant from scratch.
    ///
    /// # Errors
    /// The first violation in words.
    pub fn check_all(&self) -> Result<(), String> {
        crate::check::all(self)
    }

    /// Hashes all that can influence later behaviour, and nothing that only counts: two cores
    /// with equal fingerprints answer equal calls equally, up to step and epoch numbers.
    pub fn fingerprint(&self, hasher: &mut impl std::hash::Hasher) {
        crate::fingerprint::write(self, hasher);
    }
}
