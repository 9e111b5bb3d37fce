//! Named cases of masks that do not come: what such a row holds, others may have.

use diptych_core::config::Admission;
use diptych_core::reason::{PreemptCause, WaitReason};
use diptych_core::{CoreConfig, Request};

use crate::engine::{Engine, pool_of, prompt, request};
use crate::operation::Operation;

/// Submits a request whose second step finds no mask, as the world has it for an even sum of step and output, and
/// runs that step.
fn hang(engine: &mut Engine, prompt: &[u32], max_tokens: u32) -> usize {
    engine.run(request(&[1], 1));
    let hung = engine.submit(Request {
        masked: true,
        ..request(prompt, max_tokens)
    });
    engine.step();
    assert!(engine.outputs(hung).is_empty(), "its mask has come");
    hung
}

fn mask(engine: &mut Engine) {
    engine.apply(&Operation::Mask(0));
}

#[test]
fn who_alone_waits_for_a_mask_makes_way_for_whoever_comes() {
    for prefix_cache in [true, false] {
        let mut engine = Engine::new(&CoreConfig {
            prefix_cache,
            ..pool_of(6)
        });
        let hung = hang(&mut engine, &prompt(1, 16), 8);
        for seed in 2..6 {
            let (_, outputs) = engine.run_beside(request(&prompt(seed, 16), 8));
            assert_eq!(outputs.len(), 8);
        }
        assert_eq!(engine.stats().preemptions, 1);
        let told = engine.explain(hung);
        assert_eq!(told.preemptions[0].cause, PreemptCause::Mask);
        assert_eq!(told.waiting_for, Some(WaitReason::Mask));
        mask(&mut engine);
        engine.finish();
        assert_eq!(engine.outputs(hung).len(), 8);
    }
}

#[test]
fn who_decodes_grows_into_what_waits_for_a_mask_even_the_oldest() {
    let mut engine = Engine::new(&pool_of(10));
    let hung = hang(&mut engine, &prompt(1, 16), 8);
    // From five blocks to eight, of the six that are left.
    let (_, outputs) = engine.run_beside(request(&prompt(2, 16), 16));
    assert_eq!(outputs.len(), 16);
    assert_eq!(
        engine.explain(hung).preemptions[0].cause,
        PreemptCause::Mask
    );
    assert_eq!(engine.stats().preempted_requests, 0, "for want of blocks");
    mask(&mut engine);
    engine.finish();
}

#[test]
fn who_waits_for_a_mask_keeps_what_nobody_needs() {
    let mut engine = Engine::new(&pool_of(15));
    let hung = hang(&mut engine, &prompt(1, 16), 8);
    engine.run_beside(request(&prompt(2, 16), 16));
    assert_eq!(engine.stats().preemptions, 0);
    mask(&mut engine);
    engine.finish();
    assert_eq!(engine.outputs(hung).len(), 8);
}

#[test]
fn rows_are_given_up_as_well_as_blocks() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 1,
        ..pool_of(15)
    });
    hang(&mut engine, &prompt(1, 4), 8);
    let (_, outputs) = engine.run_beside(request(&prompt(2, 4), 8));
    assert_eq!(outputs.len(), 8);
    mask(&mut engine);
    engine.finish();
}

#[test]
fn what_was_parked_for_its_mask_ends_as_anything_that_waits() {
    let mut engine = Engine::new(&pool_of(6));
    let hung = hang(&mut engine, &prompt(1, 16), 8);
    let other = engine.submit(request(&prompt(2, 16), 8));
    engine.step();
    assert_eq!(engine.stats().waiting, 1);
    engine.abort(hung);
    assert_eq!(engine.stats().waiting, 0);
    engine.finish();
    assert_eq!(engine.outputs(other).len(), 8);

    let mut engine = Engine::new(&pool_of(6));
    let hung = hang(&mut engine, &prompt(1, 16), 8);
    engine.submit(request(&prompt(2, 16), 8));
    engine.step();
    engine.apply(&Operation::WorkerLost);
    engine.step();
    mask(&mut engine);
    engine.finish();
    assert_eq!(engine.outputs(hung).len(), 8);
}

#[test]
fn where_nobody_may_be_preempted_it_keeps_what_it_has() {
    let mut engine = Engine::new(&CoreConfig {
        admission: Admission::NoEviction,
        ..pool_of(6)
    });
    hang(&mut engine, &prompt(1, 16), 8);
    let other = engine.submit(request(&prompt(2, 16), 8));
    for _ in 0..9 {
        engine.step();
    }
    assert!(!engine.admitted(other));
    mask(&mut engine);
    engine.finish();
    assert_eq!(engine.stats().preemptions, 0);
}
