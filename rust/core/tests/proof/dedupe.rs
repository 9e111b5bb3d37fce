//! In-flight dedupe: what several requests share is computed once, and nobody waits for nothing.

use diptych_core::{CoreConfig, FinishReason};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::operation::Operation;
use crate::worker::Misbehaviour;

fn roomy() -> CoreConfig {
    CoreConfig {
        num_blocks: 512,
        max_running: 16,
        max_batched_tokens: 32,
        max_model_len: 256,
        ..small()
    }
}

/// Prompt tokens that all steps of a run computed.
fn computed(engine: &mut Engine) -> usize {
    let mut tokens = 0;
    engine.world.journal = Some(crate::world::Journal::default());
    engine.finish();
    let journal = engine.world.journal.take().unwrap_or_default();
    for plan in &journal.plans {
        tokens += plan.token_ids.len() - plan.num_decode_rows as usize;
    }
    tokens
}

#[test]
fn identical_cold_prompts_are_computed_once() {
    for (overlap_depth, count) in [(0, 2), (1, 2), (2, 2), (0, 16), (1, 16), (2, 16)] {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            ..roomy()
        });
        let prompt = prompt(1, 61);
        let numbers: Vec<usize> = (0..count)
            .map(|_| engine.submit(request(&prompt, 3)))
            .collect();
        assert_eq!(
            computed(&mut engine),
            61 + (count - 1),
            "{count} at depth {overlap_depth}"
        );
        for &number in &numbers[1..] {
            assert_eq!(engine.cached(number), 60);
        }
        assert_eq!(engine.stats().deferrals, count as u64 - 1);
    }
}

/// What diverges is computed beside each other, what is shared by some of them once as well.
#[test]
fn a_shared_beginning_is_computed_once_and_the_rest_by_each() {
    let mut engine = Engine::new(&roomy());
    let shared = prompt(1, 40);
    let left = [shared.as_slice(), &prompt(2, 20)].concat();
    let right = [shared.as_slice(), &prompt(3, 20)].concat();
    for prompt in [&left, &right, &right, &left] {
        engine.submit(request(&[prompt.as_slice(), &[7]].concat(), 2));
    }
    let other = engine.submit(request(&prompt(9, 5), 2));
    assert_eq!(computed(&mut engine), 40 + 20 + 20 + 4 + 5);
    assert_eq!(engine.cached(other), 0);
}

/// Nobody behind a deferred request waits for it, and it waits no longer than it must.
#[test]
fn others_pass_a_deferred_request() {
    let mut engine = Engine::new(&roomy());
    let long = prompt(1, 60);
    engine.submit(request(&long, 2));
    engine.step();
    let second = engine.submit(request(&long, 2));
    let stranger = engine.submit(request(&prompt(2, 3), 2));
    engine.step();
    assert!(engine.admitted(stranger) && !engine.admitted(second));
    engine.step();
    assert!(engine.admitted(second));
    engine.finish();
    assert_eq!(engine.cached(second), 56);
}

/// Whatever ends the owner wakes who waits for it, and that one computes what is left.
#[test]
fn the_end_of_the_owner_wakes_who_waits() {
    for ending in 0..4 {
        let mut engine = Engine::new(&CoreConfig {
            max_prefill_tokens: Some(8),
            overlap_depth: 1,
            ..roomy()
        });
        let prompt = prompt(1, 60);
        let owner = engine.submit(request(&prompt, 3));
        engine.plan();
        let waiting = engine.submit(request(&prompt, 3));
        engine.plan();
        assert!(!engine.admitted(waiting));
        match ending {
            0 => engine.abort(owner),
            1 => engine.apply(&Operation::WorkerLost),
            2 => engine.apply(&Operation::ResetPrefixCache),
            _ => engine.abort(waiting),
        }
        engine.complete();
        engine.finish();
        let aborted = [owner, waiting].map(|number| engine.reason(number));
        let expected = match ending {
            0 => [Some(FinishReason::Aborted), Some(FinishReason::Length)],
            3 => [Some(FinishReason::Length), Some(FinishReason::Aborted)],
            _ => [Some(FinishReason::Length); 2],
        };
        assert_eq!(aborted, expected);
    }
}

/// A failed row's blocks are disowned; who waited for them computes them.
#[test]
fn who_waits_for_a_failing_request_computes_itself() {
    let mut engine = Engine::new(&roomy());
    let prompt = prompt(1, 29);
    let failing = engine.submit(request(&prompt, 3));
    let waiting = engine.submit(request(&prompt, 3));
    engine.apply(&Operation::Plan(Some((0, Misbehaviour::Nan))));
    engine.complete();
    assert_eq!(engine.reason(failing), Some(FinishReason::NanLogits));
    engine.finish();
    assert_eq!(engine.cached(waiting), 0);
    assert_eq!(engine.outputs(waiting).len(), 3);
}

/// Dedupe and preemption together: everything ends, however small the pool.
#[test]
fn a_herd_in_a_small_pool_ends() {
    for overlap_depth in 0..3 {
        let mut engine = Engine::new(&CoreConfig {
            overlap_depth,
            max_running: 8,
            max_batched_tokens: 24,
            ..pool_of(16)
        });
        let shared = prompt(1, 17);
        for number in 0..24 {
            let tail = prompt(2 + number % 3, 1 + number as usize % 7);
            engine.submit(request(
                &[shared.as_slice(), &tail].concat(),
                20 + number % 19,
            ));
        }
        engine.finish();
        let stats = engine.stats();
        assert!(stats.deferrals > 0 && stats.preemptions > 0, "{stats:?}");
    }
}
