//! Beam search against a naive one that looks at the whole vocabulary, under small pools, overlap,
//! preemption, losses of the worker and other traffic.

mod naive;
mod worker;

use std::collections::{BTreeMap, HashMap, VecDeque};

use diptych_core::beam::{Beams, EarlyStopping};
use diptych_core::config::Admission;
use diptych_core::{
    Core, CoreConfig, Error, Event, FinishReason, Handle, Request, Sampling, StepResult,
};

use crate::engine::{prompt, small};
use naive::search;
use worker::{Results, Worker};

const VOCABULARY: u32 = 12;

struct Launched {
    step: u64,
    results: Results,
}

struct Traffic {
    core: Core,
    config: CoreConfig,
    worker: Worker,
    launched: VecDeque<Launched>,
    open: BTreeMap<u64, Request>,
    handles: HashMap<u64, Handle>,
    outputs: HashMap<(u64, u32), Vec<u32>>,
    ended: HashMap<(u64, u32), FinishReason>,
    aborted: Vec<u64>,
    /// Of beams.
    preemptions: u64,
    epoch: u64,
    now: u64,
    random: u64,
}

impl Traffic {
    fn new(config: CoreConfig, seed: u64) -> Self {
        Self {
            core: Core::new(config.clone(), 0).expect("a good configuration"),
            config,
            worker: Worker::default(),
            launched: VecDeque::new(),
            open: BTreeMap::new(),
            handles: HashMap::new(),
            outputs: HashMap::new(),
            ended: HashMap::new(),
            aborted: Vec::new(),
            preemptions: 0,
            epoch: 0,
            now: 0,
            random: seed * 2 + 1,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) % limit
    }

    fn check(&self) {
        if let Err(error) = self.core.check_all() {
            panic!("{error}");
        }
    }

    fn draw(&mut self, submission: u64) -> Request {
        let length = 1 + self.below(14) as usize;
        let stem = self.below(3) as u32;
        let mut request = Request {
            submission,
            prompt: prompt(stem, length)
                .iter()
                .map(|id| id % VOCABULARY)
                .collect(),
            max_tokens: 1 + self.below(12) as u32,
            stop_ids: (0..self.below(3) as u32).map(|id| id * 5 + 1).collect(),
            ..Request::default()
        };
        if self.below(3) > 0 {
            request.choices = 1 + self.below(4) as u32;
            request.beams = Some(Beams {
                length_penalty: [1.0, 0.0, -0.5, 2.0][self.below(4) as usize],
                early_stopping: [EarlyStopping::Yes, EarlyStopping::No, EarlyStopping::Never]
                    [self.below(3) as usize],
            });
        }
        request
    }

    fn submit(&mut self, submission: u64) {
        let request = self.draw(submission);
        if let Ok(handle) = self.core.submit(request.clone(), self.now) {
            self.handles.insert(submission, handle);
            self.open.insert(submission, request);
        }
        self.check();
    }

    fn plan(&mut self) {
        if let Some(plan) = self.core.plan(self.now) {
            let results = self.worker.run(plan, i64::from(self.config.block_size));
            let step = plan.step;
            self.launched.push_back(Launched { step, results });
        }
        self.check();
        self.take_events();
    }

    fn complete(&mut self) {
        let Some(Launched { step, results }) = self.launched.pop_front() else {
            return;
        };
        let result = StepResult {
            epoch: self.epoch,
            step,
            duration_ns: None,
            rows: &results.0,
            candidates: &results.1,
        };
        self.core
            .complete(&result, self.now)
            .expect("the oldest step");
        self.check();
        self.take_events();
    }

    fn lose_worker(&mut self) {
        self.core
            .worker_lost(self.epoch, false, self.now)
            .expect("the current epoch");
        self.epoch += 1;
        self.worker = Worker::default();
        self.launched.clear();
        self.check();
        self.take_events();
    }

    fn abort(&mut self) {
        let names: Vec<u64> = self.open.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.below(names.len() as u64) as usize];
        self.aborted.push(name);
        self.core.abort(self.handles[&name], self.now);
        self.check();
        self.take_events();
    }

    fn take_events(&mut self) {
        let mut events = Vec::new();
        self.core.take_events(&mut events);
        for event in events {
            match event {
                Event::Token {
                    submission,
                    choice,
                    index,
                    token,
                } => {
                    let outputs = self.outputs.entry((submission, choice)).or_default();
                    assert_eq!(outputs.len(), index as usize);
                    outputs.push(token);
                }
                Event::Finished {
                    submission,
                    choice,
                    reason,
                } => {
                    let again = self.ended.insert((submission, choice), reason);
                    assert_eq!(again, None, "{submission} {choice} ended twice");
                    let request = &self.open[&submission];
                    let all =
                        (0..request.choices).all(|it| self.ended.contains_key(&(submission, it)));
                    if all {
                        let request = self.open.remove(&submission).expect("it is open");
                        self.judge(&request);
                    }
                }
                Event::Preempted { submission, .. } => {
                    let request = &self.open[&submission];
                    self.preemptions += u64::from(request.beams.is_some());
                }
                Event::Admitted { .. } | Event::Requeued { .. } => {}
            }
        }
    }

    fn judge(&self, request: &Request) {
        let name = request.submission;
        let ended = |choice| self.ended[&(name, choice)];
        if (0..request.choices).any(|choice| ended(choice) == FinishReason::Aborted) {
            assert!(self.aborted.contains(&name), "{name} was aborted by nobody");
            return;
        }
        if (0..request.choices).any(|choice| ended(choice) == FinishReason::WorkerDied) {
            return;
        }
        if request.beams.is_none() {
            return;
        }
        let expected = search(request);
        assert_eq!(expected.len(), request.choices as usize);
        for (choice, output) in (0..).zip(expected) {
            assert_eq!(
                self.outputs[&(name, choice)],
                output.tokens,
                "{request:?} choice {choice}"
            );
            let reason = match output.tokens.last() {
                Some(&id) if output.stopped => FinishReason::StopToken(id),
                _ => FinishReason::Length,
            };
            assert_eq!(ended(choice), reason, "{request:?} choice {choice}");
        }
    }

    /// Runs until everybody has ended.
    fn drain(&mut self) {
        for _ in 0..3_000 {
            if self.open.is_empty() && self.launched.is_empty() {
                return;
            }
            self.now += 1_000;
            self.plan();
            self.complete();
        }
        panic!(
            "{} requests never end: {:?}",
            self.open.len(),
            self.open.values().next()
        );
    }
}

fn config(overlap_depth: u8, blocks: u32, prefix_cache: bool, admission: Admission) -> CoreConfig {
    CoreConfig {
        num_blocks: blocks + 1,
        max_running: 6,
        max_batched_tokens: 10,
        vocabulary: VOCABULARY,
        overlap_depth,
        prefix_cache,
        admission,
        ..small()
    }
}

fn run(config: &CoreConfig, seed: u64, operations: u64) -> u64 {
    let mut traffic = Traffic::new(config.clone(), seed);
    for submission in 0..operations {
        traffic.now += 1_000;
        match traffic.below(20) {
            0..=2 => traffic.submit(submission),
            3 if traffic.below(4) == 0 => traffic.abort(),
            4 if traffic.below(40) == 0 => traffic.lose_worker(),
            5..=11 => traffic.complete(),
            _ => traffic.plan(),
        }
    }
    traffic.drain();
    assert_eq!(traffic.core.stats().used_blocks, 0);
    traffic.preemptions
}

/// Every kind of pool, overlap, cache and admission, `rounds` times: preemptions of beams.
fn run_all(rounds: u64, operations: u64) -> u64 {
    let policies = [
        Admission::WholePrompt,
        Admission::NoEviction,
        CoreConfig::default().admission,
    ];
    let mut preemptions = 0;
    for seed in 0..rounds * 54 {
        let blocks = [8, 14, 30][seed as usize % 3];
        let overlap = (seed / 3 % 3) as u8;
        let policy = policies[seed as usize / 9 % 3];
        let config = config(overlap, blocks, seed / 27 % 2 == 0, policy);
        preemptions += run(&config, seed, operations);
    }
    preemptions
}

#[test]
fn beams_are_those_of_a_naive_search_whatever_happens() {
    let preemptions = run_all(1, 1_000);
    assert!(preemptions > 20, "beams were preempted {preemptions} times");
}

#[test]
#[ignore = "minutes; for a release run"]
fn beams_are_those_of_a_naive_search_a_hundred_times_over() {
    run_all(100, 2_000);
}

#[test]
fn a_step_of_the_search_needs_no_more_memory() {
    let mut traffic = Traffic::new(config(0, 60, false, Admission::WholePrompt), 1);
    let request = Request {
        prompt: prompt(1, 9).iter().map(|id| id % VOCABULARY).collect(),
        max_tokens: 9,
        choices: 4,
        beams: Some(Beams {
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Never,
        }),
        ..Request::default()
    };
    let handle = traffic.core.submit(request.clone(), 0).expect("it fits");
    traffic.handles.insert(0, handle);
    traffic.open.insert(0, request);
    let (mut copies, mut most) = (0, 0);
    while !traffic.open.is_empty() {
        traffic.now += 1_000;
        if let Some(plan) = traffic.core.plan(traffic.now) {
            copies += plan.block_copies.len();
            let results = traffic.worker.run(plan, 4);
            let step = plan.step;
            traffic.launched.push_back(Launched { step, results });
        }
        most = most.max(traffic.core.stats().used_blocks);
        traffic.complete();
    }
    // Two full blocks of the prompt are shared by all; 9 + 8 tokens in KV are five blocks.
    assert!(most <= 2 + 4 * 3, "{most} blocks");
    assert!(copies > 3, "{copies} copies");
}

fn good() -> Request {
    Request {
        prompt: vec![1, 2, 3],
        max_tokens: 4,
        choices: 2,
        beams: Some(Beams {
            length_penalty: 1.0,
            early_stopping: EarlyStopping::No,
        }),
        ..Request::default()
    }
}

fn refusal(request: Request) -> Error {
    let mut core = Core::new(config(0, 60, true, Admission::WholePrompt), 0).expect("good");
    core.submit(request, 0).expect_err("it is refused")
}

#[test]
fn what_beam_search_knows_nothing_of_is_refused() {
    let stops = Request {
        has_stop_strings: true,
        ..good()
    };
    let hot = Request {
        sampling: Sampling {
            temperature: 0.5,
            ..Sampling::default()
        },
        ..good()
    };
    let endless = Request {
        beams: Some(Beams {
            length_penalty: f64::NAN,
            early_stopping: EarlyStopping::No,
        }),
        ..good()
    };
    let long = Request {
        min_tokens: 2,
        ..good()
    };
    for request in [stops, hot, endless, long] {
        let error = refusal(request);
        assert!(matches!(error, Error::BeamSampling { .. }), "{error}");
    }
}

#[test]
fn beams_that_are_too_many_are_refused() {
    let wide = refusal(Request {
        choices: 4,
        stop_ids: vec![1, 2, 3],
        ..good()
    });
    let Error::BeamWidth { needed, most, .. } = wide else {
        panic!("{wide}");
    };
    assert_eq!((needed, most), (16, VOCABULARY));
    // Five beams of 13 blocks each, of which each may have to be computed alone.
    let long = refusal(Request {
        choices: 5,
        max_tokens: 48,
        ..good()
    });
    let Error::ChoicesNeverFit {
        needed, available, ..
    } = long
    else {
        panic!("{long}");
    };
    assert_eq!((needed, available), (65, 60));
}
