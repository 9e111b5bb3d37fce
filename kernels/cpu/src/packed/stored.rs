//! Tensors where a checkpoint stores them, read row by row.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::error::{PackedError, io_error};
use crate::matrix::Encoding;

/// A file of a checkpoint, with what tells whether it was changed since it was opened.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) bytes: u64,
    changed: Option<SystemTime>,
}

impl SourceFile {
    pub(super) fn open(path: &Path) -> Result<Self, PackedError> {
        let file = File::open(path).map_err(io_error("open", path))?;
        let metadata = file.metadata().map_err(io_error("read", path))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            bytes: metadata.len(),
            changed: metadata.modified().ok(),
        })
    }

    /// Fails if the file is not the one that was opened.
    pub(super) fn check_unchanged(&self) -> Result<(), PackedError> {
        let metadata = std::fs::metadata(&self.path).map_err(io_error("read", &self.path))?;
        if metadata.len() != self.bytes || metadata.modified().ok() != self.changed {
            return Err(self.error("it was changed while it was being read; try again".to_string()));
        }
        Ok(())
    }

    pub(super) fn error(&self, what: String) -> PackedError {
        PackedError::Source {
            path: self.path.clone(),
            what,
        }
    }
}

/// How the numbers of a tensor are stored, or the name of an encoding that no kernel reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    As(Encoding),
    Unsupported(String),
}

/// One tensor of a checkpoint: `rows` × `inputs`; a vector has one row.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Its name in the file.
    pub(super) name: String,
    pub(super) file: Arc<SourceFile>,
    /// Of its first byte, in the file.
    pub(super) offset: u64,
    pub(super) stored: Stored,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// Rows of a head whose rotary pairs the file keeps side by side; here they lie half a head apart.
    pub(super) interleaved: Option<usize>,
}

impl Tensor {
    pub(super) fn inputs(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn encoding(&self) -> Result<Encoding, PackedError> {
        match &self.stored {
            Stored::As(encoding) => Ok(*encoding),
            Stored::Unsupported(name) => Err(PackedError::Tensor {
                tensor: self.name.clone(),
                what: format!(
                    "{} stores it as {name}, which is not supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K and Q6_K are",
                    self.file.path.display()
                ),
            }),
        }
    }

    /// Reads rows `first`.., as many as fill `out`, of an encoding's `row_bytes` each.
    pub(super) fn read_rows(
        &self,
        first: usize,
        row_bytes: usize,
        out: &mut [u8],
    ) -> io::Result<()> {
        let Some(head) = self.interleaved else {
            return self.read_at(first * row_bytes, out);
        };
        for (row, bytes) in (first..).zip(out.chunks_exact_mut(row_bytes)) {
            let (start, within) = (row - row % head, row % head);
            let (half, pair) = (within / (head / 2), within % (head / 2));
            self.read_at((start + 2 * pair + half) * row_bytes, bytes)?;
        }
        Ok(())
    }

    fn read_at(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        self.file
            .file
            .read_exact_at(out, self.offset + offset as u64)
    }
}
