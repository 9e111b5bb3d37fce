//! Where the weights of a model come from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::digest::{Digest, digest};
use super::error::PackedError;
use super::layout::{Part, Slot};
use super::shape::LlamaShape;
use super::stored::Tensor;
use super::{gguf, safetensors};

/// A checkpoint: a folder of safetensors files, or a GGUF file.
#[derive(Debug)]
pub struct ModelSource {
    path: PathBuf,
    shape: LlamaShape,
    tensors: BTreeMap<String, Tensor>,
}

impl ModelSource {
    /// Opens a checkpoint and checks that it holds exactly the tensors of `shape`, all within its files.
    ///
    /// # Errors
    /// What cannot be read, is damaged, missing, unexpected, or of another shape.
    pub fn open(path: &Path, shape: LlamaShape) -> Result<Self, PackedError> {
        shape.check()?;
        let tensors = if path.is_dir() {
            safetensors::open_folder(path)?
        } else {
            gguf::open_file(path, shape.heads, shape.kv_heads)?
        };
        let source = Self {
            path: path.to_path_buf(),
            shape,
            tensors,
        };
        source.check()?;
        Ok(source)
    }

    /// Its shape, as given.
    #[must_use]
    pub fn shape(&self) -> &LlamaShape {
        &self.shape
    }

    /// The digest of its files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn digest(&self, threads: usize) -> Result<Digest, PackedError> {
        let paths = self
            .tensors
            .values()
            .map(|tensor| tensor.file.path.as_path());
        let files: BTreeSet<&Path> = paths.collect();
        digest(&files.into_iter().collect::<Vec<_>>(), threads)
    }

    /// Fails if a file was changed since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<(), PackedError> {
        let files: BTreeMap<&Path, &Tensor> = self
            .tensors
            .values()
            .map(|tensor| (tensor.file.path.as_path(), tensor))
            .collect();
        files
            .values()
            .try_for_each(|tensor| tensor.file.check_unchanged())
    }

    /// The tensors that make up a slot, all there since `open`.
    pub(super) fn parts(&self, slot: &Slot) -> Vec<&Tensor> {
        slot.parts
            .iter()
            .map(|part| &self.tensors[&part.name])
            .collect()
    }

    fn check(&self) -> Result<(), PackedError> {
        let slots = super::layout::slots(&self.shape);
        let wanted: BTreeMap<&str, &Part> = slots
            .iter()
            .flat_map(|slot| &slot.parts)
            .map(|part| (part.name.as_str(), part))
            .collect();
        let mut problems = Vec::new();
        for (name, part) in &wanted {
            let shape = [Some(part.rows), part.inputs]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>();
            match self.tensors.get(*name) {
                None => problems.push(format!("it lacks {name} {shape:?}")),
                Some(tensor) if tensor.shape != shape => problems.push(format!(
                    "{} has shape {:?}, the configuration asks for {shape:?}",
                    tensor.name, tensor.shape
                )),
                Some(_) => {}
            }
        }
        for (name, tensor) in &self.tensors {
            // Left behind by older exporters; and the embedding again, where the head is the embedding.
            let leftover = name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
            if !wanted.contains_key(name.as_str()) && !leftover {
                problems.push(format!(
                    "it holds {} {:?}, which the configuration has no place for",
                    tensor.name, tensor.shape
                ));
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        if problems.len() > 20 {
            let more = problems.len() - 20;
            problems.truncate(20);
            problems.push(format!("and {more} more"));
        }
        let what = problems.join("; ");
        Err(PackedError::Source {
            path: self.path.clone(),
            what,
        })
    }
}
