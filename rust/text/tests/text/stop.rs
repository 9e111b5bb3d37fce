//! Stop strings: cut at the right byte, whatever the tokens, and nothing held back without need.

use std::sync::Arc;

use diptych_text::{
    MAX_STOP_BYTES, MAX_STOP_STRINGS, StopMatch, StreamOptions, TextError, TextStream,
};
use proptest::prelude::*;

use crate::common::{added, bytes_ids, cases, id, stops, stream, stream_after, table};

/// The earliest-completing match, the longest of those: `(start, end, its text)`. The definition, spelled out.
fn first_match<'s>(text: &str, stops: &'s [String]) -> Option<(usize, usize, &'s str)> {
    first_match_after(0, text, stops)
}

/// As [`first_match`], of those that complete after byte `floor`.
fn first_match_after<'s>(
    floor: usize,
    text: &str,
    stops: &'s [String],
) -> Option<(usize, usize, &'s str)> {
    (floor + 1..=text.len()).find_map(|end| {
        stops
            .iter()
            .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()))
            .max_by_key(|stop| stop.len())
            .map(|stop| (end - stop.len(), end, stop.as_str()))
    })
}

/// How many bytes at the end of `text` some continuation makes part of the match: the definition, by trying them all.
///
/// `floor`: completions up to that byte do not count; `None` while those in further tokens do not either.
fn must_hold(floor: Option<usize>, text: &str, stops: &[String]) -> usize {
    let wins = |stop: &str, length: usize| {
        let continued = format!("{text}{}", &stop[length..]);
        let floor = floor.unwrap_or(continued.len() - 1);
        first_match_after(floor, &continued, stops)
            == Some((text.len() - length, continued.len(), stop))
    };
    stops
        .iter()
        .flat_map(|stop| (1..stop.len()).map(move |length| (stop, length)))
        .filter(|(stop, length)| stop.is_char_boundary(*length) && text.ends_with(&stop[..*length]))
        .filter(|(stop, length)| wins(stop, *length))
        .map(|(_, length)| length)
        .max()
        .unwrap_or(0)
}

fn streamed_text(stop: &[&str], ids: &[u32]) -> String {
    stream(&table(), stops(stop), ids).text()
}

#[test]
fn every_substring_as_a_stop_cuts_the_text_before_its_first_place() {
    let table = table();
    let text = "the thé €ther, the 😀 thing; in the end";
    let ids = bytes_ids(text.as_bytes());
    let boundaries: Vec<usize> = text
        .char_indices()
        .map(|(index, _)| index)
        .chain([text.len()])
        .collect();
    for (index, &start) in boundaries.iter().enumerate() {
        for &end in boundaries[index + 1..].iter().take(12) {
            let stop = &text[start..end];
            let streamed = stream(&table, stops(&[stop]), &ids);
            assert_eq!(
                streamed.text(),
                text[..text.find(stop).unwrap()],
                "stop {stop:?}"
            );
            assert_eq!(streamed.found, Some(StopMatch { stop_index: 0 }));
            assert_eq!(
                streamed.deltas.len(),
                text.find(stop).unwrap() + stop.len() + 1
            );
        }
    }
}

#[test]
fn a_stop_that_ends_inside_a_token_drops_the_rest_of_that_token() {
    let ids = [u32::from(b'a'), id(b" the"), id(b"ing")];
    let streamed = stream(&table(), stops(&[" t"]), &ids);
    assert_eq!(streamed.text(), "a");
    assert_eq!(streamed.deltas.len(), 3, "the second token is the last one");
    assert_eq!(streamed_text(&["hei"], &ids), "a t");
}

#[test]
fn a_hidden_stop_token_removes_no_visible_text() {
    let mut stream = TextStream::new(table(), stops(&["never"]), &[]).unwrap();
    let mut out = String::new();
    assert_eq!(stream.push(id(b" the"), &mut out), None);
    stream.push_hidden(added("<|end|>"));
    stream.finish(&mut out);
    assert_eq!(out, " the");
}

#[test]
fn a_stop_that_does_not_occur_delays_nothing() {
    let ids = bytes_ids(b"quick brown fox");
    let streamed = stream(&table(), stops(&["0123456789 0123456789 01234567"]), &ids);
    let letters: Vec<String> = "quick brown fox"
        .chars()
        .map(String::from)
        .chain([String::new()])
        .collect();
    assert_eq!(streamed.deltas, letters);
}

#[test]
fn only_a_live_prefix_is_held_back() {
    let streamed = stream(&table(), stops(&["</tool>"]), &bytes_ids(b"a<b</to<"));
    assert_eq!(
        streamed.deltas,
        ["a", "", "<b", "", "", "", "", "</to", "<"]
    );
}

#[test]
fn what_was_held_back_is_sent_at_the_end() {
    assert_eq!(streamed_text(&["endx"], &bytes_ids(b"the end")), "the end");
    assert_eq!(streamed_text(&["<think>"], &bytes_ids(b"<")), "<");
    assert_eq!(
        streamed_text(&["<\u{FFFD}x"], &bytes_ids(b"<\xE2")),
        "<\u{FFFD}"
    );
}

#[test]
fn include_stop_ends_the_text_after_the_stop() {
    let options = |include_stop| StreamOptions {
        include_stop,
        ..stops(&["in t"])
    };
    let ids = [id(b"ing"), u32::from(b'i'), u32::from(b'n'), id(b" the")];
    assert_eq!(stream(&table(), options(true), &ids).text(), "ingin t");
    assert_eq!(stream(&table(), options(false), &ids).text(), "ing");
}

#[test]
fn the_match_that_completes_first_wins_and_of_equal_ends_the_longest() {
    let table = table();
    let outcome = |stop: &[&str]| {
        let streamed = stream(&table, stops(stop), &bytes_ids(b"xabcdx"));
        (
            streamed.text(),
            streamed.found.map(|found| found.stop_index),
        )
    };
    assert_eq!(outcome(&["abcd", "bc"]), ("xa".to_owned(), Some(1)));
    assert_eq!(outcome(&["bc", "abc"]), ("x".to_owned(), Some(1)));
    assert_eq!(outcome(&["cd", "cd"]), ("xab".to_owned(), Some(0)));
}

#[test]
fn a_stop_that_can_never_win_holds_nothing_back() {
    let streamed = stream(&table(), stops(&["abcd", "bc"]), &bytes_ids(b"ab"));
    assert_eq!(streamed.deltas, ["a", "", "b"]);
}

#[test]
fn a_stop_is_looked_for_in_the_output_alone() {
    let (prompt, output) = (bytes_ids(b"User"), bytes_ids(b": hi"));
    let streamed = stream_after(&table(), stops(&["User:"]), &prompt, &output);
    assert_eq!(streamed.text(), ": hi");
}

#[test]
fn a_stop_may_begin_with_a_character_that_the_prompt_began() {
    let (prompt, output) = (bytes_ids(b"\xE2\x82"), bytes_ids(b"\xAC"));
    let streamed = stream_after(&table(), stops(&["€"]), &prompt, &output);
    assert_eq!(
        (streamed.text().as_str(), streamed.found),
        ("", Some(StopMatch { stop_index: 0 }))
    );
}

#[test]
fn the_replacement_of_a_begun_character_can_complete_a_stop_at_the_end() {
    let streamed = stream(&table(), stops(&["a\u{FFFD}"]), &bytes_ids(b"a\xE2"));
    assert_eq!(
        (streamed.text().as_str(), streamed.found),
        ("", Some(StopMatch { stop_index: 0 }))
    );
}

#[test]
fn stop_lists_are_honoured_or_refused() {
    let new = |stop: Vec<String>| {
        TextStream::new(
            table(),
            StreamOptions {
                stop,
                ..StreamOptions::default()
            },
            &[],
        )
    };
    let error = |stop| new(stop).unwrap_err();
    assert!(matches!(
        error(vec![String::new()]),
        TextError::EmptyStop { index: 0 }
    ));
    assert!(matches!(
        error(vec!["a".into(), String::new()]),
        TextError::EmptyStop { index: 1 }
    ));
    assert!(new(vec![]).is_ok());
    assert!(new(vec!["x".into(); MAX_STOP_STRINGS]).is_ok());
    let too_many = error(
        (0..=MAX_STOP_STRINGS)
            .map(|index| index.to_string())
            .collect(),
    );
    assert_eq!(
        too_many.to_string(),
        "129 stop strings were given, at most 128 are allowed"
    );
    assert!(new(vec!["x".repeat(MAX_STOP_BYTES)]).is_ok());
    let too_long = error(vec!["é".repeat(MAX_STOP_BYTES / 2), "x".into()]);
    assert!(matches!(
        too_long,
        TextError::StopsTooLong { bytes: 65_537, .. }
    ));
}

#[test]
fn stops_that_are_not_ascii_match_by_code_points_without_normalising() {
    let ids = bytes_ids("cafe\u{301} café 😀".as_bytes());
    assert_eq!(streamed_text(&["é"], &ids), "cafe\u{301} caf");
    assert_eq!(streamed_text(&["e\u{301}"], &ids), "caf");
    assert_eq!(streamed_text(&["😀"], &ids), "cafe\u{301} café ");
}

#[test]
fn a_long_stop_matches_across_as_many_tokens_as_it_takes() {
    let stop = "ab".repeat(5_000);
    let text = format!("ab{stop}c");
    let streamed = stream(&table(), stops(&[&stop]), &bytes_ids(text.as_bytes()));
    assert_eq!(streamed.text(), "");
    let shorter = &text[..stop.len() - 2];
    assert_eq!(
        streamed_text(&[&stop], &bytes_ids(shorter.as_bytes())),
        shorter
    );
}

/// Short strings over few characters, so that stops overlap, repeat and contain each other.
fn tangled(length: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop::sample::select(vec!["a", "b", "é", "\u{FFFD}"]),
        length,
    )
    .prop_map(|characters| characters.concat())
}

fn tangled_ids() -> impl Strategy<Value = Vec<u32>> {
    let tokens: [&[u8]; 8] = [
        b"a",
        b"b",
        b"\xC3\xA9",
        b"\xC3",
        b"\xA9",
        b"\xA9\xC3",
        b"\xACa",
        b"a\xE2",
    ];
    proptest::collection::vec(prop::sample::select(tokens.map(id).to_vec()), 0..24)
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn streamed_text_is_the_text_before_the_first_match(
        stop in proptest::collection::vec(tangled(1..6), 1..5), ids in tangled_ids(), include_stop in any::<bool>(),
    ) {
        let table = TABLE.with(Arc::clone);
        let whole = stream(&table, StreamOptions::default(), &ids).text();
        let streamed = stream(&table, StreamOptions { include_stop, ..stops(&stop) }, &ids);
        if let Some((start, end, found)) = first_match(&whole, &stop) {
            prop_assert_eq!(streamed.text(), &whole[..if include_stop { end } else { start }]);
            let stop_index = stop.iter().position(|stop| stop == found).unwrap();
            prop_assert_eq!(streamed.found, Some(StopMatch { stop_index }));
        } else {
            prop_assert_eq!(streamed.text(), whole);
            prop_assert_eq!(streamed.found, None);
        }
    }

    #[test]
    fn what_is_held_back_is_what_a_later_match_may_need(
        stop in proptest::collection::vec(tangled(1..6), 1..5), ids in tangled_ids(),
    ) {
        let table = TABLE.with(Arc::clone);
        let mut plain = TextStream::new(Arc::clone(&table), StreamOptions::default(), &[]).unwrap();
        let mut stopping = TextStream::new(table, stops(&stop), &[]).unwrap();
        let (mut decoded, mut sent) = (String::new(), String::new());
        for &id in &ids {
            plain.push(id, &mut decoded);
            if stopping.push(id, &mut sent).is_some() {
                break;
            }
            let held = must_hold(Some(0), &decoded, &stop);
            prop_assert_eq!(&sent, &decoded[..decoded.len() - held]);
            prop_assert_eq!(stopping.held_back(), &decoded[decoded.len() - held..]);
        }
    }
}

#[test]
fn a_stop_that_completes_within_min_tokens_does_not_count() {
    let table = table();
    let outcome = |stop: &[&str], min_tokens| {
        let options = StreamOptions {
            min_tokens,
            ..stops(stop)
        };
        let streamed = stream(&table, options, &bytes_ids(b"xabcdxab"));
        (
            streamed.deltas,
            streamed.found.map(|found| found.stop_index),
        )
    };
    let (deltas, found) = outcome(&["ab"], 3);
    assert_eq!((deltas.concat().as_str(), found), ("xabcdx", Some(0)));
    // It may begin within them.
    let (deltas, found) = outcome(&["abcd", "bc"], 4);
    assert_eq!((deltas.concat().as_str(), found), ("x", Some(0)));
    // "bc" does not count, so that "abcd" may still come: it is held back.
    assert_eq!(deltas, ["x", "", "", "", "", ""]);
    let (deltas, found) = outcome(&["abcd", "bc"], 3);
    assert_eq!((deltas.concat().as_str(), found), ("xa", Some(1)));
    let (deltas, found) = outcome(&["abcd", "bc"], 8);
    assert_eq!((deltas.concat().as_str(), found), ("xabcdxab", None));
}

#[test]
fn tokens_without_text_count_for_min_tokens() {
    let options = || StreamOptions {
        min_tokens: 2,
        skip_special_tokens: true,
        ..stops(&["a"])
    };
    let end = added("<|end|>");
    let streamed = stream(&table(), options(), &[end, 9_999_999, id(b"a")]);
    assert_eq!(streamed.found, Some(StopMatch { stop_index: 0 }));
    let mut stream = TextStream::new(table(), options(), &[]).unwrap();
    let mut out = String::new();
    stream.push_hidden(end);
    assert_eq!(stream.push(id(b"a"), &mut out), None);
    assert_eq!(
        stream.push(id(b"a"), &mut out),
        Some(StopMatch { stop_index: 0 })
    );
    assert_eq!(out, "a");
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn min_tokens_ignores_what_completes_in_them_and_holds_back_what_may_win_after(
        stop in proptest::collection::vec(tangled(1..6), 1..5), ids in tangled_ids(), min_tokens in 0..12u32,
    ) {
        let table = TABLE.with(Arc::clone);
        let mut plain = TextStream::new(Arc::clone(&table), StreamOptions::default(), &[]).unwrap();
        let mut stopping = TextStream::new(table, StreamOptions { min_tokens, ..stops(&stop) }, &[]).unwrap();
        let (mut decoded, mut sent, mut floor) = (String::new(), String::new(), 0);
        for (tokens, &id) in (1..).zip(&ids) {
            plain.push(id, &mut decoded);
            if tokens <= min_tokens {
                floor = decoded.len();
            }
            let expected = first_match_after(floor, &decoded, &stop);
            let found = stopping.push(id, &mut sent);
            prop_assert_eq!(found.is_some(), expected.is_some());
            if let Some((start, ..)) = expected {
                prop_assert_eq!(sent, &decoded[..start]);
                break;
            }
            let held = must_hold((tokens >= min_tokens).then_some(floor), &decoded, &stop);
            prop_assert_eq!(&sent, &decoded[..decoded.len() - held]);
        }
    }
}

thread_local! {
    static TABLE: Arc<diptych_text::TokenTable> = table();
}
