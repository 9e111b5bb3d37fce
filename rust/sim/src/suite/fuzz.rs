//! A million requests of all kinds on small engines, with every invariant checked every thousand steps.

use super::{Example, Line, Watch};
use crate::workload::{Arrivals, Lengths, Sharing, Workload};
use crate::{CORE_POLICY, EngineOptions, Error, Options, PrefillOrder, Routing};

/// Kinds of engine and workload, each with an equal share of the requests.
const KINDS: u64 = 16;
const CHECK_EVERY: u64 = 1_000;

/// Arrivals of kind `kind`: rates beyond what the engine serves, so that queues and caches are full.
fn arrivals(kind: u64) -> Arrivals {
    let rate = 100.0;
    match kind % 8 {
        0 => Arrivals::Poisson { rate },
        1 => Arrivals::Gamma { rate, cv: 6.0 },
        2 => Arrivals::Diurnal {
            rate,
            period: 60.0,
            depth: 1.0,
        },
        3 => Arrivals::FlashCrowd {
            rate,
            at: 5.0,
            lasting: 20.0,
            factor: 10.0,
        },
        4 => Arrivals::TenantFlood {
            rate: rate / 30.0,
            factor: 20.0,
        },
        5 => Arrivals::LongPromptAttack {
            rate,
            every: 2.0,
            tokens: 700,
        },
        6 => Arrivals::SamePrefixHerd {
            rate,
            every: 1.0,
            size: 30,
            tokens: 100,
        },
        _ => Arrivals::AbortStorm {
            rate,
            at: 1.0,
            lasting: 1e4,
            share: 0.3,
        },
    }
}

fn options(kind: u64, requests: u64) -> Options {
    // Room for some ten to twenty requests, and for the longest with what it may grow to.
    let tokens = 768 + 256 * (kind % 5) as u32;
    Options {
        device: "h200".into(),
        policies: vec![CORE_POLICY.into()],
        replicas: 1 + (kind % 2) as u32,
        router: Routing::PrefixAware,
        engine: EngineOptions {
            block_size: Some(4 << (kind % 3)),
            blocks: Some(tokens / (4 << (kind % 3))),
            max_running: Some(8 + 12 * (kind % 4) as u32),
            max_batched_tokens: Some(96 + 64 * (kind % 3) as u32),
            max_prefill_tokens: (kind % 4 == 3).then_some(48),
            max_queued_requests: Some(500),
            overlap_depth: Some((kind % 3) as u8),
            prefix_cache: Some(kind % 7 != 6),
            prefill_order: PrefillOrder::ALL[(kind % 3) as usize],
            target_itl_ms: (kind % 3 == 1).then_some(8.0),
            ..EngineOptions::default()
        },
        workload: Workload {
            arrivals: arrivals(kind),
            requests,
            lengths: Lengths {
                prompt: 40,
                output: 16,
                spread: 0.9,
                longest: 600,
                ..Lengths::default()
            },
            sharing: Sharing {
                system_share: 0.5,
                system_tokens: 24,
                systems: 6,
                turns: 1.0 + (kind % 3) as f64,
            },
            tenants: 6,
            abort_share: 0.1,
            patience_s: 1.0,
            priorities: 1 + (kind % 3) as u8,
            timeout_s: (kind % 5 == 2).then_some(3.0),
            ttft_timeout_s: (kind % 4 == 1).then_some(1.0),
            ..Workload::default()
        },
        seed: kind,
        check_every: Some(CHECK_EVERY),
        measure_host: true,
        ..Options::default()
    }
}

/// Runs `requests` random requests; a violation ends it with an error.
///
/// # Errors
/// As [`crate::simulate`].
pub fn example(requests: u64, watch: &mut Watch<'_>) -> Result<Example, Error> {
    let mut sums = [0_u64; 7];
    let mut wall_s = 0.0;
    for kind in 0..KINDS {
        let options = options(kind, requests.div_ceil(KINDS));
        // A violation ends the suite with its words: there is nothing to compare it with.
        let report = super::run(
            &format!("(6) fuzz {} of {KINDS}", kind + 1),
            &options,
            watch,
        )?;
        for run in &report.runs {
            let counts = [
                run.requests.arrived,
                run.requests.finished,
                run.requests.aborted,
                run.requests.expired,
                run.requests.overloaded + run.requests.impossible,
                run.preemptions.total,
                run.steps.count,
            ];
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
            wall_s += run.host.map_or(0.0, |host| host.wall_s);
        }
    }
    let mut figures: Vec<String> = sums.iter().map(u64::to_string).collect();
    figures.push(format!("{wall_s:.0}"));
    Ok(Example {
        title: format!(
            "(6) {requests} random requests of {KINDS} kinds, every invariant checked every 1,000 steps"
        ),
        criterion: "no violation, and every request ends exactly once".into(),
        columns: vec![
            "arrived",
            "finished",
            "aborted",
            "expired",
            "refused",
            "preemptions",
            "steps",
            "real seconds",
        ],
        lines: vec![Line {
            policy: CORE_POLICY.into(),
            figures,
            holds: None,
        }],
        holds: sums[0] == sums[1] + sums[2] + sums[3] + sums[4],
    })
}
