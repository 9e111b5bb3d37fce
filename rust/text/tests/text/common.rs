//! A small byte-level BPE tokenizer with every byte, tokens that cut characters, and added tokens of both kinds.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::path::Path;
use std::sync::Arc;

use diptych_text::{StopMatch, StreamOptions, TextStream, TokenTable, Tokenizer};
use proptest::test_runner::Config as ProptestConfig;
use serde_json::{Value, json};

/// Tokens beside the 256 single bytes: words, cut and broken characters, whole characters.
pub(crate) const LONGER: &[&[u8]] = &[
    b" t",
    b"he",
    b" the",
    b"ing",
    b" \xF0",
    b"\xF0\x9F",
    b"\xF0\x9F\x98",
    b"\x9F\x98\x80",
    b"\x98\x80 ",
    b"\xE2\x82",
    b"\x82\xAC",
    b"\xACa",
    b"\xC3\xA9",
    b"\xA9\xC3",
    b"\xE4\xBD\xA0\xE5",
    b"\xA5\xBD",
    b"\xED\xA0",
    b"\xC0\x80",
    b"\xFF\xFE",
    b"\xE0\x9F",
    b"\xF4\x90",
    b"\x80\x80\x80",
    b"a\xE2",
    "\u{FFFD}".as_bytes(),
    "\u{200D}".as_bytes(),
];
pub(crate) const MERGES: &[(&[u8], &[u8])] = &[
    (b" ", b"t"),
    (b"h", b"e"),
    (b" t", b"he"),
    (b"\xC3", b"\xA9"),
    (b"\xE2", b"\x82"),
    (b"\xF0", b"\x9F"),
    (b"\xF0\x9F", b"\x98"),
];
/// Added tokens; a `true` marks a special one. The last four show how the byte alphabet treats added text.
pub(crate) const ADDED: &[(&str, bool)] = &[
    ("<|start|>", true),
    ("<|end|>", true),
    ("<think>", false),
    ("snow☃man", false),
    ("two words", false),
    ("déjà", false),
];

/// The byte alphabet as GPT-2's `bytes_to_unicode` defines it.
pub(crate) fn alphabet() -> Vec<char> {
    let mut next = 256;
    (0..=255u8)
        .map(|byte| match byte {
            33..=126 | 161..=172 | 174..=255 => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap()
            }
        })
        .collect()
}

pub(crate) fn spell(bytes: &[u8]) -> String {
    let alphabet = alphabet();
    bytes
        .iter()
        .map(|&byte| alphabet[usize::from(byte)])
        .collect()
}

/// The id of a token among the single bytes and [`LONGER`].
pub(crate) fn id(bytes: &[u8]) -> u32 {
    if let [byte] = bytes {
        return u32::from(*byte);
    }
    let index = LONGER
        .iter()
        .position(|token| *token == bytes)
        .expect("a known token");
    256 + index as u32
}

/// The id of an added token.
pub(crate) fn added(content: &str) -> u32 {
    let index = ADDED
        .iter()
        .position(|(token, _)| *token == content)
        .expect("a known token");
    256 + LONGER.len() as u32 + index as u32
}

pub(crate) fn bytes_ids(bytes: &[u8]) -> Vec<u32> {
    bytes.iter().map(|&byte| u32::from(byte)).collect()
}

pub(crate) fn tokenizer_json() -> Value {
    let vocabulary: serde_json::Map<String, Value> = (0..=255u8)
        .map(|byte| vec![byte])
        .chain(LONGER.iter().map(|token| token.to_vec()))
        .enumerate()
        .map(|(id, token)| (spell(&token), json!(id)))
        .collect();
    let merges: Vec<Value> = MERGES
        .iter()
        .map(|(left, right)| json!([spell(left), spell(right)]))
        .collect();
    let added_tokens: Vec<Value> = ADDED
        .iter()
        .map(|(content, special)| {
            json!({"id": added(content), "content": content, "special": special, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added_tokens,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary, "merges": merges},
    })
}

pub(crate) fn write_tokenizer(folder: &Path, json: &Value) {
    std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
}

pub(crate) fn tokenizer() -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &tokenizer_json());
    Tokenizer::from_folder(folder.path()).unwrap()
}

/// The library's own tokenizer over the same file: the oracle.
pub(crate) fn oracle() -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(tokenizer_json().to_string()).unwrap()
}

pub(crate) fn table() -> Arc<TokenTable> {
    tokenizer().table()
}

/// Everything a stream gave.
#[derive(Debug, PartialEq)]
pub(crate) struct Streamed {
    pub(crate) deltas: Vec<String>,
    pub(crate) found: Option<StopMatch>,
}

impl Streamed {
    pub(crate) fn text(&self) -> String {
        self.deltas.concat()
    }
}

/// Pushes `ids` one by one until a stop matches, then finishes; the last delta is what `finish` gave.
pub(crate) fn stream(table: &Arc<TokenTable>, options: StreamOptions, ids: &[u32]) -> Streamed {
    stream_after(table, options, &[], ids)
}

/// As [`stream`], for the answer to a prompt.
pub(crate) fn stream_after(
    table: &Arc<TokenTable>,
    options: StreamOptions,
    prompt: &[u32],
    ids: &[u32],
) -> Streamed {
    let mut stream = TextStream::new(Arc::clone(table), options, prompt).unwrap();
    let mut deltas = Vec::new();
    let mut found = None;
    for &id in ids {
        let mut delta = String::new();
        found = stream.push(id, &mut delta);
        deltas.push(delta);
        if found.is_some() {
            break;
        }
    }
    let mut delta = String::new();
    found = found.or(stream.finish(&mut delta));
    deltas.push(delta);
    Streamed { deltas, found }
}

/// `PROPTEST_CASES` counts where it is set, for a long run.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let long = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: if long { config.cases } else { usual },
        ..config
    }
}

pub(crate) fn stops<S: AsRef<str>>(stop: &[S]) -> StreamOptions {
    StreamOptions {
        stop: stop.iter().map(|stop| stop.as_ref().to_owned()).collect(),
        ..StreamOptions::default()
    }
}
