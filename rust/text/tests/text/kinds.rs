//! One small tokenizer for each kind of decoder, and an oracle for what it must give.
#![allow(dead_code, reason = "the bench uses a part of this")]

use std::path::Path;
use std::sync::Arc;

use diptych_text::{TokenTable, Tokenizer};
use serde_json::{Value, json};
use tokenizers::Decoder as _;
use tokenizers::decoders::DecoderWrapper;

use crate::common::tokenizer_json;

/// Tokens on which decoders trip; with `true` special ones. The single bytes of byte fallback come after them.
const WORDS: &[(&str, bool)] = &[
    ("<unk>", true),
    ("<s>", true),
    ("[SEP]", true),
    ("<think>", false),
    ("▁", false),
    ("▁▁", false),
    ("▁a", false),
    ("▁▁b", false),
    ("a▁b", false),
    ("a", false),
    ("b", false),
    ("ab", false),
    ("ba", false),
    ("bab", false),
    ("##", false),
    ("##b", false),
    ("##ing", false),
    ("#", false),
    (".", false),
    ("##.", false),
    ("!", false),
    ("'", false),
    ("n't", false),
    ("'m", false),
    ("'s", false),
    ("do", false),
    ("do not", false),
    ("not", false),
    (" ", false),
    ("  ", false),
    (" a", false),
    ("a ", false),
    ("</w>", false),
    ("a</w>", false),
    ("</w>b</w>", false),
    ("</", false),
    ("w>", false),
    ("é", false),
    ("€", false),
    ("😀", false),
    ("\u{FFFD}", false),
    ("\u{200D}", false),
    ("你好", false),
    ("ab▁", false),
    ("\n", false),
    ("<0x1>", false),
    // In the alphabet of byte-level BPE: the bytes 80, 90 and A0.
    ("Ģ", false),
    ("Ĳ", false),
    ("ł", false),
    ("<0xGG>", false),
];

/// The id of one of [`WORDS`].
pub(crate) fn word(text: &str) -> u32 {
    let index = WORDS.iter().position(|(word, _)| *word == text);
    index.unwrap_or_else(|| panic!("no word {text:?}")) as u32
}

/// The ids of byte tokens.
pub(crate) fn fallback(bytes: &[u8]) -> Vec<u32> {
    let first = WORDS.len() as u32;
    bytes.iter().map(|&byte| first + u32::from(byte)).collect()
}

fn words_json(decoder: &Value) -> Value {
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let words = WORDS.iter().map(|(word, _)| (*word).to_owned());
    let vocabulary: serde_json::Map<String, Value> = words
        .chain(bytes)
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let added: Vec<Value> = WORDS
        .iter()
        .take(4)
        .map(|(word, special)| {
            json!({"id": self::word(word), "content": word, "special": special, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added,
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    })
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn strip(start: usize, stop: usize) -> Value {
    json!({"type": "Strip", "content": " ", "start": start, "stop": stop})
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
}

fn word_piece(cleanup: bool) -> Value {
    json!({"type": "WordPiece", "prefix": "##", "cleanup": cleanup})
}

fn sequence<const N: usize>(parts: &[Value; N]) -> Value {
    json!({"type": "Sequence", "decoders": parts.to_vec()})
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})
}

fn bytes() -> Value {
    json!({"type": "ByteFallback"})
}

fn fuse() -> Value {
    json!({"type": "Fuse"})
}

fn end_of_word() -> Value {
    json!({"type": "BPEDecoder", "suffix": "</w>"})
}

/// Name and decoder of published tokenizers.
fn published() -> Vec<(&'static str, Value)> {
    let space = || replace("▁", " ");
    let llama = sequence(&[space(), bytes(), fuse(), strip(1, 0)]);
    vec![
        ("llama", llama),
        ("gemma", sequence(&[space(), bytes(), fuse()])),
        ("metaspace", metaspace("always")),
        ("metaspace_first", metaspace("first")),
        ("metaspace_never", metaspace("never")),
        ("word_piece", word_piece(true)),
        ("word_piece_as_it_is", word_piece(false)),
        ("end_of_word", end_of_word()),
        ("none", Value::Null),
    ]
}

/// What else a file may ask for.
fn unusual() -> Vec<(&'static str, Value)> {
    let space = || replace("▁", " ");
    let pattern = json!({"type": "Replace", "pattern": {"Regex": "[▁#]+"}, "content": "_"});
    let level = [byte_level(), strip(2, 0), replace("ab", "X")];
    let replaced = [bytes(), space(), fuse(), strip(1, 0)];
    let tail = [space(), bytes(), fuse(), strip(1, 2)];
    let tokens = [space(), strip(1, 1), bytes(), fuse()];
    let twice = [fuse(), replace("ab", "-"), replace("--", "ba")];
    let fused = [end_of_word(), fuse(), replace("a b", "AB"), strip(0, 1)];
    let nested = [sequence(&[space()]), sequence(&[bytes(), fuse()])];
    let marked = [bytes(), metaspace("always")];
    vec![
        ("byte_level_stripped", sequence(&level)),
        ("bytes_then_metaspace", sequence(&marked)),
        ("bytes_then_replace", sequence(&replaced)),
        ("stripped_tail", sequence(&tail)),
        ("stripped_tokens", sequence(&tokens)),
        ("fused_replace", sequence(&twice)),
        ("fused_metaspace", sequence(&[fuse(), metaspace("first")])),
        ("pattern", sequence(&[pattern, bytes()])),
        ("end_of_word_fused", sequence(&fused)),
        ("nested", sequence(&nested)),
        ("nothing", sequence(&[])),
    ]
}

fn decoders() -> Vec<(&'static str, Value)> {
    [published(), unusual()].concat()
}

/// A tokenizer to be tested with what it must give.
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) table: Arc<TokenTable>,
    pub(crate) oracle: tokenizers::Tokenizer,
    /// Continuations that show what a text's later tokens may still change.
    pub(crate) probes: Vec<Vec<u32>>,
    /// Ids worth trying more often than others.
    pub(crate) hard: Vec<u32>,
    /// The id of each byte that is a token of its own.
    byte_ids: Vec<Option<u32>>,
}

impl Kind {
    fn new(name: &str, json: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        Self::read(name, folder.path())
    }

    fn read(name: &str, folder: &Path) -> Self {
        let tokenizer = Tokenizer::from_folder(folder).unwrap();
        let oracle = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        let mut kind = Self {
            name: name.to_owned(),
            table: tokenizer.table(),
            oracle,
            probes: vec![vec![]],
            hard: Vec::new(),
            byte_ids: Vec::new(),
        };
        kind.byte_ids = (0..=255u8).map(|byte| kind.id(&[byte])).collect();
        kind.hard = kind.hard_ids();
        kind.probes.extend(kind.continuations());
        kind
    }

    fn id(&self, bytes: &[u8]) -> Option<u32> {
        (0..self.table.len() as u32).find(|&id| self.table.bytes(id) == Some(bytes))
    }

    /// Every end that a begun character can have, and what begins something else.
    fn continuations(&self) -> Vec<Vec<u32>> {
        let texts: &[&[u8]] = &[
            b"\x80",
            b"\x80\x80",
            b"\x80\x80\x80",
            b"\x90\x80\x80",
            b"\xA0\x80",
            b"a",
            b"x",
            b" a",
            b"b",
            b" b",
            b"ab",
            b"-",
            b"\n",
        ];
        let as_bytes = texts.iter().filter_map(|text| {
            let ids = text.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
            ids.collect::<Option<Vec<u32>>>()
        });
        let whole = texts.iter().filter_map(|text| Some(vec![self.id(text)?]));
        as_bytes.chain(whole).collect()
    }

    /// Those bytes of `text` that are tokens of their own.
    pub(crate) fn spelled(&self, text: &str) -> Vec<u32> {
        let ids = text.bytes().map(|byte| self.byte_ids[usize::from(byte)]);
        ids.flatten().collect()
    }

    fn shows(&self, id: u32, skip_special_tokens: bool) -> bool {
        self.table.bytes(id).is_some() && !(skip_special_tokens && self.table.is_special(id))
    }

    fn hard_ids(&self) -> Vec<u32> {
        let hard = |id: &u32| {
            let bytes = self.table.bytes(*id).unwrap_or_default();
            let broken = std::str::from_utf8(bytes).is_err();
            broken || bytes.iter().all(u8::is_ascii_whitespace) || self.table.is_special(*id)
        };
        (0..self.table.len() as u32).filter(hard).collect()
    }

    /// What the decoder gives for all of `ids`: the library's own code, part by part, but that a run of byte tokens is
    /// decoded as `from_utf8_lossy` does, and that stripping more than there is does not panic.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let added = self.oracle.get_added_vocabulary();
        let mut tokens: Vec<String> = ids
            .iter()
            .filter_map(|&id| self.oracle.id_to_token(id))
            .filter(|token| !(skip_special_tokens && added.is_special_token(token)))
            .collect();
        let Some(decoder) = self.oracle.get_decoder() else {
            return tokens.join(" ");
        };
        for part in parts(decoder) {
            tokens = match part {
                DecoderWrapper::ByteFallback(_) => decode_runs(tokens),
                DecoderWrapper::Strip(part) => {
                    let strip = |token: &String| stripped(token, part);
                    tokens.iter().map(strip).collect()
                }
                _ if tokens.is_empty() => tokens,
                _ => part.decode_chain(tokens).unwrap(),
            };
        }
        tokens.concat()
    }

    /// Whether the library's own decode can be asked: no part of it panics or treats broken runs in its own way.
    pub(crate) fn agrees_with_library(&self, ids: &[u32], skip_special_tokens: bool) -> bool {
        let all = self.oracle.get_decoder().map(parts).unwrap_or_default();
        let strips =
            |part: &&DecoderWrapper| matches!(part, DecoderWrapper::Strip(strip) if strip.stop > 0);
        let falls_back = |part: &&DecoderWrapper| matches!(part, DecoderWrapper::ByteFallback(_));
        ids.iter().any(|&id| self.shows(id, skip_special_tokens))
            && !all.iter().any(strips)
            && (!all.iter().any(falls_back) || self.has_whole_runs(ids, skip_special_tokens))
    }

    fn has_whole_runs(&self, ids: &[u32], skip_special_tokens: bool) -> bool {
        let tokens: Vec<String> = ids
            .iter()
            .filter(|id| self.shows(**id, skip_special_tokens))
            .filter_map(|&id| self.oracle.id_to_token(id))
            .collect();
        tokens.split(|token| byte(token).is_none()).all(|run| {
            String::from_utf8(run.iter().filter_map(|token| byte(token)).collect()).is_ok()
        })
    }
}

fn parts(decoder: &DecoderWrapper) -> Vec<&DecoderWrapper> {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            sequence.get_decoders().iter().flat_map(parts).collect()
        }
        single => vec![single],
    }
}

fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

fn decode_runs(tokens: Vec<String>) -> Vec<String> {
    let mut decoded = Vec::new();
    let mut run = Vec::new();
    for token in tokens {
        if let Some(byte) = byte(&token) {
            run.push(byte);
            continue;
        }
        if !run.is_empty() {
            decoded.push(String::from_utf8_lossy(&run).into_owned());
            run.clear();
        }
        decoded.push(token);
    }
    if !run.is_empty() {
        decoded.push(String::from_utf8_lossy(&run).into_owned());
    }
    decoded
}

fn stripped(token: &str, strip: &tokenizers::decoders::strip::Strip) -> String {
    let characters: Vec<char> = token.chars().collect();
    let counted = |characters: &mut dyn Iterator<Item = &char>, most: usize| {
        characters
            .take(most)
            .take_while(|character| **character == strip.content)
            .count()
    };
    let start = counted(&mut characters.iter(), strip.start);
    let rest = &characters[start..];
    let stop = counted(&mut rest.iter().rev(), strip.stop);
    rest[..rest.len() - stop].iter().collect()
}

/// The small tokenizer with that decoder.
pub(crate) fn kind(name: &str) -> Kind {
    let found = decoders().into_iter().find(|(known, _)| *known == name);
    let (_, decoder) = found.unwrap_or_else(|| panic!("no kind {name}"));
    Kind::new(name, &words_json(&decoder).to_string())
}

/// All of them; or the tokenizer in the folder that `DIPTYCH_TOKENIZER` names, alone.
pub(crate) fn kinds() -> Vec<Kind> {
    if let Some(folder) = std::env::var_os("DIPTYCH_TOKENIZER") {
        let folder = Path::new(&folder);
        let name = folder.file_name().unwrap().to_string_lossy();
        return vec![Kind::read(&name, folder)];
    }
    let mut kinds = vec![Kind::new("byte_level", &tokenizer_json().to_string())];
    kinds.extend(decoders().iter().map(|(name, _)| kind(name)));
    kinds
}
