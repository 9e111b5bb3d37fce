//! Checkpoints of a few kilobytes, written as files of each kind, and what packing makes of them.

mod cache;
mod files;
mod formats;
mod sources;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use super::*;
use crate::matrix::{Encoding, Matrix, Source, read_row};
use crate::model::{WeightOwner, Weights};

/// Name → shape and numbers.
pub(super) type Checkpoint = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Everything that a Llama checkpoint can have, in sizes that are no multiples of a panel.
pub(super) fn shape() -> LlamaShape {
    LlamaShape {
        vocabulary: 41,
        hidden: 32,
        intermediate: 24,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        norm_epsilon: 1e-5,
        tied_embeddings: false,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        rope_frequencies: vec![1.0, 0.3, 0.1, 0.03],
    }
}

/// Shapes that blocks of 256 divide, without biases, tied.
pub(super) fn wide_shape() -> LlamaShape {
    LlamaShape {
        vocabulary: 40,
        hidden: 256,
        intermediate: 512,
        layers: 1,
        heads: 32,
        tied_embeddings: true,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        ..shape()
    }
}

/// Numbers that every float format holds exactly, other ones for every tensor.
pub(super) fn checkpoint(shape: &LlamaShape) -> Checkpoint {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) % 255) as f32 / 64.0 - 2.0 + 1.0 / 64.0
    };
    let slots = layout::slots(shape);
    let parts = slots.iter().flat_map(|slot| &slot.parts);
    parts
        .map(|part| {
            let extents: Vec<usize> = [Some(part.rows), part.inputs]
                .into_iter()
                .flatten()
                .collect();
            let values = (0..extents.iter().product()).map(|_| next()).collect();
            (part.name.clone(), (extents, values))
        })
        .collect()
}

pub(super) fn encode(values: &[f32], dtype: &str) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&value| match dtype {
            "F32" => value.to_le_bytes().to_vec(),
            "F16" => f16::from_f32(value).to_le_bytes().to_vec(),
            "BF16" => bf16::from_f32(value).to_le_bytes().to_vec(),
            other => panic!("no {other} here"),
        })
        .collect()
}

/// Writes the named tensors of a checkpoint; `dtype` gives each one's.
pub(super) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a String, &'a (Vec<usize>, Vec<f32>))>,
    dtype: impl Fn(&str) -> &'static str,
) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert(
        "__metadata__".to_string(),
        serde_json::json!({"format": "pt"}),
    );
    for (name, (extents, values)) in tensors {
        let start = data.len();
        data.extend(encode(values, dtype(name)));
        let entry = serde_json::json!({"dtype": dtype(name), "shape": extents, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let text = serde_json::to_vec(&header).unwrap();
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

/// A folder with one file of bfloat16.
pub(super) fn write_folder(folder: &Path, checkpoint: &Checkpoint) {
    write_safetensors(&folder.join("model.safetensors"), checkpoint, |_| "BF16");
}

/// A tensor as a GGUF file has it: its type, its extents (outermost first) and its bytes.
pub(super) struct GgufTensor {
    pub(super) kind: u32,
    pub(super) extents: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

pub(super) fn gguf_name(name: &str) -> String {
    const NAMES: [(&str, &str); 12] = [
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ];
    NAMES
        .iter()
        .fold(name.to_string(), |name, (from, to)| name.replace(from, to))
}

/// The rows of a head with the two halves side by side, as GGUF has queries and keys.
pub(super) fn interleave(rows: &[Vec<u8>], head_dim: usize) -> Vec<u8> {
    let source =
        |row: usize| row / head_dim * head_dim + row % 2 * (head_dim / 2) + row % head_dim / 2;
    (0..rows.len())
        .flat_map(|row| rows[source(row)].clone())
        .collect()
}

/// The bytes of a GGUF file with these tensors.
pub(super) fn gguf_bytes(tensors: &BTreeMap<String, GgufTensor>) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    bytes.extend(
        [
            string("general.architecture"),
            8u32.to_le_bytes().to_vec(),
            string("llama"),
        ]
        .concat(),
    );
    let names = [9u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
    bytes.extend(
        [
            string("tokenizer.ggml.tokens"),
            names,
            2u64.to_le_bytes().to_vec(),
            string("a"),
            string("bc"),
        ]
        .concat(),
    );
    bytes.extend(
        [
            string("llama.rope.freq_base"),
            6u32.to_le_bytes().to_vec(),
            1e4f32.to_le_bytes().to_vec(),
        ]
        .concat(),
    );
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        bytes.extend(string(name));
        bytes.extend((tensor.extents.len() as u32).to_le_bytes());
        for &extent in tensor.extents.iter().rev() {
            bytes.extend((extent as u64).to_le_bytes());
        }
        bytes.extend(tensor.kind.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        data.extend(&tensor.bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

/// A checkpoint of floats as GGUF tensors of one type.
pub(super) fn float_gguf(
    checkpoint: &Checkpoint,
    head_dim: usize,
    dtype: &str,
) -> BTreeMap<String, GgufTensor> {
    let kind = [("F32", 0), ("F16", 1), ("BF16", 30)]
        .iter()
        .find(|(name, _)| *name == dtype)
        .unwrap()
        .1;
    checkpoint
        .iter()
        .map(|(name, (extents, values))| {
            let bytes = encode(values, dtype);
            let rows: Vec<Vec<u8>> = bytes
                .chunks(bytes.len() / extents[0])
                .map(<[u8]>::to_vec)
                .collect();
            let interleaved = name.contains("q_proj") || name.contains("k_proj");
            let bytes = if interleaved {
                interleave(&rows, head_dim)
            } else {
                bytes
            };
            let extents = extents.clone();
            (
                gguf_name(name),
                GgufTensor {
                    kind,
                    extents,
                    bytes,
                },
            )
        })
        .collect()
}

pub(super) fn packing(formats: Formats) -> Packing<'static> {
    Packing {
        formats,
        threads: 2,
        progress: &|done, all| assert!(done <= all),
    }
}

/// Packs a checkpoint and opens what came out.
pub(super) fn packed(
    path: &Path,
    shape: &LlamaShape,
    formats: Formats,
    out: &Path,
) -> Result<PackedFile, PackedError> {
    pack_model(
        &ModelSource::open(path, shape.clone())?,
        &packing(formats),
        out,
    )?;
    PackedFile::open(out, true, 2)
}

pub(super) fn row(matrix: &Matrix, row: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; matrix.inputs];
    read_row(matrix, row, &mut out);
    out
}

/// All numbers of a packed model, by the names of its tensors.
pub(super) fn numbers(weights: &Weights) -> BTreeMap<String, Vec<f32>> {
    let all = |matrix: &Matrix| {
        (0..matrix.outputs)
            .flat_map(|output| row(matrix, output))
            .collect::<Vec<_>>()
    };
    let mut found = BTreeMap::from([
        ("embedding".to_string(), all(&weights.embedding)),
        ("head".to_string(), all(&weights.head)),
        ("norm".to_string(), weights.norm.to_vec()),
    ]);
    for (index, layer) in weights.layers.iter().enumerate() {
        let mut put = |name: &str, values: Option<Vec<f32>>| {
            found.extend(values.map(|values| (format!("{index}.{name}"), values)));
        };
        put("input_norm", Some(layer.input_norm.to_vec()));
        put("post_norm", Some(layer.post_norm.to_vec()));
        put("qkv", Some(layer.qkv.iter().flat_map(&all).collect()));
        put("output", Some(all(&layer.output)));
        put("gate_up", Some(all(&layer.gate_up)));
        put("down", Some(all(&layer.down)));
        put("qkv_bias", layer.qkv_bias.map(<[f32]>::to_vec));
        put("output_bias", layer.output_bias.map(<[f32]>::to_vec));
        put("gate_up_bias", layer.gate_up_bias.map(<[f32]>::to_vec));
        put("down_bias", layer.down_bias.map(<[f32]>::to_vec));
    }
    found
}

/// What [`numbers`] must give for a checkpoint of floats.
pub(super) fn expected(checkpoint: &Checkpoint, shape: &LlamaShape) -> BTreeMap<String, Vec<f32>> {
    let get = |name: &str| checkpoint[name].1.clone();
    let embedding = get("model.embed_tokens.weight");
    let head = if shape.tied_embeddings {
        embedding.clone()
    } else {
        get("lm_head.weight")
    };
    let mut found = BTreeMap::from([
        ("embedding".to_string(), embedding),
        ("head".to_string(), head),
        ("norm".to_string(), get("model.norm.weight")),
    ]);
    let wide = shape.padded_intermediate();
    for index in 0..shape.layers {
        let part = |name: &str| get(&format!("model.layers.{index}.{name}"));
        let mut put =
            |name: &str, values: Vec<f32>| found.insert(format!("{index}.{name}"), values);
        put("input_norm", part("input_layernorm.weight"));
        put("post_norm", part("post_attention_layernorm.weight"));
        let down = part("mlp.down_proj.weight");
        let filled = |row: &[f32]| [row, &vec![0.0; wide - shape.intermediate]].concat();
        put(
            "down",
            down.chunks(shape.intermediate).flat_map(filled).collect(),
        );
        put("output", part("self_attn.o_proj.weight"));
        for (kind, width, biased) in [("weight", shape.hidden, true), ("bias", 1, shape.qkv_bias)] {
            if !biased {
                continue;
            }
            let suffix = if kind == "bias" { "_bias" } else { "" };
            let qkv = ["q", "k", "v"]
                .map(|name| part(&format!("self_attn.{name}_proj.{kind}")))
                .concat();
            put(&format!("qkv{suffix}"), qkv);
            let [gate, up] = ["gate", "up"].map(|name| {
                let mut values = part(&format!("mlp.{name}_proj.{kind}"));
                values.resize(wide * width, 0.0);
                values
            });
            let panels = gate.chunks(16 * width).zip(up.chunks(16 * width));
            put(
                &format!("gate_up{suffix}"),
                panels.flat_map(|(gate, up)| [gate, up].concat()).collect(),
            );
            if kind == "bias" {
                put("output_bias", part("self_attn.o_proj.bias"));
                put("down_bias", part("mlp.down_proj.bias"));
            }
        }
    }
    found
}

/// A folder that is gone at the end of the test.
pub(super) fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    (folder, path)
}

pub(super) fn decoded(tensor: &GgufTensor, encoding: Encoding) -> Vec<f32> {
    let (rows, inputs) = (tensor.extents[0], tensor.extents[1]);
    let source = Source {
        encoding,
        rows,
        inputs,
        bytes: &tensor.bytes,
    };
    let mut out = vec![0.0; rows * inputs];
    out.chunks_mut(inputs)
        .enumerate()
        .for_each(|(row, out)| source.decode(row, out));
    out
}

/// Runs `check` with each of the file's first bytes changed by `flip`, one at a time.
pub(super) fn with_each_byte_changed(path: &Path, bytes: usize, flip: u8, check: impl Fn(usize)) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut original = vec![0; bytes];
    file.read_exact_at(&mut original, 0).unwrap();
    for (at, byte) in original.iter().enumerate() {
        file.write_all_at(&[byte ^ flip], at as u64).unwrap();
        check(at);
        file.write_all_at(&[*byte], at as u64).unwrap();
    }
}
