//! The simulator: options in as JSON, a report out as JSON, text and HTML.

use std::time::{Duration, Instant};

use diptych_sim::{Error, Options, Progress, Report};
use pyo3::prelude::*;

use crate::errors;

/// Real time between two calls of a progress callback, and between two looks at signals.
const INTERVAL: Duration = Duration::from_millis(100);

/// What a simulation gave.
#[pyclass(frozen, module = "diptych_core.sim")]
pub(crate) struct SimulationReport(Report);

#[pymethods]
impl SimulationReport {
    /// The whole report.
    fn json(&self) -> String {
        serde_json::to_string(&self.0).expect("a report is text, numbers and lists")
    }

    /// The runs side by side, for people.
    fn text(&self) -> String {
        diptych_sim::text(&self.0)
    }

    /// One page with its drawings in it.
    fn html(&self) -> String {
        diptych_sim::html(&self.0)
    }
}

/// Runs a simulation with the GIL released. `progress(policy, ended, expected, virtual_s)` is called
/// every tenth of a second; what it raises ends the simulation, and so does a signal's handler that raises.
#[pyfunction]
#[pyo3(signature = (options, progress=None))]
pub(crate) fn simulate(
    py: Python<'_>,
    options: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<SimulationReport> {
    let options = Options::from_json(options).map_err(|error| errors::simulation(py, &error))?;
    let mut caller = Caller::new(progress);
    let report =
        py.detach(|| diptych_sim::simulate(&options, &mut |policy, now| caller.tell(policy, now)));
    caller.result(py, report).map(SimulationReport)
}

/// Runs the examples that must hold, with as many random requests in the last one: the page of results, and
/// whether all hold. `progress` as for `simulate`.
#[pyfunction]
#[pyo3(signature = (fuzz_requests, progress=None))]
pub(crate) fn simulate_suite(
    py: Python<'_>,
    fuzz_requests: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, bool)> {
    let mut caller = Caller::new(progress);
    let suite = py.detach(|| {
        diptych_sim::suite::suite(fuzz_requests, &mut |name, now| caller.tell(name, now))
    });
    let suite = caller.result(py, suite)?;
    Ok((diptych_sim::suite::markdown(&suite), suite.holds()))
}

/// Four requests under static and continuous batching, drawn in text.
#[pyfunction]
pub(crate) fn demo_batching(py: Python<'_>) -> PyResult<String> {
    diptych_sim::demo_batching().map_err(|error| errors::simulation(py, &error))
}

/// Who is told of progress, and what that raised.
struct Caller {
    progress: Option<Py<PyAny>>,
    told: Instant,
    raised: Option<PyErr>,
}

impl Caller {
    fn new(progress: Option<Py<PyAny>>) -> Self {
        Self {
            progress,
            told: Instant::now(),
            raised: None,
        }
    }

    /// Whether to go on.
    fn tell(&mut self, name: &str, now: Progress) -> bool {
        let over = now.expected == now.ended;
        if !over && self.told.elapsed() < INTERVAL {
            return true;
        }
        self.told = Instant::now();
        let outcome = Python::attach(|py| {
            py.check_signals()?;
            match &self.progress {
                Some(progress) => progress
                    .call1(py, (name, now.ended, now.expected, now.virtual_s))
                    .map(drop),
                None => Ok(()),
            }
        });
        self.raised = outcome.err();
        self.raised.is_none()
    }

    fn result<T>(self, py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => result.map_err(|error| errors::simulation(py, &error)),
        }
    }
}
