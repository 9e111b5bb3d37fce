//! Ids to text, incrementally: equal to decoding all bytes at once, whatever the ids, the prompt and the chunking.

use std::sync::Arc;

use crate::common::{added, bytes_ids, cases, id, oracle, stream, stream_after, table};
use diptych_text::{Detokenizer, StreamOptions, TextStream, TokenTable};
use proptest::prelude::*;

const HARD_TEXTS: &[&str] = &[
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "你好，世界。 こんにちは 안녕하세요",
    "👩‍👩‍👧‍👦 🇨🇿 👍🏽 1️⃣ ☃️",
    "क्षत्रिय മലയാളം ന്‍ र्‍य",
    "שלום עולם مرحبا",
    "\u{0}\u{1}\u{7f}\u{85}\u{2028}\u{2029}\r\n",
    "\u{FFFD} is written here \u{FFFD}",
    "\u{10FFFF}\u{D7FF}\u{E000}",
];

fn plain(table: &Arc<TokenTable>, ids: &[u32]) -> Vec<String> {
    stream(table, StreamOptions::default(), ids).deltas
}

fn bytes_of(table: &TokenTable, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
    ids.iter()
        .filter(|&&id| !(skip_special_tokens && table.is_special(id)))
        .flat_map(|&id| table.bytes(id).unwrap_or_default().to_vec())
        .collect()
}

/// What the prompt's bytes alone settle: all of their text but a character that is begun at the end.
fn settled(bytes: &[u8]) -> String {
    let begun = (1..=bytes.len().min(3))
        .rev()
        .find(|&length| {
            let suffix = &bytes[bytes.len() - length..];
            std::str::from_utf8(suffix)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0);
    String::from_utf8_lossy(&bytes[..bytes.len() - begun]).into_owned()
}

#[test]
fn a_character_of_many_tokens_arrives_whole_with_its_last_byte() {
    let (table, oracle) = (table(), oracle());
    for text in HARD_TEXTS {
        let ids = bytes_ids(text.as_bytes());
        let deltas = plain(&table, &ids);
        assert_eq!(deltas.concat(), *text);
        assert_eq!(deltas.concat(), oracle.decode(&ids, false).unwrap());
        let mut expected = vec![String::new(); ids.len() + 1];
        for (start, character) in text.char_indices() {
            expected[start + character.len_utf8() - 1] = character.to_string();
        }
        assert_eq!(deltas, expected);
    }
}

#[test]
fn impossible_bytes_are_sent_at_once_and_nothing_piles_up() {
    let table = table();
    let mut stream = TextStream::new(Arc::clone(&table), StreamOptions::default(), &[]).unwrap();
    for _ in 0..2_000 {
        let mut delta = String::new();
        stream.push(0x80, &mut delta);
        assert_eq!(delta, "\u{FFFD}");
    }
    // The work of a step depends on its token and on this state alone.
    assert!(size_of::<Detokenizer>() <= 4);
}

#[test]
fn a_token_that_is_the_replacement_character_is_text() {
    let token = id("\u{FFFD}".as_bytes());
    assert_eq!(
        plain(&table(), &[token; 3]),
        ["\u{FFFD}", "\u{FFFD}", "\u{FFFD}", ""]
    );
}

#[test]
fn overlong_forms_surrogates_and_stray_bytes_become_replacement_characters() {
    let table = table();
    let cases: &[(&[u8], &str)] = &[
        (b"\xC0\x80", "\u{FFFD}\u{FFFD}"),
        (b"\xE0\x9F\xBF", "\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xED\xA0\x80", "\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xF4\x90\x80\x80", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xF0\x9F\x98A", "\u{FFFD}A"),
        (b"\xE2\x82\xE2\x82\xAC", "\u{FFFD}€"),
        (b"a\xFFb\xFE", "a\u{FFFD}b\u{FFFD}"),
        (b"\xF0\x9F", "\u{FFFD}"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(
            plain(&table, &bytes_ids(bytes)).concat(),
            *expected,
            "{bytes:x?}"
        );
    }
}

#[test]
fn a_broken_sequence_is_sent_with_the_byte_that_breaks_it() {
    let deltas = plain(&table(), &bytes_ids(b"\xF0\x9FA"));
    assert_eq!(deltas, ["", "", "\u{FFFD}A", ""]);
}

#[test]
fn text_without_spaces_arrives_letter_by_letter() {
    let deltas = plain(&table(), &[u32::from(b'x'); 300]);
    assert_eq!(deltas.iter().filter(|delta| *delta == "x").count(), 300);
}

#[test]
fn joiners_selectors_and_their_neighbours_arrive_unchanged() {
    let text = "👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ क्‍ष ന്‍";
    let streamed = plain(&table(), &bytes_ids(text.as_bytes())).concat();
    let code_points = |text: &str| text.chars().map(u32::from).collect::<Vec<_>>();
    assert_eq!(code_points(&streamed), code_points(text));
}

#[test]
fn the_last_token_gives_its_text_and_the_end_gives_what_waits() {
    let table = table();
    assert_eq!(plain(&table, &[u32::from(b'x')]), ["x", ""]);
    assert_eq!(
        plain(&table, &bytes_ids(b"x\xE2\x82")),
        ["x", "", "", "\u{FFFD}"]
    );
}

#[test]
fn a_character_begun_by_the_prompt_belongs_to_the_output_whole() {
    let table = table();
    let after = |prompt: &[u8], output: &[u8]| {
        let options = StreamOptions::default();
        stream_after(&table, options, &bytes_ids(prompt), &bytes_ids(output)).text()
    };
    assert_eq!(after(b"cost: \xE2\x82", b"\xAC 5"), "€ 5");
    assert_eq!(after(b"\xF0\x9F\x98", b"\x80"), "😀");
    assert_eq!(after(b"\xE2\x82", b"x"), "\u{FFFD}x");
    assert_eq!(after(b"\xE2\x82", b""), "\u{FFFD}");
    assert_eq!(after("whole €".as_bytes(), b"\xAC"), "\u{FFFD}");
    assert_eq!(after(b"\x82\xAC", b"x"), "x");
}

#[test]
fn hidden_and_skipped_tokens_leave_a_begun_character_waiting() {
    let table = table();
    let options = StreamOptions {
        skip_special_tokens: true,
        ..StreamOptions::default()
    };
    let mut stream = TextStream::new(Arc::clone(&table), options, &[]).unwrap();
    let mut out = String::new();
    stream.push(id(b"\xE2\x82"), &mut out);
    stream.push(added("<|end|>"), &mut out);
    stream.push_hidden(added("<|end|>"));
    stream.push(u32::from(b'\xAC'), &mut out);
    stream.push_hidden(added("<|end|>"));
    assert_eq!(out, "€");
    assert_eq!(stream.finish(&mut out), None);
    assert_eq!(out, "€");
}

/// Any id of the table and a few beyond; broken and whole tokens in equal parts.
fn any_ids(length: usize) -> impl Strategy<Value = Vec<u32>> {
    let beyond = crate::common::added("déjà") + 4;
    let cut_characters = 260..281u32;
    proptest::collection::vec(
        prop_oneof![0..beyond, cut_characters, 0x80..0xC0u32, 0x20..0x7Fu32],
        0..length,
    )
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn joined_deltas_equal_decoding_everything_at_once(
        prompt in any_ids(12), output in any_ids(40), skip in any::<bool>(),
    ) {
        let (table, oracle) = CONTEXT.with(|context| (Arc::clone(&context.0), context.1.clone()));
        let options = StreamOptions { skip_special_tokens: skip, ..StreamOptions::default() };
        let streamed = stream_after(&table, options, &prompt, &output);
        let all = [prompt.clone(), output.clone()].concat();
        let whole = String::from_utf8_lossy(&bytes_of(&table, &all, skip)).into_owned();
        prop_assert_eq!(&whole, &oracle.decode(&all, skip).unwrap());
        let begin = settled(&bytes_of(&table, &prompt, skip));
        prop_assert_eq!(format!("{begin}{}", streamed.text()), whole);
    }

    #[test]
    fn every_push_gives_all_that_is_settled_and_no_more(output in any_ids(40)) {
        let table = CONTEXT.with(|context| Arc::clone(&context.0));
        let deltas = plain(&table, &output);
        for end in 0..=output.len() {
            let bytes = bytes_of(&table, &output[..end], false);
            prop_assert_eq!(deltas[..end].concat(), settled(&bytes));
        }
    }

    #[test]
    fn any_bytes_in_any_chunks_decode_as_from_utf8_lossy(
        bytes in proptest::collection::vec(any::<u8>(), 0..60), cuts in proptest::collection::vec(0..60usize, 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut detokenizer = Detokenizer::default();
        let mut out = String::new();
        for cut in cuts.windows(2) {
            detokenizer.push_bytes(&bytes[cut[0]..cut[1]], &mut out);
            prop_assert!(detokenizer.pending().len() <= 3);
        }
        detokenizer.flush(&mut out);
        prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
    }
}

thread_local! {
    static CONTEXT: (Arc<TokenTable>, tokenizers::Tokenizer) = (table(), oracle());
}
