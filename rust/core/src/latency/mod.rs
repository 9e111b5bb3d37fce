//! Time: how long steps take, how long they may take, how long they took for users.
//!
//! - [`Work`] is what a step computes; [`LatencyModel`] learns from the worker's own clock what it
//!   costs; [`Coefficients`] are its result.
//! - With a target for the gap between tokens, a step's prefill is cut to what fits beside its
//!   decoding rows into the time that the strictest of them allows. Without one, steps are bounded
//!   by their tokens alone.
//!
//! # What overruns the target, by how much
//! - A step that has no decoding row with a target is not limited.
//! - Where decoding alone is predicted to miss the target, prompts are not starved for it: every
//!   such step computes one tile (`CoreConfig::prefill_tile`) of one prompt.
//! - Where decoding fits but no tile beside it does, every fifth step computes one tile.

mod achieved;
mod coefficients;
mod fit;
mod model;
mod pace;
mod solve;
mod work;

use std::hash::{Hash, Hasher};

use crate::launches::Launch;

pub(crate) use self::achieved::Achieved;
pub use self::coefficients::Coefficients;
pub use self::model::LatencyModel;
pub(crate) use self::pace::Pace;
pub(crate) use self::solve::TimeBudget;
pub use self::work::{StepKind, Work};

/// First guess for what passes between the worker's end of a step and the host's knowledge of it.
const FIRST_OVERHEAD_NS: u64 = 200_000;

/// Everything that a core knows about time.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    pub(crate) model: LatencyModel,
    pub(crate) achieved: Achieved,
    /// A high quantile of a step's time at the host beyond the worker's, in nanoseconds.
    overhead_ns: u64,
    /// When the host last heard of a step under a target.
    heard: u64,
    /// Steps in a row in which time left no room for a prompt that wanted some.
    starved: u32,
    /// Steps since others than the oldest prompt had what a step has room for.
    others_wait: u32,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            model: LatencyModel::default(),
            achieved: Achieved::default(),
            overhead_ns: FIRST_OVERHEAD_NS,
            heard: 0,
            starved: 0,
            others_wait: 0,
        }
    }
}

impl Latency {
    /// A step has retired at `now`; the worker spent `duration_ns` on it.
    pub(crate) fn retired(&mut self, launch: &Launch, now: u64, duration_ns: Option<u64>) {
        let Some(duration) = duration_ns else {
            return;
        };
        self.model.observe(&launch.work, duration);
        let Some(limit) = launch.limit else {
            return;
        };
        let began = limit.planned.max(self.heard);
        self.heard = now;
        let overhead = now.saturating_sub(began).saturating_sub(duration);
        let step = self.overhead_ns / 64 + 1;
        if overhead > self.overhead_ns {
            self.overhead_ns += 4 * step;
        } else {
            self.overhead_ns -= step.min(self.overhead_ns);
        }
    }

    /// Prefill time of a step that lasts at most `allowance` and decodes `decode`.
    pub(crate) fn budget(&self, decode: &Work, allowance: u64, tile: u32) -> TimeBudget {
        let (overhead, starved) = (self.overhead_ns, self.starved);
        TimeBudget::new(&self.model, decode, allowance, overhead, tile, starved)
    }

    /// A step under a target was planned: did time keep every prompt out of it?
    pub(crate) fn planned(&mut self, kept_out: bool) {
        self.starved = if kept_out { self.starved + 1 } else { 0 };
    }

    /// Whether a step with time for one tile belongs to others than the oldest prompt: one of ten does.
    pub(crate) fn is_turn_of_others(&mut self) -> bool {
        self.others_wait = (self.others_wait + 1) % 10;
        self.others_wait == 0
    }

    /// Hashes what decides later budgets.
    pub(crate) fn hash_behaviour(&self, state: &mut impl Hasher) {
        for number in self.model.numbers() {
            number.to_bits().hash(state);
        }
        (self.overhead_ns, self.heard, self.starved, self.others_wait).hash(state);
    }
}
