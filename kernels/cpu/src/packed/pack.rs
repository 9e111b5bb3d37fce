//! From a checkpoint to a packed model, a block of rows at a time on every thread.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::digest::{Chunks, Digest};
use super::error::{PackedError, cannot_write, io_error};
use super::formats::Formats;
use super::header::{Entry, Header};
use super::layout::slots;
use super::parallel;
use super::partial::Partial;
use super::planned::{Block, Planned, Scratch};
use super::source::ModelSource;
use crate::memory::Region;
use crate::simd::LANES;

/// How to pack.
pub struct Packing<'a> {
    /// The formats to pack in.
    pub formats: Formats,
    /// Threads that share the work.
    pub threads: usize,
    /// Called now and then, from any of the threads, with the bytes written so far and in all.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// Packs a whole model into the file `out`, which appears when it is complete: it is written under another name beside
/// it, forced to disk, then renamed.
///
/// # Errors
/// A tensor that cannot be had in the formats asked for, a checkpoint that cannot be read or changes meanwhile, a file that
/// cannot be written.
pub fn pack_model(source: &ModelSource, packing: &Packing, out: &Path) -> Result<(), PackedError> {
    let plan = Plan::new(source, packing.formats, source.digest(packing.threads)?)?;
    write_plan(&plan, packing, out)
}

/// Writes a planned model to its file.
pub(super) fn write_plan(plan: &Plan, packing: &Packing, out: &Path) -> Result<(), PackedError> {
    let partial = Partial::create(out)?;
    let head = plan.header.encode()?;
    let whole = (head.len() + plan.header.data_bytes) as u64;
    partial.reserve(whole).map_err(cannot_write(out))?;
    let sink = |offset: usize, bytes: &[u8]| {
        partial
            .file
            .write_all_at(bytes, (head.len() + offset) as u64)
    };
    plan.pack(packing, &sink, out)?;
    plan.source.check_unchanged()?;
    let mut header = plan.header.clone();
    header.data = Chunks::of_file(
        &partial.file,
        head.len() as u64,
        header.data_bytes,
        packing.threads,
    )
    .map_err(io_error("read", out))?;
    let finish = || {
        partial
            .file
            .write_all_at(&header.encode().map_err(io::Error::other)?, 0)?;
        partial.file.sync_all()
    };
    finish().map_err(cannot_write(out))?;
    partial.publish(out).map_err(cannot_write(out))
}

/// Packs a planned model into memory.
pub(super) fn fill_region(
    plan: &Plan,
    packing: &Packing,
    huge: bool,
) -> Result<Region, PackedError> {
    let here = Path::new("(memory)");
    let region = Region::new(plan.header.data_bytes, huge).map_err(io_error("reserve", here))?;
    let sink = |offset: usize, bytes: &[u8]| {
        assert!(
            offset + bytes.len() <= region.bytes(),
            "a tensor beyond the region"
        );
        // SAFETY: within the region as asserted; every block of every tensor is written once, by one thread.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                region.address().add(offset),
                bytes.len(),
            );
        };
        Ok(())
    };
    plan.pack(packing, &sink, here)?;
    plan.source.check_unchanged()?;
    Ok(region)
}

/// What will be packed, and where.
pub(super) struct Plan<'a> {
    pub(super) source: &'a ModelSource,
    pub(super) header: Header,
    tensors: Vec<Planned<'a>>,
}

type Sink<'a> = dyn Fn(usize, &[u8]) -> io::Result<()> + Sync + 'a;

impl<'a> Plan<'a> {
    pub(super) fn new(
        source: &'a ModelSource,
        formats: Formats,
        digest: Digest,
    ) -> Result<Self, PackedError> {
        let (mut tensors, mut entries, mut offset) = (Vec::new(), Vec::<Entry>::new(), 0);
        for slot in slots(source.shape()) {
            let parts = slot
                .split()
                .filter(|_| !Planned::has_one_format(source, &slot, formats));
            for slot in parts.unwrap_or_else(|| vec![slot]) {
                let planned = Planned::new(source, slot, formats, offset)?;
                let entry = Entry::new(&planned.slot, planned.format, offset);
                offset = entry.end();
                entries.push(entry);
                tensors.push(planned);
            }
        }
        let header = Header {
            shape: source.shape().clone(),
            formats,
            source: digest,
            data: Digest::blank(),
            data_bytes: offset,
            tensors: entries,
        };
        Ok(Self {
            source,
            header,
            tensors,
        })
    }

    fn pack(&self, packing: &Packing, sink: &Sink, out: &Path) -> Result<(), PackedError> {
        let blocks = self.blocks();
        let done = AtomicUsize::new(0);
        parallel::for_each(
            packing.threads,
            blocks.len(),
            Scratch::default,
            |scratch, item| {
                let (block, planned) = (&blocks[item], &self.tensors[blocks[item].tensor]);
                planned.pack(block, scratch)?;
                let before = block.first / LANES * planned.panel_bytes();
                sink(planned.offset + before, &scratch.packed).map_err(cannot_write(out))?;
                let written =
                    done.fetch_add(scratch.packed.len(), Ordering::Relaxed) + scratch.packed.len();
                (packing.progress)(written, self.header.data_bytes);
                Ok(())
            },
        )
    }

    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (tensor, planned) in self.tensors.iter().enumerate() {
            let (outputs, rows) = (planned.slot.outputs, planned.rows_of_block());
            for first in (0..outputs).step_by(rows) {
                blocks.push(Block {
                    tensor,
                    first,
                    outputs: rows.min(outputs - first),
                });
            }
        }
        blocks
    }
}
