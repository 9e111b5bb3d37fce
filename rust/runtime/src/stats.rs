//! Counters and histograms of one engine.

use std::collections::BTreeMap;
use std::time::Duration;

use diptych_core::latency::{LatencyModel, StepKind};
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::EventLogStatus;
use crate::frame::{Done, Timings};

/// Bounds of `time_to_first_token` in seconds.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Bounds of `inter_token_latency` in seconds.
const INTER_TOKEN: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Bounds of `step_gap` in seconds.
const STEP_GAP: [f64; 11] = [
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1,
];

/// Bounds of the latencies of whole requests in seconds.
const LATENCY: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// A histogram in Prometheus' sense, its counts not accumulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Histogram {
    buckets: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(buckets: &'static [f64]) -> Self {
        Self {
            buckets,
            counts: vec![0; buckets.len() + 1],
            sum: 0.0,
        }
    }

    fn record(&mut self, nanoseconds: u64) {
        let seconds = nanoseconds as f64 * 1e-9;
        let bucket = self.buckets.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

/// All histograms, under their names in the statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Histograms {
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_request_latency: Histogram,
    queue_time: Histogram,
    step_gap: Histogram,
}

/// What the threads that finish requests count.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Statistics {
    pub(crate) histograms: Histograms,
    pub(crate) requests_total: BTreeMap<&'static str, u64>,
    pub(crate) prompt_tokens: u64,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        Self {
            histograms: Histograms {
                time_to_first_token: Histogram::new(&FIRST_TOKEN),
                inter_token_latency: Histogram::new(&INTER_TOKEN),
                e2e_request_latency: Histogram::new(&LATENCY),
                queue_time: Histogram::new(&LATENCY),
                step_gap: Histogram::new(&STEP_GAP),
            },
            requests_total: BTreeMap::new(),
            prompt_tokens: 0,
        }
    }

    /// A request was admitted for the first time.
    pub(crate) fn admitted(&mut self, timings: &Timings) {
        let waited = timings.admitted.saturating_sub(timings.tokenised);
        self.histograms.queue_time.record(waited);
    }

    /// A request's first token was committed.
    pub(crate) fn first_token(&mut self, timings: &Timings) {
        let waited = timings.first_token.saturating_sub(timings.arrived);
        self.histograms.time_to_first_token.record(waited);
    }

    /// Another token was committed, this long after the one before.
    pub(crate) fn next_token(&mut self, nanoseconds: u64) {
        self.histograms.inter_token_latency.record(nanoseconds);
    }

    /// The worker did nothing for so long between two steps although there was work.
    pub(crate) fn step_gap(&mut self, nanoseconds: u64) {
        self.histograms.step_gap.record(nanoseconds);
    }

    /// A request ended.
    pub(crate) fn done(&mut self, done: &Done) {
        let (reason, finished) = match done {
            Done::Finished(finished) => (finished.reason.as_str(), Some(finished)),
            Done::Failed(failure) => (failure.kind.as_str(), None),
        };
        *self.requests_total.entry(reason).or_insert(0) += 1;
        if let Some(finished) = finished.filter(|_| reason != "abort") {
            let timings = finished.timings;
            let lasted = timings.finished.saturating_sub(timings.arrived);
            self.histograms.e2e_request_latency.record(lasted);
        }
    }
}

/// Parts of the worker's last restart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Restart {
    /// From the first sign of its end until it was collected.
    pub(crate) detect: Duration,
    /// Waited before the next start.
    pub(crate) backoff: Duration,
    /// Making arenas and starting the process.
    pub(crate) spawn: Duration,
    /// From there to `hello`.
    pub(crate) hello: Duration,
    /// From there to `ready`.
    pub(crate) ready: Duration,
}

impl Restart {
    fn to_json(self) -> Value {
        json!({
            "detect_s": self.detect.as_secs_f64(),
            "backoff_s": self.backoff.as_secs_f64(),
            "spawn_s": self.spawn.as_secs_f64(),
            "hello_s": self.hello.as_secs_f64(),
            "ready_s": self.ready.as_secs_f64(),
        })
    }
}

/// What the core has learnt about the time of steps: nanoseconds for a unit of each kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StepModel {
    decode_step: f64,
    prefill_step: f64,
    mixed_step: f64,
    prefill_token: f64,
    prefill_pair: f64,
    prefill_row: f64,
    decode_row: f64,
    decode_context: f64,
    logit_row: f64,
    /// What 19 of 20 steps with prefill and decoding take at most ÷ what is predicted.
    mixed_margin: f64,
    /// Steps observed: decode, prefill, mixed.
    observations: [u64; 3],
}

impl StepModel {
    pub(crate) fn of(model: &LatencyModel) -> Self {
        let costs = model.coefficients();
        Self {
            decode_step: costs.decode_step,
            prefill_step: costs.prefill_step,
            mixed_step: costs.mixed_step,
            prefill_token: costs.prefill_token,
            prefill_pair: costs.prefill_pair,
            prefill_row: costs.prefill_row,
            decode_row: costs.decode_row,
            decode_context: costs.decode_context,
            logit_row: costs.logit_row,
            mixed_margin: model.margin(StepKind::Mixed),
            observations: StepKind::ALL.map(|kind| model.observations(kind)),
        }
    }
}

/// What the engine thread publishes after each turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) core: diptych_core::Stats,
    pub(crate) step_model: Option<StepModel>,
    /// Priority, waiting requests and their uncached prompt tokens.
    pub(crate) waiting: Vec<(u8, u32, u64)>,
    /// Steps planned while another ran.
    pub(crate) steps_ahead: u64,
    pub(crate) epoch: u64,
    pub(crate) worker_restarts: u64,
    pub(crate) worker_alive: bool,
    pub(crate) worker_pid: Option<u32>,
    pub(crate) last_restart: Option<Restart>,
    pub(crate) last_worker_error: Option<String>,
    pub(crate) event_log: Option<EventLogStatus>,
}

impl Snapshot {
    /// Takes over what waits in the core.
    pub(crate) fn count_waiting(&mut self, core: Option<&diptych_core::Core>) {
        self.waiting.clear();
        if let Some(core) = core {
            self.waiting.extend(core.waiting_by_priority());
        }
    }

    fn waiting_json(&self) -> BTreeMap<String, Value> {
        let waiting = self.waiting.iter();
        waiting
            .map(|&(priority, requests, tokens)| {
                let waiting = json!({"requests": requests, "tokens": tokens});
                (priority.to_string(), waiting)
            })
            .collect()
    }
}

/// The statistics as JSON.
pub(crate) fn to_json(
    snapshot: &Snapshot,
    statistics: &Statistics,
    open_requests: usize,
    target_itl_ns: Option<u64>,
) -> Vec<u8> {
    let core = &snapshot.core;
    let json = json!({
        "requests_running": core.running,
        "requests_waiting": core.waiting,
        "tokens_waiting": core.waiting_tokens,
        "waiting_by_priority": snapshot.waiting_json(),
        "requests_expired": {"waiting": core.expired_waiting, "running": core.expired_running},
        "kv_blocks_total": core.blocks,
        "kv_blocks_used": core.used_blocks,
        "kv_blocks_cached": core.cached_blocks,
        "prefix_cache_queries": core.prefix_queries,
        "prefix_cache_hits": core.prefix_hits,
        "prompt_tokens": statistics.prompt_tokens,
        "generation_tokens": core.generated,
        "preemptions": core.preemptions,
        "requests_total": statistics.requests_total,
        "worker_restarts": snapshot.worker_restarts,
        "epoch": snapshot.epoch,
        "steps": core.steps,
        "itl_p50_s": core.itl_p50_ns as f64 / 1e9,
        "itl_p99_s": core.itl_p99_ns as f64 / 1e9,
        "paced_tokens": core.paced_tokens,
        "late_tokens": core.late_tokens,
        "target_itl_s": target_itl_ns.map(|target| target as f64 / 1e9),
        "step_model": snapshot.step_model,
        "steps_ahead": snapshot.steps_ahead,
        "worker_alive": snapshot.worker_alive,
        "histograms": statistics.histograms,
        "last_restart": snapshot.last_restart.map(Restart::to_json),
        "last_worker_error": snapshot.last_worker_error,
        "open_requests": open_requests,
        "event_log": snapshot.event_log,
    });
    json.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_below_it() {
        let mut histogram = Histogram::new(&FIRST_TOKEN);
        for nanoseconds in [
            0,
            1_000_000,
            1_000_001,
            2_560_000_000_000,
            3_000_000_000_000,
        ] {
            histogram.record(nanoseconds);
        }
        assert_eq!(histogram.counts[0], 2);
        assert_eq!(histogram.counts[1], 1);
        assert_eq!(histogram.counts[21], 1);
        assert_eq!(histogram.counts[22], 1);
        assert_eq!(histogram.counts.iter().sum::<u64>(), 5);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [&FIRST_TOKEN[..], &INTER_TOKEN, &STEP_GAP, &LATENCY] {
            assert!(bounds.is_sorted());
        }
    }
}
