//! Each order of prefills on prompts of which a tenth are ten times as long.

use super::{Example, Line, Watch, base, run};
use crate::options::PrefillOrder;
use crate::table::number;
use crate::workload::{Arrivals, Lengths, Sharing, Workload};
use crate::{CORE_POLICY, DeviceSet, Error, Options, Run};

/// Share of first come, first served's mean TTFT that shortest first may have.
const MOST: f64 = 0.9;

fn options(set: &DeviceSet) -> Options {
    Options {
        workload: Workload {
            // Queues form and do not grow.
            arrivals: Arrivals::Gamma {
                rate: if set.name == "h200" { 24.0 } else { 0.45 },
                cv: 2.0,
            },
            requests: 2_000,
            lengths: Lengths {
                prompt: 384,
                output: 96,
                spread: 0.3,
                longest: 16_384,
                long_share: 0.1,
                long_factor: 10.0,
            },
            sharing: Sharing {
                system_share: 0.8,
                system_tokens: 512,
                systems: 64,
                turns: 2.0,
            },
            ..Workload::default()
        },
        ..base(set)
    }
}

pub(super) fn example(set: &DeviceSet, watch: &mut Watch<'_>) -> Result<Example, Error> {
    let mut lines = Vec::new();
    let mut means = Vec::new();
    for order in PrefillOrder::ALL {
        let mut options = options(set);
        options.policies = vec![CORE_POLICY.into()];
        options.engine.prefill_order = order;
        let report = run("prefill orders", &options, watch)?;
        for run in &report.runs {
            means.push(run.ttft_ms.mean);
            lines.push(line(&format!("{CORE_POLICY}, {}", order.name()), run));
        }
    }
    let mut peers = options(set);
    peers.policies.retain(|policy| policy != CORE_POLICY);
    let report = run("prefill orders", &peers, watch)?;
    lines.extend(report.runs.iter().map(|run| line(&run.policy, run)));
    Ok(Example {
        title: format!(
            "{}: each prefill order, a tenth of the prompts ten times as long",
            set.name
        ),
        criterion: "shortest first has at most 0.8 of first come, first served's mean TTFT".into(),
        columns: vec![
            "mean TTFT, ms",
            "p50 TTFT, ms",
            "p99 TTFT, ms",
            "worst TTFT, s",
            "hit ratio",
            "goodput, requests/s",
        ],
        lines,
        holds: means[1] <= MOST * means[0],
    })
}

fn line(policy: &str, run: &Run) -> Line {
    Line {
        policy: policy.into(),
        figures: vec![
            number(run.ttft_ms.mean),
            number(run.ttft_ms.p50),
            number(run.ttft_ms.p99),
            number(run.ttft_ms.max / 1e3),
            crate::table::percent(run.hit_ratio),
            number(run.goodput.per_s),
        ],
        holds: None,
    }
}
