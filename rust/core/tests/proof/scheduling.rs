//! Named cases of admission, preemption, aborts and limits.

use diptych_core::{Core, CoreConfig, Error, Request, Sampling};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::oracle::{self, Randomness};

/// Case C1.
#[test]
fn a_request_larger_than_the_pool_is_refused_and_others_run() {
    let mut engine = Engine::new(&pool_of(4));
    for (length, max_tokens) in [(20, 1), (10, 8), (1, 17)] {
        let refusal = engine.try_submit(request(&prompt(1, length), max_tokens), None);
        assert!(
            matches!(refusal, Err(Error::NeverFits { .. })),
            "{refusal:?}"
        );
    }
    let (_, exact) = engine.run(request(&prompt(1, 10), 7));
    let (_, tiny) = engine.run(request(&prompt(2, 1), 1));
    assert_eq!((exact.len(), tiny.len()), (7, 1));
}

/// Case C3.
#[test]
fn resumed_requests_do_not_thrash() {
    for overlap_depth in 0..3 {
        let config = CoreConfig {
            max_running: 6,
            max_prefill_tokens: Some(4),
            overlap_depth,
            ..pool_of(10)
        };
        let mut alone = 0;
        for seed in 0..6 {
            let mut engine = Engine::new(&config);
            engine.submit(request(&prompt(seed, 24), 10));
            alone += engine.finish();
        }
        let mut engine = Engine::new(&config);
        for seed in 0..6 {
            engine.submit(request(&prompt(seed, 24), 10));
        }
        let steps = engine.finish();
        assert!(
            steps <= 3 * alone,
            "{steps} steps, {alone} one after another"
        );
        assert!(engine.stats().preemptions <= 12, "{:?}", engine.stats());
    }
}

/// Case C4. The policy: who does not fit is bypassed by those behind it that do, but by no more than
/// 32 of them; then nobody else is admitted until it fits.
#[test]
fn a_large_request_is_bypassed_by_small_ones_32_times_and_no_more() {
    let mut engine = Engine::new(&pool_of(10));
    let mut seed = 0;
    let mut submit_small = |engine: &mut Engine| {
        seed += 1;
        engine.submit(request(&prompt(seed, 4), 9));
    };
    submit_small(&mut engine);
    submit_small(&mut engine);
    engine.step();
    // Nine of ten blocks, and small ones always hold more than one.
    let large = engine.submit(request(&prompt(0, 32), 4));
    let mut steps = 0;
    while !engine.admitted(large) {
        if engine.stats().waiting < 3 {
            submit_small(&mut engine);
        }
        engine.step();
        steps += 1;
        assert!(steps < 500, "the large request starves");
    }
    let order = engine.world.model.admissions.clone();
    let place = order.iter().position(|&name| name == large as u64);
    assert!(
        place.is_some_and(|place| (20..=2 + 32).contains(&place)),
        "{place:?}"
    );
    engine.finish();
}

/// Case C6: the judge of every plan refuses a preempted row in it.
#[test]
fn a_preempted_row_is_not_in_the_plan_that_preempted_it() {
    let mut preemptions = 0;
    for seed in 0..500_u32 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth: (seed % 3) as u8,
            ..pool_of(7)
        });
        for step in 0..12 {
            let mixed = (seed * 31 + step * 17) % 29;
            if mixed % 3 == 0 {
                engine.submit(request(
                    &prompt(mixed, 1 + mixed as usize % 11),
                    1 + mixed % 13,
                ));
            }
            engine.plan();
            if mixed % 2 == 0 {
                engine.complete();
            }
        }
        engine.finish();
        preemptions += engine.stats().preemptions;
    }
    assert!(preemptions > 200, "{preemptions}");
}

/// Case C10.
#[test]
fn contradictory_settings_are_refused_with_their_name() {
    let refused = |expected: &str, change: &dyn Fn(&mut CoreConfig)| {
        let mut config = small();
        change(&mut config);
        match Core::new(config, 1) {
            Err(Error::Config { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    };
    for size in [0, 24, 512] {
        refused("block_size", &|config| config.block_size = size);
    }
    refused("num_blocks", &|config| config.num_blocks = 1);
    refused("max_running", &|config| config.max_running = 0);
    refused("max_batched_tokens", &|config| config.max_running = 17);
    refused("max_prefill_tokens", &|config| {
        config.max_prefill_tokens = Some(0);
    });
    refused("max_model_len", &|config| config.max_model_len = 1);
    refused("overlap_depth", &|config| config.overlap_depth = 3);
    refused("vocabulary", &|config| config.vocabulary = 0);
}

/// Case C10.
#[test]
fn any_chunk_size_gives_the_same_output() {
    for chunk in [1, 3, 4, 5, 16] {
        for cap in [None, Some(chunk), Some(chunk + 9)] {
            for length in [chunk - 1, chunk, chunk + 1, 3 * chunk] {
                let mut engine = Engine::new(&CoreConfig {
                    max_running: 1,
                    max_batched_tokens: chunk,
                    max_prefill_tokens: cap,
                    ..small()
                });
                let prompt = prompt(1, length.max(1) as usize);
                let (_, outputs) = engine.run(request(&prompt, 6));
                assert_eq!(
                    outputs,
                    oracle::outputs(&prompt, Randomness::first_choice(0), 1_000, 6)
                );
            }
        }
    }
}

/// Case C12.
#[test]
fn several_half_prefilled_requests_all_finish() {
    let mut engine = Engine::new(&CoreConfig {
        max_batched_tokens: 9,
        max_prefill_tokens: Some(3),
        num_blocks: 40,
        ..small()
    });
    let numbers: Vec<usize> = (0..3)
        .map(|seed| engine.submit(request(&prompt(seed, 30), 5)))
        .collect();
    engine.finish();
    assert!(
        numbers
            .iter()
            .all(|&number| engine.outputs(number).len() == 5)
    );
}

/// Case C19.
#[test]
fn the_waiting_queue_is_bounded_and_recovers() {
    let mut engine = Engine::new(&CoreConfig {
        max_queued_requests: 8,
        max_running: 2,
        ..small()
    });
    for round in 0..3 {
        let answers: Vec<_> = (0..100)
            .map(|seed| engine.try_submit(request(&prompt(seed, 3), 4), None))
            .collect();
        assert_eq!(
            answers.iter().filter(|answer| answer.is_ok()).count(),
            8,
            "round {round}"
        );
        assert!(
            answers[8..]
                .iter()
                .all(|answer| matches!(answer, Err(Error::QueueFull { waiting: 8, .. })))
        );
        engine.step();
        assert_eq!(engine.stats().waiting, 6);
        engine.finish();
    }
}

/// Case F3.
#[test]
fn seeded_outputs_do_not_depend_on_chunks_cache_or_preemption() {
    let seeded = |seed: u64, length| {
        let plain = request(&prompt(1, length), 12);
        Request {
            sampling: Sampling {
                temperature: 1.0,
                seed,
                ..plain.sampling.clone()
            },
            ..plain
        }
    };
    let mut preemptions = 0;
    for (chunk, blocks) in [1, 3, 64]
        .into_iter()
        .flat_map(|chunk| [8, 64].map(|blocks| (chunk, blocks)))
    {
        for prefix_cache in [false, true] {
            let mut engine = Engine::new(&CoreConfig {
                max_batched_tokens: 64,
                max_prefill_tokens: Some(chunk),
                prefix_cache,
                ..pool_of(blocks)
            });
            let numbers: Vec<usize> = (0..4).map(|seed| engine.submit(seeded(seed, 9))).collect();
            engine.finish();
            preemptions += engine.stats().preemptions;
            for (seed, number) in numbers.into_iter().enumerate() {
                let alone = oracle::outputs(
                    &prompt(1, 9),
                    Randomness::first_choice(seed as u64),
                    1_000,
                    12,
                );
                assert_eq!(engine.outputs(number), alone);
            }
            let (cached, outputs) = engine.run(seeded(3, 9));
            assert_eq!(cached, if prefix_cache { 8 } else { 0 });
            assert_eq!(
                outputs,
                oracle::outputs(&prompt(1, 9), Randomness::first_choice(3), 1_000, 12)
            );
        }
    }
    assert!(preemptions > 0);
}

/// Case F15.
#[test]
fn positions_map_one_to_one_to_slots_at_every_block_edge() {
    for overlap_depth in 0..3 {
        for length in 1..=16 {
            let mut engine = Engine::new(&CoreConfig {
                overlap_depth,
                ..small()
            });
            let (_, outputs) = engine.run(request(&prompt(1, length), 12));
            assert_eq!(outputs.len(), 12);
        }
    }
}

/// Invariant 40: blocks that come back when a launched step retires are waited for, not taken.
#[test]
fn nobody_is_preempted_for_blocks_that_are_coming() {
    let mut engine = Engine::new(&CoreConfig {
        overlap_depth: 1,
        ..pool_of(6)
    });
    let leaving = engine.submit(request(&prompt(1, 7), 9));
    engine.submit(request(&prompt(2, 7), 6));
    engine.submit(request(&prompt(3, 7), 2));
    // All three prompts; then a decode of each fills the second block of each.
    engine.plan();
    engine.plan();
    engine.abort(leaving);
    engine.complete();
    engine.plan();
    engine.complete();
    engine.finish();
    assert_eq!(engine.stats().preemptions, 0);
}

/// Invariant 31: steps that overlap do not leave a row with penalties to every other step.
#[test]
fn a_row_with_penalties_is_in_every_step_beside_one_without() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..small()
        });
        engine.submit(request(&prompt(1, 4), 12));
        let mut penalised = request(&prompt(2, 4), 12);
        penalised.sampling.repetition_penalty = 1.25;
        engine.submit(penalised);
        engine.finish();
        assert_eq!(engine.stats().steps, 12, "depth {overlap_depth}");
    }
}

/// Invariant 48.
#[test]
fn a_row_with_stop_strings_runs_eight_tokens_ahead_and_caches_what_was_searched() {
    for (overlap_depth, searched) in (0..3).flat_map(|depth| [0, 3, 5].map(|count| (depth, count)))
    {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..small()
        });
        let number = engine
            .try_submit(request(&prompt(1, 4), 20), Some(u32::MAX))
            .expect("the request is fine");
        for _ in 0..30 {
            engine.step();
        }
        assert_eq!(engine.outputs(number).len(), 8);
        engine.acknowledge(number, searched);
        for _ in 0..30 {
            engine.step();
        }
        assert_eq!(engine.outputs(number).len() as u32, 8 + searched);
        let (cached, _) = engine.run_beside(request(&engine.stream(number), 1));
        assert_eq!(cached, (4 + searched) / 4 * 4);
    }
}
