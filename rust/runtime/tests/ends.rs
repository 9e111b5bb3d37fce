//! How an output ends: text, ids, usage, reason and what stays cached agree at one token.

mod common;

use common::{EOS, Rig, bytes_as_ids};
use diptych_runtime::{FinishReason, Prompt};
use serde_json::json;

fn saying(ids: &[u32], limits: serde_json::Value) -> Rig {
    Rig::new("scripted_thread", json!({"script": [ids]}), limits)
}

#[test]
fn a_stop_string_completed_by_the_last_token_allowed_is_a_stop() {
    let mut rig = saying(&bytes_as_ids("ten tokens"), json!({}));
    for (stop, reason, text) in [
        ("en", FinishReason::Stop, "t"),
        ("n", FinishReason::Stop, "te"),
        ("n ", FinishReason::Length, "ten"),
    ] {
        let asked = json!({"max_tokens": 3, "stop": [stop]});
        let answer = rig.one(Prompt::Tokens(vec![1]), asked);
        assert_eq!(answer.text, text);
        assert_eq!(answer.ids, bytes_as_ids("ten"));
        let finished = answer.finished();
        assert_eq!((finished.reason, finished.completion_tokens), (reason, 3));
    }
    // The replacement of a character that the limit cuts can complete one, too.
    let mut rig = saying(&[0x61, 0xE2, 0x82], json!({}));
    let asked = json!({"max_tokens": 3, "stop": ["a\u{FFFD}"]});
    let answer = rig.one(Prompt::Tokens(vec![1]), asked);
    assert_eq!(answer.text, "");
    assert_eq!(answer.finished().reason, FinishReason::Stop);
}

#[test]
fn blocks_past_a_stop_string_are_never_cached() {
    let said = bytes_as_ids("a text of some length, stop, which goes on and on and on");
    for depth in 0..=2 {
        let mut rig = saying(&said, json!({"overlap_depth": depth}));
        let asked = json!({"max_tokens": 200, "stop": ["stop,"]});
        let answer = rig.one(Prompt::Tokens(vec![1]), asked);
        assert_eq!(answer.text, "a text of some length, ");
        assert_eq!(answer.ids, bytes_as_ids("a text of some length, stop,"));
        rig.assert_idle();
        // The prompt, and 28 tokens, the last of which was never computed: seven blocks of four.
        let longer = [vec![1], said.clone()].concat();
        let again = rig.one(Prompt::Tokens(longer), json!({"max_tokens": 1}));
        assert_eq!(again.finished().cached_tokens, 28, "depth {depth}");
    }
}

#[test]
fn nothing_ends_an_output_before_min_tokens() {
    let mut rig = saying(
        &[&bytes_as_ids("ab")[..], &[EOS], &bytes_as_ids("cab")].concat(),
        json!({}),
    );
    let mut told = |changes: serde_json::Value| {
        let answer = rig.one(Prompt::Tokens(vec![1]), changes);
        let finished = answer.finished();
        let tokens = finished.completion_tokens;
        (answer.text.clone(), tokens, finished.stop_token)
    };
    assert_eq!(told(json!({"min_tokens": 2})), ("ab".to_owned(), 3, None));
    // A script gives the id nevertheless: it ends nothing, and is a special token like others.
    assert_eq!(
        told(json!({"min_tokens": 3})),
        ("abcab".to_owned(), 7, None)
    );
    let stop = json!({"min_tokens": 3, "stop": ["ab"]});
    assert_eq!(told(stop), ("abc".to_owned(), 6, None));
    let id = json!({"min_tokens": 2, "stop_token_ids": [98], "ignore_eos": true});
    assert_eq!(told(id), ("abca".to_owned(), 6, Some(98)));
    let most = json!({"min_tokens": 4, "max_tokens": 4});
    assert_eq!(told(most), ("abc".to_owned(), 4, None));
}
