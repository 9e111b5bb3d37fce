//! One tokenizer for all threads.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diptych_text::{StreamOptions, Tokenizer};
use serde_json::json;

use crate::common::{added, stream_after, tokenizer_json, write_tokenizer};

const THREADS: usize = 64;
const TEXTS: &[&str] = &[
    "in the end, the thé",
    "<|start|>the<think>two words<|end|><|end|> the end",
    "👩‍👩‍👧‍👦 🇨🇿 你好，世界 क्षत्रिय",
    "\u{0}\u{2028}\r\n  \t",
    "",
];
const WAYS: usize = 2 * 2 * 2 * 3;

/// That of the folder which `DIPTYCH_TOKENIZER` names; else a small one whose file puts a token before each text, cuts
/// what is long and fills up what is short.
fn tokenizer() -> Tokenizer {
    if let Some(folder) = std::env::var_os("DIPTYCH_TOKENIZER") {
        return Tokenizer::from_folder(Path::new(&folder)).unwrap();
    }
    let mut json = tokenizer_json();
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [added("<|start|>")], "tokens": ["<|start|>"]}},
    });
    json["truncation"] =
        json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &json);
    Tokenizer::from_folder(folder.path()).unwrap()
}

/// A text's ids and their text, in one of [`WAYS`]: with and without what is put before it, special tokens shown or
/// not and joined or not, and of all ids, the first half, or the last half as an answer to the first.
fn both_ways(tokenizer: &Tokenizer, text: &str, way: usize) -> (Vec<u32>, String) {
    let ids = tokenizer.encode(text, way.is_multiple_of(2)).unwrap();
    let options = StreamOptions {
        skip_special_tokens: (way / 2).is_multiple_of(2),
        spaces_between_special_tokens: (way / 4).is_multiple_of(2),
        ..StreamOptions::default()
    };
    let (first, last) = ids.split_at(ids.len() / 2);
    let (prompt, answer) = match way / 8 {
        0 => (&[][..], &ids[..]),
        1 => (&[][..], first),
        _ => (first, last),
    };
    let decoded = stream_after(&tokenizer.table(), options, prompt, answer).text();
    (ids, decoded)
}

/// `DIPTYCH_SECONDS` makes it long.
#[test]
#[expect(clippy::print_stderr, reason = "the long run says how much it did")]
fn each_thread_gets_what_one_alone_gets() {
    let tokenizer = tokenizer();
    let alone = |index: usize| both_ways(&tokenizer, TEXTS[index / WAYS], index % WAYS);
    let expected: Vec<_> = (0..TEXTS.len() * WAYS).map(alone).collect();
    let seconds = std::env::var("DIPTYCH_SECONDS");
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (alone, expected, done) = (&alone, &expected, &done);
            scope.spawn(move || {
                for round in 0.. {
                    let index = (7 * thread + round) % expected.len();
                    assert_eq!(alone(index), expected[index]);
                    done.fetch_add(1, Ordering::Relaxed);
                    if round >= 20 && Instant::now() >= end {
                        break;
                    }
                }
            });
        }
    });
    let done = done.into_inner();
    assert!(done > 20 * THREADS);
    eprintln!("{done} texts both ways in {seconds} s by {THREADS} threads");
}
