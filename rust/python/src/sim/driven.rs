//! The core by itself, driven by hand, and replays of event logs.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use diptych_core::{CoreConfig, Event, Handle, Request, RowStatus, StepPlan, StepResult};
use diptych_eventlog::PlanDigest;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Slot and generation.
type HandleParts = (u32, u32);

fn handle((slot, generation): HandleParts) -> Handle {
    Handle { slot, generation }
}

fn refused(error: &impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn read<T: DeserializeOwned>(json: &[u8]) -> PyResult<T> {
    serde_json::from_slice(json).map_err(|error| refused(&error))
}

fn json<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyBytes>> {
    let json = serde_json::to_vec(value).map_err(|error| refused(&error))?;
    Ok(PyBytes::new(py, &json))
}

/// What a worker says of a sampling row: status and id, and of a beam's its continuations.
#[derive(FromPyObject)]
enum ResultRow {
    Beam(String, u32, Vec<(u32, f32)>),
    Drawn(String, u32),
}

/// The state machine that the engine runs, without threads, clock or worker.
#[pyclass(module = "diptych_core.sim")]
pub(crate) struct Core(diptych_core::Core);

#[pymethods]
impl Core {
    /// `config`: JSON of the core's configuration; what it lacks has its default.
    #[new]
    #[pyo3(signature = (config, *, epoch = 1))]
    fn new(config: &[u8], epoch: u64) -> PyResult<Self> {
        let config: CoreConfig = read(config)?;
        diptych_core::Core::new(config, epoch)
            .map(Self)
            .map_err(|error| refused(&error))
    }

    fn submit(&mut self, request: &[u8], now: u64) -> PyResult<HandleParts> {
        let request: Request = read(request)?;
        let submitted = self.0.submit(request, now);
        submitted
            .map(|handle| (handle.slot, handle.generation))
            .map_err(|error| refused(&error))
    }

    /// Handle of one of the choices of the request whose first one is `request`, or `None` once it
    /// is on its own.
    fn choice(&self, request: HandleParts, index: u32) -> Option<HandleParts> {
        let choice = self.0.choice(handle(request), index)?;
        Some((choice.slot, choice.generation))
    }

    fn abort(&mut self, request: HandleParts, now: u64) {
        self.0.abort(handle(request), now);
    }

    fn expire(&mut self, now: u64) {
        self.0.expire(now);
    }

    #[pyo3(signature = (request, checked, stop_at = None))]
    fn text_ack(
        &mut self,
        request: HandleParts,
        checked: u32,
        stop_at: Option<u32>,
    ) -> PyResult<()> {
        self.0
            .text_ack(handle(request), checked, stop_at)
            .map_err(|error| refused(&error))
    }

    /// The mask of output `index` is known.
    fn mask_ready(&mut self, request: HandleParts, index: u32) -> PyResult<()> {
        self.0
            .mask_ready(handle(request), index)
            .map_err(|error| refused(&error))
    }

    fn plan(&mut self, now: u64) -> Option<Plan> {
        self.0.plan(now).cloned().map(Plan)
    }

    /// `rows`: status and sampled id of each sampling row of the step. `duration_ns`: how long the worker computed.
    /// A row of a beam has a third item: ids and log probabilities of the continuations that it asks for.
    #[pyo3(signature = (epoch, step, rows, now, *, duration_ns = None))]
    fn complete(
        &mut self,
        epoch: u64,
        step: u64,
        rows: Vec<ResultRow>,
        now: u64,
        duration_ns: Option<u64>,
    ) -> PyResult<()> {
        let mut candidates = Vec::new();
        let rows = rows
            .into_iter()
            .map(|row| match row {
                ResultRow::Beam(status, id, named) => {
                    candidates.extend(named);
                    Ok((row_status(&status)?, id))
                }
                ResultRow::Drawn(status, id) => Ok((row_status(&status)?, id)),
            })
            .collect::<PyResult<Vec<_>>>()?;
        let result = StepResult {
            epoch,
            step,
            duration_ns,
            rows: &rows,
            candidates: &candidates,
        };
        self.0
            .complete(&result, now)
            .map_err(|error| refused(&error))
    }

    fn worker_lost(&mut self, epoch: u64, now: u64) -> PyResult<()> {
        let lost = self.0.worker_lost(epoch, false, now);
        lost.map_err(|error| refused(&error))
    }

    fn reset_prefix_cache(&mut self) {
        self.0.reset_prefix_cache();
    }

    /// Output tokens since the last call: submission, choice, index, token id.
    fn take_tokens(&mut self) -> Vec<(u64, u32, u32, u32)> {
        let mut events = Vec::new();
        self.0.take_events(&mut events);
        let token = |event| match event {
            Event::Token {
                submission,
                choice,
                index,
                token,
            } => Some((submission, choice, index, token)),
            _ => None,
        };
        events.into_iter().filter_map(token).collect()
    }

    /// JSON of why an open request went as it did so far, or `None`.
    fn explain<'py>(
        &self,
        py: Python<'py>,
        request: HandleParts,
        now: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let explanation = self.0.explain(handle(request), now);
        explanation.map(|told| json(py, &told)).transpose()
    }

    /// The same of a choice that has ended, by its submission.
    #[pyo3(signature = (submission, choice = 0))]
    fn explain_ended<'py>(
        &self,
        py: Python<'py>,
        submission: u64,
        choice: u32,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let explanation = self.0.explain_ended(submission, choice);
        explanation.map(|told| json(py, &told)).transpose()
    }

    /// JSON list of at most `limit` KV events from number `start` on.
    fn kv_events<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        limit: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut events = Vec::new();
        self.0
            .kv_events(start, limit, &mut events)
            .map_err(|error| refused(&error))?;
        json(py, &events)
    }

    /// JSON of what a prefix lookup can find.
    fn kv_snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        json(py, &self.0.kv_snapshot())
    }

    /// Raises `ValueError` with the first broken invariant.
    fn check(&self) -> PyResult<()> {
        self.0.check_all().map_err(PyValueError::new_err)
    }
}

fn row_status(name: &str) -> PyResult<RowStatus> {
    match name {
        "ok" => Ok(RowStatus::Ok),
        "nan" => Ok(RowStatus::Nan),
        "bad_id" => Ok(RowStatus::BadId),
        "not_sampled" => Ok(RowStatus::NotSampled),
        _ => Err(PyValueError::new_err(format!(
            "{name:?} is no status of a row: ok, nan, bad_id or not_sampled"
        ))),
    }
}

/// A step's plan.
#[pyclass(frozen, module = "diptych_core.sim")]
pub(crate) struct Plan(StepPlan);

#[pymethods]
impl Plan {
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    #[getter]
    fn step(&self) -> u64 {
        self.0.step
    }

    #[getter]
    fn num_decode_rows(&self) -> u32 {
        self.0.num_decode_rows
    }

    #[getter]
    fn token_ids(&self) -> Vec<i32> {
        self.0.token_ids.clone()
    }

    #[getter]
    fn query_starts(&self) -> Vec<i32> {
        self.0.query_starts.clone()
    }

    #[getter]
    fn sequence_lengths(&self) -> Vec<i32> {
        self.0.sequence_lengths.clone()
    }

    /// Submission, choice and output index of each sampling row.
    #[getter]
    fn sampling(&self) -> Vec<(u64, u32, u32)> {
        let rows = self.0.sampling.iter();
        rows.map(|row| (row.submission, row.choice_index, row.output_index))
            .collect()
    }

    /// JSON of what an event log keeps of the plan: a hash of each field.
    fn digest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        json(py, &PlanDigest::of(&self.0))
    }
}

/// JSON of the report of a replay of the event log at `path`. Raises `OSError` for a file that cannot be opened, and
/// `ValueError` for one that cannot be replayed.
#[pyfunction]
pub(crate) fn replay(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyBytes>> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| PyOSError::new_err(format!("{shown}: {error}")))?;
    let report = py
        .detach(|| diptych_eventlog::replay(BufReader::new(file)))
        .map_err(|error| refused(&error))?;
    json(py, &report)
}
