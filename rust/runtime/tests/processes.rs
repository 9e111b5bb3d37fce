//! The worker as a process: killed, orphaned, closed.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{ModelFolder, Rig, expected, options};
use diptych_runtime::{Engine, EngineError, Prompt};
use serde_json::json;

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill")
        .args([name, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill {name} {pid}");
}

/// The mask of blocked signals in a `status` file of /proc.
fn blocked(status: &str) -> u64 {
    let status = std::fs::read_to_string(status).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
}

fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

fn wait_until(what: &str, limit: Duration, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn after_twenty_kills_every_id_is_right() {
    for depth in 0..=2 {
        every_id_is_right_after_twenty_kills(depth);
    }
}

fn every_id_is_right_after_twenty_kills(depth: u8) {
    let limits = json!({"overlap_depth": depth});
    let mut rig = Rig::new("scripted", json!({"step_ms": 0.5}), limits);
    let mut requests: Vec<(u64, Vec<u32>)> = Vec::new();
    for kill in 0..20_u64 {
        rig.pump_until("no restart", |rig| rig.stats()["worker_restarts"] == kill);
        let progress = rig.stats()["generation_tokens"].as_u64().unwrap();
        while rig.stats()["open_requests"].as_u64().unwrap() < 8 {
            let prompt = vec![requests.len() as u32 % 256, 5, 5, 5, 5, 5];
            requests.push((rig.ids(&prompt, 200), prompt));
        }
        rig.pump_until("no progress", |rig| {
            rig.stats()["generation_tokens"].as_u64().unwrap() > progress + 40
        });
        signal("-9", rig.engine.worker_pid().unwrap());
    }
    rig.finish(
        &requests
            .iter()
            .map(|(request, _)| *request)
            .collect::<Vec<_>>(),
    );
    for (request, prompt) in &requests {
        let answer = &rig.answers[request];
        assert_eq!(answer.ids, expected(prompt, 200), "request {request}");
        assert_eq!(answer.finished().completion_tokens, 200);
    }
    let stats = rig.stats();
    assert_eq!(
        (&stats["worker_restarts"], &stats["epoch"]),
        (&json!(20), &json!(21))
    );
    assert_eq!(stats["steps_ahead"] != 0, depth > 0, "{stats}");
    let parts = &stats["last_restart"];
    for part in ["detect_s", "spawn_s", "hello_s", "ready_s"] {
        assert!(parts[part].as_f64().unwrap() < 5.0, "{stats}");
    }
    rig.assert_idle();
}

#[test]
fn a_worker_killed_while_idle_is_replaced_and_the_dead_are_noticed() {
    let mut rig = Rig::new("scripted", json!({}), json!({}));
    let first = rig.engine.worker_pid().unwrap();
    signal("-9", first);
    wait_until("no restart", Duration::from_secs(10), || {
        rig.stats()["worker_restarts"] == 1 && rig.stats()["worker_alive"] == true
    });
    assert_ne!(rig.engine.worker_pid(), Some(first));
    assert_eq!(
        rig.one(Prompt::Tokens(vec![8]), json!({})).ids,
        expected(&[8], 16)
    );
    assert!(!runs(first));
}

#[test]
fn a_worker_ignores_the_signals_of_its_hosts_terminal_and_sees_no_secret() {
    let folder = ModelFolder::new();
    let mut options = options(&folder, "scripted", json!({}), json!({}));
    options["worker"]["environment_remove"] = json!(["PATH"]);
    let mut rig = Rig::with(folder, &options);
    let pid = rig.engine.worker_pid().unwrap();
    signal("-INT", pid);
    signal("-TERM", pid);
    assert_eq!(
        rig.one(Prompt::Tokens(vec![8]), json!({})).ids,
        expected(&[8], 16)
    );
    assert_eq!(rig.engine.worker_pid(), Some(pid));
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("HOME=") && !environment.contains("\0PATH="));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(fields[2], pid.to_string(), "a process group of its own");
    let input = std::fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
    assert_eq!(input.to_str(), Some("/dev/null"));
    assert_eq!(
        blocked(&format!("/proc/{pid}/status")),
        0,
        "it inherits no mask of ours"
    );
}

/// Names and folders in /proc.
fn threads_of_the_engine() -> Vec<(String, PathBuf)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let folders = tasks.map(|task| task.unwrap().path());
    let named = folders.map(|folder| {
        let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        (name, folder)
    });
    named
        .filter(|(name, _)| name.starts_with("diptych-"))
        .collect()
}

#[test]
fn no_signal_is_delivered_to_a_thread_of_the_engine() {
    let _rig = Rig::new("scripted_thread", json!({}), json!({}));
    // A thread gives itself its name when it first runs.
    wait_until("five threads", Duration::from_secs(10), || {
        threads_of_the_engine().len() >= 5
    });
    for (name, folder) in threads_of_the_engine() {
        let mask = blocked(folder.join("status").to_str().unwrap());
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGCHLD,
            libc::SIGUSR1,
            libc::SIGPROF,
        ] {
            assert!(
                mask & (1 << (signal - 1)) != 0,
                "{name} takes signal {signal}"
            );
        }
    }
}

/// What a forked child sees of its parent's engine; the exit status is the number of the first thing that is wrong.
fn in_forked_child(rig: Rig) -> i32 {
    let forked = |error: Option<diptych_runtime::EngineError>| {
        error.is_some_and(|error| error.kind() == "forked")
    };
    let params = common::params(json!({})).to_string();
    let prompt = Prompt::Tokens(vec![1]);
    let submitted = rig.engine.submit(&rig.queue, prompt, params.as_bytes(), 0);
    let checks = [
        forked(submitted.err()),
        forked(rig.engine.abort(0).err()),
        forked(rig.engine.stats_json().err()),
        forked(rig.engine.wait_ready().err()),
        forked(rig.engine.frame_queue().err()),
        forked(rig.queue.drain(&mut Vec::new()).err()),
        forked(rig.queue.wait(Duration::from_secs(5)).err()),
        rig.engine.worker_pid().is_none(),
    ];
    rig.queue.close();
    rig.engine.close(Duration::from_secs(5));
    drop(rig);
    checks
        .iter()
        .position(|holds| !holds)
        .map_or(0, |index| index as i32 + 1)
}

#[test]
fn a_forked_child_is_told_and_disturbs_nothing() {
    let mut rig = Rig::new("scripted", json!({"step_ms": 1.0}), json!({}));
    let request = rig.ids(&[4, 2], 100);
    // SAFETY: the child only makes calls that are meant for it, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = in_forked_child(rig);
        // SAFETY: no precondition.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(
        (waited, status),
        (child, 0),
        "exit status is the number of what is wrong"
    );
    rig.finish(&[request]);
    assert_eq!(rig.answers[&request].ids, expected(&[4, 2], 100));
}

#[test]
fn closing_ends_the_worker_by_force_at_the_limit() {
    let rig = Rig::new("scripted", json!({"step_ms": 20_000.0}), json!({}));
    let pid = rig.engine.worker_pid().unwrap();
    let request = rig.ids(&[1], 5);
    wait_until("not running", Duration::from_secs(5), || {
        rig.stats()["requests_running"] == 1
    });
    let began = Instant::now();
    rig.engine.close(Duration::from_millis(100));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert!(!runs(pid));
    let mut frames = Vec::new();
    rig.queue.drain(&mut frames).unwrap();
    assert_eq!(frames.last().unwrap().request, request);
}

#[test]
fn no_limit_is_too_long_to_close_within() {
    let rig = Rig::new("scripted", json!({}), json!({}));
    let pid = rig.engine.worker_pid().unwrap();
    rig.engine.close(Duration::MAX);
    assert!(!runs(pid));
}

#[test]
fn an_engine_can_be_closed_while_its_worker_starts() {
    use std::os::unix::fs::PermissionsExt;
    let folder = ModelFolder::new();
    let silent = folder.0.join("silent");
    std::fs::write(&silent, "#!/bin/sh\nexec sleep 60\n").unwrap();
    std::fs::set_permissions(&silent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = options(&folder, "scripted", json!({}), json!({}));
    options["worker"]["python"] = json!(silent);
    let engine = Engine::launch(options.to_string().as_bytes()).unwrap();
    let pid = engine.worker_pid().unwrap();
    assert_eq!(engine.ready_within(Duration::from_millis(20)), Ok(None));
    engine.close(Duration::from_secs(30));
    assert!(!runs(pid));
    assert!(matches!(engine.wait_ready(), Err(EngineError::Closed(_))));
}

#[test]
fn a_worker_whose_host_was_killed_is_gone() {
    let folder = ModelFolder::new();
    let options = options(&folder, "scripted", json!({"step_ms": 100.0}), json!({}));
    let mut host = Command::new(env!("CARGO_BIN_EXE_diptych-test-worker"))
        .args(["host", &options.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(host.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let worker: u32 = line.trim().parse().unwrap();
    assert!(runs(worker));
    host.kill().unwrap();
    host.wait().unwrap();
    wait_until(
        "the worker outlives its host",
        Duration::from_secs(5),
        || !runs(worker),
    );
}
