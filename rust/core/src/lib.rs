//! The state machine of Diptych: KV blocks, prefix index, requests, iteration-level scheduling.
//!
//! Pure by construction: no I/O, no clock (`now` is an argument), no threads, no unsafe code. The
//! same `Core`, byte for byte, runs in the live engine, in the property tests and in the search
//! over interleavings. A step is two calls: [`Core::plan`] and [`Core::complete`].
#![forbid(unsafe_code)]

mod account;
mod active;
mod admission;
mod cache;
mod check;
mod check_plan;
mod config;
mod core;
mod error;
mod event;
mod evicted;
mod explanation;
mod fingerprint;
mod finish;
mod kv_events;
pub mod latency;
mod launches;
mod lost;
mod match_end;
mod place;
mod plan;
mod pool;
mod preempt;
mod prefix;
mod reason;
mod request;
mod retire;
mod running;
mod schedule;
mod slab;
#[cfg(test)]
mod soak;
mod suspects;
mod validate;
mod waiting;

#[cfg(feature = "planted-faults")]
pub use crate::config::Fault;
pub use crate::config::{CoreConfig, HashMode, PrefillOrder};
pub use crate::core::Core;
pub use crate::error::Error;
pub use crate::event::{Event, FinishReason, Stats};
pub use crate::explanation::{
    CacheLookup, Chunks, Decided, Decision, Explanation, Preemptions, Wait,
};
pub use crate::kv_events::{KvChange, KvEvent, KvEventsError, KvSnapshot, StoredBlock, chain_hash};
pub use crate::plan::{PLACEHOLDER, RowStatus, SamplingRow, StepPlan, StepResult};
pub use crate::reason::{ChunkLimit, MatchEnd, PreemptCause, WaitReason};
pub use crate::request::{Handle, Request, Sampling};
