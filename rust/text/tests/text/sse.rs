//! Events of streams: what they say reads back, and no parser sees the end of a line within one.

use diptych_text::sse::{
    Chunks, DONE, Delta, Endpoint, Finish, Identity, KEEP_ALIVE, StopReason, ToolCall, View,
    push_failure,
};
use diptych_text::{StreamOptions, TextStream};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{cases, table};

const SPECIAL: &[char] = &[
    '"',
    '\\',
    '/',
    '\n',
    '\r',
    '\t',
    '\u{0}',
    '\u{8}',
    '\u{b}',
    '\u{c}',
    '\u{1c}',
    '\u{1f}',
    '\u{7f}',
    '\u{80}',
    '\u{85}',
    '\u{84}',
    '\u{2027}',
    '\u{2028}',
    '\u{2029}',
    '\u{202a}',
    '\u{a8}',
    '\u{feff}',
    '\u{fffd}',
    '\u{ffff}',
    '😀',
    '\u{10ffff}',
    ':',
    ' ',
];

fn any_text() -> impl Strategy<Value = String> {
    let character = prop_oneof![any::<char>(), proptest::sample::select(SPECIAL)];
    proptest::collection::vec(character, 0..12).prop_map(|text| text.into_iter().collect())
}

fn all(endpoint: Endpoint, identity: &Identity) -> Chunks {
    let view = View {
        include_usage: true,
        continuous_usage: true,
        token_ids: true,
        reasoning: true,
    };
    Chunks::new(endpoint, identity, view, 2)
}

fn named(id: &str, model: &str) -> Identity {
    Identity {
        id: id.to_owned(),
        created: 1_767_225_600,
        model: model.to_owned(),
    }
}

/// The lines of `text` to a parser that knows every end of a line that Unicode does, and Python's more.
fn loose_lines(text: &str) -> Vec<&str> {
    let ends = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
        '\u{2029}',
    ];
    text.split(ends).collect()
}

/// The data of each event. Fails unless each is one line and one blank line.
fn data(stream: &[u8]) -> Vec<&str> {
    let stream = std::str::from_utf8(stream).expect("UTF-8");
    let mut lines = loose_lines(stream);
    assert_eq!(lines.pop(), Some(""), "the last line ends");
    let events = lines.chunks(2).map(|event| match event {
        [line, ""] => line.strip_prefix("data: ").expect("one data line"),
        other => panic!("no line and blank line: {other:?}"),
    });
    events.collect()
}

fn values(stream: &[u8]) -> Vec<Value> {
    let data = data(stream);
    data.iter()
        .map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{data}: {error}")))
        .collect()
}

/// Every place of a chunk that takes text has some of `texts`, by turns; JSON values are pretty-printed around them.
fn stream_of(endpoint: Endpoint, texts: &[String; 4]) -> Vec<u8> {
    let [a, b, c, d] = texts;
    let logprobs = serde_json::to_vec_pretty(&json!({"content": [{"token": a}]})).unwrap();
    let calls = [
        ToolCall {
            index: 0,
            id: Some(a),
            name: Some(b),
            arguments: c,
        },
        ToolCall {
            index: 0,
            id: None,
            name: None,
            arguments: d,
        },
    ];
    let delta = Delta {
        text: a,
        reasoning: b,
        calls: &calls,
        token_ids: &[1, 2],
        logprobs: Some(&logprobs),
    };
    let finish = Finish {
        reason: "stop",
        stop: Some(StopReason::Text(d)),
        cached_tokens: 1,
    };
    let mut chunks = all(endpoint, &named(c, d));
    let mut out = Vec::new();
    chunks.accept(0..2, 5, Some(vec![7, 8]));
    chunks.push(1, &delta, None, &mut out);
    chunks.push(0, &delta, Some(&finish), &mut out);
    let usage = serde_json::to_vec_pretty(&json!({"explanations": [b]})).unwrap();
    chunks.close(Some(&usage), &mut out);
    out
}

/// Joined values of `path` in the choices with this index.
fn joined(chunks: &[Value], index: u64, path: &str) -> String {
    let choices = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().expect("choices"));
    choices
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice.pointer(path)?.as_str())
        .collect()
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn what_chunks_say_reads_back_and_no_event_is_cut(texts in [any_text(), any_text(), any_text(), any_text()]) {
        let [a, b, c, d] = &texts;
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let stream = stream_of(endpoint, &texts);
            let (events, done) = stream.split_at(stream.len() - DONE.len());
            prop_assert_eq!(done, DONE);
            let chunks = values(events);
            let (last, chunks) = chunks.split_last().unwrap();
            prop_assert_eq!(&last["usage"]["explanations"][0], &json!(b));
            for chunk in chunks {
                prop_assert_eq!((&chunk["id"], &chunk["model"]), (&json!(c), &json!(d)));
            }
            let stop = chunks.last().unwrap();
            prop_assert_eq!(&stop["choices"][0]["stop_reason"], &json!(d));
            for index in [0, 1] {
                prop_assert_eq!(&joined(chunks, index, "/logprobs/content/0/token"), a);
                if endpoint == Endpoint::Completions {
                    prop_assert_eq!(&joined(chunks, index, "/text"), a);
                    continue;
                }
                prop_assert_eq!(&joined(chunks, index, "/delta/content"), a);
                prop_assert_eq!(&joined(chunks, index, "/delta/reasoning_content"), b);
                prop_assert_eq!(&joined(chunks, index, "/delta/tool_calls/0/id"), a);
                prop_assert_eq!(&joined(chunks, index, "/delta/tool_calls/0/function/name"), b);
                prop_assert_eq!(&joined(chunks, index, "/delta/tool_calls/0/function/arguments"), c);
                prop_assert_eq!(&joined(chunks, index, "/delta/tool_calls/1/function/arguments"), d);
            }
        }
    }

    #[test]
    fn a_failure_reads_back(message in any_text()) {
        let mut out = Vec::new();
        push_failure(&mut out, &serde_json::to_vec_pretty(&json!({"error": {"message": message}})).unwrap());
        let data = data(&out);
        prop_assert_eq!(data.len(), 2);
        let error: Value = serde_json::from_str(data[0]).unwrap();
        prop_assert_eq!(&error["error"]["message"], &json!(message));
        prop_assert_eq!(data[1], "[DONE]");
    }
}

#[test]
fn every_character_reads_back() {
    for first in ['\0', '\u{e000}'] {
        let last = if first == '\0' { '\u{d7ff}' } else { char::MAX };
        let text: String = (first..=last).collect();
        let mut out = Vec::new();
        let delta = Delta {
            text: &text,
            ..Delta::default()
        };
        let identity = named("id", "model");
        let mut chunks = Chunks::new(Endpoint::Completions, &identity, View::default(), 1);
        chunks.push(0, &delta, None, &mut out);
        let values = values(&out);
        assert!(values.len() == 1 && values[0]["choices"][0]["text"] == text);
    }
}

fn choices_of(endpoint: Endpoint, delta: &Delta<'_>, finish: Option<&Finish<'_>>) -> Vec<Value> {
    let mut out = Vec::new();
    let mut chunks = Chunks::new(endpoint, &named("id", "model"), View::default(), 1);
    chunks.push(0, delta, finish, &mut out);
    let choices = values(&out)
        .into_iter()
        .map(|mut chunk| chunk["choices"][0].take());
    choices.collect()
}

#[test]
fn logprobs_go_with_the_first_chunk_and_make_one_where_there_is_none() {
    let finish = Finish {
        reason: "length",
        stop: None,
        cached_tokens: 0,
    };
    let logprobs: Option<&[u8]> = Some(br#"{"content":[1]}"#);
    let text = Delta {
        text: "a",
        logprobs,
        ..Delta::default()
    };
    let nothing = Delta {
        logprobs,
        ..Delta::default()
    };
    for (endpoint, delta, finish, expected) in [
        // After the chunk with the role.
        (Endpoint::Chat, &text, None, &[false, true][..]),
        (Endpoint::Chat, &nothing, None, &[false, true]),
        (Endpoint::Chat, &text, Some(&finish), &[false, true, false]),
        (Endpoint::Chat, &nothing, Some(&finish), &[false, true]),
        (Endpoint::Completions, &text, None, &[true]),
        (Endpoint::Completions, &nothing, None, &[true]),
        (Endpoint::Completions, &text, Some(&finish), &[true]),
    ] {
        let choices = choices_of(endpoint, delta, finish);
        let with: Vec<bool> = choices
            .iter()
            .map(|choice| choice["logprobs"] == json!({"content": [1]}))
            .collect();
        assert_eq!(with, expected, "{endpoint:?} {choices:?}");
    }
}

#[test]
fn a_delta_without_anything_to_show_makes_no_chunk() {
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        let held_back = Delta {
            token_ids: &[5],
            // Not asked for by the default view.
            reasoning: "thought",
            ..Delta::default()
        };
        assert_eq!(
            choices_of(endpoint, &held_back, None),
            Vec::<Value>::new(),
            "{endpoint:?}"
        );
    }
}

#[test]
fn all_roles_come_first_and_in_order_whichever_choice_speaks_first() {
    let mut chunks = all(Endpoint::Chat, &named("id", "model"));
    chunks.accept(0..2, 3, None);
    let mut out = Vec::new();
    let delta = Delta {
        text: "a",
        ..Delta::default()
    };
    chunks.push(1, &delta, None, &mut out);
    chunks.push(0, &delta, None, &mut out);
    let seen: Vec<(u64, bool)> = values(&out)
        .iter()
        .map(|chunk| &chunk["choices"][0])
        .map(|choice| {
            (
                choice["index"].as_u64().unwrap(),
                choice["delta"]["role"] == "assistant",
            )
        })
        .collect();
    assert_eq!(seen, [(0, true), (1, true), (1, false), (0, false)]);
}

#[test]
fn a_comment_is_an_event_without_data() {
    let text = std::str::from_utf8(KEEP_ALIVE).unwrap();
    assert_eq!(loose_lines(text), [": keep-alive", "", ""]);
}

#[test]
fn the_two_thousandth_forced_replacement_is_the_work_of_the_first() {
    let table = table();
    let mut text = TextStream::new(table, StreamOptions::default(), &[]).unwrap();
    let mut chunks = Chunks::new(Endpoint::Chat, &named("id", "model"), View::default(), 1);
    let sizes: Vec<(usize, usize)> = (0..2_000)
        .map(|_| {
            let (mut delta, mut out) = (String::new(), Vec::new());
            text.push(0x80, &mut delta);
            let new = Delta {
                text: &delta,
                token_ids: &[0x80],
                ..Delta::default()
            };
            chunks.push(0, &new, None, &mut out);
            assert_eq!(delta, "\u{FFFD}");
            (out.len(), text.pending().len())
        })
        .collect();
    // The first event has the role before it.
    assert!(
        sizes[1..]
            .iter()
            .all(|size| *size == sizes[1] && size.1 == 0),
        "{sizes:?}"
    );
    assert!(sizes[0].0 > sizes[1].0);
}
