//! Named cases of the block pool and the prefix cache.

use diptych_core::config::HashMode;
use diptych_core::{CoreConfig, FinishReason, Request};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::operation::Operation;
use crate::oracle::Randomness;
use crate::worker::Misbehaviour;

fn roomy() -> CoreConfig {
    CoreConfig {
        num_blocks: 256,
        max_model_len: 256,
        ..small()
    }
}

/// Whole blocks before the last token of a prompt of `length` tokens.
fn longest_hit(length: usize) -> u32 {
    ((length - 1) / 4 * 4) as u32
}

/// Case B1.
#[test]
fn a_fully_cached_prompt_still_computes_its_last_token() {
    for length in (1..=4).flat_map(|k| [4 * k - 1, 4 * k, 4 * k + 1]) {
        let mut engine = Engine::new(&roomy());
        let prompt = prompt(1, length);
        let (cold, first) = engine.run(request(&prompt, 5));
        assert_eq!(cold, 0);
        for _ in 0..2 {
            let (cached, outputs) = engine.run(request(&prompt, 5));
            assert_eq!((cached, &outputs), (longest_hit(length), &first));
        }
        let other = (first[0] + 1) % 1_000;
        let longer = [prompt.as_slice(), &[other; 6]].concat();
        let (cached, _) = engine.run(request(&longer, 5));
        assert_eq!(cached as usize, length / 4 * 4, "length {length}");
        let (cached, _) = engine.run(request(&longer, 5));
        assert_eq!(
            cached,
            longest_hit(longer.len()),
            "later blocks stay cacheable"
        );
    }
}

/// Case B2: the matched blocks stand first in the eviction order.
#[test]
fn matched_blocks_are_pinned_before_new_ones_are_taken() {
    let mut engine = Engine::new(&pool_of(8));
    let first = prompt(1, 24);
    engine.run(request(&first, 1));
    engine.run(request(&prompt(2, 8), 1));
    assert_eq!(engine.stats().cached_blocks, 8);
    let longer = [first.as_slice(), &prompt(3, 4)].concat();
    let (cached, outputs) = engine.run(request(&longer, 5));
    assert_eq!((cached, outputs.len()), (24, 5));
}

/// Case B5.
#[test]
fn two_thousand_short_requests_leave_no_block_in_use() {
    let mut engine = Engine::new(&CoreConfig {
        overlap_depth: 1,
        vocabulary: 50,
        ..small()
    });
    for number in 0..2_000_u32 {
        let prompt: Vec<u32> = prompt(number % 97, 1 + number as usize % 9)
            .iter()
            .map(|id| id % 50)
            .collect();
        let mut request = request(&prompt, 1 + number % 5);
        request.stop_ids = vec![number % 50];
        let stop = (number % 4 == 1).then_some(number % 50);
        let index = engine
            .try_submit(request, stop)
            .expect("the request is fine");
        if number % 3 == 0 {
            let fault = (number % 21 == 0).then_some((0, Misbehaviour::Nan));
            engine.apply(&Operation::Plan(fault));
            let handle = engine.world.model.entries[index].handle;
            if number % 2 == 0 {
                engine.world.core.abort(handle, 0);
                let mut events = Vec::new();
                engine.world.core.take_events(&mut events);
                let expected = engine.world.model.finish(index, FinishReason::Aborted);
                assert_eq!(events, expected);
            }
        }
        if number % 5 == 0 {
            engine.finish();
            assert_eq!(engine.stats().used_blocks, 0);
        }
    }
    engine.finish();
    let stats = engine.stats();
    assert_eq!((stats.used_blocks, stats.running, stats.waiting), (0, 0, 0));
    assert!(stats.cached_blocks > 0);
}

/// Case B6.
#[test]
fn usage_equals_a_recount_of_the_block_tables() {
    let mut engine = Engine::new(&small());
    for number in 0..200 {
        engine.submit(request(&prompt(number % 3, 5 + number as usize % 7), 6));
        for _ in 0..3 {
            engine.step();
            let decoding = engine.world.model.open().filter(|entry| entry.decoding);
            let occupants: Vec<u64> = decoding.map(|entry| entry.occupant).collect();
            if occupants.len() == engine.stats().running as usize {
                assert_eq!(
                    engine.stats().used_blocks as usize,
                    engine.world.worker.blocks_of(&occupants)
                );
            }
        }
        engine.finish();
        assert_eq!(engine.stats().used_blocks, 0);
    }
}

/// Case B7.
#[test]
fn every_chunk_length_and_finish_returns_all_blocks() {
    for (chunk, length) in [1, 3, 4, 16]
        .iter()
        .flat_map(|&chunk| (1..=12).map(move |length| (chunk, length)))
    {
        for finish in 0..3 {
            let mut engine = Engine::new(&CoreConfig {
                max_batched_tokens: 16,
                max_prefill_tokens: Some(chunk),
                overlap_depth: 1,
                ..small()
            });
            let prompt = prompt(5, length);
            let mut request = request(&prompt, 6);
            if finish == 0 {
                request.stop_ids =
                    crate::oracle::outputs(&prompt, Randomness::first_choice(0), 1_000, 3)[2..]
                        .to_vec();
            }
            let number = engine.submit(request);
            if finish == 1 {
                (0..5).for_each(|_| engine.step());
                engine.abort(number);
            }
            engine.finish();
            let stats = engine.stats();
            assert_eq!(
                (stats.used_blocks, stats.running),
                (0, 0),
                "chunk {chunk}, length {length}"
            );
            assert!(engine.reason(number).is_some());
        }
    }
}

/// Case B9.
#[test]
fn eviction_never_takes_a_block_in_use() {
    let mut engine = Engine::new(&CoreConfig {
        overlap_depth: 1,
        ..pool_of(12)
    });
    let shared = prompt(1, 9);
    let long = engine.submit(request(&shared, 22));
    engine.step();
    for number in 2..12 {
        engine.submit(request(&prompt(number, 12), 2));
        engine.step();
        engine.step();
    }
    let (cached, _) = engine.run(request(&shared, 2));
    assert_eq!(cached, 8);
    assert_eq!(engine.outputs(long).len(), 22);
}

/// Case B10.
#[test]
fn colliding_hashes_never_share_kv() {
    for hash in [HashMode::Constant, HashMode::FirstToken] {
        let mut engine = Engine::new(&CoreConfig { hash, ..roomy() });
        let variant = |last: u32| [prompt(1, 11).as_slice(), &[last, 1]].concat();
        for last in 0..20 {
            let (cached, _) = engine.run(request(&variant(last), 6));
            assert_eq!(cached, if last == 0 { 0 } else { 8 });
        }
        for last in 0..20 {
            let (cached, _) = engine.run(request(&variant(last), 6));
            assert_eq!(cached, 12);
        }
    }
}

/// Case B10: every part of the key counts.
#[test]
fn namespaces_and_parents_are_part_of_the_key() {
    let mut engine = Engine::new(&roomy());
    let block = prompt(1, 4);
    let repeated = [block.as_slice(), &block, &block, &[7]].concat();
    for namespace in [0, 1, u64::MAX] {
        let cold = engine.run(Request {
            namespace,
            ..request(&repeated, 2)
        });
        let warm = engine.run(Request {
            namespace,
            ..request(&repeated, 2)
        });
        assert_eq!((cold.0, warm.0), (0, 12));
    }
    // The same tokens after another parent are another block.
    let shifted = [prompt(2, 4).as_slice(), &block, &[7]].concat();
    assert_eq!(engine.run(request(&shifted, 2)).0, 0);
}

/// Case B15.
#[test]
fn recomputed_tokens_are_not_counted_as_hits() {
    let mut engine = Engine::new(&CoreConfig {
        overlap_depth: 1,
        ..pool_of(10)
    });
    for number in 0..6 {
        engine.submit(request(&prompt(number, 7), 20));
    }
    engine.finish();
    let stats = engine.stats();
    assert!(stats.preemptions > 0);
    assert_eq!((stats.prefix_hits, stats.prefix_queries), (0, 42));
}

/// Case B17.
#[test]
fn a_preempted_request_continues_as_if_never_preempted() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..pool_of(24)
        });
        let numbers: Vec<usize> = (0..4)
            .map(|seed| engine.submit(request(&prompt(seed, 3), 60)))
            .collect();
        engine.finish();
        assert!(engine.stats().preemptions > 0);
        for (seed, number) in numbers.into_iter().enumerate() {
            let alone = crate::oracle::outputs(
                &prompt(seed as u32, 3),
                Randomness::first_choice(0),
                1_000,
                60,
            );
            assert_eq!(engine.outputs(number), alone);
            assert_eq!(engine.reason(number), Some(FinishReason::Length));
        }
    }
}

/// Case B20.
#[test]
fn a_chain_is_evicted_from_its_tail() {
    let mut engine = Engine::new(&pool_of(4));
    let chain = prompt(1, 12);
    engine.run(request(&chain, 1));
    engine.run(request(&prompt(2, 8), 1));
    let (cached, _) = engine.run(request(&[chain.as_slice(), &[1]].concat(), 1));
    assert_eq!(cached, 8);
}

/// Case B22.
#[test]
fn three_prompts_cycle_through_a_pool_for_two() {
    let mut engine = Engine::new(&pool_of(6));
    for round in 0..500 {
        let (cached, outputs) = engine.run(request(&prompt(round % 3, 9), 4));
        assert_eq!(outputs.len(), 4);
        assert!(cached <= 8);
    }
    assert_eq!(engine.stats().cached_blocks, 6);
}

/// Case B23.
#[test]
fn a_longer_cached_sequence_serves_its_own_beginnings() {
    let mut engine = Engine::new(&roomy());
    let conversation = prompt(1, 40);
    engine.run(request(&conversation, 3));
    for length in (1..=40).rev() {
        let (cached, _) = engine.run(request(&conversation[..length], 3));
        assert_eq!(cached, longest_hit(length));
    }
    for _ in 0..5 {
        assert_eq!(engine.run(request(&conversation, 3)).0, 36);
    }
}

/// Case B24.
#[test]
fn a_full_cache_never_refuses_work() {
    let mut engine = Engine::new(&small());
    let mut full = 0;
    for number in 0..1_000_u32 {
        let branch = number.wrapping_mul(2_654_435_761) >> 16;
        let path = [
            prompt(branch % 3, 6),
            prompt(branch % 5, 5),
            prompt(branch % 41, 9),
        ]
        .concat();
        let (_, outputs) = engine.run(request(&path, 3));
        assert_eq!(outputs.len(), 3);
        let stats = engine.stats();
        full += u32::from(stats.cached_blocks + 2 >= stats.blocks);
    }
    assert!(
        full > 500,
        "the pool was full of cached blocks {full} times"
    );
}

/// Invariant 10: nothing that could be found is missed, while nothing is evicted.
#[test]
fn a_roomy_pool_finds_every_retired_block() {
    let config = CoreConfig {
        vocabulary: 7,
        num_blocks: 4_000,
        ..roomy()
    };
    let mut engine = Engine::new(&config);
    let mut streams: Vec<Vec<u32>> = Vec::new();
    for number in 0..300_u32 {
        let branch = number.wrapping_mul(2_654_435_761) >> 16;
        let mut path = [
            prompt(branch % 3, 5),
            prompt(branch % 4, 1 + branch as usize % 11),
        ]
        .concat();
        for id in &mut path {
            *id %= 7;
        }
        let common = |stream: &Vec<u32>| {
            let equal = stream
                .iter()
                .zip(&path)
                .take_while(|(left, right)| left == right)
                .count();
            equal.min(path.len() - 1) / 4 * 4
        };
        let expected = streams.iter().map(common).max().unwrap_or(0);
        let (cached, outputs) = engine.run(request(&path, 1 + branch % 9));
        assert_eq!(cached as usize, expected, "request {number}");
        path.extend(&outputs[..outputs.len() - 1]);
        streams.push(path);
    }
}

/// Invariant 14.
#[test]
fn a_reset_cache_is_never_hit_again() {
    let mut engine = Engine::new(&roomy());
    let prompt = prompt(1, 17);
    let running = engine.submit(request(&prompt, 9));
    engine.step();
    engine.step();
    engine.apply(&Operation::ResetPrefixCache);
    let (cached, _) = engine.run(request(&prompt, 9));
    assert_eq!(cached, 0);
    assert_eq!(engine.outputs(running).len(), 9);
    assert_eq!(engine.run(request(&prompt, 9)).0, 16);
}

/// A row with NaN or an impossible id fails alone; nothing that it computed then is found again.
#[test]
fn nothing_of_a_failed_step_is_cached() {
    for fault in [
        Misbehaviour::Nan,
        Misbehaviour::BadId,
        Misbehaviour::IdPastVocabulary,
    ] {
        let mut engine = Engine::new(&roomy());
        let prompt = prompt(1, 13);
        let failing = engine.submit(request(&prompt, 9));
        engine.apply(&Operation::Plan(Some((0, fault))));
        engine.complete();
        let expected = match fault {
            Misbehaviour::Nan => FinishReason::NanLogits,
            _ => FinishReason::BadToken,
        };
        assert_eq!(engine.reason(failing), Some(expected));
        assert_eq!(engine.run(request(&prompt, 9)).0, 0);
    }
}
