//! One tensor on its way from the checkpoint to the packed model.

use super::error::{PackedError, io_error};
use super::formats::{Formats, own_format};
use super::layout::Slot;
use super::source::ModelSource;
use super::stored::Tensor;
use crate::matrix::{Encoding, Format, MatrixError, Source, pack};
use crate::simd::LANES;

/// Bytes of source rows that are packed at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A tensor of the packed model, and how it is made.
pub(super) struct Planned<'a> {
    pub(super) slot: Slot,
    parts: Vec<&'a Tensor>,
    pub(super) format: Format,
    /// In which the rows are gathered: the parts' own, or f32 after decoding.
    gathered: Encoding,
    encodings: Vec<Encoding>,
    pub(super) offset: usize,
}

/// Work of one thread at a time: some outputs of a tensor.
pub(super) struct Block {
    pub(super) tensor: usize,
    pub(super) first: usize,
    pub(super) outputs: usize,
}

/// Memory of a thread.
#[derive(Default)]
pub(super) struct Scratch {
    stored: Vec<u8>,
    rows: Vec<u8>,
    decoded: Vec<f32>,
    pub(super) packed: Vec<u8>,
    order: Vec<u32>,
}

impl<'a> Planned<'a> {
    /// Whether the parts of a slot can be one tensor. What no kernel reads is refused later.
    pub(super) fn has_one_format(source: &ModelSource, slot: &Slot, formats: Formats) -> bool {
        let parts = source.parts(slot);
        let encodings: Result<Vec<_>, _> = parts.iter().map(|part| part.encoding()).collect();
        let roles: Vec<_> = slot.parts.iter().map(|part| part.role).collect();
        encodings.is_ok_and(|encodings| formats.choose(&roles, slot.inputs, &encodings).is_some())
    }

    pub(super) fn new(
        source: &'a ModelSource,
        slot: Slot,
        formats: Formats,
        offset: usize,
    ) -> Result<Self, PackedError> {
        let parts = source.parts(&slot);
        let encodings = parts
            .iter()
            .map(|part| part.encoding())
            .collect::<Result<Vec<_>, _>>()?;
        let refused = |what: String| PackedError::Tensor {
            tensor: parts
                .iter()
                .map(|part| part.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            what,
        };
        if slot.is_vector() && !encodings.iter().copied().all(is_float) {
            return Err(refused(format!(
                "it is a norm or a bias stored as {encodings:?}; only floats are read"
            )));
        }
        // Parts that could not be kept apart follow the first.
        let format = formats.choose(&[slot.role()], slot.inputs, &encodings);
        let format = format.ok_or_else(|| {
            refused(format!("they are joined into one weight but stored as {encodings:?}; choose one format for all"))
        })?;
        if !slot.is_vector() {
            format
                .check(slot.inputs)
                .map_err(|error| refused(error.to_string()))?;
        }
        let uniform = encodings.iter().all(|&other| other == encodings[0]);
        let direct =
            is_float(encodings[0]) || is_float_format(format) || format == own_format(encodings[0]);
        let padded = slot
            .parts
            .iter()
            .any(|part| part.inputs.is_some_and(|inputs| inputs != slot.inputs));
        let keep = uniform && direct && !slot.is_vector() && (!padded || is_float(encodings[0]));
        Ok(Self {
            gathered: if keep { encodings[0] } else { Encoding::F32 },
            slot,
            parts,
            format,
            encodings,
            offset,
        })
    }

    pub(super) fn panel_bytes(&self) -> usize {
        if self.slot.is_vector() {
            LANES * size_of::<f32>()
        } else {
            self.format.panel_bytes(self.slot.inputs)
        }
    }

    /// Whole panels, so that blocks are packed apart.
    pub(super) fn rows_of_block(&self) -> usize {
        let row = self.gathered.row_bytes(self.slot.inputs);
        (BLOCK_BYTES / row / LANES * LANES).max(LANES)
    }

    /// Packs a block into `scratch.packed`.
    pub(super) fn pack(&self, block: &Block, scratch: &mut Scratch) -> Result<(), PackedError> {
        let rows = block.outputs.next_multiple_of(LANES);
        let row_bytes = self.gathered.row_bytes(self.slot.inputs);
        scratch.rows.clear();
        scratch.rows.resize(rows * row_bytes, 0);
        self.gather(block, scratch)?;
        if self.slot.is_vector() {
            scratch.packed.clear();
            scratch
                .packed
                .extend_from_slice(&scratch.rows[..block.outputs * row_bytes]);
            return Ok(());
        }
        let panels = rows / LANES;
        scratch.packed.clear();
        scratch.packed.resize(panels * self.panel_bytes(), 0);
        scratch.order.clear();
        scratch.order.extend(0..rows as u32);
        let source = Source {
            encoding: self.gathered,
            rows,
            inputs: self.slot.inputs,
            bytes: &scratch.rows,
        };
        pack(self.format, &source, &scratch.order, 0, &mut scratch.packed)
            .map_err(|error| self.explain(block, &error))
    }

    /// Reads the block's rows, in the order of its outputs, into `scratch.rows`; what is padding stays zero.
    fn gather(&self, block: &Block, scratch: &mut Scratch) -> Result<(), PackedError> {
        let row_bytes = self.gathered.row_bytes(self.slot.inputs);
        let end = block.first + block.outputs;
        let mut output = block.first;
        while output < end {
            let Some((part, row)) = self.slot.origin(output) else {
                output += 1;
                continue;
            };
            let run = (1..end - output)
                .take_while(|&next| self.slot.origin(output + next) == Some((part, row + next)))
                .count()
                + 1;
            let at = (output - block.first) * row_bytes;
            let out = &mut scratch.rows[at..at + run * row_bytes];
            self.read(part, row, out, (&mut scratch.stored, &mut scratch.decoded))?;
            output += run;
        }
        Ok(())
    }

    /// Reads consecutive rows of a part, decoded if need be, each filled up with zeros to the slot's inputs.
    fn read(
        &self,
        part: usize,
        row: usize,
        out: &mut [u8],
        (stored, decoded): (&mut Vec<u8>, &mut Vec<f32>),
    ) -> Result<(), PackedError> {
        let (tensor, encoding) = (self.parts[part], self.encodings[part]);
        let inputs = self.slot.parts[part].inputs.unwrap_or(1);
        let (from, to) = (
            encoding.row_bytes(inputs),
            self.gathered.row_bytes(self.slot.inputs),
        );
        let failed = io_error("read", &tensor.file.path);
        if encoding == self.gathered && from == to {
            return tensor.read_rows(row, from, out).map_err(failed);
        }
        let rows = out.len() / to;
        stored.resize(rows * from, 0);
        tensor.read_rows(row, from, stored).map_err(failed)?;
        if encoding == self.gathered {
            for (row, out) in stored.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
                out[..from].copy_from_slice(row);
            }
            return Ok(());
        }
        let source = Source {
            encoding,
            rows,
            inputs,
            bytes: stored,
        };
        decoded.resize(inputs, 0.0);
        for (row, out) in out.chunks_exact_mut(to).enumerate() {
            source.decode(row, decoded);
            for (bytes, value) in out.chunks_exact_mut(4).zip(decoded.iter()) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The error of packing a block, with the tensor that it concerns.
    fn explain(&self, block: &Block, error: &MatrixError) -> PackedError {
        let origin = match error {
            MatrixError::NotFinite { row, .. } => self.slot.origin(block.first + row),
            _ => None,
        };
        let (part, _) = origin.unwrap_or((0, 0));
        PackedError::Tensor {
            tensor: self.parts[part].name.clone(),
            what: error.to_string(),
        }
    }
}

fn is_float(encoding: Encoding) -> bool {
    is_float_format(own_format(encoding))
}

fn is_float_format(format: Format) -> bool {
    matches!(format, Format::F32 | Format::Bf16 | Format::F16)
}
