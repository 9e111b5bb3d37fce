//! What an engine and a request are given, as JSON.

use std::collections::BTreeMap;

use diptych_core::config::PrefillOrder;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::EngineError;
use crate::grammar::Delay;
use crate::params::MAX_TTL_S;
use crate::urgency::is_time;
use diptych_core::config::{Admission, Eviction};

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
    /// How the model writes tool calls: the name of a format, `auto` or `none`.
    #[serde(default = "auto")]
    pub tool_call_parser: String,
    /// How the model marks its reasoning: the name of a format, `auto` or `none`.
    #[serde(default = "auto")]
    pub reasoning_parser: String,
    /// Where everything that goes into the core is written down, if anywhere.
    #[serde(default)]
    pub event_log: Option<EventLogOptions>,
    /// Deliberate faults of the host side, for tests.
    #[serde(default)]
    pub test_faults: TestFaults,
}

/// A file with all inputs of the core, prompts and outputs among them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventLogOptions {
    /// The file; one that is there becomes `FILE.1`.
    pub path: std::path::PathBuf,
    /// Most bytes that are written.
    pub bytes: u64,
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
    /// A request's grammar takes this much longer to compile.
    pub slow_compile: Option<Delay>,
    /// Each of a request's masks but the first takes this much longer.
    pub slow_masks: Option<Delay>,
    /// No mask of this request but the first ever comes.
    pub withhold_masks_of: Option<u64>,
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

fn auto() -> String {
    "auto".to_owned()
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
    /// When a request gets memory.
    #[serde(default)]
    pub admission: AdmissionPolicy,
    /// Which cached block is given up for a new one.
    #[serde(default)]
    pub eviction: EvictionPolicy,
    /// Seconds after its last use for which what requests without a time to live of their own have
    /// cached can be found.
    #[serde(default)]
    pub cache_ttl: Option<f64>,
    /// KV events kept for readers; 0 is off.
    #[serde(default)]
    pub kv_events: u32,
}

/// See [`diptych_core::Admission`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionPolicy {
    /// With what is predicted to be needed, and rare preemptions.
    #[default]
    PredictedPeak,
    /// With all that may be needed, and no preemption.
    NoEviction,
    /// With what is needed now.
    WholePrompt,
}

/// See [`diptych_core::Eviction`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionPolicy {
    /// Last use longest ago.
    #[default]
    Lru,
    /// Used least often lately.
    FrequencyGuarded,
}

impl Limits {
    pub(crate) fn admission(&self) -> Admission {
        match self.admission {
            AdmissionPolicy::PredictedPeak => Admission::default(),
            AdmissionPolicy::NoEviction => Admission::NoEviction,
            AdmissionPolicy::WholePrompt => Admission::WholePrompt,
        }
    }

    /// # Errors
    /// A time to live out of range, or with a policy that has none.
    pub(crate) fn eviction(&self) -> Result<Eviction, EngineError> {
        match (self.eviction, self.cache_ttl) {
            (EvictionPolicy::Lru, None) => Ok(Eviction::Lru),
            (EvictionPolicy::Lru, Some(seconds)) if (0.0..=MAX_TTL_S).contains(&seconds) => {
                Ok(Eviction::LruWithTtl {
                    ttl_ns: (seconds * 1e9) as u64,
                })
            }
            (EvictionPolicy::FrequencyGuarded, None) => Ok(Eviction::FrequencyGuarded),
            (policy, Some(seconds)) => Err(EngineError::Options(format!(
                "limits.cache_ttl is {seconds} with eviction {policy:?}: from 0 to {MAX_TTL_S} seconds, with lru only"
            ))),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(changes: &Value) -> Result<Limits, serde_json::Error> {
        let mut all = serde_json::json!({
            "block_size": 16, "max_running": 1, "max_batched_tokens": 1, "max_prefill_tokens": null,
            "max_model_len": 9, "max_queued_requests": 1, "prefix_cache": true, "overlap_depth": 0
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        serde_json::from_value(all)
    }

    #[test]
    fn policies_have_names_and_a_time_to_live_goes_with_lru_alone() {
        let eviction = |changes| limits(&changes).unwrap().eviction();
        assert_eq!(eviction(serde_json::json!({})).unwrap(), Eviction::Lru);
        assert_eq!(
            eviction(serde_json::json!({"cache_ttl": 1.5})).unwrap(),
            Eviction::LruWithTtl {
                ttl_ns: 1_500_000_000
            }
        );
        let guarded = serde_json::json!({"eviction": "frequency_guarded"});
        assert_eq!(eviction(guarded).unwrap(), Eviction::FrequencyGuarded);
        for wrong in [
            serde_json::json!({"eviction": "frequency_guarded", "cache_ttl": 1.0}),
            serde_json::json!({"cache_ttl": -1.0}),
        ] {
            let error = eviction(wrong).unwrap_err();
            assert!(error.to_string().contains("cache_ttl"), "{error}");
        }
        let none = limits(&serde_json::json!({"admission": "no_eviction"})).unwrap();
        assert_eq!(none.admission(), Admission::NoEviction);
        assert!(limits(&serde_json::json!({"admission": "all"})).is_err());
    }
}
