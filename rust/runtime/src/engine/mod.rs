//! The engine's face.

use std::sync::Arc;
use std::time::Duration;

use crate::worker::Port;
use crate::{EngineError, FrameQueue, Prompt};

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
pub struct Engine {}

impl Engine {
    /// Starts the threads and the worker. Returns when the worker is ready; with an inline worker at once (see [`Engine::inline_port`]).
    ///
    /// # Errors
    /// [`EngineError::Options`], [`EngineError::Start`], [`EngineError::System`].
    pub fn start(options_json: &[u8]) -> Result<Self, EngineError> {
        let options = crate::EngineOptions::from_json(options_json)?;
        Err(EngineError::Options(format!(
            "{:?} is under construction",
            options.worker.kind
        )))
    }

    /// Waits until the worker is ready for the first time.
    ///
    /// # Errors
    /// [`EngineError::Start`] if it fails to, [`EngineError::Closed`] if the engine is closed meanwhile.
    pub fn wait_ready(&self) -> Result<Ready, EngineError> {
        Err(EngineError::Closed("the engine"))
    }

    /// The port of an inline worker, once.
    #[must_use]
    pub fn inline_port(&self) -> Option<Port> {
        None
    }

    /// A new queue for the frames of one reader.
    ///
    /// # Errors
    /// [`EngineError::System`] without a free descriptor, [`EngineError::Closed`].
    pub fn frame_queue(&self) -> Result<Arc<FrameQueue>, EngineError> {
        Err(EngineError::Closed("the engine"))
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
        let _ = (queue, prompt, params_json, arrived_ns);
        Err(EngineError::Closed("the engine"))
    }

    /// Ends a request in whatever state it is; an unknown or finished number is ignored.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn abort(&self, request: u64) -> Result<(), EngineError> {
        let _ = request;
        Ok(())
    }

    /// Gauges, counters and histograms as a JSON object.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn stats_json(&self) -> Result<Vec<u8>, EngineError> {
        Ok(Vec::new())
    }

    /// Process id of the worker, if it is a process and runs.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        None
    }

    /// Fails what is open, ends the worker within `limit`, gives every thread and descriptor back. Closing again does nothing.
    pub fn close(&self, limit: Duration) {
        let _ = limit;
    }
}
