//! `diptych_core.sim`: the core under virtual time.

mod simulation;

pub(crate) use simulation::{SimulationReport, demo_batching, simulate, simulate_suite};
