//! A core under virtual time: steps take what given coefficients say, with noise.

use std::collections::HashMap;

use diptych_core::latency::{Coefficients, Work};
use diptych_core::{Core, CoreConfig, Event, Request, RowStatus, StepPlan, StepResult};

/// Two virtual CPUs with a small model; nanoseconds.
pub(crate) const CPU: Coefficients = Coefficients {
    decode_step: 8e6,
    prefill_step: 5e6,
    mixed_step: 9e6,
    prefill_token: 620e3,
    prefill_pair: 180.0,
    prefill_row: 100e3,
    decode_row: 900e3,
    decode_context: 700.0,
    logit_row: 250e3,
};

/// About what a large GPU needs for a model of 8B parameters.
pub(crate) const GPU: Coefficients = Coefficients {
    decode_step: 5e6,
    prefill_step: 6e6,
    mixed_step: 6e6,
    prefill_token: 22e3,
    prefill_pair: 0.9,
    prefill_row: 20e3,
    decode_row: 12e3,
    decode_context: 30.0,
    logit_row: 4e3,
};

pub(crate) const MILLISECOND: u64 = 1_000_000;

/// A reproducible sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % limit
    }
}

/// What happened to one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) submitted: u64,
    pub(crate) tokens: Vec<u64>,
    pub(crate) finished: bool,
}

impl Stream {
    /// Time to the first token.
    pub(crate) fn ttft(&self) -> u64 {
        self.tokens[0] - self.submitted
    }

    /// The longest gap between two tokens of which the later came after `since`.
    pub(crate) fn worst_gap(&self, since: u64) -> u64 {
        let gaps = self.tokens.windows(2).filter(|pair| pair[1] > since);
        gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

pub(crate) struct Clocked {
    pub(crate) core: Core,
    pub(crate) now: u64,
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) plans: Vec<StepPlan>,
    truth: Coefficients,
    random: Random,
    /// Every n-th step takes ten times as long; 0 is never.
    pub(crate) outlier_every: u64,
    /// Whether the worker tells how long it took.
    pub(crate) tells: bool,
}

impl Clocked {
    pub(crate) fn new(config: CoreConfig, truth: Coefficients) -> Self {
        Self {
            core: Core::new(config, 1).expect("a usable configuration"),
            now: 1_000_000,
            streams: HashMap::new(),
            plans: Vec::new(),
            truth,
            random: Random(77),
            outlier_every: 0,
            tells: true,
        }
    }

    pub(crate) fn submit(&mut self, length: usize, max_tokens: u32, target_ns: Option<u64>) -> u64 {
        let submission = self.streams.len() as u64;
        let seed = submission as u32 * 7_919;
        let request = Request {
            submission,
            prompt: (0..length as u32)
                .map(|index| (seed + index * 31) % 1_000)
                .collect(),
            max_tokens,
            target_itl_ns: target_ns,
            ..Request::default()
        };
        self.core
            .submit(request, self.now)
            .expect("room for the request");
        let stream = Stream {
            submitted: self.now,
            ..Stream::default()
        };
        self.streams.insert(submission, stream);
        submission
    }

    /// One step; false if there was nothing to do.
    pub(crate) fn step(&mut self) -> bool {
        let Some(plan) = self.core.plan(self.now).cloned() else {
            return false;
        };
        self.core.check_all().expect("every invariant holds");
        let work = Work::of(&plan);
        let noise = 0.95 + self.random.below(100) as f64 / 1_000.0;
        let hit = self.outlier_every > 0 && plan.step % self.outlier_every == 0;
        let factor = if hit { 10.0 * noise } else { noise };
        let duration = (self.truth.step_ns(&work) * factor) as u64;
        self.now += duration + 100_000;
        let rows: Vec<_> = plan.sampling.iter().map(|_| (RowStatus::Ok, 5)).collect();
        let result = StepResult {
            epoch: plan.epoch,
            step: plan.step,
            duration_ns: self.tells.then_some(duration),
            rows: &rows,
            candidates: &[],
        };
        self.core
            .complete(&result, self.now)
            .expect("the next step");
        self.plans.push(plan);
        self.take_events();
        true
    }

    pub(crate) fn steps(&mut self, count: usize) {
        for _ in 0..count {
            assert!(self.step(), "there is something to do");
        }
    }

    /// Until this request has its first token; the number of steps.
    pub(crate) fn until_first_token(&mut self, submission: u64) -> usize {
        for steps in 1..20_000 {
            self.step();
            if !self.streams[&submission].tokens.is_empty() {
                return steps;
            }
        }
        panic!("request {submission} starves");
    }

    fn take_events(&mut self) {
        let mut events = Vec::new();
        self.core.take_events(&mut events);
        for event in events {
            match event {
                Event::Token { submission, .. } => {
                    let stream = self.streams.get_mut(&submission).expect("a known request");
                    stream.tokens.push(self.now);
                }
                Event::Finished { submission, .. } => {
                    let stream = self.streams.get_mut(&submission).expect("a known request");
                    stream.finished = true;
                }
                _ => {}
            }
        }
    }
}
