//! What an engine and a request are given, as JSON.

use std::collections::BTreeMap;

use diptych_core::config::PrefillOrder;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::EngineError;
use crate::urgency::is_time;

/// Everything that [`crate::Engine::start`] needs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineOptions {
    /// How the worker is run.
    pub worker: WorkerOptions,
    /// Sizes and limits.
    pub limits: Limits,
    /// Folder with the tokenizer and the chat template.
    pub model_folder: std::path::PathBuf,
    /// Size of the model's vocabulary.
    pub vocabulary: u32,
    /// Ids that end a sequence.
    pub eos_ids: Vec<u32>,
    /// Deliberate faults of the host side, for tests.
    #[serde(default)]
    pub test_faults: TestFaults,
}

/// Deliberate faults, for tests only.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TestFaults {
    /// The engine thread panics before it plans the step with this number, counted over all epochs from 1.
    pub panic_at_step: Option<u64>,
    /// The engine thread panics while the core is given this request.
    pub panic_at_submission: Option<u64>,
    /// The text thread panics at this request's first token.
    pub panic_at_text_of: Option<u64>,
}

/// Where a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// A process that loads the model.
    Process,
    /// A thread of the host, which the host starts with [`crate::Engine::inline_port`].
    Inline,
    /// A process without a model.
    Scripted,
    /// A Rust thread without a model.
    ScriptedThread,
}

impl WorkerKind {
    /// Name in the `init` message.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Inline => "inline",
            Self::Scripted | Self::ScriptedThread => "scripted",
        }
    }
}

/// How the worker is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerOptions {
    /// Where.
    pub kind: WorkerKind,
    /// The interpreter of a worker process.
    #[serde(default)]
    pub python: String,
    /// Environment variables that a worker process must not see.
    #[serde(default)]
    pub environment_remove: Vec<String>,
    /// Handed to the worker as it is.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// Seconds until a worker that is not ready counts as failed.
    #[serde(default = "default_start_timeout")]
    pub start_timeout_s: f64,
}

fn default_start_timeout() -> f64 {
    600.0
}

fn default_prefill_tile() -> u32 {
    16
}

/// Sizes and limits of the core.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Tokens per KV block.
    pub block_size: u32,
    /// Requests that may be admitted at once.
    pub max_running: u32,
    /// Tokens per step.
    pub max_batched_tokens: u32,
    /// Prefill tokens per step.
    pub max_prefill_tokens: Option<u32>,
    /// Prefill tokens that the worker computes together well.
    #[serde(default = "default_prefill_tile")]
    pub prefill_tile: u32,
    /// Target for the gap between two tokens of a request, in nanoseconds.
    #[serde(default)]
    pub target_itl_ns: Option<u64>,
    /// Longest prompt + output in tokens.
    pub max_model_len: u32,
    /// Requests that may be open beyond `max_running`.
    pub max_queued_requests: u32,
    /// Uncached prompt tokens that may wait for admission.
    #[serde(default)]
    pub max_queued_tokens: Option<u64>,
    /// A request whose first token is predicted to come later than this is refused; milliseconds.
    #[serde(default)]
    pub max_ttft_ms: Option<f64>,
    /// Order of prompts within a tenant and class.
    #[serde(default)]
    pub prefill_order: PrefillOrder,
    /// Shares of tenants, 0.01 to 100; 1 for those who are not named.
    #[serde(default)]
    pub tenant_weights: BTreeMap<String, f64>,
    /// Whether finished blocks are found again.
    pub prefix_cache: bool,
    /// Steps launched and not retired when a plan is made.
    pub overlap_depth: u8,
}

impl EngineOptions {
    pub(crate) fn from_json(json: &[u8]) -> Result<Self, EngineError> {
        let options: Self = serde_json::from_slice(json)
            .map_err(|error| EngineError::Options(error.to_string()))?;
        let timeout = options.worker.start_timeout_s;
        if !(timeout.is_finite() && timeout > 0.0) {
            return Err(EngineError::Options(format!(
                "worker.start_timeout_s is {timeout}: give a positive number of seconds"
            )));
        }
        if options.worker.python.is_empty()
            && matches!(
                options.worker.kind,
                WorkerKind::Process | WorkerKind::Scripted
            )
        {
            return Err(EngineError::Options(
                "worker.python is empty: a worker process needs an interpreter".to_owned(),
            ));
        }
        options.limits.check_queue()?;
        Ok(options)
    }
}

impl Limits {
    fn check_queue(&self) -> Result<(), EngineError> {
        if let Some(limit) = self.max_ttft_ms.filter(|&limit| !is_time(limit * 1e-3)) {
            return Err(EngineError::Options(format!(
                "max_ttft_ms is {limit}: give a positive number of milliseconds"
            )));
        }
        for (tenant, weight) in &self.tenant_weights {
            if !(0.01..=100.0).contains(weight) {
                return Err(EngineError::Options(format!(
                    "the weight of tenant {tenant:?} is {weight}: give a number from 0.01 to 100"
                )));
            }
        }
        Ok(())
    }
}

/// What a request starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text to tokenise.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// A JSON object for the chat template: `messages`, `add_generation_prompt`, ….
    Chat(String),
}
