//! Named cases of the queue: classes and orders of prefills.

use diptych_core::config::PrefillOrder;
use diptych_core::{Core, CoreConfig, FinishReason, Request, RowStatus, StepResult};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::operation::Operation;

fn urgent(priority: u8, request: Request) -> Request {
    Request {
        priority,
        ..request
    }
}

/// Case C7: priority holds for rows as for memory.
#[test]
fn an_urgent_request_takes_the_row_of_a_less_urgent_one() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            max_running: 2,
            max_batched_tokens: 16,
            overlap_depth,
            ..small()
        });
        let low: Vec<usize> = (0..2)
            .map(|seed| engine.submit(urgent(5, request(&prompt(seed, 4), 20))))
            .collect();
        for _ in 0..4 {
            engine.step();
        }
        let high = engine.submit(urgent(1, request(&prompt(2, 4), 3)));
        for _ in 0..8 {
            engine.step();
        }
        assert_eq!(engine.reason(high), Some(FinishReason::Length));
        assert!(low.iter().all(|&number| engine.reason(number).is_none()));
        engine.finish();
        assert_eq!(engine.stats().preemptions, 1);
        assert!(low.iter().all(|&number| engine.outputs(number).len() == 20));
    }
}

#[test]
fn an_urgent_request_takes_the_blocks_of_less_urgent_ones() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..pool_of(12)
        });
        let low: Vec<usize> = (0..2)
            .map(|seed| engine.submit(urgent(9, request(&prompt(seed, 12), 8))))
            .collect();
        for _ in 0..3 {
            engine.step();
        }
        let high = engine.submit(urgent(0, request(&prompt(5, 30), 3)));
        for _ in 0..9 {
            engine.step();
        }
        assert_eq!(engine.reason(high), Some(FinishReason::Length));
        engine.finish();
        assert!(low.iter().all(|&number| engine.outputs(number).len() == 8));
    }
}

/// Equals do not take from each other, nor does a request that fits.
#[test]
fn nobody_is_preempted_for_an_equal_or_for_what_fits() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 3,
        ..small()
    });
    for seed in 0..2 {
        engine.submit(urgent(5, request(&prompt(seed, 4), 12)));
    }
    engine.step();
    engine.submit(urgent(1, request(&prompt(3, 4), 12)));
    engine.step();
    engine.submit(urgent(1, request(&prompt(4, 4), 2)));
    engine.finish();
    assert_eq!(engine.stats().preemptions, 1);
    let mut engine = Engine::new(&CoreConfig {
        max_running: 2,
        ..small()
    });
    for seed in 0..6 {
        engine.submit(urgent(5, request(&prompt(seed, 4), 12)));
    }
    engine.finish();
    assert_eq!(engine.stats().preemptions, 0);
}

/// A less urgent class is not starved: one admission in 65 is its own, and it keeps its row.
#[test]
fn a_class_that_was_passed_over_64_times_has_a_turn() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 1,
        ..small()
    });
    let low = engine.submit(urgent(7, request(&prompt(0, 4), 9)));
    let mut urgent_ones = 0;
    for seed in 1..3 {
        engine.submit(urgent(2, request(&prompt(seed, 4), 2)));
    }
    // The low one runs at once and loses its row to the first urgent one.
    while engine.reason(low).is_none() {
        engine.step();
        while engine.stats().waiting < 3 {
            urgent_ones += 1;
            engine.submit(urgent(2, request(&prompt(3 + urgent_ones, 4), 2)));
        }
        assert!(urgent_ones < 200, "the low class starves");
    }
    assert!((60..=70).contains(&urgent_ones), "{urgent_ones}");
}

/// The row of a long prompt does not keep the budget from a shorter one that comes later.
#[test]
fn the_shortest_prompt_goes_first_and_the_longest_is_not_starved() {
    let config = CoreConfig {
        prefill_order: PrefillOrder::ShortestUncached,
        num_blocks: 200,
        max_model_len: 400,
        max_batched_tokens: 8,
        ..small()
    };
    let mut engine = Engine::new(&config);
    let long = engine.submit(request(&prompt(1, 200), 2));
    engine.step();
    let short = engine.submit(request(&prompt(2, 6), 2));
    engine.step();
    assert_eq!(engine.outputs(short).len(), 1);
    assert_eq!(engine.outputs(long).len(), 0);
    // A stream of short ones takes all of the budget: after a minute the long one goes first.
    let mut steps = 0;
    while engine.outputs(long).is_empty() {
        engine.apply(&Operation::Wait(50_000));
        engine.submit(request(&prompt(3 + steps, 8), 1));
        engine.step();
        steps += 1;
        assert!(steps < 1_300, "the long prompt starves");
    }
    assert!(steps > 1_100, "{steps}");
    engine.finish();
}

#[test]
fn equal_lengths_go_in_order_of_arrival() {
    let mut engine = Engine::new(&CoreConfig {
        prefill_order: PrefillOrder::ShortestUncached,
        max_running: 1,
        ..small()
    });
    for (seed, length) in [(0, 9), (1, 7), (2, 9), (3, 7), (4, 2)] {
        engine.submit(request(&prompt(seed, length), 2));
    }
    engine.finish();
    assert_eq!(engine.world.model.admissions, [4, 1, 3, 0, 2]);
}

#[test]
fn what_is_cached_counts_as_computed() {
    let config = CoreConfig {
        max_running: 1,
        num_blocks: 64,
        ..small()
    };
    let whole = prompt(1, 24);
    let ask = |order| {
        let mut engine = Engine::new(&CoreConfig {
            prefill_order: order,
            ..config.clone()
        });
        engine.run(request(&whole, 1));
        engine.submit(request(&prompt(2, 10), 1));
        // Twenty of 24 tokens are cached.
        engine.submit(request(&whole, 1));
        engine.submit(request(&prompt(3, 3), 1));
        engine.finish();
        engine.world.model.admissions.clone()
    };
    assert_eq!(ask(PrefillOrder::Fcfs), [0, 1, 2, 3]);
    assert_eq!(ask(PrefillOrder::ShortestUncached), [0, 3, 2, 1]);
    assert_eq!(ask(PrefillOrder::LongestCachedPrefix), [0, 2, 1, 3]);
}

/// Counts what a step looks at, with everything that makes requests wait: rows, blocks and tokens.
fn considered(waiting: u64, tenants: u64, order: PrefillOrder) -> u64 {
    let config = CoreConfig {
        prefill_order: order,
        max_queued_requests: u32::MAX,
        ..pool_of(12)
    };
    let mut core = Core::new(config, 1).expect("usable");
    for submission in 0..waiting {
        let length = 4 + (submission % 5) as usize * 6;
        let asked = Request {
            submission,
            tenant: submission % tenants,
            priority: (submission % 3) as u8,
            ..request(&prompt(submission as u32, length), 8)
        };
        core.submit(asked, 0).expect("room");
    }
    for now in 0..60 {
        let plan = core.plan(now).expect("work is left");
        let rows = vec![(RowStatus::Ok, 7); plan.sampling.len()];
        let result = StepResult {
            epoch: 1,
            step: plan.step,
            duration_ns: None,
            rows: &rows,
            candidates: &[],
        };
        core.complete(&result, now).expect("the oldest step");
    }
    core.check_all().expect("every invariant holds");
    core.stats().considered
}

/// A step costs the same however many wait.
#[test]
fn what_waits_costs_a_step_nothing() {
    for order in [
        PrefillOrder::Fcfs,
        PrefillOrder::ShortestUncached,
        PrefillOrder::LongestCachedPrefix,
    ] {
        for tenants in [1, 7] {
            let few = considered(1_500, tenants, order);
            let many = considered(15_000, tenants, order);
            assert!(many <= few + few / 10, "{order:?}: {many} against {few}");
            assert!(many / 60 <= 64 * 10, "{order:?}: {many} in 60 steps");
        }
    }
}
