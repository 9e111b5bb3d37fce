//! Named cases of requests whose client leaves.

use std::collections::HashSet;

use diptych_core::{Core, CoreConfig, FinishReason, Request, RowStatus, StepResult};

use crate::engine::{Engine, pool_of, prompt, request, small};

/// Case C13.
#[test]
fn an_aborted_waiting_request_never_runs() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 1,
        ..small()
    });
    let long = engine.submit(request(&prompt(1, 5), 9));
    engine.step();
    let gone = engine.submit(request(&prompt(2, 5), 9));
    let next = engine.submit(request(&prompt(3, 5), 9));
    engine.abort(gone);
    assert_eq!(engine.stats().waiting, 1);
    while engine.reason(long).is_none() {
        engine.step();
    }
    engine.plan();
    assert!(engine.admitted(next));
    engine.complete();
    engine.finish();
    assert!(!engine.admitted(gone) && engine.outputs(gone).is_empty());
}

/// Case C16: nothing of an aborted request is kept, and its name is never another's.
#[test]
fn a_hundred_thousand_aborted_requests_leave_nothing() {
    let mut core = Core::new(small(), 1).expect("usable");
    let mut names = HashSet::new();
    let mut events = Vec::new();
    let mut previous = None;
    for submission in 0..100_000 {
        let request = Request {
            submission,
            ..request(&prompt(1, 9), 4)
        };
        let handle = core.submit(request, submission).expect("room");
        assert!(names.insert(handle) && handle.slot < 4, "{handle:?}");
        if submission % 2 == 0 {
            core.plan(submission);
        }
        if let Some(earlier) = previous {
            core.abort(earlier, submission);
        }
        assert_eq!(core.stats().running + core.stats().waiting, 1);
        core.abort(handle, submission);
        core.take_events(&mut events);
        events.clear();
        previous = Some(handle);
        if submission % 2 == 0 {
            let step = StepResult {
                epoch: 1,
                step: submission / 2 + 1,
                duration_ns: None,
                rows: &[(RowStatus::Ok, 1)],
                candidates: &[],
            };
            core.complete(&step, submission)
                .expect("the step is in flight");
        }
    }
    core.check_all().expect("whole");
    assert_eq!(
        (
            core.stats().used_blocks,
            core.stats().running,
            core.stats().waiting
        ),
        (0, 0, 0)
    );
}

/// Case C18: one abort of one request at every point of a run with steps in flight.
#[test]
fn an_abort_at_any_point_harms_nobody() {
    for overlap_depth in 0..3 {
        for (victim, point) in (0..3).flat_map(|victim| (0..40).map(move |point| (victim, point))) {
            let mut engine = Engine::new(&CoreConfig {
                overlap_depth,
                ..pool_of(8)
            });
            for seed in 0..3 {
                engine.submit(request(&prompt(seed, 6), 9));
            }
            for moment in 0..40 {
                if moment == point {
                    engine.abort(victim);
                    engine.abort(victim);
                }
                match moment % (u32::from(overlap_depth) + 2) {
                    0 => engine.complete(),
                    _ => engine.plan(),
                }
            }
            engine.finish();
            assert_eq!(engine.stats().used_blocks, 0);
            assert!((0..3).all(|number| number == victim || engine.outputs(number).len() == 9));
        }
    }
}

/// Case C22.
#[test]
fn an_abort_during_prefill_stops_its_chunks() {
    let mut engine = Engine::new(&CoreConfig {
        num_blocks: 128,
        max_running: 1,
        max_batched_tokens: 4,
        max_model_len: 512,
        overlap_depth: 1,
        ..small()
    });
    let long = engine.submit(request(&prompt(1, 400), 1));
    engine.plan();
    engine.complete();
    engine.plan();
    engine.plan();
    engine.abort(long);
    let next = engine.submit(request(&prompt(2, 4), 1));
    assert!(engine.world.worker.launched.len() <= 2);
    engine.complete();
    engine.complete();
    engine.step();
    assert_eq!(engine.reason(next), Some(FinishReason::Length));
    assert_eq!((engine.stats().steps, engine.stats().used_blocks), (4, 0));
}
