//! `diptych_core.engine`: the host's face of the runtime.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::frame::Frame;
use crate::worker::Port;

/// An engine with its worker. Construction starts the worker and blocks, without the GIL, until it has answered, or
/// with `wait=False` until it is being started.
#[pyclass(frozen, module = "diptych_core.engine")]
pub(crate) struct Engine(runtime::Engine);

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (options, *, wait = true))]
    fn new(py: Python<'_>, options: &[u8], wait: bool) -> PyResult<Self> {
        let start = if wait {
            runtime::Engine::start
        } else {
            runtime::Engine::launch
        };
        py.detach(|| start(options))
            .map(Self)
            .map_err(|error| errors::engine(py, &error))
    }

    /// JSON of what the worker said when it had started: `num_blocks`, `hello`, `timings`.
    fn wait_ready<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let ready = py
            .detach(|| self.0.wait_ready())
            .map_err(|error| errors::engine(py, &error))?;
        ready_json(py, &ready)
    }

    /// As `wait_ready`; `None` if it takes longer than `limit_s`.
    fn ready_within<'py>(
        &self,
        py: Python<'py>,
        limit_s: f64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let limit = duration(limit_s)?;
        let ready = py
            .detach(|| self.0.ready_within(limit))
            .map_err(|error| errors::engine(py, &error))?;
        ready.map(|ready| ready_json(py, &ready)).transpose()
    }

    fn inline_port(&self, py: Python<'_>) -> PyResult<Option<Port>> {
        let port = py
            .detach(|| self.0.inline_port())
            .map_err(|error| errors::port(&error))?;
        Ok(port.map(Port::from))
    }

    fn frame_queue(&self, py: Python<'_>) -> PyResult<FrameQueue> {
        self.0
            .frame_queue()
            .map(FrameQueue)
            .map_err(|error| errors::engine(py, &error))
    }

    #[pyo3(signature = (queue, prompt, params, arrived_ns, *, chat = false))]
    fn submit(
        &self,
        queue: &Bound<'_, FrameQueue>,
        prompt: &Bound<'_, PyAny>,
        params: &[u8],
        arrived_ns: u64,
        chat: bool,
    ) -> PyResult<u64> {
        let prompt = read_prompt(prompt, chat)?;
        let submitted = self.0.submit(&queue.get().0, prompt, params, arrived_ns);
        submitted.map_err(|error| errors::engine(queue.py(), &error))
    }

    fn abort(&self, py: Python<'_>, request: u64) -> PyResult<()> {
        self.0
            .abort(request)
            .map_err(|error| errors::engine(py, &error))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let json = self
            .0
            .stats_json()
            .map_err(|error| errors::engine(py, &error))?;
        Ok(PyBytes::new(py, &json))
    }

    fn explain<'py>(&self, py: Python<'py>, request: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let explanation = py
            .detach(|| self.0.explain_json(request))
            .map_err(|error| errors::engine(py, &error))?;
        Ok(explanation.map(|json| PyBytes::new(py, &json)))
    }

    fn kv_events<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        limit: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let events = py
            .detach(|| self.0.kv_events_json(start, limit))
            .map_err(|error| errors::engine(py, &error))?;
        Ok(PyBytes::new(py, &events))
    }

    fn kv_snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let snapshot = py
            .detach(|| self.0.kv_snapshot_json())
            .map_err(|error| errors::engine(py, &error))?;
        Ok(PyBytes::new(py, &snapshot))
    }

    fn worker_pid(&self) -> Option<u32> {
        self.0.worker_pid()
    }

    fn close(&self, py: Python<'_>, limit_s: f64) -> PyResult<()> {
        let limit = duration(limit_s)?;
        py.detach(|| self.0.close(limit));
        Ok(())
    }
}

fn ready_json<'py>(py: Python<'py>, ready: &runtime::Ready) -> PyResult<Bound<'py, PyBytes>> {
    let json =
        serde_json::to_vec(ready).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &json))
}

fn read_prompt(prompt: &Bound<'_, PyAny>, chat: bool) -> PyResult<runtime::Prompt> {
    if let Ok(text) = prompt.extract::<String>() {
        return Ok(if chat {
            runtime::Prompt::Chat(text)
        } else {
            runtime::Prompt::Text(text)
        });
    }
    if chat {
        return Err(PyTypeError::new_err(
            "with chat=True, prompt must be the request as a JSON string",
        ));
    }
    prompt.extract::<Vec<u32>>().map(runtime::Prompt::Tokens)
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        PyValueError::new_err(format!("{seconds} is not a time in seconds: {error}"))
    })
}

/// Frames of the requests of one event loop. Its descriptor is readable while frames wait.
#[pyclass(frozen, module = "diptych_core.engine")]
pub(crate) struct FrameQueue(Arc<runtime::FrameQueue>);

#[pymethods]
impl FrameQueue {
    fn fileno(&self) -> i32 {
        self.0.fd()
    }

    fn drain(&self, py: Python<'_>) -> PyResult<Vec<Frame>> {
        let mut frames = Vec::new();
        self.0
            .drain(&mut frames)
            .map_err(|error| errors::engine(py, &error))?;
        frames
            .into_iter()
            .map(|frame| Frame::new(py, frame))
            .collect()
    }

    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = duration(timeout_s)?;
        py.detach(|| self.0.wait(timeout))
            .map_err(|error| errors::engine(py, &error))
    }

    fn close(&self) {
        self.0.close();
    }
}
