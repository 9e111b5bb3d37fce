//! `diptych_core.worker`: the worker's face of the runtime.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use runtime::worker::{Mark, RowMask, Work};

use crate::array::Array;
use crate::errors;

/// A worker's connection to its host.
#[pyclass(frozen, module = "diptych_core.worker")]
pub(crate) struct Port(runtime::worker::Port);

impl Port {
    pub(crate) fn inner(&self) -> &runtime::worker::Port {
        &self.0
    }
}

impl From<runtime::worker::Port> for Port {
    fn from(port: runtime::worker::Port) -> Self {
        Self(port)
    }
}

/// What [`Port::next`] returns, when it is not `None`.
#[derive(IntoPyObject)]
pub(crate) enum Next {
    Step(Step),
    Control(Control),
}

#[pymethods]
impl Port {
    #[staticmethod]
    fn from_stdin(py: Python<'_>) -> PyResult<Self> {
        py.detach(runtime::worker::Port::from_stdin)
            .map(Self)
            .map_err(|error| errors::port(&error))
    }

    fn init<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.init())
    }

    fn hello(&self, py: Python<'_>, info: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.hello(info))
            .map_err(|error| errors::port(&error))
    }

    fn ready(&self, py: Python<'_>, info: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.ready(info))
            .map_err(|error| errors::port(&error))
    }

    fn fail(&self, py: Python<'_>, error_class: &str, message: &str) -> PyResult<()> {
        py.detach(|| self.0.fail(error_class, message))
            .map_err(|error| errors::port(&error))
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<Next>> {
        let work = py
            .detach(|| self.0.next())
            .map_err(|error| errors::port(&error))?;
        Ok(work.map(|work| match work {
            Work::Step(step) => Next::Step(Step(step)),
            Work::Control(control) => Next::Control(Control(control)),
        }))
    }

    fn progress(&self) {
        self.0.progress();
    }
}

/// A planned step.
#[pyclass(frozen, module = "diptych_core.worker")]
pub(crate) struct Step(runtime::worker::Step);

impl Step {
    pub(crate) fn inner(&self) -> &runtime::worker::Step {
        &self.0
    }
}

#[pymethods]
impl Step {
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    #[getter]
    fn step(&self) -> u64 {
        self.0.step()
    }

    #[getter]
    fn num_tokens(&self) -> usize {
        self.0.num_tokens()
    }

    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    #[getter]
    fn num_decode_rows(&self) -> usize {
        self.0.num_decode_rows()
    }

    #[getter]
    fn num_sampling_rows(&self) -> usize {
        self.0.num_sampling_rows()
    }

    fn array(&self, name: &str) -> PyResult<Array> {
        let array = self.0.array(name);
        array
            .map(Array::from)
            .ok_or_else(|| PyValueError::new_err(format!("a step has no array called {name:?}")))
    }

    /// Of each sampling row that is drawn under a mask: its bits as bytes of little-endian 32-bit words, `None` as long as it is
    /// not there.
    fn masks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let masks = PyDict::new(py);
        for row in 0..self.0.num_sampling_rows() {
            match self.0.mask(row) {
                RowMask::None => {}
                RowMask::Late => masks.set_item(row, py.None())?,
                RowMask::Ready(words) => {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    masks.set_item(row, PyBytes::new(py, &bytes))?;
                }
            }
        }
        Ok(masks)
    }

    fn mark(&self, name: &str) -> PyResult<()> {
        let mark = match name {
            "start" => Mark::Start,
            "prefill_done" => Mark::PrefillDone,
            "decode_done" => Mark::DecodeDone,
            _ => {
                let known = "\"start\", \"prefill_done\" and \"decode_done\"";
                return Err(PyValueError::new_err(format!(
                    "no mark is called {name:?}, only {known} are"
                )));
            }
        };
        self.0.mark(mark);
        Ok(())
    }

    /// `candidates`: ids and log probabilities of the continuations that rows ask for.
    #[pyo3(signature = (status, ids, logprobs = None, candidates = None))]
    fn publish(
        &self,
        py: Python<'_>,
        status: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        logprobs: Option<&Bound<'_, PyAny>>,
        candidates: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let status = PyBuffer::<i32>::get(status)?.to_vec(py)?;
        let ids = PyBuffer::<i32>::get(ids)?.to_vec(py)?;
        let logprobs = logprobs
            .map(|logprobs| PyBuffer::<f32>::get(logprobs)?.to_vec(py))
            .transpose()?;
        let (candidate_ids, candidate_logprobs) = match candidates {
            Some((ids, logprobs)) => (
                PyBuffer::<i32>::get(&ids)?.to_vec(py)?,
                PyBuffer::<f32>::get(&logprobs)?.to_vec(py)?,
            ),
            None => (Vec::new(), Vec::new()),
        };
        let candidates = (candidate_ids.as_slice(), candidate_logprobs.as_slice());
        self.0
            .publish_all(&status, &ids, logprobs.as_deref(), candidates)
            .map_err(|error| errors::port(&error))
    }

    fn publish_error(&self, error_class: &str, message: &str) -> PyResult<()> {
        self.0
            .publish_error(error_class, message)
            .map_err(|error| errors::port(&error))
    }
}

/// A question of the host, asked between steps.
#[pyclass(frozen, module = "diptych_core.worker")]
pub(crate) struct Control(runtime::worker::Control);

#[pymethods]
impl Control {
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn reply(&self, py: Python<'_>, payload: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.reply(payload))
            .map_err(|error| errors::port(&error))
    }
}

/// The whole life of a scripted worker, without the GIL.
#[pyfunction]
pub(crate) fn run_scripted(py: Python<'_>, port: &Bound<'_, Port>) -> PyResult<()> {
    let port = &port.get().0;
    py.detach(|| runtime::worker::run_scripted(port))
        .map_err(|error| errors::port(&error))
}
