//! A model's weights, packed once and kept in a file.

use std::path::PathBuf;
use std::sync::Arc;

use diptych_cpu::model::{WeightOwner, activation_bytes, bytes_per_block};
use diptych_cpu::packed::{
    CachedModel, Formats, LlamaShape, ModelSource, PackedError, PackedFile, Packing, pack_model,
};
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
    /// A folder of safetensors files, or a GGUF file; none where the packed file is all there is.
    source: Option<PathBuf>,
    shape: LlamaShape,
    /// Of what is packed from `source`.
    formats: Option<String>,
    /// The packed weights.
    file: PathBuf,
    threads: usize,
    #[serde(default)]
    huge_pages: bool,
}

impl WeightOptions {
    /// What can be packed, and in which formats.
    fn source(&self) -> Result<(ModelSource, Formats), PackedError> {
        let (Some(source), Some(formats)) = (&self.source, &self.formats) else {
            let what = "there is nothing to pack: give source and formats";
            return Err(PackedError::Request(what.to_owned()));
        };
        let formats = formats.parse()?;
        Ok((ModelSource::open(source, self.shape.clone())?, formats))
    }
}

/// Packed weights in memory: from their file if it fits, packed anew otherwise if they can be.
#[pyclass(frozen, module = "diptych_core.kernels")]
pub(crate) struct Weights(pub(super) Arc<PackedFile>);

#[pymethods]
impl Weights {
    #[new]
    fn new(py: Python<'_>, options: &[u8], log: &Bound<'_, PyAny>) -> PyResult<Self> {
        let options: WeightOptions = read_options(options)?;
        let log = log.clone().unbind();
        py.detach(|| open(&options, &log))
            .map(|file| Self(Arc::new(file)))
            .map_err(|error| errors::packed(py, &error))
    }

    /// Bytes of all weights.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The name of the formats they were packed in.
    #[getter]
    fn formats(&self) -> String {
        self.0.formats().to_string()
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

/// Packs the weights of a checkpoint into a new file; `progress` is told the bytes written so far and in all.
#[pyfunction]
pub(crate) fn pack_weights(
    py: Python<'_>,
    options: &[u8],
    progress: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let options: WeightOptions = read_options(options)?;
    let progress = progress.clone().unbind();
    py.detach(|| pack(&options, &progress))
        .map_err(|error| errors::packed(py, &error))
}

fn pack(options: &WeightOptions, progress: &Py<PyAny>) -> Result<(), PackedError> {
    let (source, formats) = options.source()?;
    let say = |done: usize, all: usize| {
        // A display that fails is no reason to stop.
        let _ = Python::attach(|py| progress.call1(py, (done, all)));
    };
    let packing = Packing {
        formats,
        threads: options.threads,
        progress: &say,
    };
    pack_model(&source, &packing, &options.file)
}

fn open(options: &WeightOptions, log: &Py<PyAny>) -> Result<PackedFile, PackedError> {
    if options.source.is_none() {
        let opened = PackedFile::open(&options.file, options.huge_pages, options.threads)?;
        opened.check_shape(&options.shape)?;
        return Ok(opened);
    }
    let say = |line: &str| {
        // A log that cannot be written is no reason to stop.
        let _ = Python::attach(|py| log.call1(py, (line,)));
    };
    let (source, formats) = options.source()?;
    CachedModel {
        source: &source,
        packing: Packing {
            formats,
            threads: options.threads,
            progress: &|_, _| (),
        },
        file: &options.file,
        huge: options.huge_pages,
        log: &say,
    }
    .open()
}
