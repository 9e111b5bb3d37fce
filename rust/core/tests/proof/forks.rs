//! Named cases of several choices from one prompt (invariants 5, 22 and 49).

use diptych_core::{CoreConfig, Error, FinishReason, Request};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::operation::Operation;

fn choices(prompt: &[u32], max_tokens: u32, choices: u32) -> Request {
    Request {
        choices,
        ..request(prompt, max_tokens)
    }
}

fn journal(config: &CoreConfig) -> Engine {
    let mut engine = Engine::new(config);
    engine.world.journal = Some(crate::world::Journal::default());
    engine
}

#[test]
fn a_prompt_is_computed_once_for_all_choices() {
    for overlap_depth in 0..3 {
        let config = CoreConfig {
            overlap_depth,
            max_batched_tokens: 6,
            ..small()
        };
        for length in [8, 10] {
            let mut engine = journal(&config);
            engine.submit(choices(&prompt(1, length), 5, 3));
            engine.finish();
            let plans = engine.world.journal.take().expect("a journal").plans;
            let tokens: usize = plans.iter().map(|plan| plan.token_ids.len()).sum();
            assert_eq!(tokens, length + 3 * 4, "the prompt once, then each output");
            let copies: usize = plans.iter().map(|plan| plan.block_copies.len()).sum();
            assert_eq!(copies, if length % 4 == 0 { 0 } else { 2 });
            let outputs: Vec<_> = (0..3).map(|choice| engine.outputs(choice)).collect();
            assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2]);
            assert!(outputs.iter().all(|outputs| outputs.len() == 5));
        }
    }
}

#[test]
fn choices_own_a_tail_each_and_share_the_rest() {
    let mut engine = Engine::new(&small());
    engine.submit(choices(&prompt(1, 10), 2, 4));
    engine.step();
    // Two full blocks, the prompt's own tail and three to copy it into.
    assert_eq!(engine.stats().used_blocks, 2 + 1 + 3);
    assert_eq!(engine.stats().running, 4);
    engine.plan();
    assert_eq!(engine.stats().used_blocks, 2 + 4);
    engine.complete();
    engine.finish();
    assert_eq!(engine.stats().used_blocks, 0);
}

#[test]
fn choices_that_could_never_begin_are_refused() {
    let mut engine = Engine::new(&pool_of(6));
    for wrong in [0, 5] {
        let refused = engine.try_submit(choices(&prompt(1, 3), 1, wrong), None);
        assert!(matches!(refused, Err(Error::Choices { .. })), "{refused:?}");
    }
    // Four blocks of prompt and three more tails.
    let refused = engine.try_submit(choices(&prompt(1, 14), 2, 4), None);
    assert!(
        matches!(
            refused,
            Err(Error::ChoicesNeverFit {
                needed: 7,
                available: 6,
                ..
            })
        ),
        "{refused:?}"
    );
    engine.submit(choices(&prompt(1, 14), 2, 3));
    engine.finish();
}

#[test]
fn a_group_waits_until_all_its_rows_and_tails_are_free() {
    let mut engine = Engine::new(&pool_of(12));
    let alone = engine.submit(request(&prompt(1, 6), 8));
    engine.step();
    let group = engine.submit(choices(&prompt(2, 6), 3, 4));
    while engine.reason(alone).is_none() {
        assert!(
            !engine.admitted(group),
            "three rows are free, four are needed"
        );
        engine.step();
    }
    engine.finish();
    assert_eq!(engine.stats().preemptions, 0);
}

#[test]
fn the_others_end_with_the_first_choice_only_until_they_are_forked() {
    for steps in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            max_batched_tokens: 5,
            ..small()
        });
        let first = engine.submit(choices(&prompt(1, 7), 6, 3));
        for _ in 0..steps {
            engine.step();
        }
        engine.abort(first);
        let forked = steps == 2;
        let expected = (!forked).then_some(FinishReason::Aborted);
        assert_eq!(engine.reason(first + 1), expected, "after {steps} steps");
        engine.finish();
        let reason = if forked {
            FinishReason::Length
        } else {
            FinishReason::Aborted
        };
        assert_eq!(engine.reason(first + 2), Some(reason));
    }
}

#[test]
fn a_choice_that_is_aborted_early_leaves_the_others_alone() {
    let mut engine = Engine::new(&small());
    let first = engine.submit(choices(&prompt(1, 7), 6, 3));
    engine.abort(first + 1);
    engine.finish();
    assert_eq!(engine.reason(first), Some(FinishReason::Length));
    assert_eq!(engine.reason(first + 2), Some(FinishReason::Length));
}

#[test]
fn every_choice_survives_a_worker_that_dies_after_any_step() {
    for overlap_depth in 0..3 {
        for steps in 0..12 {
            let mut engine = Engine::new(&CoreConfig {
                overlap_depth,
                max_batched_tokens: 5,
                ..small()
            });
            engine.submit(choices(&prompt(1, 7), 6, 3));
            for step in 0..steps {
                engine.plan();
                if step % 2 == 1 {
                    engine.complete();
                }
            }
            engine.apply(&Operation::WorkerLost);
            engine.finish();
            for choice in 0..3 {
                assert_eq!(engine.reason(choice), Some(FinishReason::Length));
            }
        }
    }
}

#[test]
fn preempted_choices_are_computed_again_alone() {
    let mut engine = Engine::new(&pool_of(9));
    engine.submit(choices(&prompt(1, 10), 16, 3));
    engine.finish();
    assert!(engine.stats().preemptions > 0);
    for choice in 0..3 {
        assert_eq!(engine.outputs(choice).len(), 16);
    }
}
