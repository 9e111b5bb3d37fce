//! The whole path from prompt to text on a scripted worker thread.

mod common;

use common::{EOS, Rig, SPECIAL, bytes_as_ids, expected, text_of};
use diptych_runtime::{FailureKind, FinishReason, Prompt};
use serde_json::json;

fn rig() -> Rig {
    Rig::new("scripted_thread", json!({}), json!({}))
}

#[test]
fn streams_are_exact_under_preemption_chunking_and_prefix_sharing() {
    let mut rig = Rig::new(
        "scripted_thread",
        json!({"num_blocks": 40}),
        json!({
            "max_batched_tokens": 24, "max_running": 8, "max_prefill_tokens": 16, "admission": "whole_prompt"
        }),
    );
    let shared = bytes_as_ids("one prefix of several blocks");
    let prompts: Vec<Vec<u32>> = (0..40_u32)
        .map(|index| {
            let mut prompt = shared[..(index as usize * 5) % shared.len()].to_vec();
            prompt.extend((0..=index % 7).map(|tail| (index + tail) % 250));
            prompt
        })
        .collect();
    let requests: Vec<u64> = prompts.iter().map(|prompt| rig.ids(prompt, 50)).collect();
    rig.finish(&requests);
    for (request, prompt) in requests.iter().zip(&prompts) {
        let answer = &rig.answers[request];
        let ids = expected(prompt, 50);
        assert_eq!(answer.ids, ids, "request {request}");
        assert_eq!(answer.text, text_of(&ids));
        let finished = answer.finished();
        assert_eq!(finished.reason, FinishReason::Length);
        assert_eq!(finished.completion_tokens, 50);
        assert_eq!(finished.prompt_tokens as usize, prompt.len());
        let times = finished.timings;
        assert!(times.arrived <= times.tokenised && times.tokenised <= times.admitted);
        assert!(times.admitted <= times.first_token && times.first_token <= times.finished);
    }
    let stats = rig.stats();
    assert!(stats["preemptions"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats["generation_tokens"], 40 * 50);
    assert_eq!(stats["requests_total"], json!({"length": 40}));
    rig.assert_idle();
}

#[test]
fn steps_that_overlap_give_the_same_streams() {
    for depth in [1, 2] {
        let mut rig = Rig::new(
            "scripted_thread",
            json!({"num_blocks": 40}),
            json!({"max_batched_tokens": 24, "max_running": 8, "overlap_depth": depth}),
        );
        let prompts: Vec<Vec<u32>> = (0..20_u32).map(|index| vec![index % 5; 9]).collect();
        let requests: Vec<u64> = prompts.iter().map(|prompt| rig.ids(prompt, 40)).collect();
        let stopped = rig.submit(
            Prompt::Tokens(vec![0; 9]),
            json!({"max_tokens": 40, "stop_token_ids": [expected(&[0; 9], 8)[7]]}),
        );
        let searched = rig.submit(
            Prompt::Tokens(vec![1; 9]),
            json!({"max_tokens": 40, "stop": ["nothing of the kind"]}),
        );
        let penalised = rig.submit(
            Prompt::Tokens(vec![2; 9]),
            json!({"max_tokens": 40, "repetition_penalty": 1.5}),
        );
        rig.finish(&requests);
        rig.finish(&[stopped, searched, penalised]);
        assert_eq!(rig.answers[&searched].ids, expected(&[1; 9], 40));
        assert_eq!(rig.answers[&penalised].ids, expected(&[2; 9], 40));
        assert!(rig.stats()["steps_ahead"].as_u64() > Some(0));
        for (request, prompt) in requests.iter().zip(&prompts) {
            assert_eq!(
                rig.answers[request].ids,
                expected(prompt, 40),
                "depth {depth}"
            );
        }
        assert_eq!(rig.answers[&stopped].finished().reason, FinishReason::Stop);
        rig.assert_idle();
    }
}

/// A script that ends early: the step that was launched over the end is computed in vain, once.
#[test]
fn a_row_that_ends_in_flight_costs_one_step_and_nothing_else() {
    for depth in 0..=2_u64 {
        let mut rig = Rig::new(
            "scripted_thread",
            json!({"script": [bytes_as_ids("ten tokens")], "step_ms": 1.0}),
            json!({"overlap_depth": depth}),
        );
        let answer = rig.one(Prompt::Tokens(vec![1]), json!({"max_tokens": 40}));
        assert_eq!(answer.text, "ten tokens");
        assert_eq!(answer.finished().completion_tokens, 11);
        rig.assert_idle();
        assert_eq!(rig.stats()["steps"], 11 + depth, "depth {depth}");
        assert_eq!(rig.stats()["generation_tokens"], 11);
        let again = rig.one(Prompt::Tokens(vec![1]), json!({"max_tokens": 40}));
        assert_eq!(again.text, "ten tokens");
    }
}

#[test]
fn a_slow_reader_gets_one_frame_per_request_and_loses_nothing() {
    let mut rig = rig();
    let requests: Vec<u64> = (0..8).map(|index| rig.ids(&[index, 7], 100)).collect();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while rig.stats()["open_requests"] != 0 {
        assert!(std::time::Instant::now() < deadline, "{}", rig.stats());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    rig.finish(&requests);
    for (index, request) in (0_u32..).zip(&requests) {
        let answer = &rig.answers[request];
        assert_eq!(answer.frames, 1);
        assert!(answer.accepted.is_some());
        assert_eq!(answer.ids, expected(&[index, 7], 100));
    }
}

#[test]
fn a_stop_string_cuts_text_ids_reason_and_usage_at_one_token() {
    let script = json!({"script": [bytes_as_ids("hello wonderful world")]});
    let mut rig = Rig::new("scripted_thread", script, json!({}));
    let stop = json!({"stop": ["never", "derf"], "max_tokens": 30});
    let answer = rig.one(Prompt::Text("hi".to_owned()), stop);
    assert_eq!(answer.text, "hello won");
    assert_eq!(answer.ids, bytes_as_ids("hello wonderf"));
    let finished = answer.finished();
    assert_eq!(finished.reason, FinishReason::Stop);
    assert_eq!(finished.stop_string.as_deref(), Some("derf"));
    assert_eq!(finished.completion_tokens, 13);
    let with = json!({"stop": ["derf"], "max_tokens": 30, "include_stop_str_in_output": true});
    let answer = rig.one(Prompt::Text("hi".to_owned()), with);
    assert_eq!(answer.text, "hello wonderf");
    rig.assert_idle();
}

#[test]
fn held_back_text_is_flushed_at_the_end_of_the_sequence() {
    let script = json!({"script": [bytes_as_ids("a b")]});
    let mut rig = Rig::new("scripted_thread", script, json!({}));
    let answer = rig.one(Prompt::Text("hi".to_owned()), json!({"stop": ["bx"]}));
    assert_eq!(answer.text, "a b");
    assert_eq!(answer.ids, [bytes_as_ids("a b"), vec![EOS]].concat());
    let finished = answer.finished();
    assert_eq!(finished.reason, FinishReason::Stop);
    assert_eq!((finished.stop_token, finished.completion_tokens), (None, 4));
}

#[test]
fn stop_ids_count_but_give_no_text_and_special_tokens_show_on_request() {
    let script = json!({"script": [[104, SPECIAL, 105, 33, 34]]});
    let mut rig = Rig::new("scripted_thread", script, json!({}));
    let answer = rig.one(Prompt::Tokens(vec![1]), json!({"stop_token_ids": [33]}));
    assert_eq!(answer.text, "hi");
    assert_eq!(answer.ids, [104, SPECIAL, 105, 33]);
    assert_eq!(answer.finished().stop_token, Some(33));
    let shown = json!({"max_tokens": 3, "skip_special_tokens": false});
    let answer = rig.one(Prompt::Tokens(vec![1]), shown);
    assert_eq!(answer.text, "h<|mark|>i");
    let on = json!({"ignore_eos": true, "max_tokens": 9});
    let answer = rig.one(Prompt::Tokens(vec![1]), on);
    assert_eq!(answer.ids.len(), 9);
    assert_eq!(answer.finished().reason, FinishReason::Length);
}

#[test]
fn one_output_token_is_delivered_and_null_takes_what_remains() {
    let mut rig = rig();
    let answer = rig.one(Prompt::Tokens(vec![5, 6]), json!({"max_tokens": 1}));
    assert_eq!(answer.ids, expected(&[5, 6], 1));
    let answer = rig.one(Prompt::Tokens(vec![5, 6]), json!({"max_tokens": null}));
    assert_eq!(answer.ids, expected(&[5, 6], 254));
}

#[test]
fn prompts_that_cannot_run_fail_alone_with_the_arithmetic() {
    let mut rig = Rig::new(
        "scripted_thread",
        json!({"num_blocks": 11}),
        json!({"max_model_len": 100}),
    );
    let cases = [
        (vec![], 4, FailureKind::InvalidPrompt),
        (vec![1, 258], 4, FailureKind::InvalidPrompt),
        (vec![1; 100], 4, FailureKind::ContextLength),
        (vec![1; 30], 60, FailureKind::NeverFits),
    ];
    let good = rig.ids(&[9, 9], 20);
    for (prompt, max_tokens, kind) in cases {
        let answer = rig.one(Prompt::Tokens(prompt), json!({"max_tokens": max_tokens}));
        assert_eq!(answer.failed().kind, kind, "{}", answer.failed().message);
        assert!(answer.accepted.is_none());
    }
    let answer = rig.one(Prompt::Tokens(vec![1; 99]), json!({"max_tokens": 2}));
    let failure = answer.failed();
    let maximum = "This model's maximum context length is 100 tokens";
    assert!(failure.message.contains(maximum), "{}", failure.message);
    let numbers = json!({"prompt_tokens": 99, "max_tokens": 2, "max_model_len": 100});
    assert_eq!(serde_json::Value::Object(failure.details.clone()), numbers);
    rig.finish(&[good]);
    assert_eq!(rig.answers[&good].ids, expected(&[9, 9], 20));
    rig.assert_idle();
}

#[test]
fn at_least_more_tokens_than_the_context_leaves_are_refused() {
    let mut rig = rig();
    let asked = |least: u32| json!({"max_tokens": null, "min_tokens": least});
    let answer = rig.one(Prompt::Tokens(vec![5; 6]), asked(251));
    let failure = answer.failed();
    assert_eq!(failure.kind, FailureKind::InvalidParameter);
    assert!(
        failure.message.starts_with("min_tokens is 251"),
        "{}",
        failure.message
    );
    assert_eq!(
        rig.one(Prompt::Tokens(vec![5; 6]), asked(250)).ids.len(),
        250
    );
    let answer = rig.one(Prompt::Tokens(vec![5; 256]), asked(1));
    assert_eq!(answer.failed().kind, FailureKind::ContextLength);
}

#[test]
fn a_huge_prompt_is_refused_before_it_is_tokenised() {
    let mut rig = rig();
    let huge = "x".repeat(25_000_000);
    let answer = rig.one(Prompt::Text(huge.clone()), json!({}));
    let failure = answer.failed();
    assert_eq!(failure.kind, FailureKind::ContextLength);
    assert!(
        failure.message.contains("maximum context length is 256"),
        "{}",
        failure.message
    );
    assert_eq!(failure.details["prompt_bytes"], 25_000_000);
    let chat = json!({"messages": [{"role": "user", "content": huge}]}).to_string();
    let answer = rig.one(Prompt::Chat(chat), json!({}));
    assert_eq!(answer.failed().kind, FailureKind::ContextLength);
}

#[test]
fn chats_are_rendered_and_bad_ones_refused() {
    let mut rig = rig();
    let chat = json!({"messages": [{"role": "user", "content": "hé"}]}).to_string();
    let answer = rig.one(Prompt::Chat(chat), json!({"return_prompt_ids": true}));
    let accepted = answer.accepted.as_ref().unwrap();
    let prompt = bytes_as_ids("user:hé;");
    assert_eq!(accepted.prompt_tokens as usize, prompt.len());
    assert_eq!(accepted.prompt_ids.as_ref(), Some(&prompt));
    assert_eq!(answer.ids, expected(&prompt, 16));
    let answer = rig.one(Prompt::Chat("{}".to_owned()), json!({}));
    assert_eq!(answer.failed().kind, FailureKind::InvalidPrompt);
}

#[test]
fn cached_tokens_are_reported_and_at_least_one_token_is_computed() {
    let mut rig = rig();
    let prompt = bytes_as_ids("twelve bytes");
    assert_eq!(
        rig.one(Prompt::Tokens(prompt.clone()), json!({}))
            .finished()
            .cached_tokens,
        0
    );
    let again = rig.one(Prompt::Tokens(prompt.clone()), json!({}));
    assert_eq!(again.finished().cached_tokens, 8);
    assert_eq!(again.ids, expected(&prompt, 16));
}

#[test]
fn too_many_open_requests_are_refused_and_the_rest_completes() {
    let mut rig = Rig::new(
        "scripted_thread",
        json!({"step_ms": 2.0}),
        json!({"max_running": 4, "max_queued_requests": 8}),
    );
    let requests: Vec<u64> = (0..100).map(|index| rig.ids(&[index, 1], 20)).collect();
    rig.finish(&requests);
    let refused = requests
        .iter()
        .filter(|request| {
            matches!(&rig.answers[request].done, Some(diptych_runtime::Done::Failed(failure))
                if failure.kind == FailureKind::QueueFull)
        })
        .count();
    assert_eq!(refused, 88);
    let answer = rig.one(Prompt::Tokens(vec![3]), json!({}));
    assert_eq!(answer.ids, expected(&[3], 16));
}

#[test]
fn an_abort_storm_leaves_no_block_in_use() {
    for depth in 0..=2 {
        no_block_is_in_use_after_an_abort_storm(depth);
    }
}

fn no_block_is_in_use_after_an_abort_storm(depth: u8) {
    let mut rig = Rig::new(
        "scripted_thread",
        json!({"num_blocks": 60}),
        json!({"max_running": 6, "overlap_depth": depth}),
    );
    let mut kept = Vec::new();
    for index in 0..300_u32 {
        let prompt = vec![index % 256, index / 256, 1, 2, 3];
        let request = if index % 3 == 0 {
            rig.ids(&prompt, 40)
        } else {
            let text = text_of(&[65 + index % 26; 20]);
            rig.submit(
                Prompt::Text(text),
                json!({"max_tokens": 40, "stop": ["zzzz"]}),
            )
        };
        if index % 10 == 0 {
            kept.push((request, prompt));
        } else {
            if index % 2 == 0 {
                rig.pump();
            }
            rig.engine.abort(request).unwrap();
        }
    }
    rig.engine.abort(1_000_000).unwrap();
    rig.pump_until("storm", |rig| rig.answers.len() == 300);
    rig.assert_idle();
    assert!(rig.answers.values().all(|answer| answer.done.is_some()));
    for (request, prompt) in kept.iter().filter(|(request, _)| request % 3 == 0) {
        assert_eq!(rig.answers[request].ids, expected(prompt, 40));
    }
    let stats = rig.stats();
    let ended: u64 = stats["requests_total"]
        .as_object()
        .unwrap()
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(ended, 300, "{stats}");
}

#[test]
fn closing_a_queue_aborts_its_requests_and_no_others() {
    let mut rig = Rig::new("scripted_thread", json!({"step_ms": 1.0}), json!({}));
    let other = rig.engine.frame_queue().unwrap();
    let params = common::params(json!({"max_tokens": 250})).to_string();
    for _ in 0..5 {
        let prompt = Prompt::Tokens(vec![1, 2]);
        rig.engine
            .submit(&other, prompt, params.as_bytes(), 0)
            .unwrap();
    }
    let mine = rig.ids(&[4, 4], 60);
    assert!(other.wait(std::time::Duration::from_secs(5)).unwrap());
    other.close();
    rig.finish(&[mine]);
    assert_eq!(rig.answers[&mine].ids, expected(&[4, 4], 60));
    rig.assert_idle();
    let mut frames = Vec::new();
    other.drain(&mut frames).unwrap();
    assert!(frames.is_empty());
    assert_eq!(rig.stats()["requests_total"]["abort"], 5);
}

#[test]
fn histograms_count_every_token_gap_and_request() {
    let mut rig = rig();
    let requests: Vec<u64> = (0..5).map(|index| rig.ids(&[index], 10)).collect();
    rig.finish(&requests);
    let stats = rig.stats();
    let count = |name: &str| {
        let histogram = &stats["histograms"][name];
        let counts = histogram["counts"].as_array().unwrap();
        assert_eq!(
            counts.len(),
            histogram["buckets"].as_array().unwrap().len() + 1
        );
        counts
            .iter()
            .map(|count| count.as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(count("time_to_first_token"), 5);
    assert_eq!(count("inter_token_latency"), 45);
    assert_eq!(count("e2e_request_latency"), 5);
    assert_eq!(count("queue_time"), 5);
    assert!(count("step_gap") >= 8);
}

#[test]
fn the_worker_describes_itself_between_steps() {
    let mut rig = rig();
    rig.one(Prompt::Tokens(vec![1]), json!({}));
    let stats = rig.engine.worker_stats().unwrap();
    let stats: serde_json::Value = rmp_serde::from_slice(&stats).unwrap();
    assert_eq!(stats["steps"], 16);
}
