//! Everything that a simulation refuses.

/// A refused option, an unreadable trace, or a scheduler that broke its rules.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options are no JSON of the documented shape.
    #[error("the options cannot be read: {0}")]
    Options(#[from] serde_json::Error),
    /// An option whose value cannot work.
    #[error("{name} = {value} is not usable: {expected}")]
    Option {
        name: &'static str,
        value: String,
        expected: &'static str,
    },
    /// The core refuses its configuration.
    #[error("the core refuses this configuration: {0}")]
    Core(#[from] diptych_core::Error),
    /// A trace file that cannot be opened.
    #[error("trace {path} cannot be read: {source}")]
    Trace {
        path: String,
        source: std::io::Error,
    },
    /// A line of a trace that is not of its format.
    #[error("trace {path}, line {line}: {problem}")]
    TraceLine {
        path: String,
        line: usize,
        problem: String,
    },
    /// Requests are open, nothing is launched and nothing will arrive.
    #[error(
        "replica {replica} of {policy} stands still at {now_ns} ns with {open} open requests: a bug of its scheduler, repeat it with the same options"
    )]
    Stalled {
        policy: String,
        replica: u32,
        now_ns: u64,
        open: usize,
    },
    /// An invariant does not hold.
    #[error("replica {replica} of {policy} violates an invariant at {now_ns} ns: {violation}")]
    Violation {
        policy: String,
        replica: u32,
        now_ns: u64,
        violation: String,
    },
    /// The progress callback asked to stop.
    #[error("the simulation was interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn option(
        name: &'static str,
        value: impl std::fmt::Display,
        expected: &'static str,
    ) -> Self {
        Self::Option {
            name,
            value: value.to_string(),
            expected,
        }
    }
}
