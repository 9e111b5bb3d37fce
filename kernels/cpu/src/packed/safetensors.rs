//! Checkpoints in safetensors files: 8 bytes with the length of a JSON header, the header, the tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::error::{PackedError, io_error};
use super::stored::{SourceFile, Stored, Tensor};
use crate::matrix::Encoding;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// The format's own bound on headers.
const HEADER_LIMIT: u64 = 100_000_000;

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The tensors of a model folder, by name.
pub(super) fn open_folder(folder: &Path) -> Result<BTreeMap<String, Tensor>, PackedError> {
    let mut tensors = BTreeMap::new();
    for path in files(folder)? {
        let file = Arc::new(SourceFile::open(&path)?);
        for (name, tensor) in read_header(&file)? {
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(file.error(format!(
                    "it holds {name}, which another file of the checkpoint holds too"
                )));
            }
        }
    }
    Ok(tensors)
}

/// The files of a model folder: those that its index names, or the only one.
fn files(folder: &Path) -> Result<Vec<PathBuf>, PackedError> {
    let index = folder.join(INDEX);
    if !index.is_file() {
        return Ok(vec![folder.join(SINGLE)]);
    }
    let text = std::fs::read(&index).map_err(io_error("read", &index))?;
    let error = |what: String| PackedError::Source {
        path: index.clone(),
        what,
    };
    let parsed: Index = serde_json::from_slice(&text)
        .map_err(|problem| error(format!("it is no safetensors index: {problem}")))?;
    let names: BTreeSet<&String> = parsed.weight_map.values().collect();
    if let Some(name) = names
        .iter()
        .find(|name| Path::new(name).components().count() != 1)
    {
        return Err(error(format!(
            "it names {name:?}, which is no file of this folder"
        )));
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn read_header(file: &Arc<SourceFile>) -> Result<Vec<(String, Tensor)>, PackedError> {
    let damaged = |what: String| file.error(format!("it is no whole safetensors file: {what}"));
    let mut length = [0u8; 8];
    if file.bytes < 8 {
        return Err(damaged(format!("it has {} bytes", file.bytes)));
    }
    file.file
        .read_exact_at(&mut length, 0)
        .map_err(io_error("read", &file.path))?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_LIMIT || length > file.bytes - 8 {
        return Err(damaged(format!(
            "its header is said to have {length} bytes"
        )));
    }
    let mut text = vec![0u8; length as usize];
    file.file
        .read_exact_at(&mut text, 8)
        .map_err(io_error("read", &file.path))?;
    let mut header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text)
        .map_err(|problem| damaged(format!("its header is no JSON: {problem}")))?;
    header.remove("__metadata__");
    let mut tensors = Vec::with_capacity(header.len());
    for (name, value) in header {
        let entry: Entry = serde_json::from_value(value)
            .map_err(|problem| damaged(format!("the entry of {name}: {problem}")))?;
        let tensor = place(file, &name, &entry, 8 + length).map_err(damaged)?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

fn place(file: &Arc<SourceFile>, name: &str, entry: &Entry, data: u64) -> Result<Tensor, String> {
    let (start, end) = entry.data_offsets;
    if start > end || end > file.bytes - data {
        return Err(format!(
            "{name} lies at {start}..{end} of {} bytes of tensors",
            file.bytes - data
        ));
    }
    let stored = match entry.dtype.as_str() {
        "F32" => Stored::As(Encoding::F32),
        "F16" => Stored::As(Encoding::F16),
        "BF16" => Stored::As(Encoding::Bf16),
        other => Stored::Unsupported(other.to_string()),
    };
    if let Stored::As(encoding) = stored {
        let size = entry
            .shape
            .iter()
            .try_fold(encoding.block().1 as u64, |product, &extent| {
                product.checked_mul(extent)
            });
        if size != Some(end - start) {
            return Err(format!(
                "{name} of shape {:?} in {} has {} bytes",
                entry.shape,
                entry.dtype,
                end - start
            ));
        }
    }
    Ok(Tensor {
        name: name.to_string(),
        file: Arc::clone(file),
        offset: data + start,
        stored,
        shape: entry.shape.iter().map(|&extent| extent as usize).collect(),
        interleaved: None,
    })
}
