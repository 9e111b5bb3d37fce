//! What a request's owner receives, as frozen Python objects.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use runtime::Done;

/// Monotonic nanoseconds: arrived, tokenised, admitted, first token, finished, prompt taken, rendered; 0 where it did not come that far.
type Timings = (u64, u64, u64, u64, u64, u64, u64);

/// Id, log probability, bytes.
type NamedLogprob = (u32, f32, Vec<u8>);

/// A token, characters of the text before it, the likeliest ids.
type TokenLogprobs = (NamedLogprob, usize, Vec<NamedLogprob>);

/// Index, name when it begins, more of its arguments.
type Call = (u32, Option<String>, String);

fn timings(from: runtime::Timings) -> Timings {
    (
        from.arrived,
        from.tokenised,
        from.admitted,
        from.first_token,
        from.finished,
        from.prompt_taken,
        from.rendered,
    )
}

fn token_logprobs(from: runtime::TokenLogprobs) -> TokenLogprobs {
    let named = |from: runtime::NamedLogprob| (from.id, from.logprob, from.bytes);
    let likeliest = from.likeliest.into_iter().map(named).collect();
    (named(from.token), from.offset, likeliest)
}

/// Everything of one choice of a request since the last drain.
#[pyclass(frozen, get_all, module = "diptych_core.engine")]
pub(crate) struct Frame {
    request: u64,
    choice: u32,
    accepted: Option<Py<Accepted>>,
    text: String,
    reasoning: String,
    calls: Vec<Call>,
    token_ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    prompt_logprobs: Vec<TokenLogprobs>,
    finished: Option<Py<Finished>>,
    failure: Option<Py<Failure>>,
    /// JSON.
    explanation: Option<String>,
}

impl Frame {
    pub(crate) fn new(py: Python<'_>, frame: runtime::Frame) -> PyResult<Self> {
        let (finished, failure) = match frame.done {
            Some(Done::Finished(done)) => (Some(Py::new(py, Finished::from(done))?), None),
            Some(Done::Failed(done)) => (None, Some(Py::new(py, Failure::from(done))?)),
            None => (None, None),
        };
        Ok(Self {
            request: frame.request,
            choice: frame.choice,
            accepted: frame
                .accepted
                .map(|accepted| Py::new(py, Accepted::from(accepted)))
                .transpose()?,
            text: frame.text,
            reasoning: frame.reasoning,
            calls: frame
                .calls
                .into_iter()
                .map(|call| (call.index, call.name, call.arguments))
                .collect(),
            token_ids: frame.token_ids,
            logprobs: frame.logprobs.into_iter().map(token_logprobs).collect(),
            prompt_logprobs: frame
                .prompt_logprobs
                .into_iter()
                .map(token_logprobs)
                .collect(),
            finished,
            failure,
            explanation: frame
                .explanation
                .map(|told| serde_json::to_string(&told))
                .transpose()
                .map_err(|error| PyValueError::new_err(error.to_string()))?,
        })
    }
}

/// The core has taken the request.
#[pyclass(frozen, get_all, module = "diptych_core.engine")]
#[expect(
    clippy::struct_field_names,
    reason = "Python reads them beside what is known of the answer"
)]
pub(crate) struct Accepted {
    prompt_tokens: u32,
    prompt_ids: Option<Vec<u32>>,
    prompt_text: Option<String>,
}

impl From<runtime::Accepted> for Accepted {
    fn from(from: runtime::Accepted) -> Self {
        Self {
            prompt_tokens: from.prompt_tokens,
            prompt_ids: from.prompt_ids,
            prompt_text: from.prompt_text,
        }
    }
}

/// The end of a request that did what it was asked, or was aborted.
#[pyclass(frozen, get_all, module = "diptych_core.engine")]
pub(crate) struct Finished {
    reason: &'static str,
    stop_string: Option<String>,
    stop_token: Option<u32>,
    prompt_tokens: u32,
    completion_tokens: u32,
    cached_tokens: u32,
    mean_logprob: Option<f64>,
    reasoning_tokens: Option<u32>,
    timings: Timings,
    preemptions: u32,
    events: Vec<(u64, &'static str)>,
}

impl From<runtime::Finished> for Finished {
    fn from(from: runtime::Finished) -> Self {
        Self {
            reason: from.reason.as_str(),
            stop_string: from.stop_string,
            stop_token: from.stop_token,
            prompt_tokens: from.prompt_tokens,
            completion_tokens: from.completion_tokens,
            cached_tokens: from.cached_tokens,
            mean_logprob: from.mean_logprob,
            reasoning_tokens: from.reasoning_tokens,
            timings: timings(from.timings),
            preemptions: from.preemptions,
            events: from.events,
        }
    }
}

/// The end of a request that failed.
#[pyclass(frozen, get_all, module = "diptych_core.engine")]
pub(crate) struct Failure {
    kind: &'static str,
    message: String,
    details: String,
    timings: Timings,
    prompt_tokens: u32,
    completion_tokens: u32,
}

impl From<runtime::Failure> for Failure {
    fn from(from: runtime::Failure) -> Self {
        Self {
            kind: from.kind.as_str(),
            message: from.message,
            details: serde_json::Value::Object(from.details).to_string(),
            timings: timings(from.timings),
            prompt_tokens: from.prompt_tokens,
            completion_tokens: from.completion_tokens,
        }
    }
}
