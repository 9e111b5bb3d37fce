//! Reading a tokenizer: which decoders are taken, and what each id stands for.

use crate::common::{
    ADDED, LONGER, added, id, oracle, table, tokenizer, tokenizer_json, write_tokenizer,
};
use diptych_text::{Piece, TextError, TokenTable, Tokenizer};
use serde_json::{Value, json};

fn load(json: &Value) -> Result<Tokenizer, TextError> {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), json);
    Tokenizer::from_folder(folder.path())
}

fn load_with_decoder(decoder: Value) -> Result<Tokenizer, TextError> {
    let mut json = tokenizer_json();
    json["decoder"] = decoder;
    load(&json)
}

fn error(result: Result<Tokenizer, TextError>) -> String {
    match result {
        Ok(_) => panic!("the tokenizer was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_id_has_the_bytes_of_the_tokenizers_own_decoder() {
    let (table, oracle) = (table(), oracle());
    for byte in 0..=255u8 {
        assert_eq!(table.bytes(u32::from(byte)), Some(&[byte][..]));
    }
    for token in LONGER {
        assert_eq!(table.bytes(id(token)), Some(*token));
    }
    for id in 0..table.len() as u32 {
        let text = String::from_utf8_lossy(table.bytes(id).unwrap_or_default()).into_owned();
        assert_eq!(text, oracle.decode(&[id], false).unwrap(), "id {id}");
    }
}

#[test]
fn added_tokens_outside_the_byte_alphabet_are_their_own_utf8() {
    let table = table();
    assert_eq!(table.bytes(added("snow☃man")), Some("snow☃man".as_bytes()));
    assert_eq!(table.bytes(added("two words")), Some(&b"two words"[..]));
    // Written wholly in the byte alphabet, so the decoder takes it for Latin-1 bytes; strange, but its own decode.
    assert_eq!(table.bytes(added("déjà")), Some(&b"d\xE9j\xE0"[..]));
}

#[test]
fn special_tokens_are_known_by_the_added_tokens_alone() {
    let table = table();
    let expected: Vec<u32> = ADDED
        .iter()
        .filter(|(_, special)| *special)
        .map(|(token, _)| added(token))
        .collect();
    assert_eq!(table.special_ids().collect::<Vec<_>>(), expected);
    assert!(table.is_special(added("<|end|>")));
    assert!(!table.is_special(added("<think>")));
    assert!(!table.is_special(9_999_999));
}

#[test]
fn ids_that_name_no_token_have_no_bytes() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocabulary(), added("déjà") + 1);
    assert_eq!(tokenizer.table().piece(tokenizer.vocabulary()), None);
    let gap = TokenTable::new([Some((b"a".to_vec(), false)), None, Some((vec![], false))]);
    assert_eq!(
        (gap.bytes(1), gap.bytes(2), gap.len()),
        (None, Some(&b""[..]), 3)
    );
}

#[test]
fn whole_and_broken_tokens_are_told_apart() {
    let table = table();
    assert_eq!(table.piece(id(b"\xC3\xA9")), Some(Piece::Text("é")));
    assert_eq!(
        table.piece(id(b"\xA9\xC3")),
        Some(Piece::Bytes(b"\xA9\xC3"))
    );
}

#[test]
fn text_encodes_as_the_library_encodes_it_and_comes_back() {
    let (tokenizer, oracle) = (tokenizer(), oracle());
    for text in [
        "",
        "in the end",
        "é€😀 你好",
        "<|start|>the<think>two words",
        "\u{0}\r\n\t",
        "👩‍👩‍👧🇨🇿1️⃣",
    ] {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids, oracle.encode(text, true).unwrap().get_ids());
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| tokenizer.table().bytes(id).unwrap().to_vec())
            .collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}

#[test]
fn truncation_and_padding_left_in_a_file_do_not_touch_a_prompt() {
    let mut json = tokenizer_json();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    assert_eq!(load(&json).unwrap().encode("abcde", true).unwrap().len(), 5);
}

#[test]
fn decoders_that_give_no_text_before_they_have_seen_all_of_it_are_refused_by_name() {
    let sequence = |parts: Value| load_with_decoder(json!({"type": "Sequence", "decoders": parts}));
    let byte_level = tokenizer_json()["decoder"].clone();
    let fuse = json!({"type": "Fuse"});
    let pattern = json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"});
    let speech =
        json!({"type": "CTC", "pad_token": "-", "word_delimiter_token": "|", "cleanup": true});
    for (parts, part) in [
        (json!([fuse, byte_level]), "ByteLevel"),
        (json!([fuse, {"type": "ByteFallback"}]), "ByteFallback"),
        (
            json!([fuse, {"type": "WordPiece", "prefix": "##", "cleanup": true}]),
            "WordPiece",
        ),
        (json!([fuse, pattern]), "Replace"),
        (json!([speech]), "CTC"),
    ] {
        let text = error(sequence(parts));
        assert!(
            text.contains("Sequence[") && text.contains(&format!("whose {part} is not")),
            "{text}"
        );
    }
}

#[test]
fn missing_and_broken_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(error(Tokenizer::from_folder(folder.path())).contains("tokenizer.json"));
    std::fs::write(folder.path().join("tokenizer.json"), "{\"model\": 1}").unwrap();
    let text = error(Tokenizer::from_folder(folder.path()));
    assert!(
        text.contains("tokenizer.json is not a usable tokenizer"),
        "{text}"
    );
}

#[test]
fn a_monstrous_id_is_refused_instead_of_allocated() {
    let mut json = tokenizer_json();
    json["model"]["vocab"]["zzz"] = json!(4_294_967_295u32);
    assert!(error(load(&json)).contains("4294967295"));
}
