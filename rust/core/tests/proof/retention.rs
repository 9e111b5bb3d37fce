//! How long cached prefixes are kept: times to live, retention classes, eviction policies.

use diptych_core::config::Eviction;
use diptych_core::{CoreConfig, Error, Request};

use crate::engine::{Engine, pool_of, prompt, request};
use crate::operation::Operation;

/// Nanoseconds that every operation of an engine takes.
const OPERATION: u64 = 1_000;

fn pass(engine: &mut Engine, operations: usize) {
    (0..operations).for_each(|_| engine.apply(&Operation::Plan(None)));
}

fn with_ttl(prompt: &[u32], operations: u64) -> Request {
    Request {
        cache_ttl_ns: Some(operations * OPERATION),
        ..request(prompt, 2)
    }
}

fn in_class(prompt: &[u32], retention: u8) -> Request {
    Request {
        retention,
        ..request(prompt, 2)
    }
}

#[test]
fn an_expired_prefix_is_not_found_and_its_blocks_go_first() {
    let mut engine = Engine::new(&pool_of(12));
    let (short, lasting) = (prompt(1, 17), prompt(2, 17));
    engine.run(request(&lasting, 2));
    engine.run(with_ttl(&short, 30));
    pass(&mut engine, 20);
    let (cached, _) = engine.run(with_ttl(&short, 30));
    assert_eq!(cached, 16, "each use begins it anew");
    pass(&mut engine, 25);
    assert_eq!(engine.run(with_ttl(&short, 30)).0, 16);
    pass(&mut engine, 31);
    assert_eq!(engine.stats().cached_blocks, 4);
    // What expired is overwritten before what is older and has not.
    engine.run(request(&prompt(3, 25), 2));
    assert_eq!(engine.run(request(&lasting, 2)).0, 16);
    assert_eq!(engine.run(request(&short, 2)).0, 0);
}

#[test]
fn what_several_use_lives_as_long_as_the_longest_asks() {
    let mut engine = Engine::new(&pool_of(30));
    let shared = prompt(1, 16);
    let [left, right] = [2, 3].map(|seed| [shared.as_slice(), &prompt(seed, 9)].concat());
    engine.run(with_ttl(&left, 20));
    engine.run(with_ttl(&right, 200));
    engine.run(with_ttl(&left, 10));
    pass(&mut engine, 60);
    assert_eq!(engine.run(with_ttl(&left, 1)).0, 16);
    assert_eq!(engine.run(with_ttl(&right, 0)).0, 24);
    let forever = engine.run(request(&shared, 2));
    pass(&mut engine, 2_000);
    assert_eq!((forever.0, engine.run(request(&shared, 2)).0), (12, 12));
}

#[test]
fn a_time_to_live_of_nothing_keeps_nothing() {
    let mut engine = Engine::new(&pool_of(30));
    let prompt = prompt(1, 17);
    engine.run(with_ttl(&prompt, 0));
    assert_eq!(engine.run(with_ttl(&prompt, 0)).0, 0);
    assert_eq!(engine.run(request(&prompt, 2)).0, 0);
    assert_eq!(engine.run(with_ttl(&prompt, 0)).0, 16);
}

#[test]
fn the_time_to_live_of_the_policy_holds_for_requests_without_one() {
    let mut engine = Engine::new(&CoreConfig {
        eviction: Eviction::LruWithTtl {
            ttl_ns: 40 * OPERATION,
        },
        ..pool_of(40)
    });
    let (own, policy) = (prompt(1, 17), prompt(2, 17));
    engine.run(with_ttl(&own, 400));
    engine.run(request(&policy, 2));
    pass(&mut engine, 100);
    assert_eq!(engine.run(with_ttl(&own, 400)).0, 16);
    assert_eq!(engine.run(request(&policy, 2)).0, 0);
}

#[test]
fn a_higher_class_outlives_any_number_of_newer_prefixes() {
    let mut engine = Engine::new(&pool_of(20));
    let (kept, plain) = (prompt(1, 17), prompt(2, 17));
    engine.run(in_class(&kept, 2));
    engine.run(in_class(&plain, 0));
    for seed in 10..40 {
        engine.run(in_class(&prompt(seed, 21), 0));
    }
    assert_eq!(engine.run(in_class(&plain, 0)).0, 0);
    assert_eq!(engine.run(in_class(&kept, 0)).0, 16, "its class stays");
    // A higher class takes even those blocks, and running requests always can.
    for seed in 50..60 {
        engine.run(in_class(&prompt(seed, 33), 3));
    }
    assert_eq!(engine.run(in_class(&kept, 2)).0, 0);
    let (_, outputs) = engine.run(request(&prompt(70, 31), 20));
    assert_eq!(outputs.len(), 20);
    let refusal = engine.try_submit(in_class(&kept, 4), None);
    let expected = Error::Retention {
        retention: 4,
        most: 3,
    };
    assert_eq!(refusal, Err(expected));
}

/// A scan of prompts that are used once pushes a hot prefix out under LRU; the guard keeps it.
#[test]
fn a_frequent_prefix_survives_a_scan_only_under_the_guard() {
    for (eviction, expected) in [(Eviction::Lru, 0), (Eviction::FrequencyGuarded, 16)] {
        let mut engine = Engine::new(&CoreConfig {
            eviction,
            ..pool_of(60)
        });
        let hot = prompt(1, 17);
        for _ in 0..8 {
            engine.run(request(&hot, 2));
        }
        for seed in 10..40 {
            engine.run(request(&prompt(seed, 21), 2));
        }
        assert_eq!(engine.run(request(&hot, 2)).0, expected, "{eviction:?}");
        // It fades as well: nothing is kept for ever.
        for seed in 100..900 {
            engine.run(request(&prompt(seed, 21), 2));
        }
        assert_eq!(engine.run(request(&hot, 2)).0, 0, "{eviction:?}");
    }
}
