//! Proof that the core keeps its promises, whatever the order of events.
//!
//! A ghost worker stores one token id per KV slot and answers with a hash of the prefix that it
//! reads back through its own block tables; a naive model says what the outside must see. Random
//! histories, an exhaustive search over interleavings and named cases drive the real core with both.

mod aborts;
mod admission;
mod beams;
mod clocked;
mod dedupe;
mod engine;
mod entry;
mod fairness;
mod forks;
mod history;
mod interleavings;
mod latency;
mod masks;
mod model;
mod operation;
mod oracle;
mod overload;
mod plan_rules;
#[cfg(feature = "planted-faults")]
mod planted_faults;
mod prefix_cache;
mod queue;
mod reasons;
mod retention;
mod router;
mod scheduling;
mod scoring;
mod search;
mod submission;
mod worker;
mod worker_loss;
mod world;
