//! Streams decode; a prompt arrives that takes many steps to compute.

use super::{Example, Line, Watch, base, judged, run};
use crate::table::number;
use crate::workload::{Arrivals, Listed, Workload};
use crate::{DeviceSet, Error, Noise, Options};

/// How many times the target the worst gap may be.
const MOST: f64 = 1.5;

/// Streams, their prompts and outputs, and the long prompt: what the device can be asked.
struct Size {
    streams: usize,
    prompt: u32,
    output: u32,
    long: u32,
}

fn size(set: &DeviceSet) -> Size {
    if set.name == "h200" {
        Size {
            streams: 32,
            prompt: 256,
            output: 4_000,
            long: 200_000,
        }
    } else {
        // A context of 200,000 tokens is none for two cores: one token of such a prompt takes 38 ms.
        Size {
            streams: 4,
            prompt: 128,
            output: 1_000,
            long: 4_000,
        }
    }
}

pub(super) fn example(set: &DeviceSet, watch: &mut Watch<'_>) -> Result<Example, Error> {
    let size = size(set);
    let streams = Listed {
        at_ms: 0.0,
        prompt: size.prompt,
        output: size.output,
        max_tokens: None,
        tenant: 1,
        abort_after_ms: None,
    };
    let mut list = vec![streams; size.streams];
    list.push(Listed {
        at_ms: 2_000.0,
        prompt: size.long,
        output: 32,
        tenant: 2,
        ..streams
    });
    let mut options = Options {
        // Stalls of the operating system are no matter of policy.
        noise: Noise {
            stall_probability: 0.0,
            ..Noise::default()
        },
        workload: Workload {
            arrivals: Arrivals::List { list },
            ..Workload::default()
        },
        ..base(set)
    };
    options.engine.target_itl_ms = Some(set.itl_ms);
    let report = run("(2) long prompt", &options, watch)?;
    let lines = report.runs.iter().map(|run| {
        let gap = run.tenants[0].itl_ms.max;
        Line {
            policy: run.policy.clone(),
            figures: vec![
                number(run.tenants[0].itl_ms.p50),
                number(gap),
                number(run.tenants[0].tpot_ms.max),
                number(run.tenants[1].ttft_ms.max / 1e3),
                run.skipped_decode_rows
                    .map_or("-".into(), |rows| rows.to_string()),
            ],
            holds: Some(gap <= MOST * set.itl_ms && run.skipped_decode_rows == Some(0)),
        }
    });
    Ok(judged(
        format!(
            "(2), (7) {}: a prompt of {} tokens among {} streams, target {} ms between tokens",
            set.name, size.long, size.streams, set.itl_ms
        ),
        "worst gap of a stream at most 1.5 times the target; no row that could decode left out of a step".into(),
        vec!["median gap, ms", "worst gap, ms", "worst TPOT, ms", "long TTFT, s", "rows left out"],
        lines.collect(),
    ))
}
