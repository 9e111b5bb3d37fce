//! A misbehaving worker, a misbehaving host.

mod common;

use common::{ModelFolder, Rig, expected, merge, options, start};
use diptych_runtime::{EngineError, FailureKind, Prompt};
use serde_json::{Value, json};

/// Steps in flight beyond the one that runs.
const DEPTHS: [u8; 3] = [0, 1, 2];

fn faulty(faults: &Value, depth: u8) -> Rig {
    let worker = json!({"faults": faults, "step_ms": 0.2});
    Rig::new("scripted_thread", worker, json!({"overlap_depth": depth}))
}

/// Steps were planned while another ran exactly where they may.
fn assert_ahead(rig: &Rig, depth: u8) {
    let stats = rig.stats();
    assert_eq!(stats["steps_ahead"] != 0, depth > 0, "{stats}");
}

fn six(rig: &Rig) -> Vec<(u64, Vec<u32>)> {
    (0..6_u32)
        .map(|index| {
            let prompt = vec![index, 3, 1, 4, 1, 5];
            (rig.ids(&prompt, 30), prompt)
        })
        .collect()
}

fn assert_exact(rig: &Rig, requests: &[(u64, Vec<u32>)]) {
    for (request, prompt) in requests {
        assert_eq!(rig.answers[request].ids, expected(prompt, 30), "{request}");
    }
}

#[test]
fn a_row_of_nan_or_an_impossible_id_fails_alone() {
    for depth in DEPTHS {
        rows_of_nan_and_an_impossible_id_fail_alone(depth);
    }
}

fn rows_of_nan_and_an_impossible_id_fail_alone(depth: u8) {
    let mut rig = faulty(&json!({"nan": [[2, 5]], "bad_id": [[4, 0]]}), depth);
    let mut requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    let (nan, bad) = (&rig.answers[&2], &rig.answers[&4]);
    assert_eq!(nan.failed().kind, FailureKind::NanLogits);
    assert_eq!(nan.ids, expected(&[2, 3, 1, 4, 1, 5], 5));
    assert_eq!(nan.failed().completion_tokens, 5);
    assert_eq!(bad.failed().kind, FailureKind::BadToken);
    assert!(bad.ids.is_empty());
    requests.retain(|(request, _)| *request != 2 && *request != 4);
    assert_exact(&rig, &requests);
    assert_eq!(rig.stats()["worker_restarts"], 0);
    assert_ahead(&rig, depth);
    rig.assert_idle();
}

#[test]
fn streams_go_on_after_garbage_an_exception_or_the_end_of_the_worker() {
    let faults = ["garbage_step", "raise_step", "die_step"];
    for (fault, depth) in faults
        .iter()
        .flat_map(|fault| DEPTHS.map(|depth| (*fault, depth)))
    {
        let mut rig = faulty(&json!({fault: 9}), depth);
        let requests = six(&rig);
        rig.finish(
            &requests
                .iter()
                .map(|(request, _)| *request)
                .collect::<Vec<_>>(),
        );
        assert_exact(&rig, &requests);
        let stats = rig.stats();
        assert_eq!(stats["worker_restarts"], 1, "{fault}: {stats}");
        assert_eq!(stats["epoch"], 2);
        assert!(
            stats["last_restart"]["ready_s"].as_f64().unwrap() >= 0.0,
            "{stats}"
        );
        let finished = rig.answers[&0].finished();
        let events: Vec<&str> = finished.events.iter().map(|(_, name)| *name).collect();
        assert_eq!(events, ["worker_restarted"], "{fault}");
        assert_ahead(&rig, depth);
        rig.assert_idle();
    }
}

#[test]
fn a_request_that_kills_its_worker_fails_alone() {
    for depth in DEPTHS {
        the_killer_fails_alone(depth);
    }
}

fn the_killer_fails_alone(depth: u8) {
    let mut rig = faulty(&json!({"die_at_submission": 3}), depth);
    let mut requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    let failure = rig.answers[&3].failed();
    assert_eq!(failure.kind, FailureKind::WorkerDied);
    assert!(failure.details["worker_error"].is_string());
    requests.remove(3);
    assert_exact(&rig, &requests);
    rig.assert_idle();
}

fn with_test_faults(faults: &Value, depth: u8) -> Rig {
    let folder = ModelFolder::new();
    let limits = json!({"overlap_depth": depth});
    let mut options = options(&folder, "scripted_thread", json!({}), limits);
    merge(&mut options, json!({"test_faults": faults}));
    Rig::with(folder, &options)
}

#[test]
fn a_panic_in_the_engine_fails_what_is_open_and_nothing_later() {
    for depth in DEPTHS {
        a_panic_fails_what_is_open(depth);
    }
}

fn a_panic_fails_what_is_open(depth: u8) {
    let mut rig = with_test_faults(&json!({"panic_at_step": 8}), depth);
    let requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    assert_eq!(rig.answers[&0].failed().kind, FailureKind::EnginePanicked);
    for (request, prompt) in &requests {
        // On a busy machine the last may come after the panic.
        let answer = &rig.answers[request];
        assert!(expected(prompt, 30).starts_with(&answer.ids));
        if answer.ids.len() < 30 {
            assert_eq!(answer.failed().kind, FailureKind::EnginePanicked);
        }
    }
    let later = six(&rig);
    rig.finish(
        &later
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    assert_exact(&rig, &later);
    let stats = rig.stats();
    assert_eq!(
        (&stats["epoch"], &stats["worker_restarts"]),
        (&json!(2), &json!(1))
    );
    rig.assert_idle();
}

#[test]
fn a_panic_over_one_submission_ends_that_request_too() {
    let mut rig = with_test_faults(&json!({"panic_at_submission": 2}), 1);
    let requests = six(&rig);
    let numbers: Vec<u64> = requests.iter().map(|(request, _)| *request).collect();
    rig.finish(&numbers);
    assert_eq!(rig.answers[&2].failed().kind, FailureKind::EnginePanicked);
    let later = six(&rig);
    let numbers: Vec<u64> = later.iter().map(|(request, _)| *request).collect();
    rig.finish(&numbers);
    assert_exact(&rig, &later);
    rig.assert_idle();
}

#[test]
fn a_panic_over_one_text_fails_that_request_alone() {
    let mut rig = with_test_faults(&json!({"panic_at_text_of": 1}), 1);
    let mut requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    assert_eq!(rig.answers[&1].failed().kind, FailureKind::EnginePanicked);
    requests.remove(1);
    assert_exact(&rig, &requests);
    rig.assert_idle();
}

#[test]
fn a_start_that_fails_says_why() {
    let folder = ModelFolder::new();
    let start_with =
        |kind: &str, worker: Value| start(&options(&folder, kind, worker, json!({}))).unwrap_err();
    let fails = json!({"faults": {"fail_start": "no weights here"}});
    for kind in ["scripted_thread", "scripted"] {
        let EngineError::Start { class, message } = start_with(kind, fails.clone()) else {
            panic!("another error");
        };
        assert_eq!(class, "ValueError");
        assert!(message.contains("no weights here"), "{message}");
    }
    let mut missing = options(&folder, "scripted", json!({}), json!({}));
    missing["worker"]["python"] = "/nowhere/python".into();
    let error = start(&missing).unwrap_err().to_string();
    assert!(error.contains("/nowhere/python"), "{error}");
    let mut silent = options(&folder, "scripted", json!({}), json!({}));
    silent["worker"]["python"] = "/bin/cat".into();
    let error = start(&silent).unwrap_err().to_string();
    assert!(
        error.contains("ended") || error.contains("closed"),
        "{error}"
    );
    let mut slow = options(&folder, "inline", json!({}), json!({}));
    slow["worker"]["start_timeout_s"] = json!(0.05);
    let error = start(&slow).unwrap().wait_ready().unwrap_err().to_string();
    assert!(error.contains("not ready after 50ms"), "{error}");
}

#[test]
fn options_that_contradict_each_other_are_refused_with_their_name() {
    let folder = ModelFolder::new();
    let cases = [
        (json!({"max_running": 65}), "max_running"),
        (json!({"block_size": 3}), "block_size"),
        (json!({"block_size": 0}), "block_size"),
        (json!({"max_batched_tokens": 0}), "max_batched_tokens"),
        (json!({"overlap_depth": 9}), "overlap_depth"),
        (json!({"surprise": 1}), "surprise"),
    ];
    for (limits, name) in cases {
        let options = options(&folder, "scripted_thread", json!({}), limits);
        let error = start(&options).unwrap_err();
        assert_eq!(error.kind(), "options", "{error}");
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
}

#[test]
fn a_pool_of_another_size_after_a_restart_fails_what_is_open() {
    let mut rig = faulty(&json!({"die_step": 4, "num_blocks_later": 300}), 1);
    let requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    let failure = rig.answers[&0].failed();
    assert_eq!(failure.kind, FailureKind::WorkerDied);
    let told = failure.message.split_once(", last: ");
    assert!(
        told.is_some_and(|(head, last)| head.ends_with("in a row: 1)")
            && last.contains("300 KV blocks")
            && last.contains("400")),
        "{}",
        failure.message
    );
    assert_eq!(rig.stats()["worker_alive"], false);
    let later = rig.one(Prompt::Tokens(vec![1]), json!({}));
    assert_eq!(later.failed().kind, FailureKind::WorkerDied);
}

#[test]
fn a_worker_that_cannot_be_started_again_fails_what_is_open_and_is_tried_further() {
    let folder = ModelFolder::new();
    let mut rig = Rig::with(
        folder,
        &options(
            &ModelFolder::new(),
            "scripted_thread",
            json!({"faults": {"die_step": 6, "fail_later": "the card is gone"}}),
            json!({}),
        ),
    );
    let began = std::time::Instant::now();
    let requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    let failure = rig.answers[&5].failed();
    assert_eq!(failure.kind, FailureKind::WorkerDied);
    assert!(
        failure.message.contains("in a row: 5)"),
        "{}",
        failure.message
    );
    assert!(
        failure.message.contains("the card is gone"),
        "{}",
        failure.message
    );
    // At once, then after 0.1, 0.2, 0.4 and 0.8 seconds.
    assert!(began.elapsed() >= std::time::Duration::from_millis(1500));
    assert_eq!(rig.stats()["worker_alive"], false);
}

#[test]
fn an_inline_worker_serves_and_its_end_is_final() {
    let folder = ModelFolder::new();
    let options = options(
        &folder,
        "inline",
        json!({"faults": {"die_step": 40}}),
        json!({}),
    );
    let mut rig = Rig::with(folder, &options);
    let port = rig.engine.inline_port().unwrap().unwrap();
    assert!(rig.engine.inline_port().unwrap().is_none());
    let early = rig.ids(&[1, 2], 20);
    let worker = std::thread::spawn(move || diptych_runtime::worker::run_scripted(&port));
    assert_eq!(rig.engine.wait_ready().unwrap().num_blocks, 400);
    rig.finish(&[early]);
    assert_eq!(rig.answers[&early].ids, expected(&[1, 2], 20));
    let last = rig.ids(&[1, 2], 200);
    rig.finish(&[last]);
    assert_eq!(rig.answers[&last].failed().kind, FailureKind::WorkerFailed);
    worker.join().unwrap().unwrap();
    let later = rig.one(Prompt::Tokens(vec![1]), json!({}));
    assert_eq!(later.failed().kind, FailureKind::WorkerFailed);
}

#[test]
fn an_inline_worker_is_reset_after_a_panic_in_the_engine() {
    let folder = ModelFolder::new();
    let mut options = options(
        &folder,
        "inline",
        json!({"step_ms": 2.0}),
        json!({"overlap_depth": 1}),
    );
    options["test_faults"] = json!({"panic_at_step": 9});
    let mut rig = Rig::with(folder, &options);
    let port = rig.engine.inline_port().unwrap().unwrap();
    let worker = std::thread::spawn(move || diptych_runtime::worker::run_scripted(&port));
    rig.engine.wait_ready().unwrap();
    let requests = six(&rig);
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    assert_eq!(rig.answers[&0].failed().kind, FailureKind::EnginePanicked);
    let later = six(&rig);
    rig.finish(
        &later
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    assert_exact(&rig, &later);
    let stats = rig.stats();
    assert_eq!(
        (&stats["epoch"], &stats["worker_restarts"]),
        (&json!(2), &json!(0))
    );
    rig.engine.close(std::time::Duration::from_secs(5));
    worker.join().unwrap().unwrap();
}

#[test]
fn closing_fails_what_is_open_and_refuses_the_rest() {
    let mut rig = Rig::new("scripted_thread", json!({"step_ms": 5.0}), json!({}));
    let requests = six(&rig);
    let text = rig.submit(Prompt::Text("waiting".to_owned()), json!({}));
    rig.engine.close(std::time::Duration::from_secs(5));
    rig.engine.close(std::time::Duration::from_secs(5));
    rig.finish(&[text]);
    for (request, _) in &requests {
        assert_eq!(
            rig.answers[request].failed().kind,
            FailureKind::EngineClosed
        );
    }
    let params = common::params(json!({})).to_string();
    let error = rig
        .engine
        .submit(&rig.queue, Prompt::Tokens(vec![1]), params.as_bytes(), 0)
        .unwrap_err();
    assert_eq!(error.kind(), "closed");
    rig.engine.abort(0).unwrap();
    assert_eq!(rig.stats()["open_requests"], 0);
}
