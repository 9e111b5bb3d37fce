//! One input of a core, or its answer to the one before.

use diptych_core::{CoreConfig, Handle, Request, RowStatus};
use serde::{Deserialize, Serialize};

use crate::PlanDigest;

/// A record of the log. Times are nanoseconds of the host's monotonic clock.
///
/// An input stands before its answer, so that a log of a core that panicked ends with what it
/// panicked at. Fields are stored by name; one that a log lacks has its default, so that logs outlive versions
/// that add some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A core was built; what follows went into it.
    Core {
        /// Version of diptych that wrote this.
        version: String,
        config: Box<CoreConfig>,
        epoch: u64,
        /// Names of the fields that the digests of this core's plans cover.
        plan_fields: Vec<String>,
    },
    /// A request.
    Submit { now: u64, request: Box<Request> },
    /// The answer to [`Record::Submit`]: `None` is a refusal.
    Submitted { handle: Option<Handle> },
    /// A request is to end.
    Abort { now: u64, handle: Handle },
    /// A verdict of the text side.
    Ack {
        now: u64,
        handle: Handle,
        checked: u32,
        stop_at: Option<u32>,
    },
    /// The mask of an output is known.
    Mask {
        now: u64,
        handle: Handle,
        index: u32,
    },
    /// A plan is asked for.
    Plan { now: u64 },
    /// The answer to [`Record::Plan`]; `None`: nothing could be computed.
    Planned { plan: Option<PlanDigest> },
    /// A step's result.
    Complete {
        now: u64,
        epoch: u64,
        step: u64,
        /// How long the worker computed by its own clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ns: Option<u64>,
        #[serde(default)]
        rows: StepRows,
        #[serde(default, skip_serializing_if = "StepCandidates::is_empty")]
        candidates: StepCandidates,
    },
    /// The worker is gone.
    WorkerLost { now: u64, epoch: u64 },
    /// What is past its deadline was ended, apart from a plan.
    Expire { now: u64 },
    /// The prefix cache was emptied.
    ResetPrefixCache { now: u64 },
    /// Nothing that came later is in the log, and why.
    End { why: String },
}

/// The continuations of beams that a step named: ids, and the bits of their log probabilities, so
/// that a log in any format holds what it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCandidates(Vec<(u32, u32)>);

impl StepCandidates {
    /// What a [`diptych_core::StepResult`] holds.
    #[must_use]
    pub fn new(candidates: &[(u32, f32)]) -> Self {
        let bits = candidates.iter().map(|&(id, log)| (id, log.to_bits()));
        Self(bits.collect())
    }

    /// The continuations as they were.
    #[must_use]
    pub fn candidates(&self) -> Vec<(u32, f32)> {
        let numbers = self.0.iter().map(|&(id, bits)| (id, f32::from_bits(bits)));
        numbers.collect()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a step sampled: an id for each sampling row, and the rows that have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRows {
    /// Sampled ids.
    pub ids: Vec<u32>,
    /// Rows whose status is not [`RowStatus::Ok`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<(u32, RowStatus)>,
}

impl StepRows {
    /// What a [`diptych_core::StepResult`] holds.
    #[must_use]
    pub fn new(rows: &[(RowStatus, u32)]) -> Self {
        let numbered = (0..).zip(rows);
        Self {
            ids: rows.iter().map(|&(_, id)| id).collect(),
            failed: numbered
                .filter(|(_, (status, _))| *status != RowStatus::Ok)
                .map(|(row, &(status, _))| (row, status))
                .collect(),
        }
    }

    /// The rows as they were. A failed row that does not exist is left out.
    #[must_use]
    pub fn rows(&self) -> Vec<(RowStatus, u32)> {
        let mut rows: Vec<(RowStatus, u32)> =
            self.ids.iter().map(|&id| (RowStatus::Ok, id)).collect();
        for &(row, status) in &self.failed {
            if let Some(row) = rows.get_mut(row as usize) {
                row.0 = status;
            }
        }
        rows
    }
}
