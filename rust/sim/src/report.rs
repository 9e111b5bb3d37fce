//! What a run gives back.

use serde::Serialize;

use crate::cluster::Cluster;
use crate::metrics::{Fairness, Sample, Summary, TenantReport};
use crate::options::{Engine, Options};

/// All runs of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was asked for, defaults filled in.
    pub options: Options,
    /// The sizes of each replica's engine.
    pub engine: Engine,
    /// Where the coefficients come from.
    pub device_origin: String,
    /// One for each policy, in the order asked for.
    pub runs: Vec<Run>,
}

/// One policy's run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The policy.
    pub policy: String,
    /// Virtual seconds from the start to the end of the last request.
    pub virtual_s: f64,
    /// What became of requests; the first is the sum of the others.
    pub requests: Requests,
    /// Time to first token.
    pub ttft_ms: Summary,
    /// Time between two tokens of a request.
    pub itl_ms: Summary,
    /// Mean time per further token of each finished request.
    pub tpot_ms: Summary,
    /// From arrival to the last token of each finished request.
    pub e2e_ms: Summary,
    /// From arrival to admission, or to the end of who was never admitted: the queue's age.
    pub queue_ms: Summary,
    /// Requests within the SLO.
    pub goodput: Goodput,
    /// Tokens.
    pub tokens: Tokens,
    /// Prompt tokens found in the prefix cache, of those looked up at first admission.
    pub hit_ratio: f64,
    /// Who lost KV.
    pub preemptions: Preemptions,
    /// Rows that could decode and were left out of a step; none where steps are planned ahead.
    pub skipped_decode_rows: Option<u64>,
    /// Between tenants.
    pub fairness: Fairness,
    /// Each tenant.
    pub tenants: Vec<TenantReport>,
    /// Steps of all replicas.
    pub steps: Steps,
    /// The course of the run.
    pub series: Vec<Sample>,
    /// What real clocks said; none where they were not read.
    pub host: Option<HostReport>,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// All that arrived.
    pub arrived: u64,
    /// With all their output.
    pub finished: u64,
    /// Left by their clients.
    pub aborted: u64,
    /// Ended by a deadline.
    pub expired: u64,
    /// Refused for the moment.
    pub overloaded: u64,
    /// Refused for ever.
    pub impossible: u64,
    /// Failed: always 0 unless a scheduler is broken.
    pub failed: u64,
    /// Still open at the horizon.
    pub open: u64,
}

/// Requests that kept the SLO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// How many.
    pub requests: u64,
    /// Of those that arrived.
    pub share: f64,
    /// A virtual second.
    pub per_s: f64,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tokens {
    /// Of admitted prompts.
    pub prompt: u64,
    /// Of those found in the prefix cache.
    pub cached: u64,
    /// Output tokens.
    pub generated: u64,
    /// Output tokens a virtual second.
    pub generated_per_s: f64,
    /// Computed in prefill, those computed again included.
    pub prefilled: u64,
}

/// Counts of preemptions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Preemptions {
    /// All.
    pub total: u64,
    /// Requests that were preempted.
    pub requests: u64,
    /// Of those that arrived.
    pub share: f64,
    /// Of one request.
    pub most: u32,
}

/// Steps of all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// How many.
    pub count: u64,
    /// Mean tokens.
    pub tokens: f64,
    /// Mean decode rows.
    pub decode_rows: f64,
    /// Share of the virtual time in which a device ran.
    pub busy_share: f64,
}

/// Real time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HostReport {
    /// Seconds of the whole run.
    pub wall_s: f64,
    /// Steps a second, everything included.
    pub steps_per_s: f64,
    /// One call of `plan`, of one in 16 steps.
    pub plan_us: Cost,
    /// One call of `complete`.
    pub complete_us: Cost,
}

/// Microseconds of one call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Cost {
    fn new(summary: &Summary) -> Self {
        Self {
            p50: summary.p50 * 1e3,
            p99: summary.p99 * 1e3,
            max: summary.max * 1e3,
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Run {
    /// Sums up a cluster that has run for `wall_s` real seconds.
    pub(crate) fn new(policy: &str, cluster: Cluster, counts_skipped: bool, wall_s: f64) -> Self {
        let metrics = &cluster.metrics;
        let virtual_s = cluster.now as f64 / 1e9;
        let a_second = |count: u64| count as f64 / virtual_s.max(1e-9);
        let (steps, prefilled) = sum_steps(&cluster);
        Self {
            policy: policy.into(),
            virtual_s,
            requests: Requests {
                arrived: metrics.arrived,
                finished: metrics.finished,
                aborted: metrics.aborted,
                expired: metrics.expired,
                overloaded: metrics.overloaded,
                impossible: metrics.impossible,
                failed: metrics.failed,
                open: cluster.open() as u64,
            },
            ttft_ms: metrics.ttft.summary(),
            itl_ms: metrics.gap.summary(),
            tpot_ms: metrics.tpot.summary(),
            e2e_ms: metrics.e2e.summary(),
            queue_ms: metrics.queued.summary(),
            goodput: Goodput {
                requests: metrics.good,
                share: share(metrics.good, metrics.arrived),
                per_s: a_second(metrics.good),
            },
            tokens: Tokens {
                prompt: metrics.prompt_tokens,
                cached: metrics.cached_tokens,
                generated: metrics.generated,
                generated_per_s: a_second(metrics.generated),
                prefilled,
            },
            hit_ratio: share(metrics.cached_tokens, metrics.prompt_tokens),
            preemptions: Preemptions {
                total: metrics.preemptions,
                requests: metrics.preempted_requests,
                share: share(metrics.preempted_requests, metrics.arrived),
                most: metrics.most_preemptions,
            },
            skipped_decode_rows: counts_skipped.then_some(cluster.skipped_rows),
            fairness: metrics.tenants.fairness(),
            tenants: metrics.tenants.report(),
            host: cluster.host.as_ref().map(|host| HostReport {
                wall_s,
                steps_per_s: steps.count as f64 / wall_s.max(1e-9),
                plan_us: Cost::new(&host.plan.summary()),
                complete_us: Cost::new(&host.complete.summary()),
            }),
            steps,
            series: cluster.series.into_samples(),
        }
    }
}

fn sum_steps(cluster: &Cluster) -> (Steps, u64) {
    let (mut count, mut tokens, mut rows, mut prefilled, mut busy) = (0, 0, 0, 0, 0);
    for replica in &cluster.replicas {
        count += replica.work.steps;
        tokens += replica.work.tokens;
        rows += replica.work.decode_rows;
        prefilled += replica.work.prefill_tokens;
        busy += replica.work.busy_ns;
    }
    let available = cluster.now * cluster.replicas.len() as u64;
    let steps = Steps {
        count,
        tokens: share(tokens, count),
        decode_rows: share(rows, count),
        busy_share: share(busy, available),
    };
    (steps, prefilled)
}
