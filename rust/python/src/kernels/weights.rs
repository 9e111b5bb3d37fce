//! A model's weights, packed once and kept in a file.

use std::path::PathBuf;
use std::sync::Arc;

use diptych_cpu::model::{WeightOwner, activation_bytes, bytes_per_block};
use diptych_cpu::packed::{CachedModel, LlamaShape, ModelSource, PackedFile, Packing};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Deserialize;
use serde_json::json;

use super::settings::read_settings;
use super::{as_bytes, read_options};
use crate::errors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightOptions {
    /// A folder of safetensors files, or a GGUF file.
    source: PathBuf,
    shape: LlamaShape,
    formats: String,
    /// Where the packed weights are kept.
    file: PathBuf,
    threads: usize,
    huge_pages: bool,
}

/// Packed weights in memory: from their file if it fits the checkpoint, packed anew otherwise.
#[pyclass(frozen, module = "diptych_core.kernels")]
pub(crate) struct Weights(pub(super) Arc<PackedFile>);

#[pymethods]
impl Weights {
    #[new]
    fn new(py: Python<'_>, options: &[u8], log: &Bound<'_, PyAny>) -> PyResult<Self> {
        let options: WeightOptions = read_options(options)?;
        let log = log.clone().unbind();
        py.detach(|| open(options, &log))
            .map(|file| Self(Arc::new(file)))
            .map_err(|error| errors::packed(py, &error))
    }

    /// Bytes of all weights.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// JSON of what a model with these settings needs besides its weights: `activation_bytes`, `bytes_per_block`.
    fn needs<'py>(&self, py: Python<'py>, settings: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let settings = read_settings(settings)?;
        let (shape, weights) = (self.0.shape(), self.0.weights());
        let needs = json!({
            "activation_bytes": activation_bytes(&shape, &weights, &settings),
            "bytes_per_block": bytes_per_block(&shape, &settings),
        });
        Ok(as_bytes(py, &needs))
    }
}

fn open(
    options: WeightOptions,
    log: &Py<PyAny>,
) -> Result<PackedFile, diptych_cpu::packed::PackedError> {
    let WeightOptions {
        source,
        shape,
        formats,
        file,
        threads,
        huge_pages,
    } = options;
    let say = |line: &str| {
        // A log that cannot be written is no reason to stop.
        let _ = Python::attach(|py| log.call1(py, (line,)));
    };
    let source = ModelSource::open(&source, shape)?;
    CachedModel {
        source: &source,
        packing: Packing {
            formats: formats.parse()?,
            threads,
            progress: &|_, _| (),
        },
        file: &file,
        huge: huge_pages,
        log: &say,
    }
    .open()
}
