//! Whatever arrives, under whatever policy: every request ends exactly once, and nothing is left behind.

use diptych_sim::{
    Arrivals, EngineOptions, Lengths, Options, Routing, Run, Sharing, Workload,
    reference::Eviction, simulate,
};
use proptest::prelude::*;

const POLICIES: [&str; 6] = [
    "diptych",
    "static",
    "prefill-first",
    "fixed-budget",
    "reserve-max",
    "first-chunk",
];

fn arrivals() -> impl Strategy<Value = Arrivals> {
    let rate = 5.0;
    prop_oneof![
        Just(Arrivals::Poisson { rate }),
        Just(Arrivals::Gamma { rate, cv: 4.0 }),
        Just(Arrivals::Diurnal {
            rate,
            period: 20.0,
            depth: 0.9
        }),
        Just(Arrivals::FlashCrowd {
            rate,
            at: 2.0,
            lasting: 3.0,
            factor: 10.0
        }),
        Just(Arrivals::TenantFlood {
            rate: 1.0,
            factor: 20.0
        }),
        Just(Arrivals::LongPromptAttack {
            rate,
            every: 3.0,
            tokens: 300
        }),
        Just(Arrivals::SamePrefixHerd {
            rate,
            every: 2.0,
            size: 8,
            tokens: 100
        }),
        Just(Arrivals::AbortStorm {
            rate,
            at: 1.0,
            lasting: 4.0,
            share: 0.7
        }),
    ]
}

fn engine() -> impl Strategy<Value = EngineOptions> {
    (0_u32..3, 40_u32..120, 1_u32..20, 0_u8..3, any::<bool>()).prop_map(
        |(shift, blocks, running, depth, cache)| EngineOptions {
            block_size: Some(8 << shift),
            blocks: Some(blocks),
            max_running: Some(running),
            max_batched_tokens: Some(64),
            max_queued_requests: Some(40),
            overlap_depth: Some(depth),
            prefix_cache: Some(cache),
            target_itl_ms: cache.then_some(30.0),
            ..EngineOptions::default()
        },
    )
}

fn options() -> impl Strategy<Value = Options> {
    let eviction = prop_oneof![
        Just(Eviction::Lru),
        Just(Eviction::LruTtl(0.5)),
        Just(Eviction::FrequencyGuarded)
    ];
    let routing = prop_oneof![
        Just(Routing::Random),
        Just(Routing::LeastLoaded),
        Just(Routing::PrefixAware)
    ];
    (
        arrivals(),
        engine(),
        eviction,
        routing,
        1_u32..4,
        0.0..0.4,
        any::<u64>(),
    )
        .prop_map(
            |(arrivals, engine, eviction, router, replicas, abort_share, seed)| Options {
                policies: POLICIES.map(String::from).to_vec(),
                eviction,
                replicas,
                router,
                engine,
                workload: Workload {
                    arrivals,
                    requests: 60,
                    lengths: Lengths {
                        prompt: 60,
                        output: 20,
                        spread: 0.8,
                        longest: 400,
                        long_share: 0.1,
                        long_factor: 5.0,
                    },
                    sharing: Sharing {
                        system_share: 0.5,
                        system_tokens: 32,
                        systems: 3,
                        turns: 2.0,
                    },
                    tenants: 3,
                    abort_share,
                    patience_s: 10.0,
                    priorities: 2,
                    timeout_s: (seed % 3 == 0).then_some(8.0),
                    ttft_timeout_s: (seed % 4 == 0).then_some(2.0),
                    max_tokens: None,
                    without_tenant: None,
                },
                seed,
                check_every: Some(1),
                measure_host: false,
                ..Options::default()
            },
        )
}

fn holds(run: &Run) {
    let requests = &run.requests;
    let ended = requests.finished
        + requests.aborted
        + requests.expired
        + requests.overloaded
        + requests.impossible
        + requests.failed;
    assert_eq!(requests.arrived, 60, "{}", run.policy);
    assert_eq!(
        (ended, requests.open, requests.failed),
        (60, 0, 0),
        "{}",
        run.policy
    );
    let last = run.series.last().expect("a sample at the end");
    assert_eq!((last.running, last.waiting), (0, 0), "{}", run.policy);
    assert!(
        last.used_share.abs() < 1e-12,
        "{}: blocks are left",
        run.policy
    );
    let by_tenants: u64 = run.tenants.iter().map(|tenant| tenant.arrived).sum();
    assert_eq!(by_tenants, requests.arrived);
    assert_eq!(
        run.tpot_ms.count + run.ttft_ms.count > 0,
        run.tokens.generated > 0
    );
    assert_eq!(run.itl_ms.count + run.ttft_ms.count, run.tokens.generated);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_arrival_ends_exactly_once_and_every_block_returns(options in options()) {
        let report = simulate(&options, &mut |_, _| true).expect("a simulation that ends");
        for run in &report.runs {
            holds(run);
        }
        for name in ["static", "reserve-max"] {
            let run = report.runs.iter().find(|run| run.policy == name).expect("every policy ran");
            prop_assert_eq!(run.preemptions.total, 0, "{} preempted", name);
        }
        prop_assert_eq!(report.runs[0].skipped_decode_rows.unwrap_or(0), 0);
    }
}
