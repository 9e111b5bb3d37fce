//! Packed files: what is not exactly what was written is refused.

use super::*;

fn written(folder: &Path) -> PathBuf {
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    write_folder(folder, &checkpoint);
    let out = folder.join("packed");
    packed(folder, &shape, Formats::Stored, &out).unwrap();
    out
}

#[test]
fn every_changed_byte_of_the_header_is_noticed() {
    let (_guard, folder) = folder();
    let out = written(&folder);
    let whole = std::fs::read(&out).unwrap();
    let header = 64 + u64::from_le_bytes(*whole[24..].first_chunk().unwrap()) as usize;
    with_each_byte_changed(&out, header, 1, |at| {
        let error = PackedFile::open(&out, false, 1).unwrap_err();
        assert!(error.asks_for_packing(), "byte {at}: {error}");
    });
}

#[test]
fn changed_tensors_and_other_lengths_are_noticed() {
    let (_guard, folder) = folder();
    let out = written(&folder);
    let whole = std::fs::read(&out).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&out, bytes).unwrap();
        for huge in [false, true] {
            let error = PackedFile::open(&out, huge, 2).unwrap_err();
            assert!(
                error.asks_for_packing() && error.to_string().contains(what),
                "{error}"
            );
            assert!(error.to_string().contains("packed again"), "{error}");
        }
    };
    let data = (64 + u64::from_le_bytes(*whole[24..].first_chunk().unwrap()) as usize)
        .next_multiple_of(4096);
    for at in (data..whole.len()).step_by(997) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        refused(&bytes, "their digest is");
    }
    for length in [0, 1, 63, 64, 100, data - 1, data, whole.len() - 1] {
        refused(&whole[..length], "bytes");
    }
    refused(&[whole.as_slice(), &[0]].concat(), "bytes instead of");
}

#[test]
fn another_layout_asks_for_packing() {
    let (_guard, folder) = folder();
    let out = written(&folder);
    let mut bytes = std::fs::read(&out).unwrap();
    bytes[16] += 1;
    std::fs::write(&out, bytes).unwrap();
    let error = PackedFile::open(&out, true, 1).unwrap_err();
    assert!(
        matches!(error, PackedError::Version { .. }) && error.asks_for_packing(),
        "{error}"
    );
    let error = PackedFile::open(&folder.join("none"), true, 1).unwrap_err();
    assert!(error.asks_for_packing(), "{error}");
}

#[test]
fn nothing_is_left_where_packing_failed() {
    let (_guard, folder) = folder();
    let out = written(&folder);
    let source = ModelSource::open(&folder, shape()).unwrap();
    let taken = folder.join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("file"), "").unwrap();
    let error = pack_model(&source, &packing(Formats::F32), &taken).unwrap_err();
    assert!(matches!(error, PackedError::Write { .. }), "{error}");
    let error =
        pack_model(&source, &packing(Formats::F32), &folder.join("none/packed")).unwrap_err();
    assert!(matches!(error, PackedError::Write { .. }), "{error}");
    let names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(out.exists());
}

#[test]
fn a_checkpoint_that_changes_meanwhile_is_refused() {
    let (_guard, folder) = folder();
    let (shape, checkpoint) = (shape(), checkpoint(&shape()));
    write_folder(&folder, &checkpoint);
    let source = ModelSource::open(&folder, shape).unwrap();
    let file = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.push(0);
    std::fs::write(&file, bytes).unwrap();
    let error = pack_model(&source, &packing(Formats::Stored), &folder.join("packed")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("changed while it was being read"),
        "{error}"
    );
    assert!(!folder.join("packed").exists());
}

#[test]
fn digests_depend_on_every_byte_and_on_where_files_end() {
    let (_guard, folder) = folder();
    let [first, second] = ["first", "second"].map(|name| folder.join(name));
    let mut bytes: Vec<u8> = (0..super::digest::CHUNK + 300_000)
        .map(|index| (index * 7 + index / 251) as u8)
        .collect();
    let write = |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).unwrap();
    write(&first, &bytes);
    write(&second, b"");
    let one = digest(&[&first, &second], 1).unwrap();
    assert_eq!(one.to_string().len(), 32);
    assert_eq!(digest(&[&first, &second], 3).unwrap(), one);
    assert_ne!(digest(&[&second, &first], 1).unwrap(), one);
    assert_ne!(digest(&[&first], 1).unwrap(), one);
    let last = bytes.pop().unwrap();
    write(&first, &bytes);
    write(&second, &[last]);
    assert_ne!(digest(&[&first, &second], 2).unwrap(), one);
    bytes.push(last);
    bytes[100_000] ^= 1;
    write(&first, &bytes);
    write(&second, b"");
    assert_ne!(digest(&[&first, &second], 2).unwrap(), one);
    assert!(digest(&[&folder.join("none")], 1).is_err());
}

#[test]
fn shapes_survive_json_and_name_what_is_wrong() {
    let mut shape = shape();
    shape.norm_epsilon = 1.5e-5;
    shape.rope_frequencies = vec![0.1, 1.0 / 3.0, f32::MIN_POSITIVE, 16_777_217.0];
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(LlamaShape::from_json(&text).unwrap(), shape);
    let error = LlamaShape::from_json(&text.replace("kv_heads", "heads_of_kv"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("heads_of_kv"), "{error}");
    shape.kv_heads = 3;
    let error = ModelSource::open(Path::new("/nowhere"), shape)
        .unwrap_err()
        .to_string();
    assert!(error.contains("kv_heads is 3"), "{error}");
}
