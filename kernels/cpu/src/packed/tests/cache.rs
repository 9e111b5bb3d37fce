//! Packing once for everybody, again when something changed, and into memory where nothing can be kept.

use std::sync::Mutex;

use super::*;

fn open(folder: &Path, file: &Path, formats: Formats) -> (PackedFile, String) {
    let source = ModelSource::open(folder, shape()).unwrap();
    let lines = Mutex::new(Vec::new());
    let log = |line: &str| lines.lock().unwrap().push(line.to_string());
    let cached = CachedModel {
        source: &source,
        packing: packing(formats),
        file,
        huge: true,
        log: &log,
    };
    let model = cached.open().unwrap();
    (model, lines.into_inner().unwrap().join("\n"))
}

#[test]
fn a_second_start_packs_nothing() {
    let (_guard, folder) = folder();
    let checkpoint = checkpoint(&shape());
    write_folder(&folder, &checkpoint);
    let file = folder.join("cache/models/packed");
    let (first, log) = open(&folder, &file, Formats::Stored);
    assert!(log.contains("packing the weights into"), "{log}");
    let (second, log) = open(&folder, &file, Formats::Stored);
    assert_eq!(log, "");
    assert_eq!(numbers(&first.weights()), expected(&checkpoint, &shape()));
    assert_eq!(numbers(&second.weights()), expected(&checkpoint, &shape()));
}

#[test]
fn what_changed_is_packed_again() {
    let (_guard, folder) = folder();
    let mut checkpoint = checkpoint(&shape());
    write_folder(&folder, &checkpoint);
    let file = folder.join("packed");
    open(&folder, &file, Formats::Stored);

    checkpoint
        .get_mut("model.layers.1.mlp.up_proj.weight")
        .unwrap()
        .1[5] += 1.0;
    write_folder(&folder, &checkpoint);
    let (model, log) = open(&folder, &file, Formats::Stored);
    assert!(log.contains("made with a checkpoint with digest"), "{log}");
    assert_eq!(numbers(&model.weights()), expected(&checkpoint, &shape()));

    let (_, log) = open(&folder, &file, Formats::F32);
    assert!(log.contains("the formats auto, not float32"), "{log}");

    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    std::fs::write(folder.join(".packed.1.partial"), "left by a killed process").unwrap();
    let (model, log) = open(&folder, &file, Formats::F32);
    assert!(log.contains("are damaged"), "{log}");
    assert_eq!(numbers(&model.weights()), expected(&checkpoint, &shape()));
    assert!(!folder.join(".packed.1.partial").exists());
}

#[test]
fn of_several_at_once_one_packs() {
    let (_guard, folder) = folder();
    let checkpoint = checkpoint(&shape());
    write_folder(&folder, &checkpoint);
    let file = folder.join("packed");
    let opened: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| open(&folder, &file, Formats::Stored)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let packed = opened
        .iter()
        .filter(|(_, log)| log.contains("packing the weights into"))
        .count();
    assert_eq!(
        packed,
        1,
        "{:?}",
        opened.iter().map(|(_, log)| log).collect::<Vec<_>>()
    );
    for (model, _) in opened {
        assert_eq!(numbers(&model.weights()), expected(&checkpoint, &shape()));
    }
}

#[test]
fn where_nothing_can_be_kept_the_model_is_packed_into_memory() {
    let (_guard, folder) = folder();
    let checkpoint = checkpoint(&shape());
    write_folder(&folder, &checkpoint);
    std::fs::write(folder.join("file"), "").unwrap();
    for file in ["file/packed", "/proc/packed", "/dev/full/packed"] {
        let (model, log) = open(&folder, &folder.join(file), Formats::Stored);
        assert!(log.contains("packing into memory"), "{log}");
        assert_eq!(numbers(&model.weights()), expected(&checkpoint, &shape()));
        model.weights().check(&model.shape()).unwrap();
    }
}
