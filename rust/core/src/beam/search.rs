//! The search itself: which continuations go on, which are done, and when nothing better can come.
//!
//! The rules are those of `transformers.GenerationMixin` (5.24) with `num_beams`, so that both find
//! the same outputs: sums of log probabilities in float32, scores divided by a power of the length
//! (a simple form of the length normalisation of Wu et al., "Google's Neural Machine Translation
//! System", 2016), `width` finished outputs kept.

use std::hash::{Hash, Hasher};

use crate::beam::{Beams, EarlyStopping};

/// A continuation that a worker names: a token and its log probability.
pub(crate) type Candidate = (u32, f32);

/// Most continuations that a step names for one beam.
pub const MOST_CANDIDATES: u32 = 128;

/// One running beam: what it has, and its likeliest continuations, best first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beam<'a> {
    pub(crate) outputs: &'a [u32],
    pub(crate) candidates: &'a [Candidate],
}

/// A beam of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    /// Index of the beam that it continues.
    pub(crate) parent: usize,
    pub(crate) token: u32,
}

/// An output that is done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finished {
    score: f32,
    pub(crate) tokens: Vec<u32>,
    /// Whether its last token is a stop id.
    pub(crate) stopped: bool,
}

/// Where an output ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<F> {
    /// Whether a token is a stop id.
    pub(crate) stops: F,
    pub(crate) max_tokens: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Search {
    settings: Beams,
    width: usize,
    /// Continuations that are looked at: enough to go on when all the likeliest end.
    keep: usize,
    /// Sums of the log probabilities of the running beams.
    sums: Vec<f32>,
    /// Best first.
    finished: Vec<Finished>,
}

/// Continuations that each beam must name: whatever ends, `width` of all of them go on.
pub(crate) fn candidates(width: u32, stop_ids: u32) -> u32 {
    width.saturating_mul(stop_ids.saturating_add(1).max(2))
}

impl Search {
    pub(crate) fn new(settings: Beams, width: u32, stop_ids: u32) -> Self {
        Self {
            settings,
            width: width as usize,
            keep: candidates(width, stop_ids) as usize,
            sums: vec![0.0],
            finished: Vec::new(),
        }
    }

    /// Beams that run: one before the first step, then as many as the search is wide.
    pub(crate) fn running(&self) -> usize {
        self.sums.len()
    }

    /// Takes the continuations of all running beams. The beams that go on, best first; `None` when
    /// the search is over.
    pub(crate) fn step(
        &mut self,
        beams: &[Beam<'_>],
        ends: &Ends<impl Fn(u32) -> bool>,
    ) -> Option<Vec<Child>> {
        let length = beams.first().map_or(0, |beam| beam.outputs.len()) as u32 + 1;
        let last = length >= ends.max_tokens;
        let mut sums = Vec::with_capacity(self.width);
        let mut children = Vec::with_capacity(self.width);
        for (rank, (sum, child)) in self.best(beams).into_iter().enumerate() {
            let stopped = (ends.stops)(child.token);
            if !stopped && !last {
                sums.push(sum);
                children.push(child);
            } else if rank < self.width {
                // What ends further down is only there so that enough of the others go on.
                let outputs = beams[child.parent].outputs;
                self.finished.push(Finished {
                    score: self.normalised(sum, length),
                    tokens: [outputs, &[child.token]].concat(),
                    stopped,
                });
            }
        }
        children.truncate(self.width);
        sums.truncate(self.width);
        self.finished
            .sort_by(|left, right| right.score.total_cmp(&left.score));
        self.finished.truncate(self.width);
        self.sums = sums;
        let goes_on = !last && self.may_improve(length, ends.max_tokens);
        goes_on.then_some(children)
    }

    /// The likeliest continuations of all beams; among equal ones those of the better beam.
    fn best(&self, beams: &[Beam<'_>]) -> Vec<(f32, Child)> {
        let mut all: Vec<(f32, Child)> = Vec::new();
        for (parent, (beam, sum)) in beams.iter().zip(&self.sums).enumerate() {
            let of_beam = beam.candidates.iter();
            all.extend(of_beam.map(|&(token, log)| (log + sum, Child { parent, token })));
        }
        all.sort_by(|(left, _), (right, _)| right.total_cmp(left));
        all.truncate(self.keep);
        all
    }

    fn normalised(&self, sum: f32, length: u32) -> f32 {
        sum / f64::from(length).powf(self.settings.length_penalty) as f32
    }

    /// Whether a running beam could still end better than the worst of the finished ones.
    fn may_improve(&self, length: u32, max_tokens: u32) -> bool {
        if self.finished.len() < self.width {
            return true;
        }
        let longest = match self.settings.early_stopping {
            EarlyStopping::Yes => return false,
            EarlyStopping::Never if self.settings.length_penalty > 0.0 => max_tokens,
            EarlyStopping::Never | EarlyStopping::No => length,
        };
        let worst = self.finished.last().map(|finished| finished.score);
        let best = self.sums.first().map(|&sum| self.normalised(sum, longest));
        match (best, worst) {
            (Some(best), Some(worst)) => best > worst,
            _ => false,
        }
    }

    /// The outputs, best first.
    pub(crate) fn into_finished(self) -> Vec<Finished> {
        self.finished
    }

    pub(crate) fn hash_behaviour(&self, state: &mut impl Hasher) {
        self.settings.length_penalty.to_bits().hash(state);
        self.settings.early_stopping.hash(state);
        (self.width, self.keep).hash(state);
        for sum in &self.sums {
            sum.to_bits().hash(state);
        }
        for finished in &self.finished {
            (finished.score.to_bits(), &finished.tokens).hash(state);
        }
    }
}
