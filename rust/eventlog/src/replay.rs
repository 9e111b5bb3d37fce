//! Replay: the same inputs into a new core, and where its plans first differ.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use diptych_core::{Core, Error, Handle, StepResult};
use serde::Serialize;

use crate::digest::PlanDigest;
use crate::{Ending, LogReader, ReadError, Record};

/// The first place where a core does something else than the log says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the record, from 0.
    pub record: u64,
    /// The `now` of the call.
    pub now: u64,
    /// The step that was planned then, or the last one before.
    pub step: u64,
    /// What differs: a field of the plan, `step` where only one of them planned, or `handle`.
    pub field: String,
    /// What the log says.
    pub logged: String,
    /// What this build does.
    pub replayed: String,
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Records read.
    pub records: u64,
    /// Cores that the log is about: one, and one more after each panic of the engine thread.
    pub cores: u64,
    /// Plans compared.
    pub plans: u64,
    /// The first difference, at which the replay stopped.
    pub difference: Option<Difference>,
    /// How the log ended; `None` where a difference came first.
    pub ending: Option<Ending>,
}

/// A log that cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The first record builds no core.
    #[error("record {record} is not about any core: the log does not begin with one")]
    NoCore { record: u64 },
    /// The core panics, as the one of the log may have done.
    #[error("record {record}: the core panics")]
    Panicked { record: u64 },
    /// This build refuses a call that the core of the log took.
    #[error("record {record}: this build refuses it: {error}")]
    Refused { record: u64, error: Error },
}

/// Replays a whole log; stops at the first difference.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(input: impl Read) -> Result<Report, ReplayError> {
    let mut reader = LogReader::new(input)?;
    let mut replay = Replay::default();
    while let Some(record) = reader.next_record()? {
        replay.apply(&record)?;
        if replay.report.difference.is_some() {
            return Ok(replay.report);
        }
    }
    let mut report = replay.report;
    report.ending = reader.ending().cloned();
    Ok(report)
}

/// A replay, record by record.
#[derive(Debug)]
pub struct Replay {
    replayed: Option<Replayed>,
    report: Report,
}

/// The core of this build, and what it has answered last.
#[derive(Debug)]
struct Replayed {
    core: Core,
    fields: Vec<String>,
    now: u64,
    step: u64,
    handle: Option<Handle>,
    plan: Option<PlanDigest>,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            replayed: None,
            report: Report {
                records: 0,
                cores: 0,
                plans: 0,
                difference: None,
                ending: None,
            },
        }
    }
}

impl Replay {
    /// Gives one record to the core.
    ///
    /// # Errors
    /// [`ReplayError::NoCore`], [`ReplayError::Refused`], [`ReplayError::Panicked`].
    pub fn apply(&mut self, record: &Record) -> Result<(), ReplayError> {
        let number = self.report.records;
        self.report.records += 1;
        let refused = |error| ReplayError::Refused {
            record: number,
            error,
        };
        if let Record::Core {
            config,
            epoch,
            plan_fields,
            ..
        } = record
        {
            self.replayed = Some(Replayed {
                core: Core::new(config.as_ref().clone(), *epoch).map_err(refused)?,
                fields: plan_fields.clone(),
                now: 0,
                step: 0,
                handle: None,
                plan: None,
            });
            self.report.cores += 1;
            return Ok(());
        }
        let replayed = self
            .replayed
            .as_mut()
            .ok_or(ReplayError::NoCore { record: number })?;
        // A core that panicked is not used again: the next record of a log builds another.
        let differing = catch_unwind(AssertUnwindSafe(|| replayed.apply(record)))
            .map_err(|_| ReplayError::Panicked { record: number })?
            .map_err(refused)?;
        self.report.plans += u64::from(matches!(record, Record::Planned { plan: Some(_) }));
        self.report.difference = differing.map(|(field, logged, replayed_as)| Difference {
            record: number,
            now: replayed.now,
            step: replayed.step,
            field,
            logged,
            replayed: replayed_as,
        });
        Ok(())
    }

    /// What was found so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// What differs, as logged, as replayed.
type Differing = (String, String, String);

impl Replayed {
    /// Makes the core do what the record says, or compares its last answer with the record's.
    fn apply(&mut self, record: &Record) -> Result<Option<Differing>, Error> {
        let core = &mut self.core;
        match record {
            Record::Submit { now, request } => {
                self.now = *now;
                self.handle = core.submit(request.as_ref().clone(), *now).ok();
            }
            Record::Submitted { handle } if *handle != self.handle => {
                let shown = |handle: &Option<Handle>| format!("{handle:?}");
                let field = "handle".to_owned();
                return Ok(Some((field, shown(handle), shown(&self.handle))));
            }
            Record::Core { .. } | Record::End { .. } | Record::Submitted { .. } => {}
            Record::Abort { now, handle } => core.abort(*handle, *now),
            Record::Ack {
                handle,
                checked,
                stop_at,
                ..
            } => core.text_ack(*handle, *checked, *stop_at)?,
            Record::Mask { handle, index, .. } => core.mask_ready(*handle, *index)?,
            Record::Plan { now } => {
                self.now = *now;
                self.plan = core.plan(*now).map(PlanDigest::of);
            }
            Record::Planned { plan } => {
                let steps = plan.iter().chain(&self.plan).map(|plan| plan.step);
                self.step = steps.max().unwrap_or(self.step);
                return Ok(compare(plan.as_ref(), self.plan.as_ref(), &self.fields));
            }
            Record::Complete {
                now,
                epoch,
                step,
                duration_ns,
                rows,
                candidates,
            } => {
                let (rows, candidates) = (rows.rows(), candidates.candidates());
                let result = StepResult {
                    epoch: *epoch,
                    step: *step,
                    duration_ns: *duration_ns,
                    rows: &rows,
                    candidates: &candidates,
                };
                core.complete(&result, *now)?;
            }
            Record::WorkerLost { now, epoch } => core.worker_lost(*epoch, false, *now)?,
            Record::Expire { now } => core.expire(*now),
            Record::ResetPrefixCache { .. } => core.reset_prefix_cache(),
        }
        // Nobody reads the events of a replay.
        core.take_events(&mut Vec::new());
        Ok(None)
    }
}

fn compare(
    logged: Option<&PlanDigest>,
    made: Option<&PlanDigest>,
    fields: &[String],
) -> Option<(String, String, String)> {
    let shown = |plan: Option<&PlanDigest>| match plan {
        None => "no plan".to_owned(),
        Some(plan) => format!(
            "step {} with {} rows and {} tokens",
            plan.step, plan.rows, plan.tokens
        ),
    };
    let field = match (logged, made) {
        (None, None) => return None,
        (Some(logged), Some(made)) => logged.difference(fields, made)?,
        (None, Some(_)) | (Some(_), None) => "step".to_owned(),
    };
    Some((field, shown(logged), shown(made)))
}
