//! What a simulation is asked for, as JSON.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::device_set::DeviceSet;
use crate::latency::{Coefficients, Noise};
use crate::reference::{Eviction, POLICIES};
use crate::router::Routing;
use crate::workload::Workload;

/// The policy that is the real core.
pub const CORE_POLICY: &str = "diptych";

/// A simulation: one workload, run once under each policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// A named set: `cpu-2core` or `h200`.
    pub device: String,
    /// Coefficients instead of the set's.
    pub coefficients: Option<Coefficients>,
    /// `diptych` or the name of a reference policy, each once.
    pub policies: Vec<String>,
    /// What the caches of reference policies give up first.
    pub eviction: Eviction,
    /// Engines, each with a device of its own.
    pub replicas: u32,
    /// Which replica a request goes to.
    pub router: Routing,
    /// Sizes of each engine.
    pub engine: EngineOptions,
    /// What arrives.
    pub workload: Workload,
    /// What a good request is.
    pub slo: Slo,
    /// Noise of step times.
    pub noise: Noise,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Virtual seconds after which the simulation ends, whatever is open; none: when all is done.
    pub horizon_s: Option<f64>,
    /// Steps of a replica between two checks of every invariant; none: unchecked.
    pub check_every: Option<u64>,
    /// Virtual seconds between two samples of queues, memory and fairness.
    pub sample_s: f64,
    /// Whether real clocks are read for the cost of planning. Without, equal options give equal JSON.
    pub measure_host: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: "cpu-2core".into(),
            coefficients: None,
            policies: vec![CORE_POLICY.into()],
            eviction: Eviction::Lru,
            replicas: 1,
            router: Routing::LeastLoaded,
            engine: EngineOptions::default(),
            workload: Workload::default(),
            slo: Slo::default(),
            noise: Noise::default(),
            seed: 0,
            horizon_s: None,
            check_every: None,
            sample_s: 1.0,
            measure_host: true,
        }
    }
}

/// What a request must keep to count as goodput (`DistServe`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// Time to first token at most, milliseconds.
    pub ttft_ms: f64,
    /// Mean time per further token at most, milliseconds.
    pub tpot_ms: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Self {
            ttft_ms: 2_000.0,
            tpot_ms: 100.0,
        }
    }
}

/// Sizes that differ from the device set's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineOptions {
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// KV blocks.
    pub blocks: Option<u32>,
    /// Requests that run at once.
    pub max_running: Option<u32>,
    /// Tokens per step.
    pub max_batched_tokens: Option<u32>,
    /// Prompt tokens per step.
    pub max_prefill_tokens: Option<u32>,
    /// Longest prompt with its output.
    pub max_model_len: Option<u32>,
    /// Requests that may wait.
    pub max_queued_requests: Option<u32>,
    /// Steps planned ahead: 0, 1 or 2; reference policies plan none ahead.
    pub overlap_depth: Option<u8>,
    /// Whether prefixes are found again.
    pub prefix_cache: Option<bool>,
    /// What Diptych keeps the time between two tokens to, milliseconds.
    pub target_itl_ms: Option<f64>,
    /// In which order Diptych computes a tenant's prompts.
    pub prefill_order: PrefillOrder,
    /// Diptych refuses a request whose first token it predicts later than this, milliseconds.
    pub max_ttft_ms: Option<f64>,
}

/// In which order a tenant's prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefillOrder {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Least to compute first.
    ShortestUncached,
    /// Most tokens in the prefix cache first.
    LongestCachedPrefix,
}

impl PrefillOrder {
    /// All, the default first.
    pub const ALL: [Self; 3] = [
        Self::Fcfs,
        Self::ShortestUncached,
        Self::LongestCachedPrefix,
    ];

    /// As options give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::ShortestUncached => "shortest-uncached",
            Self::LongestCachedPrefix => "longest-cached-prefix",
        }
    }
}

/// Sizes of a replica's engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Engine {
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks.
    pub blocks: u32,
    /// Requests that run at once.
    pub max_running: u32,
    /// Tokens per step.
    pub max_batched_tokens: u32,
    /// Prompt tokens per step.
    pub max_prefill_tokens: Option<u32>,
    /// Longest prompt with its output.
    pub max_model_len: u32,
    /// Requests that may wait.
    pub max_queued_requests: u32,
    /// Steps planned ahead.
    pub overlap_depth: u8,
    /// Whether prefixes are found again.
    pub prefix_cache: bool,
    /// What Diptych keeps the time between two tokens to, nanoseconds.
    pub target_itl_ns: Option<u64>,
    /// Prompt tokens that are computed together well.
    pub prefill_tile: u32,
    /// In which order Diptych computes a tenant's prompts.
    pub prefill_order: PrefillOrder,
    /// Diptych refuses a request whose first token it predicts later than this, nanoseconds.
    pub max_ttft_ns: Option<u64>,
}

impl Engine {
    fn new(set: &DeviceSet, options: &EngineOptions) -> Self {
        let block_size = options.block_size.unwrap_or(16);
        let blocks = options
            .blocks
            .unwrap_or(set.blocks * 16 / block_size.max(1));
        Self {
            block_size,
            blocks,
            max_running: options.max_running.unwrap_or(set.max_running),
            max_batched_tokens: options.max_batched_tokens.unwrap_or(set.max_batched_tokens),
            max_prefill_tokens: options.max_prefill_tokens,
            max_model_len: options.max_model_len.unwrap_or(1 << 20),
            max_queued_requests: options.max_queued_requests.unwrap_or(1 << 20),
            overlap_depth: options.overlap_depth.unwrap_or(0),
            prefix_cache: options.prefix_cache.unwrap_or(true),
            target_itl_ns: options.target_itl_ms.map(|target| (target * 1e6) as u64),
            prefill_tile: set.prefill_tile,
            prefill_order: options.prefill_order,
            max_ttft_ns: options.max_ttft_ms.map(|limit| (limit * 1e6) as u64),
        }
    }
}

/// Most replicas of one simulation.
const MOST_REPLICAS: u32 = 1_000;

impl Options {
    /// Reads and checks options; absent fields have their defaults.
    ///
    /// # Errors
    /// [`Error::Options`], [`Error::Option`].
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let options: Self = serde_json::from_str(json)?;
        options.check()?;
        Ok(options)
    }

    /// The engine of each replica.
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown device.
    pub fn engine(&self) -> Result<Engine, Error> {
        Ok(Engine::new(&DeviceSet::named(&self.device)?, &self.engine))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        DeviceSet::named(&self.device)?;
        if self.policies.is_empty() {
            return Err(Error::option("policies", "[]", "at least one"));
        }
        for name in &self.policies {
            let known = name == CORE_POLICY || POLICIES.iter().any(|policy| policy.name == name);
            if !known {
                let expected =
                    "diptych, static, prefill-first, fixed-budget, reserve-max or first-chunk";
                return Err(Error::option("policies", name, expected));
            }
        }
        if !(1..=MOST_REPLICAS).contains(&self.replicas) {
            return Err(Error::option("replicas", self.replicas, "1 to 1,000"));
        }
        for (name, value) in [
            ("sample_s", self.sample_s),
            ("horizon_s", self.horizon_s.unwrap_or(1.0)),
            ("slo.ttft_ms", self.slo.ttft_ms),
            ("slo.tpot_ms", self.slo.tpot_ms),
            ("engine.max_ttft_ms", self.engine.max_ttft_ms.unwrap_or(1.0)),
            (
                "engine.target_itl_ms",
                self.engine.target_itl_ms.unwrap_or(1.0),
            ),
        ] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::option(name, value, "above 0"));
            }
        }
        if self.check_every == Some(0) {
            return Err(Error::option("check_every", 0, "at least 1"));
        }
        self.check_noise()?;
        self.workload.check()
    }

    fn check_noise(&self) -> Result<(), Error> {
        let noise = &self.noise;
        for (name, value, most) in [
            ("noise.sigma", noise.sigma, 3.0),
            ("noise.stall_probability", noise.stall_probability, 1.0),
            ("noise.stall_least_ms", noise.stall_least_ms, 1e6),
            ("noise.stall_most_ms", noise.stall_most_ms, 1e6),
            ("noise.host_us", noise.host_us, 1e9),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(Error::option(
                    name,
                    value,
                    "not negative, and of a sane size",
                ));
            }
        }
        if noise.stall_most_ms < noise.stall_least_ms {
            let expected = "at least noise.stall_least_ms";
            return Err(Error::option(
                "noise.stall_most_ms",
                noise.stall_most_ms,
                expected,
            ));
        }
        Ok(())
    }
}
