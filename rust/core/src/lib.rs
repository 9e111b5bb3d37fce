//! The state machine of Diptych: KV blocks, prefix index, requests, iteration-level scheduling.
//!
//! Pure by construction: no I/O, no clock (`now` is an argument), no threads, no unsafe code. The
//! same `Core`, byte for byte, runs in the live engine, in the property tests and in the search
//! over interleavings. A step is two calls: [`Core::plan`] and [`Core::complete`].
#![forbid(unsafe_code)]

mod account;
mod active;
mod admission;
pub mod beam;
mod cache;
mod check;
mod check_plan;
pub mod config;
mod core;
mod dedupe;
mod error;
mod event;
mod evicted;
pub mod explanation;
mod fingerprint;
mod finish;
mod forecast;
mod fork;
mod frequency;
pub mod kv_events;
pub mod latency;
mod launches;
mod lost;
mod mask;
mod match_end;
mod place;
mod plan;
mod pool;
mod preempt;
mod prefix;
pub mod reason;
mod request;
mod retention;
mod retire;
mod running;
mod schedule;
pub mod scoring;
mod slab;
#[cfg(test)]
mod soak;
mod suspects;
mod template;
mod validate;
mod waiting;

pub use crate::config::CoreConfig;
#[cfg(feature = "planted-faults")]
pub use crate::config::Fault;
pub use crate::core::Core;
pub use crate::error::Error;
pub use crate::event::{Event, FinishReason, Stats};
pub use crate::plan::{PLACEHOLDER, RowStatus, SamplingRow, StepPlan, StepResult};
pub use crate::request::{Handle, Request, Sampling};
