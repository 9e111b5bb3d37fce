//! What each kind of decoder gives, case by case. The property for all of them stands in `exact.rs`.

use diptych_text::{Piece, StreamOptions};

use crate::common::{Streamed, stream, stream_after};
use crate::kinds::{Kind, fallback, kind, word};

fn words(texts: &[&str]) -> Vec<u32> {
    texts.iter().map(|text| word(text)).collect()
}

fn shown(kind: &Kind, ids: &[u32]) -> Streamed {
    stream(&kind.table, StreamOptions::default(), ids)
}

fn after(kind: &Kind, prompt: &[u32], ids: &[u32]) -> String {
    stream_after(&kind.table, StreamOptions::default(), prompt, ids).text()
}

/// Reports A2.
#[test]
fn characters_in_byte_tokens_arrive_whole_between_other_pieces() {
    let texts = ["鑫森淼", "क्षत्रिय", "ภาษาไทย", "မြန်မာ", "👩‍👩‍👧‍👦"];
    for name in ["llama", "gemma", "bytes_then_metaspace"] {
        let kind = kind(name);
        for text in texts {
            let ids = [
                fallback(text.as_bytes()),
                words(&["▁a"]),
                fallback(text.as_bytes()),
            ]
            .concat();
            let streamed = shown(&kind, &ids);
            assert_eq!(streamed.text(), format!("{text} a{text}"), "{name}");
            assert_eq!(
                streamed.text(),
                kind.oracle.decode(&ids, false).unwrap(),
                "{name}"
            );
            let characters = streamed.deltas.iter().filter(|delta| !delta.is_empty());
            assert_eq!(characters.count(), 2 * text.chars().count() + 1, "{name}");
        }
    }
}

/// Reports A19.
#[test]
fn byte_tokens_are_bytes_at_the_very_end_too_and_look_alikes_are_text() {
    let kind = kind("llama");
    let ends = |bytes: &[u8]| shown(&kind, &[words(&["a"]), fallback(bytes)].concat()).text();
    assert_eq!(ends(b"\n"), "a\n");
    assert_eq!(ends("😀".as_bytes()), "a😀");
    assert_eq!(ends(b"\xF0\x9F"), "a\u{FFFD}");
    assert_eq!(
        shown(&kind, &words(&["<0x1>", "<0xGG>"])).text(),
        "<0x1><0xGG>"
    );
}

#[test]
fn a_broken_run_of_byte_tokens_is_decoded_as_from_utf8_lossy_and_not_dropped_whole() {
    let kind = kind("gemma");
    let ids = fallback(b"ok\xE4\xBD\xFFok");
    assert_eq!(shown(&kind, &ids).text(), "ok\u{FFFD}\u{FFFD}ok");
    // The library gives up all of it, so that its text changes with what comes later.
    let own = kind.oracle.decode(&ids, false).unwrap();
    assert_eq!(own, "\u{FFFD}".repeat(7));
}

/// Reports A16.
#[test]
fn the_first_piece_keeps_or_drops_its_space_as_in_the_decode_of_prompt_and_output() {
    let outputs = [
        words(&["▁a", "▁a"]),
        words(&["▁", "▁a"]),
        words(&["▁▁b", "\n", "▁▁", "a"]),
        words(&["a▁b", "▁"]),
    ];
    for name in [
        "llama",
        "gemma",
        "metaspace",
        "metaspace_first",
        "metaspace_never",
        "fused_metaspace",
    ] {
        let kind = kind(name);
        for output in &outputs {
            let own = kind.oracle.decode(output, true).unwrap();
            assert_eq!(after(&kind, &[], output), own, "{name}");
            // Special tokens that are skipped do not count as text before it.
            let skipped = StreamOptions {
                skip_special_tokens: true,
                ..StreamOptions::default()
            };
            let first = stream_after(&kind.table, skipped, &words(&["<s>"]), output);
            assert_eq!(first.text(), own, "{name}");
            for prompt in [
                words(&["b"]),
                words(&["▁"]),
                words(&["▁▁"]),
                words(&["<s>", "▁a"]),
            ] {
                let begin = kind.oracle.decode(&prompt, false).unwrap();
                let all = [prompt.as_slice(), output].concat();
                let whole = kind.oracle.decode(&all, false).unwrap();
                let answer = after(&kind, &prompt, output);
                assert_eq!(format!("{begin}{answer}"), whole, "{name} after {prompt:?}");
            }
        }
    }
}

#[test]
fn words_are_joined_and_cleaned_up_as_word_piece_does() {
    let kind = kind("word_piece");
    let ids = words(&["do", "##ing", "a", ".", "n't", "'s", "do not", "!", "##."]);
    let streamed = shown(&kind, &ids);
    assert_eq!(streamed.text(), kind.oracle.decode(&ids, false).unwrap());
    assert_eq!(streamed.text(), "doing a.n't's don't!.");
    assert_eq!(
        streamed.deltas[..3],
        ["do", "ing", " a"],
        "each word comes with its token"
    );
    assert_eq!(shown(&kind, &words(&["##b", "##b"])).text(), "##bb");
    assert_eq!(after(&kind, &words(&["a"]), &words(&["##b", "b"])), "b b");
}

#[test]
fn an_end_of_word_is_a_space_unless_nothing_follows() {
    let kind = kind("end_of_word");
    let streamed = shown(&kind, &words(&["a</w>", "b", "a</w>"]));
    assert_eq!(streamed.deltas, ["a", " b", "a", ""]);
    assert_eq!(after(&kind, &words(&["a</w>"]), &words(&["b"])), " b");
    assert_eq!(shown(&kind, &words(&["</w>b</w>", "a"])).text(), " b a");
}

#[test]
fn tokens_without_a_decoder_are_joined_by_spaces() {
    let kind = kind("none");
    assert_eq!(shown(&kind, &words(&["a", "b"])).deltas, ["a", " b", ""]);
    assert_eq!(after(&kind, &words(&["a"]), &words(&["b"])), " b");
}

/// Reports A17.
#[test]
fn added_tokens_that_are_not_special_get_no_spaces_of_their_own_under_any_flags() {
    let ids = words(&[
        "<s>", "[SEP]", "<think>", "▁a", "b", "<think>", "<s>", "a", "[SEP]", "<s>",
    ]);
    for name in [
        "llama",
        "metaspace",
        "word_piece",
        "none",
        "end_of_word",
        "byte_level_stripped",
    ] {
        let kind = kind(name);
        for (skip_special_tokens, spaces_between_special_tokens) in
            [(false, true), (true, true), (true, false), (false, false)]
        {
            let options = StreamOptions {
                skip_special_tokens,
                spaces_between_special_tokens,
                ..StreamOptions::default()
            };
            let text = stream(&kind.table, options, &ids).text();
            let mut own = kind.oracle.decode(&ids, skip_special_tokens).unwrap();
            if !spaces_between_special_tokens {
                own = own
                    .replace("<s> [SEP]", "<s>[SEP]")
                    .replace("[SEP] <s>", "[SEP]<s>");
            }
            assert_eq!(text, own, "{name}");
        }
    }
}

#[test]
fn the_space_between_two_special_tokens_can_be_dropped_also_at_the_prompts_end() {
    let kind = kind("word_piece");
    let options = || StreamOptions {
        spaces_between_special_tokens: false,
        ..StreamOptions::default()
    };
    let ids = words(&["[SEP]", "a", "[SEP]"]);
    let text = |prompt: &[&str]| stream_after(&kind.table, options(), &words(prompt), &ids).text();
    assert_eq!(text(&["a", "<s>"]), "[SEP] a [SEP]");
    assert_eq!(text(&["a", "<think>"]), " [SEP] a [SEP]");
}

#[test]
fn what_only_the_end_of_the_text_settles_waits_and_nothing_else() {
    let kind = kind("stripped_tail");
    let deltas = shown(&kind, &words(&["▁", "a", "▁", "▁", "▁", "b", "▁"])).deltas;
    assert_eq!(deltas, ["", "a", "", "", " ", "  b", "", ""]);
    let kind = crate::kinds::kind("fused_replace");
    let deltas = shown(&kind, &words(&["b", "a", "ba", "b", "a"])).deltas;
    // "ab" becomes "-", and two of those become "ba".
    assert_eq!(deltas, ["b", "", "", "ba", "", "a"]);
}

#[test]
fn the_table_has_what_a_token_gives_after_others() {
    let kind = kind("llama");
    assert_eq!(kind.table.piece(word("▁a")), Some(Piece::Text(" a")));
    assert_eq!(
        kind.table.piece(fallback(b"\xE4")[0]),
        Some(Piece::Bytes(b"\xE4"))
    );
    let kind = crate::kinds::kind("word_piece");
    assert_eq!(kind.table.bytes(word("a")), Some(&b" a"[..]));
    assert_eq!(kind.table.bytes(word("##b")), Some(&b"b"[..]));
}

#[test]
fn a_token_without_text_ends_a_run_of_byte_tokens_and_a_skipped_one_does_not() {
    let kind = kind("stripped_tokens");
    let cut = |between: &[&str]| {
        let (begun, rest) = (fallback(b"\xE2\x82"), fallback(b"\xAC"));
        let ids = [begun.clone(), words(between), rest.clone()].concat();
        let skipped = || StreamOptions {
            skip_special_tokens: true,
            ..StreamOptions::default()
        };
        let prompt = [begun, words(between)].concat();
        let text = stream(&kind.table, skipped(), &ids).text();
        (
            text,
            stream_after(&kind.table, skipped(), &prompt, &rest).text(),
        )
    };
    let whole = ("€".to_owned(), "€".to_owned());
    assert_eq!(cut(&[]), whole);
    assert_eq!(cut(&["<s>"]), whole);
    let broken = "\u{FFFD}".to_owned();
    assert_eq!(cut(&["▁"]), (broken.repeat(2), broken));
}
