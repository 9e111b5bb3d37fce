//! The golden traces in `tests/traces`: what this core does today, to be changed knowingly.
//!
//! `DIPTYCH_BLESS=1` writes them anew. `tests/core/test_sim.py` runs the same files through Python.

use std::path::PathBuf;

use diptych_core::{CoreConfig, Event, Request, RowStatus, Sampling};
use diptych_eventlog::{Record, Replay};

use crate::driver::{Driver, config, request};

type Scenario = fn() -> Vec<Record>;

const SCENARIOS: [(&str, Scenario); 7] = [
    ("chunks", chunks),
    ("prefixes", prefixes),
    ("pressure", pressure),
    ("overlap", overlap),
    ("deaths", deaths),
    ("failures", failures),
    ("masks", masks),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces")
}

/// Prompts longer than a step, beside decoding requests and more than there are rows.
fn chunks() -> Vec<Record> {
    let mut driver = Driver::new(&CoreConfig {
        max_prefill_tokens: Some(12),
        ..config()
    });
    driver.submit(request(1, 6, 9));
    driver.steps(2);
    for seed in 2..7 {
        driver.submit(request(seed, 5 * seed, 4));
    }
    driver.finish();
    driver.records
}

/// The same beginnings again, before and after the cache was emptied, and under another namespace.
fn prefixes() -> Vec<Record> {
    let mut driver = Driver::new(&config());
    let whole = request(1, 21, 3);
    let mut fork = whole.clone();
    fork.prompt[13] = 999;
    let mut other = whole.clone();
    other.namespace = 1;
    for request in [&whole, &whole, &fork, &other] {
        driver.submit(request.clone());
        driver.finish();
    }
    driver.submit(whole.clone());
    driver.plan();
    driver.reset_prefix_cache();
    driver.submit(fork);
    driver.finish();
    driver.records
}

/// A pool that is too small for what runs.
fn pressure() -> Vec<Record> {
    let mut driver = Driver::new(&CoreConfig {
        num_blocks: 11,
        ..config()
    });
    for seed in 1..5 {
        driver.submit(request(seed, 7 + seed, 16));
    }
    driver.finish();
    let preempted = |event: &Event| matches!(event, Event::Preempted { .. });
    assert!(driver.events().iter().any(preempted));
    driver.records
}

/// Steps planned ahead, stop strings that are searched late, an abort with steps in flight.
fn overlap() -> Vec<Record> {
    let mut driver = Driver::new(&CoreConfig {
        overlap_depth: 1,
        ..config()
    });
    let mut stopping = request(1, 9, 30);
    stopping.has_stop_strings = true;
    stopping.stop_ids = vec![5];
    let stopping = driver.submit(stopping);
    let aborted = driver.submit(request(2, 22, 30));
    driver.submit(request(3, 3, 12));
    for _ in 0..6 {
        driver.plan();
        driver.plan();
        driver.complete(None);
    }
    driver.abort(aborted);
    driver.acknowledge(stopping, 3, None);
    for _ in 0..6 {
        driver.plan();
        driver.complete(None);
    }
    driver.acknowledge(stopping, 8, Some(7));
    driver.finish();
    driver.records
}

/// Workers that die, the second time on the same requests.
fn deaths() -> Vec<Record> {
    let mut driver = Driver::new(&config());
    for seed in 1..4 {
        driver.submit(request(seed, 8, 6));
    }
    driver.steps(3);
    driver.plan();
    driver.lose_worker();
    driver.plan();
    driver.lose_worker();
    driver.steps(1);
    driver.submit(request(9, 4, 2));
    driver.finish();
    driver.records
}

/// A row whose masks come before its steps, while they run, and late; beside it one without masks.
fn masks() -> Vec<Record> {
    let mut driver = Driver::new(&config());
    let masked = driver.submit(Request {
        masked: true,
        ..request(1, 7, 13)
    });
    driver.submit(request(2, 5, 12));
    driver.mask(masked, 0);
    driver.steps(1);
    driver.plan();
    driver.mask(masked, 1);
    driver.complete(None);
    driver.plan();
    driver.complete(Some((0, RowStatus::NotSampled)));
    driver.steps(2);
    for index in 2..13 {
        driver.mask(masked, index);
        driver.steps(1);
    }
    driver.finish();
    driver.records
}

/// Rows that fail, and rows with penalties that do not all fit into a step.
fn failures() -> Vec<Record> {
    let mut driver = Driver::new(&CoreConfig {
        side_words: 30,
        ..config()
    });
    for seed in 1..4 {
        let mut request = request(seed, 6, 8);
        request.sampling = Sampling {
            repetition_penalty: 1.5,
            logit_bias: vec![(3, -1.0)],
            seed: u64::from(seed),
            ..Sampling::default()
        };
        driver.submit(request);
    }
    driver.submit(request(7, 10, 5));
    driver.steps(4);
    driver.plan();
    driver.complete(Some((3, RowStatus::NotSampled)));
    driver.steps(2);
    driver.plan();
    driver.complete(Some((1, RowStatus::Nan)));
    driver.finish();
    driver.records
}

fn to_lines(records: &[Record]) -> String {
    let line = |record| serde_json::to_string(record).expect("a record is JSON") + "\n";
    records.iter().map(line).collect()
}

#[test]
fn golden_traces_replay_to_the_same_plans() {
    for (name, scenario) in SCENARIOS {
        let file = folder().join(name).with_extension("jsonl");
        if std::env::var_os("DIPTYCH_BLESS").is_some() {
            std::fs::write(&file, to_lines(&scenario())).expect("the folder is there");
        }
        let lines = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut replay = Replay::default();
        for line in lines.lines() {
            let record: Record = serde_json::from_str(line).expect("a record of this build");
            replay.apply(&record).expect("this build takes it");
            let difference = &replay.report().difference;
            assert!(difference.is_none(), "{name}: {difference:#?}");
        }
        assert!(replay.report().plans > 5, "{name}");
    }
}

/// Under a target the plans follow the worker's times, so a log has them.
#[test]
fn durations_of_steps_are_part_of_a_log() {
    let mut driver = Driver::new(&CoreConfig {
        target_itl_ns: Some(9_000_000),
        prefill_tile: 1,
        ..config()
    });
    driver.submit(request(1, 4, 60));
    driver.duration_ns = Some(1_000_000);
    driver.steps(6);
    for seed in 2..5 {
        driver.submit(request(seed, 30, 3));
        driver.steps(9);
        driver.duration_ns = Some(u64::from(seed) * 4_000_000);
    }
    driver.finish();
    let replayed = |line: &dyn Fn(&Record) -> String| {
        let mut replay = Replay::default();
        for record in &driver.records {
            let record = serde_json::from_str(&line(record)).expect("a record of this build");
            if replay.report().difference.is_none() {
                replay.apply(&record).expect("this build takes it");
            }
        }
        replay.report().difference.is_none()
    };
    let whole = |record: &Record| serde_json::to_string(record).expect("a record is JSON");
    assert!(replayed(&whole));
    let untimed = |record: &Record| {
        let mut value = serde_json::to_value(record).expect("a record is JSON");
        if let Some(complete) = value.get_mut("complete").and_then(|it| it.as_object_mut()) {
            assert!(complete.remove("duration_ns").is_some());
        }
        value.to_string()
    };
    assert!(!replayed(&untimed));
}

/// A record that was written before a field was there is read with that field's default.
#[test]
fn records_lack_what_was_added_later() {
    let text = r#"{"core": {"version": "0.0.1", "epoch": 1, "plan_fields": [],
        "config": {"block_size": 4, "num_blocks": 9, "max_batched_tokens": 300}}}"#;
    let record: Record = serde_json::from_str(text).expect("defaults fill the rest");
    let Record::Core { config, .. } = record else {
        panic!("{record:?}");
    };
    let expected = CoreConfig {
        block_size: 4,
        num_blocks: 9,
        max_batched_tokens: 300,
        ..CoreConfig::default()
    };
    assert_eq!(*config, expected);
}
