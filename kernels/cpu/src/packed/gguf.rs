//! GGUF files (versions 2 and 3, little-endian): magic, counts, metadata, tensor table, aligned tensors.
//!
//! Only what places the tensors is read of the metadata. Every length is checked against what is left of the file before
//! anything is read or reserved.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::error::PackedError;
use super::stored::{SourceFile, Stored, Tensor};
use crate::matrix::Encoding;

/// What of the metadata matters here.
#[derive(Default)]
struct Metadata {
    architecture: Option<String>,
    alignment: Option<u64>,
    splits: Option<u64>,
}

/// The tensors of a file, by the names of the Hugging Face checkpoint. Queries and keys are told to be interleaved.
pub(super) fn open_file(
    path: &Path,
    heads: usize,
    kv_heads: usize,
) -> Result<BTreeMap<String, Tensor>, PackedError> {
    let file = Arc::new(SourceFile::open(path)?);
    let tensors = Reader::new(&file).read().map_err(|what| file.error(what))?;
    let mut named = BTreeMap::new();
    for mut tensor in tensors {
        let Some(name) = checkpoint_name(&tensor.name) else {
            return Err(file.error(format!(
                "it holds a tensor {:?} that has no place in a Llama model",
                tensor.name
            )));
        };
        if name.is_empty() {
            continue;
        }
        let groups = match name.rsplit('.').nth(1) {
            Some("q_proj") => heads,
            Some("k_proj") => kv_heads,
            _ => 0,
        };
        tensor.interleaved = tensor.shape[0]
            .checked_div(groups)
            .filter(|rows| rows.is_multiple_of(2) && *rows > 0);
        named.insert(name, tensor);
    }
    Ok(named)
}

/// The Hugging Face name of a tensor; empty for what is computed again from the configuration.
fn checkpoint_name(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_string()),
        "output_norm.weight" => return Some("model.norm.weight".to_string()),
        "output.weight" => return Some("lm_head.weight".to_string()),
        "rope_freqs.weight" => return Some(String::new()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    if kind != "weight" && kind != "bias" {
        return None;
    }
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.{kind}"))
}

/// Name, weights and bytes of a block of an encoding. Those without an [`Encoding`] are only named.
fn tensor_type(code: u32) -> (Stored, String) {
    let known = |encoding| Stored::As(encoding);
    let (stored, name) = match code {
        0 => (known(Encoding::F32), "F32"),
        1 => (known(Encoding::F16), "F16"),
        2 => (known(Encoding::Q4_0), "Q4_0"),
        3 => (known(Encoding::Q4_1), "Q4_1"),
        6 => (known(Encoding::Q5_0), "Q5_0"),
        8 => (known(Encoding::Q8_0), "Q8_0"),
        12 => (known(Encoding::Q4K), "Q4_K"),
        14 => (known(Encoding::Q6K), "Q6_K"),
        30 => (known(Encoding::Bf16), "BF16"),
        other => {
            let name =
                unsupported_name(other).map_or_else(|| format!("type {other}"), str::to_string);
            return (Stored::Unsupported(name.clone()), name);
        }
    };
    (stored, name.to_string())
}

fn unsupported_name(code: u32) -> Option<&'static str> {
    Some(match code {
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        13 => "Q5_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return None,
    })
}

/// A reader that knows what is left of its file.
struct Reader<'a> {
    source: &'a Arc<SourceFile>,
    input: BufReader<&'a File>,
    position: u64,
}

type Problem = String;

impl<'a> Reader<'a> {
    fn new(source: &'a Arc<SourceFile>) -> Self {
        Self {
            source,
            input: BufReader::with_capacity(256 << 10, &source.file),
            position: 0,
        }
    }

    fn read(mut self) -> Result<Vec<Tensor>, Problem> {
        if &self.array::<4>()? != b"GGUF" {
            return Err("it is no GGUF file: it does not begin with GGUF".to_string());
        }
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!(
                "it is GGUF of version {version}; 2 and 3 are read, little-endian"
            ));
        }
        // The least a tensor or an entry takes; more of them than fit are a damaged count.
        let tensors = self.count("tensors", 24)?;
        let entries = self.count("metadata entries", 13)?;
        let metadata = self.metadata(entries)?;
        match metadata.architecture.as_deref() {
            Some("llama") => {}
            other => {
                return Err(format!(
                    "it holds a model of architecture {other:?}; only \"llama\" is supported"
                ));
            }
        }
        if let Some(splits) = metadata.splits.filter(|&splits| splits > 1) {
            return Err(format!(
                "it is one of {splits} files of a model: merge them with gguf-split --merge"
            ));
        }
        let alignment = metadata.alignment.unwrap_or(32);
        if !alignment.is_power_of_two() || alignment > 1 << 20 {
            return Err(format!("its general.alignment is {alignment}"));
        }
        self.tensors(tensors, alignment)
    }

    fn metadata(&mut self, entries: u64) -> Result<Metadata, Problem> {
        let mut found = Metadata::default();
        for _ in 0..entries {
            let key = self.string("a metadata key")?;
            let kind = self.u32()?;
            match (key.as_str(), kind) {
                ("general.architecture", 8) => found.architecture = Some(self.string(&key)?),
                ("general.alignment", 4) => found.alignment = Some(u64::from(self.u32()?)),
                ("split.count", 2) => {
                    found.splits = Some(u64::from(u16::from_le_bytes(self.array()?)));
                }
                _ => self.skip_value(&key, kind)?,
            }
        }
        Ok(found)
    }

    fn skip_value(&mut self, key: &str, kind: u32) -> Result<(), Problem> {
        match kind {
            8 => self.skip_string(key),
            9 => {
                let element = self.u32()?;
                if element == 9 {
                    return Err(format!(
                        "its metadata {key} is an array of arrays, which no Llama model has"
                    ));
                }
                let count = self.count(
                    key,
                    if element == 8 {
                        8
                    } else {
                        scalar_bytes(key, element)?
                    },
                )?;
                if element == 8 {
                    return (0..count).try_for_each(|_| self.skip_string(key));
                }
                self.skip(count * scalar_bytes(key, element)?)
            }
            _ => self.skip(scalar_bytes(key, kind)?),
        }
    }

    fn tensors(mut self, count: u64, alignment: u64) -> Result<Vec<Tensor>, Problem> {
        let mut tensors: Vec<(Tensor, String)> = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..count {
            let described = self.tensor()?;
            if !names.insert(described.0.name.clone()) {
                return Err(format!("it holds {} twice", described.0.name));
            }
            tensors.push(described);
        }
        let data = self.position.next_multiple_of(alignment);
        let available = self.source.bytes.saturating_sub(data);
        for (tensor, kind) in &mut tensors {
            let bytes = stored_bytes(tensor, kind)?;
            let fits = bytes
                .checked_add(tensor.offset)
                .is_some_and(|end| end <= available);
            if !fits || !tensor.offset.is_multiple_of(alignment) {
                return Err(format!(
                    "{} is said to lie at {} with {bytes} bytes, of {available}: the file is damaged or cut off",
                    tensor.name, tensor.offset
                ));
            }
            tensor.offset += data;
        }
        Ok(tensors.into_iter().map(|(tensor, _)| tensor).collect())
    }

    fn tensor(&mut self) -> Result<(Tensor, String), Problem> {
        let name = self.string("the name of a tensor")?;
        let dimensions = self.u32()?;
        if !(1..=4).contains(&dimensions) {
            return Err(format!("{name} is said to have {dimensions} dimensions"));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.insert(0, self.u64()?);
        }
        let (stored, kind) = tensor_type(self.u32()?);
        let product = shape
            .iter()
            .try_fold(1u64, |product, &extent| product.checked_mul(extent));
        if product.is_none_or(|product| product == 0 || product > 1 << 40) {
            return Err(format!("{name} is said to have the shape {shape:?}"));
        }
        let tensor = Tensor {
            name,
            file: Arc::clone(self.source),
            offset: self.u64()?,
            stored,
            shape: shape.iter().map(|&extent| extent as usize).collect(),
            interleaved: None,
        };
        Ok((tensor, kind))
    }

    fn left(&self) -> u64 {
        self.source.bytes.saturating_sub(self.position)
    }

    fn take(&mut self, bytes: u64) -> Result<(), Problem> {
        if bytes > self.left() {
            return Err(format!(
                "it ends early: {bytes} bytes are wanted at {}, of {}",
                self.position, self.source.bytes
            ));
        }
        self.position += bytes;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.input
            .read_exact(&mut bytes)
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of things that take at least `least` bytes each.
    fn count(&mut self, what: &str, least: u64) -> Result<u64, Problem> {
        let count = self.u64()?;
        if count > self.left() / least {
            return Err(format!(
                "it is said to hold {count} of {what}, more than fit into its {} bytes",
                self.source.bytes
            ));
        }
        Ok(count)
    }

    fn string(&mut self, what: &str) -> Result<String, Problem> {
        let length = self.u64()?;
        if length > 65_535 {
            return Err(format!("{what} is said to have {length} bytes"));
        }
        self.take(length)?;
        let mut bytes = vec![0; length as usize];
        self.input
            .read_exact(&mut bytes)
            .map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8"))
    }

    fn skip_string(&mut self, key: &str) -> Result<(), Problem> {
        let length = self.u64()?;
        self.skip(length)
            .map_err(|problem| format!("the metadata {key}: {problem}"))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Problem> {
        self.take(bytes)?;
        self.input
            .seek_relative(bytes as i64)
            .map_err(|error| error.to_string())
    }
}

fn scalar_bytes(key: &str, kind: u32) -> Result<u64, Problem> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(format!("its metadata {key} is of the unknown type {kind}")),
    }
}

/// Bytes of a tensor in the file; nothing of an encoding that is not supported.
fn stored_bytes(tensor: &Tensor, kind: &str) -> Result<u64, Problem> {
    let Stored::As(encoding) = tensor.stored else {
        return Ok(0);
    };
    let (weights, _) = encoding.block();
    if !tensor.inputs().is_multiple_of(weights) {
        return Err(format!(
            "{} has rows of {} numbers, which blocks of {weights} ({kind}) do not divide",
            tensor.name,
            tensor.inputs()
        ));
    }
    let rows: usize = tensor.shape.iter().rev().skip(1).product();
    Ok((rows * encoding.row_bytes(tensor.inputs())) as u64)
}
