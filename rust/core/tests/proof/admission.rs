//! Admission under load: who is preempted, how often, and how much of the pool is used.

use std::collections::{HashMap, VecDeque};

use diptych_core::config::Admission;
use diptych_core::{Core, CoreConfig, Event, Request, RowStatus, SamplingRow, StepResult};

use crate::engine::{Engine, pool_of, prompt, request};

/// Random numbers of a fixed sequence.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A long-tailed length around `median`: log-normal by the sum of twelve uniform numbers.
    fn length(&mut self, median: f64, spread: f64, most: u32) -> u32 {
        let normal: f64 = (0..12).map(|_| self.unit()).sum::<f64>() - 6.0;
        ((median * (spread * normal).exp()) as u32).clamp(1, most)
    }
}

const MAX_TOKENS: u32 = 2_048;
const STOP: u32 = 1;

/// What became of a load.
#[derive(Debug, Default)]
struct Outcome {
    steps: u64,
    preemptions: HashMap<u64, u32>,
    finished: u64,
    preempted_requests: u64,
}

/// Requests that arrive faster than they are served; each ends where its own drawn length says.
struct Load {
    core: Core,
    random: Random,
    requests: u64,
    /// Outputs of those that have arrived.
    lengths: Vec<u32>,
    next_arrival: f64,
    launched: VecDeque<(u64, Vec<(RowStatus, u32)>)>,
    outcome: Outcome,
}

impl Load {
    fn new(admission: Admission, requests: u64) -> Self {
        let config = CoreConfig {
            num_blocks: 1_200,
            max_running: 128,
            max_queued_requests: 100_000,
            overlap_depth: 1,
            admission,
            ..CoreConfig::default()
        };
        Self {
            core: Core::new(config, 1).expect("a usable configuration"),
            random: Random(0x5eed),
            requests,
            lengths: Vec::new(),
            next_arrival: 0.0,
            launched: VecDeque::new(),
            outcome: Outcome::default(),
        }
    }

    /// One request a step on average, at random moments.
    fn arrive(&mut self) {
        while self.lengths.len() < self.requests as usize
            && self.next_arrival <= self.outcome.steps as f64
        {
            self.next_arrival -= self.random.unit().max(1e-9).ln();
            let number = self.lengths.len() as u32;
            let tokens = self.random.length(250.0, 0.9, 4_000);
            self.lengths
                .push(self.random.length(120.0, 0.9, MAX_TOKENS));
            let token = |at| 2 + (number * 131 + at * 7) % 40_000;
            let request = Request {
                submission: u64::from(number),
                prompt: (0..tokens).map(token).collect(),
                max_tokens: MAX_TOKENS,
                stop_ids: vec![STOP],
                ..Request::default()
            };
            self.core.submit(request, 0).expect("the queue is long");
        }
    }

    fn step(&mut self) {
        self.outcome.steps += 1;
        if let Some(plan) = self.core.plan(0) {
            let ends =
                |row: &SamplingRow| row.output_index + 1 >= self.lengths[row.submission as usize];
            let sample = |row| (RowStatus::Ok, if ends(row) { STOP } else { 2 });
            let rows = plan.sampling.iter().map(sample).collect();
            self.launched.push_back((plan.step, rows));
        } else if self.launched.is_empty() {
            return;
        }
        if self.launched.len() > 1 || self.core.stats().waiting == 0 {
            let (step, rows) = self.launched.pop_front().expect("one was launched");
            let result = StepResult {
                epoch: 1,
                step,
                rows: &rows,
                candidates: &[],
                duration_ns: None,
            };
            self.core.complete(&result, 0).expect("in order");
        }
        self.note();
    }

    fn note(&mut self) {
        let mut events = Vec::new();
        self.core.take_events(&mut events);
        for event in events {
            if let Event::Preempted { submission, .. } = event {
                *self.outcome.preemptions.entry(submission).or_default() += 1;
            }
            self.outcome.finished += u64::from(matches!(event, Event::Finished { .. }));
        }
    }
}

fn load(admission: Admission, requests: u64) -> Outcome {
    let mut load = Load::new(admission, requests);
    while load.outcome.finished < requests {
        load.arrive();
        load.step();
    }
    load.outcome.preempted_requests = load.core.stats().preempted_requests;
    load.core.check_all().expect("every invariant");
    load.outcome
}

/// Invariant 36, and the promise that preemptions are rare: at most one request in a hundred, none
/// more than twice, while the pool is used better than where every `max_tokens` is reserved.
#[test]
fn predicted_peaks_preempt_few_and_waste_little() {
    let requests = 3_000;
    let whole = load(Admission::WholePrompt, requests);
    let peak = load(Admission::default(), requests);
    let none = load(Admission::NoEviction, requests);
    let share = |outcome: &Outcome| outcome.preempted_requests as f64 / requests as f64;
    let figures = format!(
        "whole prompt: {} steps, {:.2} % preempted; predicted peak: {} steps, {:.2} %; no eviction: {} steps",
        whole.steps,
        100.0 * share(&whole),
        peak.steps,
        100.0 * share(&peak),
        none.steps,
    );
    assert!(share(&whole) > 0.05, "the load is too light: {figures}");
    assert!(share(&peak) <= 0.01, "{figures}");
    assert!(
        peak.preemptions.values().all(|&count| count <= 2),
        "{figures}"
    );
    assert_eq!(none.preempted_requests, 0, "{figures}");
    assert!(peak.steps * 10 < none.steps * 9, "{figures}");
    assert!(peak.steps * 10 < whole.steps * 11, "{figures}");
}

/// Where nobody may be evicted, a request waits until its last token has a place too.
#[test]
fn without_eviction_whole_requests_are_reserved() {
    let config = CoreConfig {
        admission: Admission::NoEviction,
        ..pool_of(10)
    };
    let mut engine = Engine::new(&config);
    let first = engine.submit(request(&prompt(1, 4), 21));
    engine.step();
    let second = engine.submit(request(&prompt(2, 4), 17));
    // 6 blocks are promised to the first; the second needs 5 in the end.
    while engine.reason(first).is_none() {
        assert!(!engine.admitted(second));
        engine.step();
    }
    engine.finish();
    assert_eq!(engine.stats().preemptions, 0);
    assert_eq!(engine.outputs(second).len(), 17);
}

/// A request that was preempted twice is not preempted again while others can be.
#[test]
fn a_request_that_was_preempted_twice_is_spared() {
    let config = CoreConfig {
        max_running: 6,
        ..pool_of(16)
    };
    let mut engine = Engine::new(&config);
    for seed in 0..12 {
        engine.submit(request(&prompt(seed, 8), 40));
    }
    engine.finish();
    let stats = engine.stats();
    assert!(stats.preempted_requests > 2, "{stats:?}");
    assert!(
        stats.preemptions <= 3 * stats.preempted_requests,
        "{stats:?}"
    );
}
