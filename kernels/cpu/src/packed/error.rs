//! What can go wrong with weight files, each with what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why weights could not be read or packed.
#[derive(Debug, thiserror::Error)]
pub enum PackedError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A packed file that cannot be written.
    #[error("cannot write packed weights to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A packed file that is not what it was written as.
    #[error("the packed weights {} are damaged: {what}; delete the file and let it be packed again", path.display())]
    Damaged {
        /// The packed file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A packed file of another version of this program.
    #[error(
        "the packed weights {} have layout {found}, this version reads {expected}; pack the model again",
        path.display()
    )]
    Version {
        /// The packed file.
        path: PathBuf,
        /// Its layout.
        found: u32,
        /// The layout of this version.
        expected: u32,
    },
    /// A packed file made from something else than what is asked for.
    #[error("the packed weights {} were made with {what}; pack the model again", path.display())]
    Stale {
        /// The packed file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A checkpoint that is damaged or does not fit its configuration.
    #[error("the checkpoint {} cannot be used: {what}", path.display())]
    Source {
        /// The checkpoint's file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor that cannot be stored as asked.
    #[error("the tensor {tensor} cannot be packed: {what}")]
    Tensor {
        /// Its name in the checkpoint.
        tensor: String,
        /// Why not, and what to do instead.
        what: String,
    },
    /// A request that no model can meet.
    #[error("{0}")]
    Request(String),
}

impl PackedError {
    /// Whether the packed file can only be replaced, and replacing it helps.
    #[must_use]
    pub fn asks_for_packing(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Version { .. } | Self::Stale { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// For `map_err`: the system's error with the action and the file.
pub(super) fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> PackedError + 'a {
    move |source| PackedError::Io {
        action,
        path: path.to_path_buf(),
        source,
    }
}

/// For `map_err`, of a packed file.
pub(super) fn cannot_write(path: &Path) -> impl Fn(io::Error) -> PackedError + '_ {
    move |source| PackedError::Write {
        path: path.to_path_buf(),
        source,
    }
}
