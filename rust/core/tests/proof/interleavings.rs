//! Every interleaving of submit, plan, complete and acknowledgement with an abort or a misbehaving
//! row and the loss of the worker at any point keeps invariants 17, 18, 20, 21, 32, 47 and 50, with
//! three rows and six blocks. The searches are complete: no state is left out.

use std::io::Write;

use diptych_core::CoreConfig;
use diptych_core::config::{Admission, HashMode};

use crate::operation::Draft;
use crate::search::{Scenario, Seen, search};

/// Three rows and six blocks of two tokens: two requests of the scenarios do not fit side by side.
pub(crate) fn tight(overlap_depth: u8) -> CoreConfig {
    CoreConfig {
        block_size: 2,
        num_blocks: 6,
        max_running: 3,
        max_batched_tokens: 4,
        max_model_len: 10,
        max_queued_requests: 3,
        overlap_depth,
        side_words: 16,
        vocabulary: 5,
        hash: HashMode::Keyed(7),
        admission: Admission::WholePrompt,
        ..CoreConfig::default()
    }
}

pub(crate) fn draft(length: u8, max_tokens: u8) -> Draft {
    Draft {
        stem: 1,
        length,
        max_tokens,
        choices: 1,
        ..Draft::default()
    }
}

/// A grower that crosses block edges while others run, a request that shares its prefix and waits
/// for the text side, and a third that may stop early.
pub(crate) fn requests() -> Vec<Draft> {
    vec![
        draft(2, 5),
        Draft {
            stop_string: Some(3),
            ..draft(3, 4)
        },
        Draft {
            tail: 1,
            stop_id: Some(2),
            ..draft(4, 3)
        },
    ]
}

/// What disturbs a path, at most once each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disturbances {
    AbortAndLoss,
    MisbehaviourAndLoss,
}

/// Two choices of a prompt whose last block is partial, beside a request that grows into what they
/// need.
fn forking() -> Vec<Draft> {
    vec![
        draft(2, 5),
        Draft {
            choices: 2,
            stop_id: Some(2),
            ..draft(3, 3)
        },
    ]
}

pub(crate) fn scenario(overlap_depth: u8, disturbances: Disturbances) -> Scenario {
    let (aborts, misbehaviours) = match disturbances {
        Disturbances::AbortAndLoss => (1, 0),
        Disturbances::MisbehaviourAndLoss => (0, 1),
    };
    Scenario {
        config: tight(overlap_depth),
        requests: requests(),
        aborts,
        losses: 1,
        misbehaviours,
        inspect: true,
        drain: true,
        limit: usize::MAX,
    }
}

/// The slow run: everything that can disturb a path at once, as far as `DIPTYCH_STATES` allows.
#[test]
#[ignore = "minutes and gigabytes: set DIPTYCH_STATES"]
fn every_disturbance_on_one_path_is_harmless() {
    let value = std::env::var("DIPTYCH_STATES").expect("DIPTYCH_STATES says how many states");
    let limit = value.parse().expect("DIPTYCH_STATES is a number");
    for overlap_depth in [1, 2] {
        let scenario = Scenario {
            aborts: 2,
            misbehaviours: 1,
            losses: 2,
            limit,
            ..scenario(overlap_depth, Disturbances::AbortAndLoss)
        };
        explore("every disturbance", &scenario);
    }
}

/// Searches everything and says how much that was.
fn explore(name: &str, scenario: &Scenario) -> Seen {
    let seen = match search(scenario) {
        Ok(seen) => seen,
        Err(broken) => panic!("{name}: {}\n{:#?}", broken.message, broken.trace),
    };
    let depth = scenario.config.overlap_depth;
    writeln!(std::io::stdout(), "depth {depth}, {name}: {seen:?}")
        .expect("standard output is open");
    seen
}

fn explore_forks(overlap_depth: u8, disturbances: Disturbances) {
    let scenario = Scenario {
        requests: forking(),
        ..scenario(overlap_depth, disturbances)
    };
    let seen = explore(&format!("forks, {disturbances:?}"), &scenario);
    assert!(seen.complete && seen.states > 1_000, "{seen:?}");
    assert!(seen.forks > 50 && seen.losses > 100, "{seen:?}");
}

fn explore_all(overlap_depth: u8, disturbances: Disturbances) {
    let scenario = scenario(overlap_depth, disturbances);
    let seen = explore(&format!("{disturbances:?}"), &scenario);
    assert!(seen.complete && seen.states > 50_000, "{seen:?}");
    assert!(seen.preemptions_in_flight > 100, "{seen:?}");
    assert!(seen.cache_hits > 1_000 && seen.losses > 10_000, "{seen:?}");
}

#[test]
fn one_step_ahead_an_abort_and_a_loss_are_harmless_anywhere() {
    explore_all(1, Disturbances::AbortAndLoss);
}

#[test]
fn one_step_ahead_a_bad_row_and_a_loss_are_harmless_anywhere() {
    explore_all(1, Disturbances::MisbehaviourAndLoss);
}

#[test]
fn two_steps_ahead_an_abort_and_a_loss_are_harmless_anywhere() {
    explore_all(2, Disturbances::AbortAndLoss);
}

#[test]
fn two_steps_ahead_a_bad_row_and_a_loss_are_harmless_anywhere() {
    explore_all(2, Disturbances::MisbehaviourAndLoss);
}

#[test]
fn choices_survive_an_abort_and_a_loss_anywhere() {
    for overlap_depth in 0..3 {
        explore_forks(overlap_depth, Disturbances::AbortAndLoss);
    }
}

#[test]
fn choices_survive_a_bad_row_and_a_loss_anywhere() {
    for overlap_depth in 0..3 {
        explore_forks(overlap_depth, Disturbances::MisbehaviourAndLoss);
    }
}
