//! Named cases of what is too late and what would be: deadlines and refusals.

use diptych_core::{CoreConfig, Error, FinishReason, Request};

use crate::engine::{Engine, prompt, request, small};
use crate::operation::Operation;

const MICROSECOND: u64 = 1_000;

/// A queued request that nobody waits for costs nothing (and C13: nothing of it is computed).
#[test]
fn expired_work_is_dropped_before_its_prefill() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 1,
        ..small()
    });
    let running = engine.submit(request(&prompt(1, 4), 12));
    engine.step();
    let timed = |seed, deadline: Option<u64>, first: Option<u64>| Request {
        deadline: deadline.map(|after| after * MICROSECOND),
        first_token_deadline: first.map(|after| after * MICROSECOND),
        ..request(&prompt(seed, 8), 4)
    };
    // The world's clock stands at 2 microseconds.
    let late = engine.submit(timed(2, Some(6), None));
    let late_first = engine.submit(timed(3, Some(900), Some(7)));
    let fine = engine.submit(timed(4, Some(900), Some(800)));
    assert_eq!(engine.world.core.next_deadline(), Some(6 * MICROSECOND));
    for _ in 0..4 {
        engine.step();
    }
    assert_eq!(engine.reason(late), Some(FinishReason::Timeout));
    assert_eq!(
        engine.reason(late_first),
        Some(FinishReason::FirstTokenTimeout)
    );
    assert_eq!(engine.stats().expired_waiting, 2);
    engine.finish();
    assert_eq!(engine.world.model.admissions, [running as u64, fine as u64]);
    assert_eq!(engine.world.core.next_deadline(), None);
}

/// Case C22 with a deadline: a long prompt stops between two chunks.
#[test]
fn a_prompt_stops_in_the_middle_when_its_time_is_over() {
    let mut engine = Engine::new(&CoreConfig {
        max_batched_tokens: 4,
        max_running: 4,
        ..small()
    });
    let long = engine.submit(Request {
        first_token_deadline: Some(9 * MICROSECOND),
        ..request(&prompt(1, 48), 1)
    });
    for _ in 0..4 {
        engine.step();
    }
    assert_eq!(engine.reason(long), None);
    let small_one = engine.submit(request(&prompt(2, 4), 1));
    engine.step();
    assert_eq!(engine.reason(long), Some(FinishReason::FirstTokenTimeout));
    assert_eq!(engine.reason(small_one), Some(FinishReason::Length));
    assert_eq!(engine.stats().expired_running, 1);
}

/// Case D5 with a deadline: choices are not requests.
#[test]
fn a_request_that_is_too_late_counts_once_whatever_its_choices() {
    let mut engine = Engine::new(&small());
    let timed = |seed, deadline: u64| Request {
        choices: 3,
        deadline: Some(deadline * MICROSECOND),
        ..request(&prompt(seed, 6), 20)
    };
    engine.submit(timed(1, 5));
    engine.submit(timed(2, 5));
    for _ in 0..6 {
        engine.step();
    }
    let stats = engine.stats();
    assert_eq!(stats.expired_running + stats.expired_waiting, 2);
    assert_eq!(stats.used_blocks, 0);
}

#[test]
fn a_decoding_request_ends_at_its_deadline_with_what_it_has() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..small()
        });
        let number = engine.submit(Request {
            deadline: Some(20 * MICROSECOND),
            first_token_deadline: Some(10 * MICROSECOND),
            ..request(&prompt(1, 4), 40)
        });
        for _ in 0..12 {
            engine.step();
        }
        assert_eq!(engine.reason(number), Some(FinishReason::Timeout));
        assert!(engine.outputs(number).len() > 5);
        engine.finish();
        assert_eq!(engine.stats().used_blocks, 0);
    }
}

/// Deadlines pass also while no step can be planned.
#[test]
fn what_is_late_ends_without_a_plan() {
    let mut engine = Engine::new(&small());
    engine.submit(request(&prompt(1, 4), 4));
    engine.plan();
    let waiting = engine.submit(Request {
        deadline: Some(500 * MICROSECOND),
        ..request(&prompt(2, 4), 4)
    });
    assert_eq!(engine.world.core.next_deadline(), Some(500 * MICROSECOND));
    engine.apply(&Operation::Wait(600));
    // One step is launched and none may be beside it.
    engine.plan();
    assert_eq!(engine.reason(waiting), Some(FinishReason::Timeout));
    engine.complete();
    engine.finish();
}

/// The queue is bounded in tokens that the cache does not have, and one request always may wait.
#[test]
fn the_queue_is_bounded_in_uncached_tokens() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 1,
        max_queued_tokens: Some(20),
        num_blocks: 64,
        ..small()
    });
    let cached = prompt(1, 24);
    engine.run(request(&cached, 1));
    engine.submit(request(&prompt(2, 8), 8));
    engine.step();
    let large = engine.try_submit(request(&prompt(3, 30), 1), None);
    assert!(large.is_ok(), "{large:?}");
    let refused = engine.try_submit(request(&prompt(4, 2), 1), None);
    assert!(
        matches!(
            refused,
            Err(Error::QueuedTokens {
                queued: 30,
                tokens: 2,
                limit: 20,
                ..
            })
        ),
        "{refused:?}"
    );
    engine.finish();
    engine.submit(request(&prompt(5, 8), 8));
    engine.step();
    // 24 tokens, of which 20 are cached: four times four and another four fit.
    let answers: Vec<bool> = (0..7)
        .map(|_| engine.try_submit(request(&cached, 1), None).is_ok())
        .collect();
    assert_eq!(answers, [true, true, true, true, true, false, false]);
    assert_eq!(engine.stats().waiting_tokens, 20);
    assert_eq!(engine.stats().refused_queued_tokens, 3);
    engine.finish();
}

/// Prompts are computed at 16 tokens a step of two microseconds, so 160 tokens take 20.
fn backlogged(config: &CoreConfig) -> Engine {
    let mut engine = Engine::new(&CoreConfig {
        num_blocks: 1_000,
        max_running: 16,
        prefix_cache: false,
        ..config.clone()
    });
    for seed in 0..10 {
        engine.submit(request(&prompt(seed, 32), 1));
    }
    for _ in 0..10 {
        engine.step();
    }
    engine
}

#[test]
fn a_request_whose_first_token_would_come_too_late_is_refused_with_the_time_to_wait() {
    let mut engine = backlogged(&CoreConfig {
        max_ttft_ns: Some(25 * MICROSECOND),
        ..small()
    });
    // Ten of twenty steps are done: 160 tokens and its own 32 take 24 microseconds.
    assert!(engine.try_submit(request(&prompt(20, 32), 1), None).is_ok());
    let refused = engine.try_submit(request(&prompt(21, 32), 1), None);
    let Err(Error::FirstTokenTooLate {
        predicted_ns,
        limit_ns,
        retry_after_ns,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(limit_ns, 25 * MICROSECOND);
    assert!((27_000..=29_000).contains(&predicted_ns), "{predicted_ns}");
    assert_eq!(retry_after_ns, predicted_ns - limit_ns);
    assert_eq!(engine.stats().refused_first_token, 1);
    // After that time it is let in.
    for _ in 0..retry_after_ns.div_ceil(2 * MICROSECOND) {
        engine.step();
    }
    assert!(engine.try_submit(request(&prompt(22, 32), 1), None).is_ok());
    engine.finish();
}

/// The request's own timeouts are limits too, whichever is the least.
#[test]
fn a_request_is_refused_by_its_own_timeout() {
    let mut engine = backlogged(&small());
    let now = 20 * MICROSECOND;
    for own in [
        Request {
            first_token_deadline: Some(now + 10 * MICROSECOND),
            ..request(&prompt(20, 32), 1)
        },
        Request {
            deadline: Some(now + 10 * MICROSECOND),
            ..request(&prompt(20, 32), 1)
        },
    ] {
        let refused = engine.try_submit(own, None);
        assert!(
            matches!(
                refused,
                Err(Error::FirstTokenTooLate {
                    limit_ns: 10_000,
                    ..
                })
            ),
            "{refused:?}"
        );
    }
    engine.finish();
}

/// A tenant is refused for its own backlog, not for another's.
#[test]
fn the_prediction_knows_that_tenants_share() {
    let mut engine = Engine::new(&CoreConfig {
        num_blocks: 1_000,
        max_running: 2,
        prefix_cache: false,
        max_ttft_ns: Some(40 * MICROSECOND),
        ..small()
    });
    let of = |tenant, seed| Request {
        tenant,
        ..request(&prompt(seed, 32), 1)
    };
    let mut accepted = 0;
    for seed in 0..200 {
        accepted += u32::from(engine.try_submit(of(1, seed), None).is_ok());
        if seed % 4 == 0 {
            engine.step();
        }
    }
    assert!(accepted < 100, "{accepted}");
    let answer = engine.try_submit(of(2, 300), None);
    assert!(answer.is_ok(), "{answer:?}");
    engine.finish();
}
