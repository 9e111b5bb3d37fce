//! `diptych_core.text`: what the engine's text threads use, for tests and tools.

use std::path::PathBuf;
use std::sync::Arc;

use diptych_text::{StreamOptions, TokenTable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;

/// Text to token ids, and token ids to bytes.
#[pyclass(frozen, module = "diptych_core.text")]
pub(crate) struct Tokenizer {
    tokenizer: diptych_text::Tokenizer,
    table: Arc<TokenTable>,
}

#[pymethods]
impl Tokenizer {
    #[staticmethod]
    fn from_folder(py: Python<'_>, folder: PathBuf) -> PyResult<Self> {
        let tokenizer = py
            .detach(move || diptych_text::Tokenizer::from_folder(&folder))
            .map_err(|e| errors::text(py, &e))?;
        let table = tokenizer.table();
        Ok(Self { tokenizer, table })
    }

    #[getter]
    fn vocabulary(&self) -> u32 {
        self.tokenizer.vocabulary()
    }

    #[getter]
    fn special_ids(&self) -> Vec<u32> {
        self.table.special_ids().collect()
    }

    #[pyo3(signature = (text, *, add_special_tokens = true))]
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.tokenizer.encode(text, add_special_tokens))
            .map_err(|error| errors::text(py, &error))
    }

    #[pyo3(signature = (ids, *, skip_special_tokens = true, spaces_between_special_tokens = true))]
    fn decode(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
    ) -> PyResult<String> {
        let options = StreamOptions {
            skip_special_tokens,
            spaces_between_special_tokens,
            ..StreamOptions::default()
        };
        py.detach(|| {
            let mut stream = diptych_text::TextStream::new(Arc::clone(&self.table), options, &[])?;
            let mut text = String::new();
            for id in ids {
                stream.push(id, &mut text);
            }
            stream.finish(&mut text);
            Ok(text)
        })
        .map_err(|error| errors::text(py, &error))
    }

    fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.token(id)
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: u32) -> Option<Bound<'py, PyBytes>> {
        self.table.bytes(id).map(|bytes| PyBytes::new(py, bytes))
    }
}

/// The model's chat template.
#[pyclass(frozen, module = "diptych_core.text")]
pub(crate) struct ChatTemplate(diptych_text::ChatTemplate);

#[pymethods]
impl ChatTemplate {
    #[staticmethod]
    fn from_folder(py: Python<'_>, folder: PathBuf) -> PyResult<Option<Self>> {
        let template = py.detach(move || diptych_text::ChatTemplate::from_folder(&folder));
        Ok(template
            .map_err(|error| errors::text(py, &error))?
            .map(Self))
    }

    fn render(&self, py: Python<'_>, request: &str) -> PyResult<String> {
        py.detach(|| self.0.render(request))
            .map_err(|error| errors::text(py, &error))
    }
}

/// The text of one answer, token by token.
#[pyclass(module = "diptych_core.text")]
pub(crate) struct TextStream {
    stream: diptych_text::TextStream,
    ended: bool,
}

#[pymethods]
impl TextStream {
    #[new]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a list of Python's becomes a vector, not a slice"
    )]
    #[pyo3(signature = (tokenizer, *, stop = Vec::new(), include_stop = false, skip_special_tokens = true, prompt = Vec::new()))]
    fn new(
        py: Python<'_>,
        tokenizer: &Tokenizer,
        stop: Vec<String>,
        include_stop: bool,
        skip_special_tokens: bool,
        prompt: Vec<u32>,
    ) -> PyResult<Self> {
        let options = StreamOptions {
            stop,
            include_stop,
            skip_special_tokens,
            ..StreamOptions::default()
        };
        let table = Arc::clone(&tokenizer.table);
        let stream = diptych_text::TextStream::new(table, options, &prompt);
        Ok(Self {
            stream: stream.map_err(|error| errors::text(py, &error))?,
            ended: false,
        })
    }

    fn push(&mut self, id: u32) -> PyResult<(String, Option<usize>)> {
        self.refuse_after_end()?;
        let mut text = String::new();
        let found = self.stream.push(id, &mut text);
        self.ended = found.is_some();
        Ok((text, found.map(|found| found.stop_index)))
    }

    fn push_hidden(&mut self, id: u32) -> PyResult<()> {
        self.refuse_after_end()?;
        self.stream.push_hidden(id);
        Ok(())
    }

    /// The bytes that wait for the rest of their character.
    #[getter]
    fn pending<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.stream.pending())
    }

    fn finish(&mut self) -> (String, Option<usize>) {
        let mut text = String::new();
        let found = self.stream.finish(&mut text);
        self.ended = true;
        (text, found.map(|found| found.stop_index))
    }
}

impl TextStream {
    fn refuse_after_end(&self) -> PyResult<()> {
        if self.ended {
            return Err(PyValueError::new_err(
                "this text has ended: make a TextStream for each answer",
            ));
        }
        Ok(())
    }
}
