//! The state machine itself.

use crate::{CoreConfig, Error, Event, Handle, Request, Stats, StepPlan, StepResult};

/// Owner of every request, every block and the prefix index. One thread calls it.
#[derive(Clone, Debug)]
pub struct Core {
    config: CoreConfig,
}

impl Core {
    /// Builds a core in epoch `epoch`.
    ///
    /// # Errors
    /// [`Error::Config`] names the first field that cannot work.
    pub fn new(config: CoreConfig, epoch: u64) -> Result<Self, Error> {
        let _ = epoch;
        Ok(Self { config })
    }

    /// Queues a request. Its events carry `request.submission`.
    ///
    /// # Errors
    /// Everything that can be said now: see [`Error`].
    pub fn submit(&mut self, request: Request, now: u64) -> Result<Handle, Error> {
        let _ = (request, now, &self.config);
        unreachable!("under construction")
    }

    /// Ends a request in whatever state it is; an unknown or finished handle is ignored.
    pub fn abort(&mut self, handle: Handle, now: u64) {
        let _ = (handle, now);
        unreachable!("under construction")
    }

    /// The text side searched the first `checked` output tokens; `stop_at` (a token count ≤ `checked`) is where a stop string completed.
    /// A finished handle is ignored.
    ///
    /// # Errors
    /// [`Error::TextAck`].
    pub fn text_ack(
        &mut self,
        handle: Handle,
        checked: u32,
        stop_at: Option<u32>,
    ) -> Result<(), Error> {
        let _ = (handle, checked, stop_at);
        unreachable!("under construction")
    }

    /// Plans and thereby launches the next step, or nothing. `now` in nanoseconds, monotonic.
    pub fn plan(&mut self, now: u64) -> Option<&StepPlan> {
        let _ = now;
        unreachable!("under construction")
    }

    /// Retires the oldest launched step.
    ///
    /// # Errors
    /// [`Error::StaleResult`], [`Error::ResultRows`].
    pub fn complete(&mut self, result: &StepResult<'_>, now: u64) -> Result<(), Error> {
        let _ = (result, now);
        unreachable!("under construction")
    }

    /// The worker of `epoch` is gone and reaped. Every unfinished row is queued again at its arrival key; the core is in `epoch + 1`.
    ///
    /// # Errors
    /// [`Error::WorkerLost`].
    pub fn worker_lost(&mut self, epoch: u64, kv_kept: bool, now: u64) -> Result<(), Error> {
        let _ = (epoch, kv_kept, now);
        unreachable!("under construction")
    }

    /// Makes every later prefix lookup miss; live rows keep their blocks.
    pub fn reset_prefix_cache(&mut self) {
        unreachable!("under construction")
    }

    /// Moves the events since the last call to the end of `into`.
    pub fn take_events(&mut self, into: &mut Vec<Event>) {
        let _ = into;
        unreachable!("under construction")
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        unreachable!("under construction")
    }

    /// Recomputes every invariant from scratch.
    ///
    /// # Errors
    /// The first violation in words.
    pub fn check_all(&self) -> Result<(), String> {
        unreachable!("under construction")
    }
}
