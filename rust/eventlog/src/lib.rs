//! The event log: everything that goes into a core, in order, and what it planned.
//!
//! A core is pure, so its inputs with their `now` say everything about it. A log of them is a file
//! of records ([`Record`], see [`file`] for the format); [`replay`] gives them to a new core and
//! compares each plan with the digest of the one that was made then. The same records as JSON lines
//! are the golden traces in `tests/traces`.
//!
//! A log holds the prompts and outputs of every request.

mod digest;
pub mod file;
mod record;
mod replay;

pub use crate::digest::{FIELDS, PlanDigest};
pub use crate::file::{Ending, LogReader, LogWriter, ReadError, WriteError};
pub use crate::record::{Record, StepCandidates, StepRows};
pub use crate::replay::{Difference, Replay, ReplayError, Report, replay};
