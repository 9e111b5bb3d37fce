//! The search must be able to find what it is for: each deliberate bug, from the outside alone.

use std::io::Write;

use diptych_core::{CoreConfig, Fault};

use crate::interleavings::{Disturbances, scenario};
use crate::search::{Broken, Scenario, search};

fn find(fault: Fault, overlap_depth: u8) -> Broken {
    let healthy = scenario(overlap_depth, Disturbances::AbortAndLoss);
    let scenario = Scenario {
        config: CoreConfig {
            fault: Some(fault),
            ..healthy.config.clone()
        },
        inspect: false,
        drain: false,
        ..healthy
    };
    let broken = match search(&scenario) {
        Ok(seen) => panic!("{fault:?} at depth {overlap_depth} was not found: {seen:?}"),
        Err(broken) => broken,
    };
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{fault:?} at depth {overlap_depth}: {}",
        broken.message
    )
    .expect("standard output is open");
    for operation in &broken.trace {
        writeln!(out, "  {operation:?}").expect("standard output is open");
    }
    broken
}

#[test]
fn a_missing_fence_is_found() {
    for depth in [1, 2] {
        let broken = find(Fault::NoFence, depth);
        assert!(
            broken.message.contains("unretired step"),
            "{}",
            broken.message
        );
    }
}

#[test]
fn interning_before_retirement_is_found() {
    for depth in [1, 2] {
        let broken = find(Fault::InternBeforeRetirement, depth);
        assert!(broken.message.contains("invariant"), "{}", broken.message);
    }
}

#[test]
fn dropping_tokens_in_flight_on_preemption_is_found() {
    for depth in [1, 2] {
        let broken = find(Fault::DropInFlightOnPreemption, depth);
        assert!(
            broken.message.contains("invariant 18"),
            "{}",
            broken.message
        );
    }
}
