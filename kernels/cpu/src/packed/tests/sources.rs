//! Checkpoints of every kind, whole and damaged.

use super::*;

#[test]
fn floats_are_kept_as_stored_read_or_mapped() {
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    for dtype in ["F32", "F16", "BF16"] {
        let (_guard, folder) = folder();
        write_safetensors(&folder.join("model.safetensors"), &checkpoint, |_| dtype);
        let out = folder.join("packed");
        let read = packed(&folder, &shape, Formats::Stored, &out).unwrap();
        assert_eq!(read.shape(), shape.model());
        read.weights().check(&read.shape()).unwrap();
        assert_eq!(
            format!("{:?}", read.weights().head.format).to_uppercase(),
            dtype
        );
        assert_eq!(
            numbers(&read.weights()),
            expected(&checkpoint, &shape),
            "{dtype}"
        );
        let mapped = PackedFile::open(&out, false, 3).unwrap();
        assert_eq!(
            numbers(&mapped.weights()),
            expected(&checkpoint, &shape),
            "{dtype} mapped"
        );
        assert!(mapped.region().is_none() && read.region().is_some());
    }
}

#[test]
fn a_tied_head_is_the_embeddings_own_bytes() {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (wide_shape(), checkpoint(&wide_shape()));
    write_folder(&folder, &checkpoint);
    let model = packed(&folder, &shape, Formats::Stored, &folder.join("packed")).unwrap();
    let weights = model.weights();
    assert_eq!(
        weights.head.bytes.as_ptr(),
        weights.embedding.bytes.as_ptr()
    );
    assert_eq!(numbers(&weights), expected(&checkpoint, &shape));
}

#[test]
fn shards_give_the_same_bytes_as_one_file() {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    write_folder(&folder, &checkpoint);
    let whole = packed(&folder, &shape, Formats::Stored, &folder.join("whole")).unwrap();
    let shards = folder.join("shards");
    std::fs::create_dir(&shards).unwrap();
    let of = |name: &str| format!("model-{}.safetensors", name.len() % 3);
    for shard in 0..3 {
        let file = format!("model-{shard}.safetensors");
        write_safetensors(
            &shards.join(&file),
            checkpoint.iter().filter(|(name, _)| of(name) == file),
            |_| "BF16",
        );
    }
    let map: BTreeMap<&String, String> = checkpoint.keys().map(|name| (name, of(name))).collect();
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(
        shards.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    let joined = packed(&shards, &shape, Formats::Stored, &folder.join("joined")).unwrap();
    assert_eq!(numbers(&joined.weights()), numbers(&whole.weights()));
    assert_ne!(joined.source_digest(), whole.source_digest());

    let index = serde_json::json!({"weight_map": {"model.norm.weight": "../model.safetensors"}});
    std::fs::write(
        shards.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    let error = ModelSource::open(&shards, shape).unwrap_err().to_string();
    assert!(error.contains("which is no file of this folder"), "{error}");
}

#[test]
fn parts_of_different_floats_are_joined_in_float32() {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    let dtype = |name: &str| {
        if name.contains("k_proj") {
            "F16"
        } else {
            "BF16"
        }
    };
    write_safetensors(&folder.join("model.safetensors"), &checkpoint, dtype);
    let model = packed(&folder, &shape, Formats::Stored, &folder.join("packed")).unwrap();
    assert_eq!(
        model.weights().layers[0].qkv[0].format,
        crate::matrix::Format::F32
    );
    assert_eq!(
        model.weights().layers[0].output.format,
        crate::matrix::Format::Bf16
    );
    assert_eq!(numbers(&model.weights()), expected(&checkpoint, &shape));
}

#[test]
fn a_gguf_file_gives_what_the_folder_gives() {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    for dtype in ["F32", "F16", "BF16"] {
        let file = folder.join("model.gguf");
        let mut tensors = float_gguf(&checkpoint, shape.head_dim, dtype);
        let frequencies = GgufTensor {
            kind: 0,
            extents: vec![4],
            bytes: vec![0; 16],
        };
        tensors.insert("rope_freqs.weight".to_string(), frequencies);
        std::fs::write(&file, gguf_bytes(&tensors)).unwrap();
        let model = packed(
            &file,
            &shape,
            "gguf".parse().unwrap(),
            &folder.join("packed"),
        )
        .unwrap();
        assert_eq!(
            format!("{:?}", model.weights().head.format).to_uppercase(),
            dtype
        );
        assert_eq!(
            numbers(&model.weights()),
            expected(&checkpoint, &shape),
            "{dtype}"
        );
    }
}

#[test]
fn what_does_not_fit_the_configuration_is_named() {
    let (_guard, folder) = folder();
    let (shape, mut checkpoint) = (shape(), checkpoint(&shape()));
    let (_, values) = checkpoint
        .remove("model.layers.1.mlp.down_proj.weight")
        .unwrap();
    checkpoint.insert(
        "model.layers.7.mlp.down_proj.weight".to_string(),
        (vec![32, 24], values),
    );
    checkpoint.insert("model.norm.weight".to_string(), (vec![2], vec![1.0, 1.0]));
    checkpoint.insert(
        "model.layers.0.self_attn.rotary_emb.inv_freq".to_string(),
        (vec![1], vec![1.0]),
    );
    write_folder(&folder, &checkpoint);
    let error = ModelSource::open(&folder, shape).unwrap_err().to_string();
    for part in [
        "it lacks model.layers.1.mlp.down_proj.weight [32, 24]",
        "model.norm.weight has shape [2], the configuration asks for [32]",
        "it holds model.layers.7.mlp.down_proj.weight [32, 24], which the configuration has no place for",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("inv_freq"), "{error}");
}

#[test]
fn what_no_kernel_reads_is_refused_by_name() {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    let mut tensors = float_gguf(&checkpoint, shape.head_dim, "F32");
    tensors.get_mut("blk.1.ffn_down.weight").unwrap().kind = 13;
    let file = folder.join("model.gguf");
    std::fs::write(&file, gguf_bytes(&tensors)).unwrap();
    let error = packed(&file, &shape, Formats::Stored, &folder.join("packed"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("blk.1.ffn_down.weight") && error.contains("stores it as Q5_K"),
        "{error}"
    );

    let mut bytes = gguf_bytes(&tensors);
    let at = bytes
        .windows(5)
        .position(|window| window == b"llama")
        .unwrap();
    bytes[at..at + 5].copy_from_slice(b"gemma");
    std::fs::write(&file, bytes).unwrap();
    let error = ModelSource::open(&file, shape).unwrap_err().to_string();
    assert!(
        error.contains("\"gemma\"") && error.contains("only \"llama\""),
        "{error}"
    );
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_name() {
    let (_guard, folder) = folder();
    let (shape, mut checkpoint) = (shape(), checkpoint(&shape()));
    checkpoint
        .get_mut("model.layers.1.self_attn.v_proj.weight")
        .unwrap()
        .1[70] = f32::NAN;
    write_safetensors(&folder.join("model.safetensors"), &checkpoint, |_| "F32");
    let error = packed(&folder, &shape, Formats::Bf16, &folder.join("packed"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model.layers.1.self_attn.v_proj.weight") && error.contains("NaN"),
        "{error}"
    );
    assert!(!folder.join("packed").exists());
}

/// Opens a file cut off anywhere, which must be refused, and with any byte changed, which must not panic.
fn survive(path: &Path, header: usize, shape: &LlamaShape) {
    let is_gguf = path.extension().is_some_and(|end| end == "gguf");
    let at = if is_gguf {
        path
    } else {
        path.parent().unwrap()
    };
    let open = || ModelSource::open(at, shape.clone());
    open().unwrap();
    for flip in [0xff, 1] {
        with_each_byte_changed(path, header, flip, |_| drop(open()));
    }
    let file = File::options().write(true).open(path).unwrap();
    let whole = file.metadata().unwrap().len();
    for length in [whole - 64]
        .into_iter()
        .chain((0..header as u64).rev().step_by(7))
    {
        file.set_len(length).unwrap();
        assert!(open().is_err(), "cut at {length}");
    }
}

#[test]
fn damaged_headers_are_refused_or_read_but_never_panic() {
    let (_guard, folder) = folder();
    let mut shape = shape();
    shape.layers = 1;
    let checkpoint = checkpoint(&shape);
    let file = folder.join("model.safetensors");
    write_folder(&folder, &checkpoint);
    let bytes = std::fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    survive(&file, header, &shape);
    let bytes = gguf_bytes(&float_gguf(&checkpoint, shape.head_dim, "F16"));
    let file = folder.join("model.gguf");
    std::fs::write(&file, bytes).unwrap();
    survive(&file, 1200, &shape);
}

#[test]
fn absurd_counts_in_gguf_are_refused_before_anything_is_reserved() {
    let (_guard, folder) = folder();
    let whole = gguf_bytes(&float_gguf(&checkpoint(&shape()), 8, "F32"));
    let file = folder.join("model.gguf");
    for (at, what) in [
        (8, "more than fit"),
        (16, "more than fit"),
        (24, "is said to have"),
    ] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let error = ModelSource::open(&file, shape()).unwrap_err().to_string();
        assert!(error.contains(what), "{at}: {error}");
    }
}
