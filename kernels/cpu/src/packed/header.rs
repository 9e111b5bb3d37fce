//! What a packed file says of itself, and how much of it is believed.
//!
//! ```text
//! 0   magic, 16 bytes            48  16 zeros
//! 16  layout, u32                64  header: JSON of that many bytes
//! 20  4 zeros                        zeros up to a multiple of 4,096
//! 24  bytes of the header, u64       tensors, each at a multiple of 64 from here
//! 32  XXH3-128 of the header
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::digest::Digest;
use super::error::{PackedError, io_error};
use super::formats::{Formats, format_name, format_of};
use super::layout::{Slot, slots};
use super::shape::LlamaShape;
use crate::matrix::{Format, packed_bytes};

/// Raised whenever the bytes of a packed tensor, or this header, change their meaning.
pub const LAYOUT: u32 = 2;

const MAGIC: &[u8; 16] = b"diptych weights\n";
const PREAMBLE: usize = 64;
const HEADER_LIMIT: u64 = 256 << 20;
/// Tensors begin at multiples of it, for aligned loads.
pub(super) const ALIGNMENT: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) shape: LlamaShape,
    pub(super) formats: Formats,
    /// Of the checkpoint's files.
    pub(super) source: Digest,
    /// Of all tensors, and the zeros between them.
    pub(super) data: Digest,
    pub(super) data_bytes: usize,
    pub(super) tensors: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) format: String,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// From the first tensor's first byte.
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Entry {
    pub(super) fn new(slot: &Slot, format: Format, offset: usize) -> Self {
        Self {
            name: slot.name.clone(),
            format: format_name(format).to_string(),
            outputs: slot.outputs,
            inputs: slot.inputs,
            offset,
            bytes: slot_bytes(slot, format),
        }
    }

    pub(super) fn format(&self) -> Option<Format> {
        format_of(&self.format)
    }

    /// Where the next tensor begins.
    pub(super) fn end(&self) -> usize {
        (self.offset + self.bytes).next_multiple_of(ALIGNMENT)
    }
}

/// Bytes of a packed tensor.
fn slot_bytes(slot: &Slot, format: Format) -> usize {
    if slot.is_vector() {
        slot.outputs * size_of::<f32>()
    } else {
        packed_bytes(format, slot.outputs, slot.inputs)
    }
}

impl Header {
    /// The preamble and the header, up to the first tensor. Of the same length whatever the digests are.
    pub(super) fn encode(&self) -> Result<Vec<u8>, PackedError> {
        let text =
            serde_json::to_vec(self).map_err(|error| PackedError::Request(error.to_string()))?;
        let mut bytes = Vec::with_capacity(data_offset(text.len()));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&LAYOUT.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&xxh3_128(&text).to_le_bytes());
        bytes.resize(PREAMBLE, 0);
        bytes.extend_from_slice(&text);
        bytes.resize(data_offset(text.len()), 0);
        Ok(bytes)
    }

    /// Reads the header of a packed file and checks it against the file's length and the layout of its shape. Also gives
    /// where the tensors begin.
    pub(super) fn read(file: &File, path: &Path) -> Result<(Self, u64), PackedError> {
        let damaged = |what: String| PackedError::Damaged {
            path: path.to_path_buf(),
            what,
        };
        let length = file.metadata().map_err(io_error("read", path))?.len();
        let mut preamble = [0; PREAMBLE];
        if length < PREAMBLE as u64 {
            return Err(damaged(format!("it has {length} bytes")));
        }
        file.read_exact_at(&mut preamble, 0)
            .map_err(io_error("read", path))?;
        let (bytes, sum) = check_preamble(&preamble, path)?;
        if bytes > HEADER_LIMIT || bytes > length - PREAMBLE as u64 {
            return Err(damaged(format!(
                "its header is said to have {bytes} bytes, of {length}"
            )));
        }
        let mut text = vec![0; bytes as usize];
        file.read_exact_at(&mut text, PREAMBLE as u64)
            .map_err(io_error("read", path))?;
        if xxh3_128(&text) != sum {
            return Err(damaged(
                "its header does not have the digest written beside it".to_string(),
            ));
        }
        let header: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(format!("its header: {error}")))?;
        header.check().map_err(damaged)?;
        let offset = data_offset(text.len()) as u64;
        if length != offset + header.data_bytes as u64 {
            let wanted = offset + header.data_bytes as u64;
            return Err(damaged(format!(
                "it has {length} bytes instead of {wanted}"
            )));
        }
        Ok((header, offset))
    }

    /// Every tensor must be exactly where and what the shape makes it.
    fn check(&self) -> Result<(), String> {
        self.shape.check().map_err(|error| error.to_string())?;
        let slots = self.slots();
        if slots.len() != self.tensors.len() {
            return Err(format!(
                "it lists {} tensors instead of {}",
                self.tensors.len(),
                slots.len()
            ));
        }
        let mut offset = 0;
        for (slot, entry) in slots.iter().zip(&self.tensors) {
            let format = entry
                .format()
                .ok_or_else(|| format!("{} has the format {:?}", entry.name, entry.format))?;
            if !slot.is_vector() {
                format
                    .check(slot.inputs)
                    .map_err(|error| format!("{}: {error}", entry.name))?;
            } else if format != Format::F32 {
                return Err(format!("{} has the format {:?}", entry.name, entry.format));
            }
            if *entry != Entry::new(slot, format, offset) {
                return Err(format!(
                    "{} is not where and what the model's shape makes it",
                    entry.name
                ));
            }
            offset = entry.end();
        }
        if offset != self.data_bytes {
            return Err(format!(
                "its tensors are said to have {} bytes instead of {offset}",
                self.data_bytes
            ));
        }
        Ok(())
    }

    /// The tensors of its shape, in parts where it lists parts.
    fn slots(&self) -> Vec<Slot> {
        let mut found: Vec<Slot> = Vec::new();
        for slot in slots(&self.shape) {
            let entry = self.tensors.get(found.len());
            let parts = slot
                .split()
                .filter(|parts| entry.is_some_and(|entry| entry.name == parts[0].name));
            found.extend(parts.unwrap_or_else(|| vec![slot]));
        }
        found
    }
}

fn data_offset(header: usize) -> usize {
    (PREAMBLE + header).next_multiple_of(4096)
}

/// The length and the digest of the header.
fn check_preamble(preamble: &[u8; PREAMBLE], path: &Path) -> Result<(u64, u128), PackedError> {
    let field = |from: usize| {
        preamble[from..]
            .first_chunk::<8>()
            .copied()
            .map_or(0, u64::from_le_bytes)
    };
    let damaged = |what: &str| PackedError::Damaged {
        path: path.to_path_buf(),
        what: what.to_string(),
    };
    if &preamble[..16] != MAGIC {
        return Err(damaged("it does not begin as packed weights do"));
    }
    let layout = field(16) as u32;
    if layout != LAYOUT {
        return Err(PackedError::Version {
            path: path.to_path_buf(),
            found: layout,
            expected: LAYOUT,
        });
    }
    if preamble[20..24] != [0; 4] || preamble[48..] != [0; 16] {
        return Err(damaged("its preamble is not as it was written"));
    }
    Ok((
        field(24),
        u128::from(field(32)) | u128::from(field(40)) << 64,
    ))
}
