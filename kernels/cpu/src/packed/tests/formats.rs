//! Formats other than those stored.

use super::*;
use crate::matrix::Format;

#[test]
fn formats_have_names_that_read_back() {
    for name in [
        "auto", "float32", "bfloat16", "float16", "int8", "int8-g32", "int4",
    ] {
        let formats: Formats = name.parse().unwrap();
        assert_eq!(formats.to_string(), name);
        assert_eq!(serde_json::to_value(formats).unwrap(), name);
    }
    assert_eq!("gguf".parse::<Formats>().unwrap(), Formats::Stored);
    let error = "int5".parse::<Formats>().unwrap_err().to_string();
    assert!(
        error.contains("int5") && error.contains("int8-g32"),
        "{error}"
    );
}

#[test]
fn floats_are_rounded_to_the_format_asked_for() {
    let (_guard, folder) = folder();
    let (shape, mut checkpoint) = (shape(), checkpoint(&shape()));
    checkpoint.get_mut("lm_head.weight").unwrap().1[3] = 1.0 + 1.0 / 1024.0 + 1e-7;
    write_safetensors(&folder.join("model.safetensors"), &checkpoint, |_| "F32");
    for (formats, format, value) in [
        (Formats::F32, Format::F32, 1.0 + 1.0 / 1024.0 + 1e-7),
        (Formats::F16, Format::F16, 1.0 + 1.0 / 1024.0),
        (Formats::Bf16, Format::Bf16, 1.0),
    ] {
        let model = packed(&folder, &shape, formats, &folder.join("packed")).unwrap();
        let weights = model.weights();
        assert!(
            weights
                .layers
                .iter()
                .all(|layer| layer.qkv[0].format == format && layer.down.format == format)
        );
        let mut wanted = expected(&checkpoint, &shape);
        wanted.get_mut("head").unwrap()[3] = value;
        assert_eq!(numbers(&weights), wanted);
    }
}

/// Packs the wide checkpoint, whose numbers lie within ±2, and gives the root mean square error of its layers' weights and of
/// the head's.
fn errors(formats: Formats, attention: [Format; 4], others: [Format; 2]) -> [f64; 2] {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (wide_shape(), checkpoint(&wide_shape()));
    write_folder(&folder, &checkpoint);
    let model = packed(&folder, &shape, formats, &folder.join("packed")).unwrap();
    let weights = model.weights();
    let layer = &weights.layers[0];
    let qkv: Vec<_> = layer.qkv.iter().map(|part| part.format).collect();
    let [queries, keys, values, output] = attention;
    let joined = queries == keys && keys == values;
    assert_eq!(
        qkv,
        if joined {
            vec![queries]
        } else {
            vec![queries, keys, values]
        }
    );
    let [mlp, vocabulary] = others;
    assert_eq!(
        [layer.output.format, layer.gate_up.format, layer.down.format],
        [output, mlp, mlp]
    );
    assert_eq!(
        [weights.embedding.format, weights.head.format],
        [vocabulary; 2]
    );
    let (found, wanted) = (numbers(&weights), expected(&checkpoint, &shape));
    let error = |names: &[&str]| {
        let pairs = names
            .iter()
            .flat_map(|name| found[*name].iter().zip(&wanted[*name]));
        let squares = pairs.map(|(found, wanted)| f64::from(found - wanted).powi(2));
        let squares: Vec<f64> = squares.collect();
        (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
    };
    assert_eq!(found["norm"], wanted["norm"]);
    [
        error(&["0.qkv", "0.output", "0.gate_up", "0.down"]),
        error(&["head"]),
    ]
}

#[test]
fn integers_are_as_near_to_the_floats_as_their_steps_allow() {
    // Numbers spread evenly over a step are off by its 1/√12 at root mean square; steps are at most 2 / 127 and 4 / 15.
    let [eight, four] = [2.0 / 127.0 / 12f64.sqrt(), 4.0 / 15.0 / 12f64.sqrt()];
    let (bytes, groups, values) = (Format::Int8, Format::Q8_0, Format::Bf16);
    for (formats, attention, others, bounds) in [
        (
            Formats::Int8,
            [bytes, bytes, values, bytes],
            [groups; 2],
            [eight, eight],
        ),
        (
            Formats::Int8Group32,
            [groups, groups, values, groups],
            [groups; 2],
            [eight, eight],
        ),
        (
            Formats::Int4,
            [Format::Q4_1; 4],
            [Format::Q4_1, groups],
            [four, eight],
        ),
    ] {
        let found = errors(formats, attention, others);
        for (found, bound) in found.iter().zip(bounds) {
            assert!(
                *found < 1.05 * bound && *found > 0.1 * bound,
                "{formats}: {found} of {bound}"
            );
        }
    }
}

#[test]
fn inputs_that_no_group_divides_get_a_scale_per_output() {
    let (_guard, folder) = folder();
    let mut odd = shape();
    (odd.hidden, odd.heads, odd.kv_heads) = (40, 5, 5);
    write_folder(&folder, &checkpoint(&odd));
    let model = packed(&folder, &odd, Formats::Int8, &folder.join("packed")).unwrap();
    let weights = model.weights();
    assert_eq!(weights.head.format, Format::Int8);
    assert_eq!(weights.layers[0].gate_up.format, Format::Int8);
    // The MLP's width of 24 is filled up to 32.
    assert_eq!(weights.layers[0].down.format, Format::Q8_0);
}

#[test]
fn inputs_that_no_block_divides_are_refused_by_name() {
    let (_guard, folder) = folder();
    write_folder(&folder, &checkpoint(&shape()));
    for formats in [Formats::Int8Group32, Formats::Int4] {
        let error = packed(&folder, &shape(), formats, &folder.join("packed"));
        // The MLP's width of 24 is filled up to 32, which a group of 32 divides.
        assert!(error.is_ok(), "{:?}", error.err());
    }
    let mut odd = shape();
    (odd.hidden, odd.heads, odd.kv_heads) = (40, 5, 5);
    write_folder(&folder, &checkpoint(&odd));
    let error = packed(&folder, &odd, Formats::Int8Group32, &folder.join("packed"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model.embed_tokens.weight") && error.contains("32"),
        "{error}"
    );
}

/// Blocks of any bits whose scales are small: the half floats at `scales` of each block are made so.
fn blocks(count: usize, bytes: usize, scales: &[usize], seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut out: Vec<u8> = (0..count * bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    for block in out.chunks_mut(bytes) {
        for &at in scales {
            // The exponent of 2⁻⁷ to 2⁻⁶, any sign and fraction.
            block[at + 1] = block[at + 1] & 0x83 | 0x20;
        }
    }
    out
}

fn quantized_gguf(
    shape: &LlamaShape,
    kind: u32,
    encoding: Encoding,
) -> BTreeMap<String, GgufTensor> {
    let scales: &[usize] = match encoding {
        Encoding::Q4_1 | Encoding::Q4K => &[0, 2],
        Encoding::Q6K => &[208],
        _ => &[0],
    };
    let (weights, bytes) = encoding.block();
    let mut tensors = float_gguf(&checkpoint(shape), shape.head_dim, "F32");
    for (seed, tensor) in tensors
        .values_mut()
        .enumerate()
        .filter(|(_, tensor)| tensor.extents.len() == 2)
    {
        let count = tensor.extents.iter().product::<usize>() / weights;
        (tensor.kind, tensor.bytes) = (kind, blocks(count, bytes, scales, seed as u64));
    }
    tensors
}

#[test]
fn a_gguf_files_own_quantization_is_kept_bit_for_bit() {
    for (kind, encoding, format) in [
        (2, Encoding::Q4_0, Format::Q4_0),
        (3, Encoding::Q4_1, Format::Q4_1),
        (6, Encoding::Q5_0, Format::Q5_0),
        (8, Encoding::Q8_0, Format::Q8_0),
        (12, Encoding::Q4K, Format::Q4K),
        (14, Encoding::Q6K, Format::Q6K),
    ] {
        let (_guard, folder) = folder();
        let shape = wide_shape();
        let tensors = quantized_gguf(&shape, kind, encoding);
        let file = folder.join("model.gguf");
        std::fs::write(&file, gguf_bytes(&tensors)).unwrap();
        let model = packed(&file, &shape, Formats::Stored, &folder.join("packed")).unwrap();
        let weights = model.weights();
        assert_eq!(weights.layers[0].gate_up.format, format);
        let found = numbers(&weights);
        assert_eq!(
            found["0.down"],
            decoded(&tensors["blk.0.ffn_down.weight"], encoding),
            "{encoding:?}"
        );
        assert_eq!(
            found["head"],
            decoded(&tensors["token_embd.weight"], encoding),
            "{encoding:?}"
        );
        let keys = decoded(&tensors["blk.0.attn_k.weight"], encoding);
        let key = &found["0.qkv"][shape.heads * shape.head_dim * shape.hidden..][..keys.len()];
        for row in 0..shape.kv_heads * shape.head_dim {
            let stored = row / 8 * 8 + 2 * (row % 4) + row % 8 / 4;
            let [packed, stored] = [(key, row), (keys.as_slice(), stored)]
                .map(|(rows, row)| &rows[row * 256..][..256]);
            assert_eq!(packed, stored, "{encoding:?}, key row {row}");
        }
        let floats = packed(&file, &shape, Formats::F32, &folder.join("packed")).unwrap();
        assert_eq!(numbers(&floats.weights()), found, "{encoding:?} in float32");
    }
}

#[test]
fn a_quantized_file_can_be_quantized_otherwise() {
    let (_guard, folder) = folder();
    let shape = wide_shape();
    let file = folder.join("model.gguf");
    std::fs::write(
        &file,
        gguf_bytes(&quantized_gguf(&shape, 2, Encoding::Q4_0)),
    )
    .unwrap();
    let own = packed(&file, &shape, Formats::Stored, &folder.join("packed")).unwrap();
    let other = packed(&file, &shape, Formats::Int8, &folder.join("packed")).unwrap();
    assert_eq!(other.weights().layers[0].qkv[0].format, Format::Int8);
    let (own, other) = (numbers(&own.weights()), numbers(&other.weights()));
    for (first, second) in own["0.qkv"].iter().zip(&other["0.qkv"]) {
        assert!(
            (first - second).abs() < 8.0 / 32.0 / 127.0 * 0.52,
            "{first} {second}"
        );
    }
}

#[test]
fn queries_keys_and_values_may_be_quantized_differently() {
    let (_guard, folder) = folder();
    let shape = wide_shape();
    let mut tensors = quantized_gguf(&shape, 12, Encoding::Q4K);
    let own = numbers(
        &packed_gguf(&folder, &tensors, Formats::Stored)
            .unwrap()
            .weights(),
    );
    let mut other = quantized_gguf(&shape, 14, Encoding::Q6K);
    let values = other.remove("blk.0.attn_v.weight").unwrap();
    let keys = float_gguf(&checkpoint(&shape), shape.head_dim, "F16")
        .remove("blk.0.attn_k.weight")
        .unwrap();
    tensors.insert("blk.0.attn_v.weight".to_string(), values);
    tensors.insert("blk.0.attn_k.weight".to_string(), keys);
    let model = packed_gguf(&folder, &tensors, Formats::Stored).unwrap();
    let weights = model.weights();
    weights.check(&model.shape()).unwrap();
    let formats: Vec<_> = weights.layers[0]
        .qkv
        .iter()
        .map(|part| part.format)
        .collect();
    assert_eq!(formats, [Format::Q4K, Format::F16, Format::Q6K]);
    let found = numbers(&weights);
    let (queries, rest) = found["0.qkv"].split_at(256 * 256);
    let (keys, values) = rest.split_at(16 * 256);
    assert_eq!(queries, &own["0.qkv"][..256 * 256]);
    assert_eq!(
        keys,
        checkpoint(&shape)["model.layers.0.self_attn.k_proj.weight"].1
    );
    assert_eq!(
        values,
        decoded(&tensors["blk.0.attn_v.weight"], Encoding::Q6K)
    );
    let floats = packed_gguf(&folder, &tensors, Formats::F32).unwrap();
    assert_eq!(floats.weights().layers[0].qkv.len(), 1);
    assert_eq!(numbers(&floats.weights()), found);
}

#[test]
fn a_gate_and_an_up_in_different_quantizations_are_refused_by_name() {
    let (_guard, folder) = folder();
    let mut tensors = quantized_gguf(&wide_shape(), 12, Encoding::Q4K);
    let mut other = quantized_gguf(&wide_shape(), 14, Encoding::Q6K);
    let name = "blk.0.ffn_up.weight";
    tensors.insert(name.to_string(), other.remove(name).unwrap());
    let error = packed_gguf(&folder, &tensors, Formats::Stored)
        .unwrap_err()
        .to_string();
    assert!(error.contains(name) && error.contains("Q6K"), "{error}");
    packed_gguf(&folder, &tensors, Formats::Int8).unwrap();
}

fn packed_gguf(
    folder: &Path,
    tensors: &BTreeMap<String, GgufTensor>,
    formats: Formats,
) -> Result<PackedFile, PackedError> {
    let file = folder.join("model.gguf");
    std::fs::write(&file, gguf_bytes(tensors)).unwrap();
    packed(&file, &wide_shape(), formats, &folder.join("packed"))
}
