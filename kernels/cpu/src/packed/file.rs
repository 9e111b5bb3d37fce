//! A packed model in memory, read or mapped.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};

use super::digest::{Chunks, Digest};
use super::error::{PackedError, io_error};
use super::formats::Formats;
use super::header::Header;
use super::parallel;
use super::shape::LlamaShape;
use crate::matrix::{Format, Matrix};
use crate::memory::Region;
use crate::model::{LayerWeights, ModelShape, WeightOwner, Weights};

/// A packed model whose bytes are in memory and were checked.
#[derive(Debug)]
pub struct PackedFile {
    path: PathBuf,
    header: Header,
    places: BTreeMap<String, usize>,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    /// A copy of its own.
    Read(Region),
    /// The file's pages, shared with whoever else maps them.
    Mapped(Mmap),
}

impl PackedFile {
    /// Opens a packed file: with `huge` it is read into huge pages, otherwise mapped. Every byte is checked against the
    /// digest written with it, on `threads` threads.
    ///
    /// # Errors
    /// If it cannot be read, is of another layout, or is not exactly what was written.
    pub fn open(path: &Path, huge: bool, threads: usize) -> Result<Self, PackedError> {
        let file = File::open(path).map_err(io_error("open", path))?;
        let (header, offset) = Header::read(&file, path)?;
        let chunks = Chunks::new(offset, header.data_bytes);
        let storage = if huge {
            read(&file, &chunks, header.data_bytes, threads).map_err(io_error("read", path))?
        } else {
            map(&file, &chunks, offset, threads).map_err(io_error("map", path))?
        };
        let data = chunks.digest();
        if data != header.data {
            return Err(PackedError::Damaged {
                path: path.to_path_buf(),
                what: format!("their digest is {data} instead of {}", header.data),
            });
        }
        Ok(Self::new(path, header, storage))
    }

    /// A model that was packed into memory.
    pub(super) fn in_memory(header: Header, region: Region) -> Self {
        Self::new(Path::new("(memory)"), header, Storage::Read(region))
    }

    fn new(path: &Path, header: Header, storage: Storage) -> Self {
        let names = header.tensors.iter().enumerate();
        Self {
            path: path.to_path_buf(),
            places: names
                .map(|(index, entry)| (entry.name.clone(), index))
                .collect(),
            header,
            storage,
        }
    }

    /// Checks that this is what packing that checkpoint in those formats gives.
    ///
    /// # Errors
    /// What differs.
    pub fn check_origin(
        &self,
        shape: &LlamaShape,
        formats: Formats,
        source: &Digest,
    ) -> Result<(), PackedError> {
        let header = &self.header;
        if header.source != *source {
            let what = format!("a checkpoint with digest {}, not {source}", header.source);
            return Err(self.stale(what));
        }
        if header.formats != formats {
            return Err(self.stale(format!("the formats {}, not {formats}", header.formats)));
        }
        self.check_shape(shape)
    }

    /// Checks that it was packed with that shape.
    ///
    /// # Errors
    /// Says that it was not.
    pub fn check_shape(&self, shape: &LlamaShape) -> Result<(), PackedError> {
        if self.header.shape == *shape {
            return Ok(());
        }
        Err(self.stale("another config.json".to_string()))
    }

    fn stale(&self, what: String) -> PackedError {
        PackedError::Stale {
            path: self.path.clone(),
            what,
        }
    }

    /// The shape it was packed with.
    #[must_use]
    pub fn llama_shape(&self) -> &LlamaShape {
        &self.header.shape
    }

    /// The formats it was packed in.
    #[must_use]
    pub fn formats(&self) -> Formats {
        self.header.formats
    }

    /// The digest of the checkpoint that it was packed from.
    #[must_use]
    pub fn source_digest(&self) -> &Digest {
        &self.header.source
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.header.data_bytes
    }

    /// The memory that holds the weights, unless they are mapped.
    #[must_use]
    pub fn region(&self) -> Option<&Region> {
        match &self.storage {
            Storage::Read(region) => Some(region),
            Storage::Mapped(_) => None,
        }
    }

    fn data(&self) -> &[u8] {
        match &self.storage {
            // SAFETY: the region lives as long as this, and nobody writes to it any more.
            Storage::Read(region) => unsafe {
                std::slice::from_raw_parts(region.address(), self.header.data_bytes)
            },
            Storage::Mapped(map) => map,
        }
    }

    /// A tensor's format, outputs and bytes.
    fn find(&self, name: &str) -> Option<(Format, [usize; 2], &[u8])> {
        let entry = &self.header.tensors[*self.places.get(name)?];
        let bytes = &self.data()[entry.offset..entry.offset + entry.bytes];
        Some((entry.format()?, [entry.outputs, entry.inputs], bytes))
    }

    fn matrix(&self, name: &str) -> Matrix<'_> {
        let found = self.find(name);
        let (format, [outputs, inputs], bytes) =
            found.unwrap_or_else(|| panic!("no {name} in a checked header"));
        Matrix {
            format,
            outputs,
            inputs,
            bytes,
        }
    }

    /// A matrix, or its parts.
    fn parts(&self, name: &str) -> Vec<Matrix<'_>> {
        if self.places.contains_key(name) {
            return vec![self.matrix(name)];
        }
        (0..self.places.len())
            .map(|part| format!("{name}.{part}"))
            .take_while(|part| self.places.contains_key(part))
            .map(|part| self.matrix(&part))
            .collect()
    }

    fn vector(&self, name: &str) -> Option<&[f32]> {
        let (_, [size, _], bytes) = self.find(name)?;
        // SAFETY: tensors are aligned to 64 bytes, lie within the storage, and any bits are floats.
        Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), size) })
    }

    fn norm(&self, name: &str) -> &[f32] {
        self.vector(name)
            .unwrap_or_else(|| panic!("no {name} in a checked header"))
    }

    fn layer(&self, index: usize) -> LayerWeights<'_> {
        let name = |part: &str| format!("layers.{index}.{part}");
        LayerWeights {
            input_norm: self.norm(&name("input_norm")),
            qkv: self.parts(&name("qkv")),
            qkv_bias: self.vector(&name("qkv_bias")),
            output: self.matrix(&name("output")),
            output_bias: self.vector(&name("output_bias")),
            post_norm: self.norm(&name("post_norm")),
            gate_up: self.matrix(&name("gate_up")),
            gate_up_bias: self.vector(&name("gate_up_bias")),
            down: self.matrix(&name("down")),
            down_bias: self.vector(&name("down_bias")),
        }
    }
}

impl WeightOwner for PackedFile {
    fn shape(&self) -> ModelShape {
        self.header.shape.model()
    }

    fn weights(&self) -> Weights<'_> {
        let embedding = self.matrix("embedding");
        Weights {
            embedding,
            layers: (0..self.header.shape.layers)
                .map(|index| self.layer(index))
                .collect(),
            norm: self.norm("norm"),
            head: if self.header.shape.tied_embeddings {
                embedding
            } else {
                self.matrix("head")
            },
        }
    }
}

/// Memory that several threads fill, each its own chunks.
struct Target(*mut u8);

// SAFETY: the threads write to disjoint chunks.
unsafe impl Sync for Target {}

impl Target {
    /// # Safety
    /// The range lies within the memory, and nobody else uses it meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the memory is not this struct's own")]
    unsafe fn chunk(&self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

fn read(file: &File, chunks: &Chunks, bytes: usize, threads: usize) -> std::io::Result<Storage> {
    let region = Region::new(bytes, true)?;
    let target = Target(region.address());
    parallel::for_each(
        threads,
        chunks.count(),
        || (),
        |(), chunk| {
            // SAFETY: chunks lie within the region's `bytes`, and each is given to one thread once.
            let out = unsafe { target.chunk(chunks.range(chunk)) };
            chunks.load(chunk, file, out)
        },
    )?;
    Ok(Storage::Read(region))
}

fn map(file: &File, chunks: &Chunks, offset: u64, threads: usize) -> std::io::Result<Storage> {
    // SAFETY: packed files are only ever replaced by renaming, never written in place.
    let map = unsafe { MmapOptions::new().offset(offset).map(file)? };
    parallel::for_each(
        threads,
        chunks.count(),
        || (),
        |(), chunk| {
            chunks.hash(chunk, &map[chunks.range(chunk)]);
            Ok::<(), std::io::Error>(())
        },
    )?;
    Ok(Storage::Mapped(map))
}
