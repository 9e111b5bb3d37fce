//! Four prompts of 100,000 tokens decode on a pool of 450,000; a fifth arrives, for which there is no room.

use super::{Example, Line, Watch, base, judged, run};
use crate::report::Run;
use crate::table::{number, percent};
use crate::workload::{Arrivals, Listed, Workload};
use crate::{CORE_POLICY, DeviceSet, Error, Options, Sample};

const PROMPT: u32 = 100_000;
const OUTPUT: u32 = 12_000;
const POOL_TOKENS: u32 = 450_000;
/// Share of the calm case's throughput that must be left.
const LEAST: f64 = 0.95;

pub(super) fn example(set: &DeviceSet, watch: &mut Watch<'_>) -> Result<Example, Error> {
    let mut lines = Vec::new();
    for policy in super::POLICIES {
        let calm = one(set, policy, None, watch)?;
        // A moment after the last of the four has its first token.
        let arrives_ms = calm.ttft_ms.max * 1.02;
        let disturbed = one(set, policy, Some(arrives_ms), watch)?;
        let window = (arrives_ms / 1e3, calm.virtual_s);
        let left = generated(&disturbed.series, window) / generated(&calm.series, window);
        lines.push(Line {
            policy: policy.into(),
            figures: vec![
                number(generated(&calm.series, window) / (window.1 - window.0)),
                percent(left),
                disturbed.preemptions.total.to_string(),
                number(disturbed.tenants[1].ttft_ms.max / 1e3),
            ],
            holds: Some(left >= LEAST),
        });
    }
    Ok(judged(
        format!(
            "(1) {}: a fifth prompt of 100,000 tokens while four decode on a pool of 450,000, no prefix cache",
            set.name
        ),
        "decode throughput from its arrival on at least 95 % of the same time without it".into(),
        vec![
            "tokens/s without",
            "left with it",
            "preemptions",
            "fifth's TTFT, s",
        ],
        lines,
    ))
}

fn one(
    set: &DeviceSet,
    policy: &str,
    fifth_ms: Option<f64>,
    watch: &mut Watch<'_>,
) -> Result<Run, Error> {
    let listed = |at_ms: f64, output: u32, tenant: u64| Listed {
        at_ms,
        prompt: PROMPT,
        output,
        max_tokens: None,
        tenant,
        abort_after_ms: None,
    };
    let mut list = vec![listed(0.0, OUTPUT, 1); 4];
    list.extend(fifth_ms.map(|at_ms| listed(at_ms, 100, 2)));
    let mut options = Options {
        policies: vec![policy.into()],
        workload: Workload {
            arrivals: Arrivals::List { list },
            ..Workload::default()
        },
        ..base(set)
    };
    options.engine.blocks = Some(POOL_TOKENS / 16);
    // With a cache, what a preempted prompt had computed is found again, which hides the thrash.
    options.engine.prefix_cache = Some(false);
    let mut report = run("(1) long prompts", &options, watch)?;
    report
        .runs
        .pop()
        .ok_or_else(|| Error::option("policies", CORE_POLICY, "one run for one policy"))
}

/// Output tokens within a window of seconds, between samples in proportion.
fn generated(series: &[Sample], (from, to): (f64, f64)) -> f64 {
    let until = |moment: f64| {
        let after = series.partition_point(|sample| sample.at_s < moment);
        match (series.get(after.wrapping_sub(1)), series.get(after)) {
            (Some(before), Some(next)) => {
                let share = (moment - before.at_s) / (next.at_s - before.at_s);
                before.generated as f64 + share * (next.generated - before.generated) as f64
            }
            (Some(last), None) => last.generated as f64,
            (None, _) => 0.0,
        }
    };
    until(to) - until(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_between_two_samples_count_in_proportion() {
        let sample = |at_s, generated| Sample {
            at_s,
            generated,
            ..Sample::default()
        };
        let series = [sample(0.0, 0), sample(10.0, 100), sample(20.0, 400)];
        assert!((generated(&series, (5.0, 15.0)) - 200.0).abs() < 1e-9);
        assert!((generated(&series, (10.0, 99.0)) - 300.0).abs() < 1e-9);
    }
}
