//! Runs whose every moment can be computed by hand, or must not change from run to run.

use diptych_sim::{
    Arrivals, Coefficients, EngineOptions, Listed, Noise, Options, Report, Run, Workload, simulate,
};

fn run(options: &Options) -> Report {
    simulate(options, &mut |_, _| true).expect("a simulation that ends")
}

fn listed(at_ms: f64, prompt: u32, output: u32) -> Listed {
    Listed {
        at_ms,
        prompt,
        output,
        max_tokens: None,
        tenant: 1,
        abort_after_ms: None,
    }
}

fn quiet(arrivals: Arrivals) -> Options {
    Options {
        noise: Noise::NONE,
        measure_host: false,
        workload: Workload {
            arrivals,
            ..Workload::default()
        },
        ..Options::default()
    }
}

/// Milliseconds as nanoseconds.
const MS: f64 = 1e6;

fn coefficients() -> Coefficients {
    Coefficients {
        decode_step: 10.0 * MS,
        prefill_step: 20.0 * MS,
        mixed_step: 30.0 * MS,
        token: MS,
        prefill_pair: 0.0,
        decode_context: 0.0,
        row: 0.0,
        logits: 0.0,
    }
}

fn assert_ms(seen: f64, expected: f64) {
    assert!(
        (seen - expected).abs() <= expected * 1e-3,
        "{seen} ms, expected {expected} ms"
    );
}

/// ```text
///   0 ms  A arrives            step of A's 4 prompt tokens: 20 + 4
///  24 ms  A's first token      step of A's second token and B's 2 prompt tokens: 30 + 3
///  57 ms  A, B                 step of one token each: 10 + 2
///  69 ms  A, B                 both end
/// ```
#[test]
fn one_replica_without_noise_keeps_the_timeline_computed_by_hand() {
    let mut options = quiet(Arrivals::List {
        list: vec![listed(0.0, 4, 3), listed(5.0, 2, 2)],
    });
    options.coefficients = Some(coefficients());
    let report = run(&options);
    let run = &report.runs[0];
    assert_ms(run.virtual_s * 1e3, 69.0);
    assert_eq!((run.steps.count, run.tokens.generated), (3, 5));
    assert_ms(run.ttft_ms.p50, 24.0);
    assert_ms(run.ttft_ms.max, 52.0);
    assert_ms(run.itl_ms.p50, 12.0);
    assert_ms(run.itl_ms.max, 33.0);
    assert_ms(run.queue_ms.max, 19.0);
    assert_ms(run.e2e_ms.max, 69.0);
}

/// With one step planned ahead the host's work is hidden behind the step before.
#[test]
fn planning_ahead_hides_the_host() {
    let time = |depth| {
        let mut options = quiet(Arrivals::List {
            list: vec![listed(0.0, 4, 40)],
        });
        options.coefficients = Some(coefficients());
        options.noise.host_us = 5_000.0;
        options.engine.overlap_depth = Some(depth);
        run(&options).runs[0].virtual_s * 1e3
    };
    assert_ms(time(0), 40.0 * 5.0 + 24.0 + 39.0 * 11.0);
    assert_ms(time(1), 5.0 + 24.0 + 39.0 * 11.0);
}

fn every_policy(arrivals: Arrivals) -> Options {
    let names = [
        "diptych",
        "static",
        "prefill-first",
        "fixed-budget",
        "reserve-max",
        "first-chunk",
    ];
    Options {
        policies: names.map(String::from).to_vec(),
        noise: Noise::default(),
        ..quiet(arrivals)
    }
}

#[test]
fn equal_options_give_equal_json_and_another_seed_another() {
    let mut options = every_policy(Arrivals::Gamma { rate: 2.0, cv: 3.0 });
    options.workload.requests = 60;
    options.replicas = 3;
    let json = |options: &Options| serde_json::to_string(&run(options)).expect("numbers and text");
    let first = json(&options);
    assert_eq!(first, json(&options));
    options.seed = 1;
    assert_ne!(first, json(&options));
}

/// Where memory is no matter and a step has room for every prompt, the core without a target decides as plain
/// continuous batching does: two implementations, one timeline.
#[test]
fn the_core_and_a_reference_agree_step_by_step_where_nothing_is_scarce() {
    let mut options = every_policy(Arrivals::Poisson { rate: 1.0 });
    options.policies = vec!["diptych".into(), "first-chunk".into()];
    options.workload.requests = 200;
    options.workload.sharing.turns = 3.0;
    options.workload.abort_share = 0.1;
    options.engine = EngineOptions {
        blocks: Some(1 << 16),
        max_batched_tokens: Some(1 << 16),
        ..EngineOptions::default()
    };
    let mut report = run(&options);
    let mut reference = report.runs.pop().expect("two runs");
    reference.policy = "diptych".into();
    assert!(reference.hit_ratio > 0.3, "{}", reference.hit_ratio);
    assert!(reference.requests.aborted > 3);
    let comparable = |mut run: Run| {
        // The core keeps equal blocks that two requests computed at once, the reference merges them.
        for sample in &mut run.series {
            sample.used_share = 0.0;
        }
        serde_json::to_string(&run).expect("numbers and text")
    };
    let ours = report.runs.pop().expect("two runs");
    assert!(comparable(ours) == comparable(reference));
}
