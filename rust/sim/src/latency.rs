//! How long a step takes: a linear model of what it computes, with noise.
//!
//! `T = c0[kind] + c1·tokens + c2·Σ q(h + q/2) + c3·Σ context + c4·rows + c5·logits`, where a
//! prefill chunk of `q` tokens has `h` before it and a decode row attends over its context.

use serde::{Deserialize, Serialize};

use crate::random::{Purpose, Stream};

/// What one step computes, as far as time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Rows that decode one token.
    pub decode_rows: u32,
    /// Tokens that they attend over, their own included.
    pub decode_context: u64,
    /// Chunks of prompts.
    pub prefill_rows: u32,
    /// Tokens of those chunks.
    pub prefill_tokens: u32,
    /// Σ q(2h + q): twice the pairs of query and key.
    pub doubled_pairs: u64,
    /// Logit rows that are sampled.
    pub logits: u32,
}

impl Shape {
    /// Adds a row that decodes one token, with `context` tokens in its KV after the step.
    pub fn add_decode(&mut self, context: u64) {
        self.decode_rows += 1;
        self.decode_context += context;
    }

    /// Adds a chunk of `count` prompt tokens after `history` tokens.
    pub fn add_prefill(&mut self, history: u64, count: u32) {
        let count_wide = u64::from(count);
        self.prefill_rows += 1;
        self.prefill_tokens += count;
        self.doubled_pairs += count_wide * (2 * history + count_wide);
    }

    /// Tokens of the step.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.decode_rows + self.prefill_tokens
    }
}

/// Coefficients of the model, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coefficients {
    /// A step of decode rows alone: c0.
    pub decode_step: f64,
    /// A step of prefill chunks alone: c0.
    pub prefill_step: f64,
    /// A step of both: c0.
    pub mixed_step: f64,
    /// Each token: c1.
    pub token: f64,
    /// Each pair of query and key of a prefill chunk: c2.
    pub prefill_pair: f64,
    /// Each token that a decode row attends over: c3.
    pub decode_context: f64,
    /// Each row: c4.
    pub row: f64,
    /// Each logit row: c5.
    pub logits: f64,
}

impl Coefficients {
    /// Nanoseconds of a step without noise.
    #[must_use]
    pub fn time(&self, shape: &Shape) -> f64 {
        let step = match (shape.decode_rows, shape.prefill_rows) {
            (_, 0) => self.decode_step,
            (0, _) => self.prefill_step,
            _ => self.mixed_step,
        };
        step + self.token * f64::from(shape.tokens())
            + self.prefill_pair * shape.doubled_pairs as f64 / 2.0
            + self.decode_context * shape.decode_context as f64
            + self.row * f64::from(shape.decode_rows + shape.prefill_rows)
            + self.logits * f64::from(shape.logits)
    }
}

/// What makes equal steps take unequal times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Noise {
    /// Standard deviation of the logarithm of a step's time; 0 is off.
    pub sigma: f64,
    /// Share of steps that stall.
    pub stall_probability: f64,
    /// Shortest stall, milliseconds.
    pub stall_least_ms: f64,
    /// Longest stall, milliseconds.
    pub stall_most_ms: f64,
    /// The host's work before each step, microseconds; hidden while a step runs.
    pub host_us: f64,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            sigma: 0.05,
            stall_probability: 1e-4,
            stall_least_ms: 5.0,
            stall_most_ms: 50.0,
            host_us: 20.0,
        }
    }
}

impl Noise {
    /// No noise, no stall, no host.
    pub const NONE: Self = Self {
        sigma: 0.0,
        stall_probability: 0.0,
        stall_least_ms: 0.0,
        stall_most_ms: 0.0,
        host_us: 0.0,
    };
}

/// A replica's device: draws the time of each step.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    coefficients: Coefficients,
    noise: Noise,
    stream: Stream,
}

impl Device {
    pub(crate) fn new(coefficients: Coefficients, noise: Noise, seed: u64, replica: u32) -> Self {
        Self {
            coefficients,
            noise,
            stream: Stream::new(seed, Purpose::Steps(replica)),
        }
    }

    /// Nanoseconds of a step, at least 1.
    pub(crate) fn run(&mut self, shape: &Shape) -> u64 {
        let mut time = self.coefficients.time(shape);
        if self.noise.sigma > 0.0 {
            time *= self.stream.lognormal(self.noise.sigma);
        }
        if self.noise.stall_probability > 0.0 && self.stream.unit() < self.noise.stall_probability {
            let range = self.noise.stall_most_ms - self.noise.stall_least_ms;
            time += 1e6 * (self.noise.stall_least_ms + range * self.stream.unit());
        }
        (time as u64).max(1)
    }

    pub(crate) fn host_ns(&self) -> u64 {
        (self.noise.host_us * 1e3) as u64
    }
}
