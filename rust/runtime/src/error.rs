//! Errors of the engine's face.

/// A call that the engine refuses. What happens to a request later is a [`crate::Failure`] in its last frame instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The options cannot be read or contradict each other.
    #[error("engine options: {0}")]
    Options(String),
    /// The worker did not become ready.
    #[error("the worker did not start ({class}): {message}")]
    Start {
        /// Class of the worker's exception, or of ours.
        class: String,
        /// What went wrong.
        message: String,
    },
    /// A submission that can be refused on sight.
    #[error("{0}")]
    InvalidRequest(String),
    /// The engine or the frame queue is closed.
    #[error("{0} is closed")]
    Closed(&'static str),
    /// The process was forked after the engine had started.
    #[error(
        "this process (pid {pid}) was forked from the one that started the engine (pid {owner}): start an engine of its own"
    )]
    Forked {
        /// This process.
        pid: u32,
        /// The process that owns the engine.
        owner: u32,
    },
    /// The operating system refused.
    #[error("{call} failed: {message}")]
    System {
        /// What was tried.
        call: &'static str,
        /// The system's words.
        message: String,
    },
}

impl EngineError {
    /// Stable name of the variant.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Options(_) => "options",
            Self::Start { .. } => "start",
            Self::InvalidRequest(_) => "invalid_request",
            Self::Closed(_) => "closed",
            Self::Forked { .. } => "forked",
            Self::System { .. } => "system",
        }
    }

    pub(crate) fn system(call: &'static str, error: impl std::fmt::Display) -> Self {
        Self::System {
            call,
            message: error.to_string(),
        }
    }
}
