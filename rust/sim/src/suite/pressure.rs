//! Bursts of requests whose outputs nobody knows, on a pool that is too small for all of them.

use super::{Example, Line, Watch, base, judged, run};
use crate::table::{number, percent};
use crate::workload::{Arrivals, Lengths, Workload};
use crate::{DeviceSet, Error, Options};

/// Share of requests that may be preempted, and how often one may be.
const MOST_SHARE: f64 = 0.01;
const MOST_REPEATS: u32 = 2;

pub(super) fn example(set: &DeviceSet, watch: &mut Watch<'_>) -> Result<Example, Error> {
    // About what the small pool can serve.
    let rate = if set.name == "h200" { 4.0 } else { 0.4 };
    let mut options = Options {
        workload: Workload {
            arrivals: Arrivals::Gamma { rate, cv: 3.0 },
            requests: 2_000,
            lengths: Lengths {
                prompt: 512,
                output: 512,
                spread: 0.9,
                longest: 4_096,
                ..Lengths::default()
            },
            ..Workload::default()
        },
        ..base(set)
    };
    // Room for about sixteen requests with a mean output.
    options.engine.blocks = Some(1_024);
    let report = run("(4) memory", &options, watch)?;
    let lines = report.runs.iter().map(|run| Line {
        policy: run.policy.clone(),
        figures: vec![
            percent(run.preemptions.share),
            run.preemptions.most.to_string(),
            number(run.tokens.generated_per_s),
            number(run.ttft_ms.p99 / 1e3),
            number(run.itl_ms.p99),
            percent(run.hit_ratio),
        ],
        holds: Some(run.preemptions.share <= MOST_SHARE && run.preemptions.most <= MOST_REPEATS),
    });
    Ok(judged(
        format!(
            "(4) {}: bursts, outputs of 512 tokens with a long tail, a pool of 16,384 tokens",
            set.name
        ),
        "at most 1 % of requests preempted, none more than twice".into(),
        vec![
            "preempted",
            "most of one",
            "tokens/s",
            "p99 TTFT, s",
            "p99 gap, ms",
            "hit ratio",
        ],
        lines.collect(),
    ))
}
