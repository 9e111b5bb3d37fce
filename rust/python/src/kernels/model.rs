//! A model that runs steps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use diptych_cpu::model::{Engine, StepInput};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::worker::Mark;
use serde_json::json;

use super::as_bytes;
use super::plan::Columns;
use super::self_test::self_test;
use super::settings::read_settings;
use super::weights::Weights;
use crate::array::Array;
use crate::errors;
use crate::worker::{Port, Step};

/// Weights, cache and rows. Construction brings the cache into memory, starts the threads and runs a small case on
/// them; refused when that gives something else than it should.
#[pyclass(frozen, module = "diptych_core.kernels")]
pub(crate) struct Model(Mutex<Engine>);

#[pymethods]
impl Model {
    #[new]
    fn new(weights: &Bound<'_, Weights>, settings: &[u8]) -> PyResult<Self> {
        let settings = read_settings(settings)?;
        let owner = Arc::clone(&weights.get().0);
        weights.py().detach(|| {
            self_test(&settings).map_err(|error| errors::mismatch(&error))?;
            let engine = Engine::new(owner, settings);
            engine
                .map(|engine| Self(Mutex::new(engine)))
                .map_err(|error| errors::model(&error))
        })
    }

    /// Runs a step: status, id and log probability (0 where not asked for) of each sampling row, then ids and log probabilities of the
    /// continuations that rows ask for. A step of the runtime is marked when its rows are through the layers; `port`, with a `progress` to
    /// call, is told of each layer.
    #[pyo3(signature = (step, port = None))]
    fn run(
        &self,
        step: &Bound<'_, PyAny>,
        port: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Array, Array, Array, Array, Array)> {
        let py = step.py();
        let columns = Columns::read(step)?;
        let plan = columns.input();
        let watch = Watch::new(step, port, &plan)?;
        let output = py.detach(|| {
            let mut engine = self.engine();
            let layers = engine.shape().layers;
            engine.run(&plan, &|| watch.layer(layers))
        });
        let output = output.map_err(|error| errors::plan(&error))?;
        Ok((
            output.status.into(),
            output.ids.into(),
            output.logprobs.into(),
            output.candidate_ids.into(),
            output.candidate_logprobs.into(),
        ))
    }

    /// As `run`, but gives the logits of the sampling rows, one after the other, and samples nothing.
    fn logits(&self, step: &Bound<'_, PyAny>) -> PyResult<Array> {
        let columns = Columns::read(step)?;
        let logits = step.py().detach(|| self.engine().logits(&columns.input()));
        logits
            .map(Array::from)
            .map_err(|error| errors::plan(&error))
    }

    fn reset(&self) {
        self.engine().reset();
    }

    /// Sets every byte of the cache, for tests: 255 makes every number of a float cache NaN.
    fn fill_cache(&self, byte: u8) {
        let engine = self.engine();
        // SAFETY: no step runs while the lock is held.
        unsafe { engine.pool().fill(byte) };
    }

    /// JSON of what was found and granted.
    fn describe<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let engine = self.engine();
        let report = engine.report();
        as_bytes(
            py,
            &json!({
                "instruction_set": report.instruction_set,
                "threads": report.threads,
                "weight_bytes": report.weight_bytes,
                "weight_huge_bytes": report.weight_huge_bytes,
                "kv_bytes": report.kv_bytes,
                "kv_huge_bytes": report.kv_huge_bytes,
                "layers": engine.shape().layers,
            }),
        )
    }
}

impl Model {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        // A step that panicked leaves rows half written, which the host's reset or the worker's end makes good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is told of a step's layers.
struct Watch {
    step: Option<Marked>,
    port: Option<Listener>,
    /// In a mixed step both parts end together: the linear layers ran fused.
    ended: Vec<(Mark, &'static str)>,
    layers: AtomicUsize,
}

enum Marked {
    Step(Py<Step>),
    Object(Py<PyAny>),
}

enum Listener {
    Port(Py<Port>),
    Object(Py<PyAny>),
}

impl Watch {
    fn new(
        step: &Bound<'_, PyAny>,
        port: Option<&Bound<'_, PyAny>>,
        plan: &StepInput<'_>,
    ) -> PyResult<Self> {
        let marked = match step.cast::<Step>() {
            Ok(step) => Some(Marked::Step(step.clone().unbind())),
            Err(_) if step.hasattr("mark")? => Some(Marked::Object(step.clone().unbind())),
            Err(_) => None,
        };
        let listener = |port: &Bound<'_, PyAny>| match port.cast::<Port>() {
            Ok(port) => Listener::Port(port.clone().unbind()),
            Err(_) => Listener::Object(port.clone().unbind()),
        };
        let mut ended = Vec::new();
        if plan.num_decode_rows < plan.rows.len() {
            ended.push((Mark::PrefillDone, "prefill_done"));
        }
        if plan.num_decode_rows > 0 {
            ended.push((Mark::DecodeDone, "decode_done"));
        }
        Ok(Self {
            step: marked,
            port: port.map(listener),
            ended,
            layers: AtomicUsize::new(0),
        })
    }

    /// One more layer of `layers` is done. What the objects of a test raise is not this step's error.
    fn layer(&self, layers: usize) {
        match &self.port {
            None => {}
            Some(Listener::Port(port)) => port.get().inner().progress(),
            Some(Listener::Object(port)) => {
                let _ = Python::attach(|py| port.call_method0(py, "progress"));
            }
        }
        if self.layers.fetch_add(1, Ordering::Relaxed) + 1 < layers {
            return;
        }
        for (mark, name) in &self.ended {
            match &self.step {
                None => {}
                Some(Marked::Step(step)) => step.get().inner().mark(*mark),
                Some(Marked::Object(step)) => {
                    let _ = Python::attach(|py| step.call_method1(py, "mark", (*name,)));
                }
            }
        }
    }
}
