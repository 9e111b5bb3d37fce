//! Named cases of workers that die or misbehave.

use diptych_core::{Core, CoreConfig, Error, FinishReason, RowStatus, StepResult};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::operation::Operation;
use crate::worker::Misbehaviour;

/// Invariants 47 and 50.
#[test]
fn a_worker_killed_from_outside_harms_nobody() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            max_running: 8,
            ..pool_of(20)
        });
        let numbers: Vec<usize> = (0..8)
            .map(|seed| engine.submit(request(&prompt(seed, 7), 20)))
            .collect();
        for kill in 0..20 {
            for _ in 0..4 + kill % 3 {
                engine.step();
            }
            engine.plan();
            engine.apply(&Operation::WorkerLost);
        }
        engine.finish();
        for number in numbers {
            assert_eq!(engine.outputs(number).len(), 20);
            assert_eq!(engine.reason(number), Some(FinishReason::Length));
        }
    }
}

/// Plans a step; the worker dies of it if the culprit is in it.
fn step_with_culprit(engine: &mut Engine, culprit: u64) {
    engine.plan();
    let launched = &engine.world.worker.launched;
    let deadly = launched
        .iter()
        .flat_map(|step| &step.sampling)
        .any(|row| row.submission == culprit);
    engine.apply(if deadly {
        &Operation::WorkerLost
    } else {
        &Operation::Complete
    });
}

/// A request that kills every worker that computes it is found and fails; nobody else does.
#[test]
fn a_request_that_kills_its_worker_fails_alone() {
    for (depth, culprit) in (0..3).flat_map(|depth| (0..6).map(move |culprit| (depth, culprit))) {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth: depth,
            max_running: 6,
            max_batched_tokens: 64,
            ..pool_of(40)
        });
        let numbers: Vec<usize> = (0..6)
            .map(|seed| engine.submit(request(&prompt(seed, 5), 6)))
            .collect();
        let mut steps = 0;
        while engine.reason(culprit).is_none() {
            step_with_culprit(&mut engine, culprit as u64);
            steps += 1;
            assert!(steps < 100, "the culprit is not found");
        }
        engine.finish();
        for number in numbers {
            let expected = if number == culprit {
                FinishReason::WorkerDied
            } else {
                FinishReason::Length
            };
            assert_eq!(engine.reason(number), Some(expected), "depth {depth}");
        }
    }
}

/// Case F19: an id that cannot be is an error of its request, whichever way the worker says it.
#[test]
fn a_misbehaving_row_fails_its_request_alone() {
    for overlap_depth in 0..3 {
        for fault in [
            Misbehaviour::Nan,
            Misbehaviour::BadId,
            Misbehaviour::IdPastVocabulary,
        ] {
            let mut engine = Engine::new(&CoreConfig {
                overlap_depth,
                ..small()
            });
            let numbers: Vec<usize> = (0..3)
                .map(|seed| engine.submit(request(&prompt(seed, 5), 9)))
                .collect();
            engine.step();
            engine.apply(&Operation::Plan(Some((1, fault))));
            engine.complete();
            engine.finish();
            let expected = match fault {
                Misbehaviour::Nan => FinishReason::NanLogits,
                _ => FinishReason::BadToken,
            };
            assert_eq!(engine.reason(numbers[1]), Some(expected));
            for number in [numbers[0], numbers[2]] {
                assert_eq!(engine.outputs(number).len(), 9);
            }
        }
    }
}

/// A row that was not ready computes its last token again and loses nothing.
#[test]
fn a_row_that_was_not_sampled_is_computed_again() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..small()
        });
        let number = engine.submit(request(&prompt(1, 6), 9));
        for moment in 0..30 {
            let fault = (moment % 3 == 0).then_some((0, Misbehaviour::NotSampled));
            engine.apply(&Operation::Plan(fault));
            engine.complete();
        }
        engine.finish();
        assert_eq!(engine.outputs(number).len(), 9);
    }
}

/// Results are taken in order, once, and for the planned rows only; a refusal changes nothing.
#[test]
fn a_result_that_is_not_the_next_is_refused() {
    let mut core = Core::new(
        CoreConfig {
            overlap_depth: 1,
            ..small()
        },
        7,
    )
    .expect("usable");
    core.submit(request(&prompt(1, 5), 9), 0).expect("room");
    let first = core
        .plan(1)
        .map(|plan| (plan.epoch, plan.step))
        .expect("work");
    let second = core
        .plan(2)
        .map(|plan| (plan.epoch, plan.step))
        .expect("work");
    assert_eq!((first, second), ((7, 1), (7, 2)));
    let ok = [(RowStatus::Ok, 3), (RowStatus::Ok, 3)];
    let mut answer = |epoch, step, rows: &[(RowStatus, u32)]| {
        let duration_ns = None;
        core.complete(
            &StepResult {
                epoch,
                step,
                duration_ns,
                rows,
                candidates: &[],
            },
            3,
        )
    };
    for (epoch, step) in [(7, 2), (7, 0), (6, 1), (8, 1)] {
        let refusal = answer(epoch, step, &ok[..1]);
        assert!(
            matches!(refusal, Err(Error::StaleResult { .. })),
            "{refusal:?}"
        );
    }
    for rows in [&ok[..0], &ok[..2]] {
        let refusal = answer(7, 1, rows);
        assert!(
            matches!(refusal, Err(Error::ResultRows { .. })),
            "{refusal:?}"
        );
    }
    assert_eq!(answer(7, 1, &ok[..1]), Ok(()));
    assert!(answer(7, 1, &ok[..1]).is_err());
    assert_eq!(answer(7, 2, &ok[..1]), Ok(()));
}

/// Invariant 48 holds across a loss: what was computed again is not one token further.
#[test]
fn a_row_with_stop_strings_that_is_computed_again_stays_in_its_window() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            block_size: 1,
            overlap_depth,
            ..small()
        });
        let number = engine
            .try_submit(request(&prompt(1, 4), 12), Some(u32::MAX))
            .expect("the request is fine");
        for _ in 0..3 {
            for _ in 0..12 {
                engine.step();
            }
            assert_eq!(engine.outputs(number).len(), 8);
            engine.apply(&Operation::WorkerLost);
        }
        engine.finish();
        assert_eq!(engine.outputs(number).len(), 12);
    }
}

/// Whoever left may have been the killer: its company is not convicted for it.
#[test]
fn a_row_beside_an_aborted_one_did_not_die_alone() {
    let mut engine = Engine::new(&CoreConfig {
        overlap_depth: 1,
        ..small()
    });
    let staying = engine.submit(request(&prompt(1, 4), 3));
    engine.plan();
    engine.apply(&Operation::WorkerLost);
    let leaving = engine.submit(request(&prompt(2, 4), 3));
    engine.plan();
    assert!(engine.admitted(leaving));
    engine.abort(leaving);
    engine.apply(&Operation::WorkerLost);
    assert_eq!(engine.reason(staying), None);
    engine.finish();
    assert_eq!(engine.reason(staying), Some(FinishReason::Length));
}
