//! Digests of files: fast enough to compute at every start, sure enough to notice any change.
//!
//! A file is cut into chunks of 4 MiB; the digest is the XXH3-128 of all files' lengths and chunk digests in order, each
//! of them XXH3-128 as well, so that several threads can share one file. It tells accidents, not forgeries.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::error::{PackedError, io_error};
use super::parallel;

/// Bytes hashed as one.
pub(super) const CHUNK: usize = 4 << 20;
/// Bytes read at once: they stay in the cache until hashed.
const PIECE: usize = 256 << 10;

/// What identifies a file's contents: 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(String);

impl std::fmt::Display for Digest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Digest {
    /// All zeros, of the length of every digest.
    pub(super) fn blank() -> Self {
        Self("0".repeat(32))
    }
}

/// The digest of the contents of `paths`, in their order.
///
/// # Errors
/// If a file cannot be read, or shrinks meanwhile.
pub fn digest(paths: &[&Path], threads: usize) -> Result<Digest, PackedError> {
    let mut sums = Vec::new();
    for path in paths {
        let file = File::open(path).map_err(io_error("open", path))?;
        let bytes = file.metadata().map_err(io_error("read", path))?.len() as usize;
        let chunks = Chunks::new(0, bytes);
        chunks
            .read_all(&file, threads)
            .map_err(io_error("read", path))?;
        sums.extend_from_slice(&chunks.finish());
    }
    Ok(hex(xxh3_128(&sums)))
}

fn hex(sum: u128) -> Digest {
    Digest(format!("{sum:032x}"))
}

/// The chunk digests of a run of bytes in a file, filled in any order.
pub(super) struct Chunks {
    /// Where the run begins in the file.
    offset: u64,
    bytes: usize,
    sums: Mutex<Vec<u128>>,
}

impl Chunks {
    pub(super) fn new(offset: u64, bytes: usize) -> Self {
        Self {
            offset,
            bytes,
            sums: Mutex::new(vec![0; bytes.div_ceil(CHUNK)]),
        }
    }

    /// The digest of a run of bytes in a file.
    pub(super) fn of_file(
        file: &File,
        offset: u64,
        bytes: usize,
        threads: usize,
    ) -> io::Result<Digest> {
        let chunks = Self::new(offset, bytes);
        chunks.read_all(file, threads)?;
        Ok(chunks.digest())
    }

    pub(super) fn count(&self) -> usize {
        self.bytes.div_ceil(CHUNK)
    }

    /// Where a chunk lies in the run.
    pub(super) fn range(&self, chunk: usize) -> Range<usize> {
        chunk * CHUNK..self.bytes.min((chunk + 1) * CHUNK)
    }

    /// Hashes a chunk that is in memory.
    pub(super) fn hash(&self, chunk: usize, contents: &[u8]) {
        self.put(chunk, xxh3_128(contents));
    }

    /// Reads a chunk into `out`, its place in memory, and hashes it on the way.
    pub(super) fn load(&self, chunk: usize, file: &File, out: &mut [u8]) -> io::Result<()> {
        let mut hasher = Xxh3::new();
        let mut at = self.offset + self.range(chunk).start as u64;
        for piece in out.chunks_mut(PIECE) {
            file.read_exact_at(piece, at)?;
            hasher.update(piece);
            at += piece.len() as u64;
        }
        self.put(chunk, hasher.digest128());
        Ok(())
    }

    /// Reads and hashes all chunks, piece by piece.
    fn read_all(&self, file: &File, threads: usize) -> io::Result<()> {
        let scratch = || vec![0; PIECE];
        parallel::for_each(
            threads,
            self.count(),
            scratch,
            |piece: &mut Vec<u8>, chunk| {
                let (mut hasher, range) = (Xxh3::new(), self.range(chunk));
                for start in range.clone().step_by(PIECE) {
                    let piece = &mut piece[..PIECE.min(range.end - start)];
                    file.read_exact_at(piece, self.offset + start as u64)?;
                    hasher.update(piece);
                }
                self.put(chunk, hasher.digest128());
                Ok(())
            },
        )
    }

    fn put(&self, chunk: usize, sum: u128) {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)[chunk] = sum;
    }

    /// The length and the chunk digests, little-endian.
    fn finish(self) -> Vec<u8> {
        let mut out = (self.bytes as u64).to_le_bytes().to_vec();
        for sum in self
            .sums
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out
    }

    /// The digest of these bytes.
    pub(super) fn digest(self) -> Digest {
        hex(xxh3_128(&self.finish()))
    }
}
