//! Every interleaving of submit, plan, complete, abort, acknowledgement, a misbehaving row and the
//! loss of the worker keeps invariants 17, 18, 20, 21, 32, 47 and 50, with three rows and six blocks.
//!
//! `DIPTYCH_STATES` raises the number of states after which each search stops.

use std::io::Write;

use diptych_core::{CoreConfig, HashMode};

use crate::operation::Draft;
use crate::search::{Scenario, Seen, search};

/// Three rows and six blocks of two tokens: two requests of the scenarios do not fit side by side.
pub(crate) fn tight(overlap_depth: u8) -> CoreConfig {
    CoreConfig {
        block_size: 2,
        num_blocks: 6,
        max_running: 3,
        max_batched_tokens: 4,
        max_prefill_tokens: None,
        max_model_len: 10,
        max_queued_requests: 3,
        overlap_depth,
        prefix_cache: true,
        side_words: 16,
        vocabulary: 5,
        hash: HashMode::Keyed(7),
        #[cfg(feature = "planted-faults")]
        fault: None,
    }
}

pub(crate) fn draft(length: u8, max_tokens: u8) -> Draft {
    Draft {
        stem: 1,
        length,
        tail: 0,
        max_tokens,
        stop_id: None,
        stop_string: None,
        namespace: 0,
        penalties: false,
        bias: 0,
        seed: 0,
        mistake: None,
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

pub(crate) fn scenario(overlap_depth: u8) -> Scenario {
    Scenario {
        config: tight(overlap_depth),
        requests: requests(),
        aborts: 1,
        losses: 1,
        misbehaviours: 1,
        inspect: true,
        limit: limit(),
    }
}

fn limit() -> usize {
    std::env::var("DIPTYCH_STATES").map_or(60_000, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("DIPTYCH_STATES={value} is not a number"))
    })
}

fn explore(name: &str, scenario: &Scenario) -> Seen {
    let seen = match search(scenario) {
        Ok(seen) => seen,
        Err(broken) => panic!("{name}: {}\n{:#?}", broken.message, broken.trace),
    };
    let mut out = std::io::stdout();
    writeln!(out, "{name}: {seen:?}").expect("standard output is open");
    assert!(
        seen.preemptions > 0 && seen.cache_hits > 0 && seen.losses > 0,
        "{seen:?}"
    );
    seen
}

#[test]
fn every_interleaving_is_right_with_one_step_ahead() {
    let seen = explore("depth 1", &scenario(1));
    assert!(seen.states > 5_000, "{seen:?}");
    assert!(seen.preemptions_in_flight > 0, "{seen:?}");
}

#[test]
fn every_interleaving_is_right_with_two_steps_ahead() {
    let seen = explore("depth 2", &scenario(2));
    assert!(seen.states > 5_000, "{seen:?}");
    assert!(seen.preemptions_in_flight > 0, "{seen:?}");
}
