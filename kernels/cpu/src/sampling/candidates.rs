//! Candidates in order, with their weights and cumulated sums, computed as far as the questions asked reach.

use super::order::{Begin, Order, id_of};
use super::weights::{Cumulate, LOWEST, Scale, Whole};
use crate::simd::InstructionSet;

/// Memory that rows use one after the other.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    order: Order,
    weights: Vec<f64>,
    cumulated: Vec<f64>,
}

/// Candidates of one row.
pub(super) struct Candidates<'a> {
    set: InstructionSet,
    logits: &'a [f32],
    scale: Scale,
    scratch: &'a mut Scratch,
    /// Weights of candidates that are not there are zero.
    complete: bool,
    whole: Option<f64>,
}

impl<'a> Candidates<'a> {
    /// Of a row without NaN and with a finite maximum; about `wanted` of them are needed.
    pub(super) fn new(
        set: InstructionSet,
        logits: &'a [f32],
        scale: Scale,
        wanted: usize,
        scratch: &'a mut Scratch,
    ) -> Self {
        scratch.weights.clear();
        scratch.cumulated.clear();
        // Rounding may have led upwards.
        let floor = (scale.maximum + LOWEST * scale.temperature) as f32;
        let floor = floor.next_down();
        let order = &mut scratch.order;
        set.run(Begin {
            order,
            logits,
            floor,
            wanted,
        });
        Self {
            set,
            logits,
            scale,
            scratch,
            complete: false,
            whole: None,
        }
    }

    /// Candidates of the row, those of no weight included.
    pub(super) fn vocabulary(&self) -> usize {
        self.logits.len()
    }

    /// The id of a candidate that was reached.
    pub(super) fn id(&self, index: usize) -> u32 {
        id_of(self.scratch.order.keys()[index])
    }

    /// Candidates reached so far: all that have a weight once a question reached no end.
    pub(super) fn reached(&self) -> usize {
        self.scratch.weights.len()
    }

    /// The sum of the first `count` weights, at least 1; of the whole row in order of ids.
    pub(super) fn mass(&mut self, count: usize) -> f64 {
        if count == self.vocabulary() {
            let kernel = Whole {
                logits: self.logits,
                scale: self.scale,
            };
            let set = self.set;
            return *self.whole.get_or_insert_with(|| set.run(kernel));
        }
        while self.reached() < count && self.extend() {}
        self.scratch.cumulated[count.min(self.reached()) - 1]
    }

    /// The first candidate with which the sum reaches `target`.
    pub(super) fn first_to_reach(&mut self, target: f64) -> Option<usize> {
        while self
            .scratch
            .cumulated
            .last()
            .is_none_or(|sum| *sum < target)
        {
            if !self.extend() {
                return None;
            }
        }
        Some(self.scratch.cumulated.partition_point(|sum| *sum < target))
    }

    /// The first candidate with which the sum exceeds `target`.
    pub(super) fn first_to_exceed(&mut self, target: f64) -> Option<usize> {
        while self
            .scratch
            .cumulated
            .last()
            .is_none_or(|sum| *sum <= target)
        {
            if !self.extend() {
                return None;
            }
        }
        Some(self.scratch.cumulated.partition_point(|sum| *sum <= target))
    }

    /// How many of the first `limit` weights are at least `least`, which is above zero.
    pub(super) fn at_least(&mut self, least: f64, limit: usize) -> usize {
        while self.reached() < limit
            && self
                .scratch
                .weights
                .last()
                .is_none_or(|weight| *weight >= least)
            && self.extend()
        {}
        let count = self
            .scratch
            .weights
            .partition_point(|weight| *weight >= least);
        count.min(limit)
    }

    /// Reaches more candidates, unless all that have a weight are reached.
    fn extend(&mut self) -> bool {
        if self.complete {
            return false;
        }
        let Scratch {
            order,
            weights,
            cumulated,
        } = &mut *self.scratch;
        let reached = weights.len();
        if !order.advance(self.logits) {
            self.complete = true;
            return false;
        }
        self.set.run(Cumulate {
            keys: &order.keys()[reached..],
            scale: self.scale,
            weights,
            cumulated,
        });
        if weights.last() == Some(&0.0) {
            let positive = weights.partition_point(|weight| *weight > 0.0);
            weights.truncate(positive);
            cumulated.truncate(positive);
            self.complete = true;
        }
        weights.len() > reached
    }
}
