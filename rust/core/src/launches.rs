//! Launched steps that have not retired, and the state rows that they still name.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use crate::Handle;
use crate::latency::Work;

/// What one step does for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) handle: Handle,
    pub(crate) residency: u32,
    pub(crate) lineage: u32,
    /// Positions with KV once the step has retired.
    pub(crate) end: u32,
    /// Whether the entry has a sampling row.
    pub(crate) sampled: bool,
    /// Continuations that the step names for a beam.
    pub(crate) candidates: u32,
    /// A choice that is sampled from the logits of the entry before, whose prompt it shares.
    pub(crate) fork: bool,
}

/// The time of a step under a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    pub(crate) planned: u64,
    /// Predicted duration that keeps the target of the strictest decoding row, margins taken off,
    /// in nanoseconds.
    pub(crate) most: u64,
    /// Prefill tokens that are computed even if the prediction is longer.
    pub(crate) floor: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    pub(crate) step: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) samples: usize,
    pub(crate) work: Work,
    /// `now` of the call that planned it, and the time that it allowed, if a target limits it.
    pub(crate) limit: Option<Limit>,
    /// Predicted duration in nanoseconds.
    pub(crate) predicted: u64,
}

/// Steps in launch order; their buffers are reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launches {
    steps: VecDeque<Launch>,
    spare: Vec<Launch>,
}

impl Launches {
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn oldest(&self) -> Option<&Launch> {
        self.steps.front()
    }

    pub(crate) fn newest(&self) -> Option<&Launch> {
        self.steps.back()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Launch> {
        self.steps.iter()
    }

    /// An empty launch to fill.
    pub(crate) fn draft(&mut self, step: u64) -> Launch {
        let mut launch = self.spare.pop().unwrap_or_default();
        launch.step = step;
        launch
    }

    pub(crate) fn push(&mut self, launch: Launch) {
        self.steps.push_back(launch);
    }

    pub(crate) fn pop(&mut self) -> Option<Launch> {
        self.steps.pop_front()
    }

    pub(crate) fn recycle(&mut self, mut launch: Launch) {
        launch.entries.clear();
        launch.samples = 0;
        launch.work = Work::default();
        launch.limit = None;
        self.spare.push(launch);
    }
}

const FENCES: usize = 4;

/// Worker state rows. A row given back is handed out again only after the last step that names it.
#[derive(Clone, Debug)]
pub(crate) struct StateRows {
    free: Vec<u32>,
    fenced: [Vec<u32>; FENCES],
    retired: u64,
}

impl StateRows {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            fenced: Default::default(),
            retired: 0,
        }
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Rows that are free once the launched steps have retired.
    pub(crate) fn num_coming(&self) -> u32 {
        let fenced: usize = self.fenced.iter().map(Vec::len).sum();
        fenced as u32
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, row: u32, fence: u64) {
        if fence > self.retired {
            self.fenced[fence as usize % FENCES].push(row);
        } else {
            self.free.push(row);
        }
    }

    pub(crate) fn retire(&mut self, step: u64) {
        self.retired = step;
        self.free.append(&mut self.fenced[step as usize % FENCES]);
    }

    /// Every row is free: the worker that had them is gone.
    pub(crate) fn reset(&mut self, count: u32) {
        *self = Self {
            retired: self.retired,
            ..Self::new(count)
        };
    }

    /// Rows that are free, then rows that wait for each fence.
    pub(crate) fn unassigned(&self) -> impl Iterator<Item = u32> + '_ {
        self.free
            .iter()
            .chain(self.fenced.iter().flatten())
            .copied()
    }

    /// Hashes the order in which rows will be handed out, fences counted back from `step`.
    pub(crate) fn hash_order(&self, step: u64, state: &mut impl Hasher) {
        self.free.hash(state);
        for age in 0..FENCES as u64 {
            self.fenced[step.wrapping_sub(age) as usize % FENCES].hash(state);
        }
    }

    pub(crate) fn free_rows(&self) -> &[u32] {
        &self.free
    }
}
