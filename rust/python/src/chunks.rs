//! `diptych_core.text.AnswerChunks`: the events of one streamed answer.

use diptych_text::sse;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;

#[derive(FromPyObject)]
struct Identity {
    id: String,
    created: u64,
    model: String,
}

#[derive(Clone, Copy, FromPyObject)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "as in the struct of the text crate"
)]
struct View {
    include_usage: bool,
    continuous_usage: bool,
    token_ids: bool,
    reasoning: bool,
}

/// What of an output is in its chunks.
#[derive(FromPyObject)]
struct Output {
    text: PyBackedStr,
    reasoning: PyBackedStr,
    tool_calls: Vec<ToolCall>,
    token_ids: Vec<u32>,
    finish_reason: Option<PyBackedStr>,
    stop_reason: Option<StopReason>,
    usage: Option<Usage>,
}

#[derive(FromPyObject)]
struct ToolCall {
    index: u32,
    id: Option<PyBackedStr>,
    name: Option<PyBackedStr>,
    arguments: PyBackedStr,
}

#[derive(FromPyObject)]
enum StopReason {
    Text(PyBackedStr),
    Token(u32),
}

#[derive(FromPyObject)]
struct Usage {
    cached_tokens: u32,
}

impl ToolCall {
    fn delta(&self) -> sse::ToolCall<'_> {
        sse::ToolCall {
            index: self.index,
            id: self.id.as_deref(),
            name: self.name.as_deref(),
            arguments: &self.arguments,
        }
    }
}

impl Output {
    fn finish(&self) -> PyResult<Option<sse::Finish<'_>>> {
        let Some(reason) = &self.finish_reason else {
            return Ok(None);
        };
        let usage = self.usage.as_ref().ok_or_else(|| {
            PyValueError::new_err(format!(
                "an output that ends with {:?} needs its usage",
                &**reason
            ))
        })?;
        Ok(Some(sse::Finish {
            reason,
            stop: self.stop_reason.as_ref().map(|stop| match stop {
                StopReason::Text(text) => sse::StopReason::Text(text),
                StopReason::Token(id) => sse::StopReason::Token(*id),
            }),
            cached_tokens: usage.cached_tokens,
        }))
    }
}

/// The chunks of one stream.
#[pyclass(module = "diptych_core.text")]
pub(crate) struct AnswerChunks {
    chunks: sse::Chunks,
    /// Kept between calls for its memory.
    out: Vec<u8>,
}

#[pymethods]
impl AnswerChunks {
    #[new]
    fn new(endpoint: &str, identity: Identity, view: View, num_choices: usize) -> PyResult<Self> {
        let endpoint = match endpoint {
            "chat" => sse::Endpoint::Chat,
            "completions" => sse::Endpoint::Completions,
            other => {
                return Err(PyValueError::new_err(format!(
                    "endpoint is {other:?}: it must be \"chat\" or \"completions\""
                )));
            }
        };
        let identity = sse::Identity {
            id: identity.id,
            created: identity.created,
            model: identity.model,
        };
        let view = sse::View {
            include_usage: view.include_usage,
            continuous_usage: view.continuous_usage,
            token_ids: view.token_ids,
            reasoning: view.reasoning,
        };
        Ok(Self {
            chunks: sse::Chunks::new(endpoint, &identity, view, num_choices),
            out: Vec::new(),
        })
    }

    #[pyo3(signature = (first, count, prompt_tokens, prompt_ids = None))]
    fn accept(
        &mut self,
        first: usize,
        count: usize,
        prompt_tokens: u32,
        prompt_ids: Option<Vec<u32>>,
    ) -> PyResult<()> {
        let end = first.saturating_add(count);
        self.check(end.saturating_sub(1))?;
        self.chunks.accept(first..end, prompt_tokens, prompt_ids);
        Ok(())
    }

    #[pyo3(signature = (choice, output, *, logprobs = None))]
    fn push<'py>(
        &mut self,
        py: Python<'py>,
        choice: usize,
        output: &Bound<'py, PyAny>,
        logprobs: Option<&[u8]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.check(choice)?;
        let output: Output = output.extract()?;
        let calls: Vec<_> = output.tool_calls.iter().map(ToolCall::delta).collect();
        let delta = sse::Delta {
            text: &output.text,
            reasoning: &output.reasoning,
            calls: &calls,
            token_ids: &output.token_ids,
            logprobs,
        };
        let finish = output.finish()?;
        self.out.clear();
        self.chunks
            .push(choice, &delta, finish.as_ref(), &mut self.out);
        Ok(PyBytes::new(py, &self.out))
    }

    #[pyo3(signature = (usage = None))]
    fn close<'py>(&self, py: Python<'py>, usage: Option<&[u8]>) -> Bound<'py, PyBytes> {
        let mut out = Vec::new();
        self.chunks.close(usage, &mut out);
        PyBytes::new(py, &out)
    }

    #[staticmethod]
    fn failed<'py>(py: Python<'py>, error: &[u8]) -> Bound<'py, PyBytes> {
        let mut out = Vec::new();
        sse::push_failure(&mut out, error);
        PyBytes::new(py, &out)
    }
}

impl AnswerChunks {
    fn check(&self, choice: usize) -> PyResult<()> {
        let choices = self.chunks.num_choices();
        if choice < choices {
            return Ok(());
        }
        Err(PyIndexError::new_err(format!(
            "choice {choice}: this stream has {choices}, counted from 0"
        )))
    }
}
