//! `diptych_core.sim`: the core under virtual time, and by itself.

mod driven;
mod simulation;

pub(crate) use driven::{Core, Plan, replay};
pub(crate) use simulation::{SimulationReport, demo_batching, simulate, simulate_suite};
