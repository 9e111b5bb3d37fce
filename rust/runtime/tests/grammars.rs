//! Outputs that follow grammars, and what a hung, slow, hostile or aborted grammar does to others: nothing.

mod common;

use std::time::Instant;

use common::{EOS, ModelFolder, Rig, bytes_as_ids, expected, options};
use diptych_runtime::{FailureKind, FinishReason, Prompt};
use serde_json::{Value, json};

const CODE: &str = "[a-f]{4}-(12|345)é";

fn regex(text: &str) -> Value {
    json!({"grammar": {"field": "guided_regex", "regex": text}})
}

fn is_code(text: &str) -> bool {
    let (word, rest) = text.split_at(4);
    word.chars().all(|letter| ('a'..='f').contains(&letter)) && ["-12é", "-345é"].contains(&rest)
}

fn prompt(number: u32) -> Prompt {
    Prompt::Tokens(vec![number % 200, 7, 9])
}

/// An engine on a scripted thread with a deliberate fault of the host.
fn faulty(fault: Value, limits: Value) -> Rig {
    let folder = ModelFolder::new();
    let mut options = options(&folder, "scripted_thread", json!({}), limits);
    options["test_faults"] = fault;
    Rig::with(folder, &options)
}

#[test]
fn constrained_outputs_follow_their_grammars_and_free_ones_are_what_they_were() {
    for depth in [0, 1, 2] {
        let mut rig = Rig::new(
            "scripted_thread",
            json!({}),
            json!({"overlap_depth": depth}),
        );
        let constrained: Vec<u64> = (0..12)
            .map(|n| rig.submit(prompt(n), regex(CODE)))
            .collect();
        let free: Vec<u64> = (0..12).map(|n| rig.ids(&[n, 3, 5], 30)).collect();
        rig.finish(&constrained);
        rig.finish(&free);
        for request in &constrained {
            let answer = &rig.answers[request];
            assert!(is_code(&answer.text), "{:?}", answer.text);
            assert_eq!(answer.finished().reason, FinishReason::Stop);
            assert_eq!(answer.ids.last(), Some(&EOS));
        }
        for (n, request) in (0..).zip(&free) {
            assert_eq!(rig.answers[request].ids, expected(&[n, 3, 5], 30));
        }
        rig.assert_idle();
    }
}

#[test]
fn every_kind_of_grammar_is_followed() {
    let mut rig = Rig::new("scripted_thread", json!({}), json!({}));
    let mut told = |source: Value| {
        let mut grammar = json!({"field": "structured_outputs"});
        common::merge(&mut grammar, source);
        let answer = rig.one(prompt(1), json!({"grammar": grammar, "max_tokens": 200}));
        (answer.text.clone(), answer.finished().reason)
    };
    let stop = FinishReason::Stop;
    assert_eq!(told(json!({"choice": ["yés"]})), ("yés".to_owned(), stop));
    assert_eq!(
        told(json!({"grammar": "start: \"x\" \"y\""})),
        ("xy".to_owned(), stop)
    );
    let schema = r#"{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                     "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}"#;
    let (text, reason) = told(json!({"json_schema": schema}));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(
        value == json!({"a": 1}) || value == json!({"a": 2}),
        "{text}"
    );
    assert_eq!(reason, stop);
    let (text, reason) = told(json!({"json_object": true}));
    assert!(text.starts_with('{'), "{text}");
    if reason == stop {
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object());
    }
}

#[test]
fn each_choice_follows_the_grammar_by_itself() {
    let mut rig = Rig::new("scripted_thread", json!({}), json!({}));
    let mut asked = regex("[a-z]{9}");
    common::merge(&mut asked, json!({"n": 3}));
    let request = rig.submit(prompt(2), asked);
    let mut texts: Vec<String> = vec![String::new(); 3];
    let mut done = 0;
    while done < 3 {
        let mut frames = Vec::new();
        rig.queue
            .wait(std::time::Duration::from_millis(20))
            .unwrap();
        rig.queue.drain(&mut frames).unwrap();
        for frame in frames.into_iter().filter(|frame| frame.request == request) {
            texts[frame.choice as usize].push_str(&frame.text);
            done += usize::from(frame.done.is_some());
        }
    }
    for text in &texts {
        assert_eq!(text.len(), 9, "{texts:?}");
        assert!(text.bytes().all(|byte| byte.is_ascii_lowercase()));
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    rig.assert_idle();
}

#[test]
fn outputs_are_the_same_after_the_worker_died_and_under_preemption() {
    let run = |worker: Value, limits: Value| {
        let mut rig = Rig::new("scripted", worker, limits);
        let requests: Vec<u64> = (0..8)
            .map(|n| {
                let mut asked = regex("[a-z]{40}");
                common::merge(&mut asked, json!({"max_tokens": 60}));
                rig.submit(prompt(n), asked)
            })
            .collect();
        rig.finish(&requests);
        let preempted = requests
            .iter()
            .map(|request| rig.answers[request].finished().preemptions);
        let preempted: u32 = preempted.sum();
        let texts: Vec<String> = requests
            .iter()
            .map(|request| rig.answers[request].text.clone())
            .collect();
        (texts, rig.stats()["worker_restarts"].as_u64(), preempted)
    };
    let (calm, restarts, preempted) = run(json!({}), json!({}));
    assert_eq!((restarts, preempted), (Some(0), 0));
    let (after_death, restarts, _) = run(json!({"faults": {"die_step": 9}}), json!({}));
    assert_eq!(restarts, Some(1));
    assert_eq!(after_death, calm);
    let small = json!({"admission": "whole_prompt", "max_model_len": 64});
    let slowly = json!({"num_blocks": 40, "step_ms": 2.0});
    let (preempting, _, preempted) = run(slowly, small);
    assert!(preempted > 0);
    assert_eq!(preempting, calm);
}

#[test]
fn ends_are_those_of_the_grammar_the_client_and_the_limit() {
    let mut rig = Rig::new("scripted_thread", json!({}), json!({}));
    let mut told = |text: &str, changes: Value| {
        let mut asked = regex(text);
        common::merge(&mut asked, changes);
        let answer = rig.one(prompt(3), asked);
        (answer.text.clone(), answer.finished().reason)
    };
    let (text, reason) = told("a{3}b?", json!({"max_tokens": 2}));
    assert_eq!((text.as_str(), reason), ("aa", FinishReason::Length));
    let (text, reason) = told("a{3}", json!({"stop": ["aa"]}));
    assert_eq!((text.as_str(), reason), ("", FinishReason::Stop));
    // The end is in every mask from the first on, and the worker prefers it.
    let (text, _) = told("a{0,12}", json!({"min_tokens": 5, "logit_bias": []}));
    assert!(text.len() >= 5, "{text}");
    // Nothing but the end is left: it comes before min_tokens.
    let (text, reason) = told("a{3}", json!({"min_tokens": 9}));
    assert_eq!((text.as_str(), reason), ("aaa", FinishReason::Stop));
}

#[test]
fn a_bad_grammar_is_refused_for_its_request_alone_naming_field_and_reason() {
    let mut rig = Rig::new("scripted_thread", json!({}), json!({}));
    let bad =
        json!({"grammar": {"field": "response_format", "json_schema": "{\"type\": \"objekt\"}"}});
    let requests = [
        rig.submit(prompt(1), regex("(")),
        rig.submit(prompt(1), bad),
        rig.submit(prompt(1), regex("(")),
        rig.submit(prompt(1), regex("ok")),
    ];
    rig.finish(&requests);
    for (request, field, wanted) in [
        (requests[0], "guided_regex", "unclosed"),
        (requests[1], "response_format", "objekt"),
        // From what is kept of the first.
        (requests[2], "guided_regex", "unclosed"),
    ] {
        let failure = rig.answers[&request].failed();
        assert_eq!(failure.kind, FailureKind::InvalidGrammar);
        assert!(failure.message.starts_with(field), "{}", failure.message);
        assert!(failure.message.contains(wanted), "{}", failure.message);
        assert_eq!(failure.details["param"], field);
    }
    assert_eq!(rig.answers[&requests[3]].text, "ok");
    rig.assert_idle();
}

#[test]
fn a_request_whose_masks_never_come_holds_nobody_back() {
    for depth in [0, 1] {
        let mut rig = faulty(
            json!({"withhold_masks_of": 0}),
            json!({"overlap_depth": depth}),
        );
        let hung = rig.submit(prompt(0), regex(CODE));
        let free: Vec<u64> = (0..6).map(|n| rig.ids(&[n, 3, 5], 100)).collect();
        let constrained: Vec<u64> = (1..4).map(|n| rig.submit(prompt(n), regex(CODE))).collect();
        rig.finish(&free);
        rig.finish(&constrained);
        for (n, request) in (0..).zip(&free) {
            assert_eq!(rig.answers[request].ids, expected(&[n, 3, 5], 100));
        }
        // It has one token, and was computed at most twice for the next.
        assert_eq!(rig.answers[&hung].ids.len(), 1);
        assert!(rig.answers[&hung].done.is_none());
        let steps = rig.stats()["steps"].as_u64();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(
            rig.stats()["steps"].as_u64(),
            steps,
            "nobody spins for a mask"
        );
        rig.engine.abort(hung).unwrap();
        rig.finish(&[hung]);
        assert!(rig.answers[&hung].is_abort());
        rig.assert_idle();
    }
}

#[test]
fn what_a_hung_grammar_holds_others_may_have() {
    for limits in [
        json!({"admission": "whole_prompt"}),
        json!({"max_running": 1}),
        json!({}),
    ] {
        let folder = ModelFolder::new();
        let tiny = json!({"num_blocks": 13});
        let mut limits = limits;
        common::merge(&mut limits, json!({"max_model_len": 48}));
        let mut options = options(&folder, "scripted_thread", tiny, limits);
        options["test_faults"] = json!({"withhold_masks_of": 0});
        let mut rig = Rig::with(folder, &options);
        let mut asked = regex("[a-z]{12}");
        common::merge(&mut asked, json!({"timeout": 6.0}));
        // More than half of the pool.
        let hung = rig.submit(Prompt::Tokens((0..30).collect()), asked);
        rig.pump_until("it does not begin", |rig| {
            let answer = rig.answers.get(&hung);
            answer.is_some_and(|answer| !answer.ids.is_empty())
        });
        let others: Vec<u64> = (0..6)
            .map(|n| rig.ids(&[n, 3, 5, 7, 9, 11, 13, 15], 30))
            .collect();
        rig.finish(&others);
        for (n, request) in (0..).zip(&others) {
            let ids = expected(&[n, 3, 5, 7, 9, 11, 13, 15], 30);
            assert_eq!(rig.answers[request].ids, ids);
        }
        let held_up = rig.answers.get(&hung).and_then(|it| it.done.as_ref());
        assert!(held_up.is_none(), "they waited for it: {held_up:?}");
        rig.finish(&[hung]);
        let reason = rig.answers[&hung].finished().reason;
        assert_eq!(reason, FinishReason::Timeout);
        rig.assert_idle();
    }
}

#[test]
fn a_mask_that_is_overdue_ends_its_request_and_no_other() {
    let folder = ModelFolder::new();
    let slowly = json!({"step_ms": 60.0});
    let mut options = options(&folder, "scripted_thread", slowly, json!({}));
    options["test_faults"] = json!({"withhold_masks_of": 0});
    let mut rig = Rig::with(folder, &options);
    let hung = rig.submit(prompt(0), regex(CODE));
    // It runs longer than the limit, and waits for many masks meanwhile.
    let mut long = regex("[a-z]{190}");
    common::merge(&mut long, json!({"max_tokens": 200}));
    let long = rig.submit(prompt(1), long);
    rig.finish(&[hung, long]);
    let failure = rig.answers[&hung].failed();
    assert_eq!(failure.kind, FailureKind::GrammarFailed);
    assert_eq!(failure.details["param"], "guided_regex");
    assert!(
        failure.message.contains("10 seconds"),
        "{}",
        failure.message
    );
    assert_eq!(rig.answers[&long].text.len(), 190);
    assert_eq!(rig.answers[&long].finished().reason, FinishReason::Stop);
    rig.assert_idle();
}

#[test]
fn a_slow_grammar_slows_itself_alone() {
    let mut rig = faulty(
        json!({"slow_masks": {"submission": 0, "ms": 300}}),
        json!({}),
    );
    let slow = rig.submit(prompt(0), regex(CODE));
    let quick: Vec<u64> = (1..9).map(|n| rig.submit(prompt(n), regex(CODE))).collect();
    let free = rig.ids(&[1, 2], 200);
    rig.finish(&quick);
    rig.finish(&[free]);
    assert!(
        rig.answers
            .get(&slow)
            .is_none_or(|answer| answer.done.is_none())
    );
    rig.finish(&[slow]);
    assert!(is_code(&rig.answers[&slow].text));
}

#[test]
fn a_grammar_that_compiles_for_ever_is_cut_off_and_answered() {
    let mut rig = faulty(
        json!({"slow_compile": {"submission": 0, "ms": 8000}}),
        json!({}),
    );
    let begun = Instant::now();
    let slow = rig.submit(prompt(0), regex("never"));
    let others = [rig.submit(prompt(1), regex(CODE)), rig.ids(&[1, 2], 200)];
    rig.finish(&others);
    assert!(begun.elapsed().as_secs() < 4, "others waited for it");
    assert!(!rig.answers.contains_key(&slow));
    rig.finish(&[slow]);
    let failure = rig.answers[&slow].failed();
    assert_eq!(failure.kind, FailureKind::InvalidGrammar);
    assert!(failure.message.contains("5 seconds"), "{}", failure.message);
    rig.assert_idle();
}

#[test]
fn a_request_that_is_aborted_while_its_grammar_is_compiled_ends_at_once() {
    let mut rig = faulty(
        json!({"slow_compile": {"submission": 0, "ms": 2000}}),
        json!({}),
    );
    let request = rig.submit(prompt(0), regex(CODE));
    let begun = Instant::now();
    rig.engine.abort(request).unwrap();
    rig.finish(&[request]);
    assert!(rig.answers[&request].is_abort());
    assert!(begun.elapsed().as_millis() < 1500);
    rig.assert_idle();
}

#[test]
fn a_worker_that_ignores_masks_fails_the_rows_that_have_them() {
    let worker = json!({"faults": {"ignore_masks": true}, "script": [bytes_as_ids("zzzz")]});
    let mut rig = Rig::new("scripted_thread", worker, json!({}));
    let free = rig.ids(&[1], 9);
    let constrained = rig.submit(prompt(1), regex(CODE));
    rig.finish(&[free, constrained]);
    assert_eq!(
        rig.answers[&constrained].failed().kind,
        FailureKind::BadToken
    );
    assert_eq!(rig.answers[&free].text, "zzzz");
    rig.assert_idle();
}

#[test]
fn ignore_eos_cannot_go_with_a_grammar() {
    let rig = Rig::new("scripted_thread", json!({}), json!({}));
    let mut asked = regex("a");
    common::merge(&mut asked, json!({"ignore_eos": true}));
    let params = common::params(asked).to_string();
    let error = rig
        .engine
        .submit(&rig.queue, prompt(1), params.as_bytes(), 0);
    assert!(error.unwrap_err().to_string().contains("guided_regex"));
}
