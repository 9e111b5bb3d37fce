//! A core that is driven by hand and writes down what it is given.

use std::collections::VecDeque;

use diptych_core::config::Admission;
use diptych_core::{Core, CoreConfig, Event, Handle, Request, RowStatus, StepResult};
use diptych_eventlog::{FIELDS, PlanDigest, Record, StepCandidates, StepRows};

pub(crate) const VOCABULARY: u32 = 1_000;

pub(crate) fn config() -> CoreConfig {
    CoreConfig {
        block_size: 4,
        num_blocks: 33,
        max_running: 4,
        max_batched_tokens: 16,
        max_model_len: 128,
        vocabulary: VOCABULARY,
        // So that requests are preempted.
        admission: Admission::WholePrompt,
        ..CoreConfig::default()
    }
}

/// A request whose prompt shares no block with one of another `seed`.
pub(crate) fn request(seed: u32, length: u32, max_tokens: u32) -> Request {
    Request {
        prompt: (0..length)
            .map(|index| (seed * 211 + index * 7 + seed * index * 13) % VOCABULARY)
            .collect(),
        max_tokens,
        ..Request::default()
    }
}

struct Launched {
    step: u64,
    /// Submission and output index of each sampling row.
    rows: Vec<(u64, u32)>,
}

pub(crate) struct Driver {
    core: Core,
    epoch: u64,
    now: u64,
    submissions: u64,
    launched: VecDeque<Launched>,
    /// What the worker says of each step's duration.
    pub(crate) duration_ns: Option<u64>,
    pub(crate) records: Vec<Record>,
}

impl Driver {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let first = Record::Core {
            version: "golden".to_owned(),
            config: Box::new(config.clone()),
            epoch: 1,
            plan_fields: FIELDS.map(str::to_owned).to_vec(),
        };
        Self {
            core: Core::new(config.clone(), 1).expect("usable"),
            epoch: 1,
            now: 1_000_000_000,
            submissions: 0,
            launched: VecDeque::new(),
            duration_ns: None,
            records: vec![first],
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1_000_000;
        self.now
    }

    pub(crate) fn submit(&mut self, mut request: Request) -> Handle {
        request.submission = self.submissions;
        self.submissions += 1;
        let now = self.tick();
        let handle = self.core.submit(request.clone(), now).ok();
        let request = Box::new(request);
        self.records.push(Record::Submit { now, request });
        self.records.push(Record::Submitted { handle });
        handle.expect("the request is fine")
    }

    pub(crate) fn abort(&mut self, handle: Handle) {
        let now = self.tick();
        self.core.abort(handle, now);
        self.records.push(Record::Abort { now, handle });
    }

    pub(crate) fn acknowledge(&mut self, handle: Handle, checked: u32, stop_at: Option<u32>) {
        let now = self.tick();
        self.core
            .text_ack(handle, checked, stop_at)
            .expect("so many are committed");
        self.records.push(Record::Ack {
            now,
            handle,
            checked,
            stop_at,
        });
    }

    pub(crate) fn mask(&mut self, handle: Handle, index: u32) {
        let now = self.tick();
        self.core
            .mask_ready(handle, index)
            .expect("so many are committed");
        self.records.push(Record::Mask { now, handle, index });
    }

    /// Whether there was anything to plan.
    pub(crate) fn plan(&mut self) -> bool {
        let now = self.tick();
        let plan = self.core.plan(now);
        let digest = plan.map(PlanDigest::of);
        if let Some(plan) = plan {
            let rows = plan.sampling.iter();
            self.launched.push_back(Launched {
                step: plan.step,
                rows: rows.map(|row| (row.submission, row.output_index)).collect(),
            });
        }
        let planned = digest.is_some();
        self.records.push(Record::Plan { now });
        self.records.push(Record::Planned { plan: digest });
        planned
    }

    /// Retires the oldest step; the row of request `failing` has `status`.
    pub(crate) fn complete(&mut self, failing: Option<(u64, RowStatus)>) {
        let Some(launched) = self.launched.pop_front() else {
            return;
        };
        let rows: Vec<(RowStatus, u32)> = launched
            .rows
            .iter()
            .map(|&(submission, index)| {
                let status = match failing {
                    Some((request, status)) if request == submission => status,
                    _ => RowStatus::Ok,
                };
                (status, (submission as u32 * 31 + index * 7) % VOCABULARY)
            })
            .collect();
        let now = self.tick();
        let result = StepResult {
            epoch: self.epoch,
            step: launched.step,
            duration_ns: self.duration_ns,
            rows: &rows,
            candidates: &[],
        };
        self.core.complete(&result, now).expect("the oldest step");
        self.records.push(Record::Complete {
            now,
            epoch: self.epoch,
            step: launched.step,
            duration_ns: self.duration_ns,
            rows: StepRows::new(&rows),
            candidates: StepCandidates::default(),
        });
    }

    pub(crate) fn lose_worker(&mut self) {
        let now = self.tick();
        let epoch = self.epoch;
        self.core
            .worker_lost(epoch, false, now)
            .expect("the current epoch");
        self.launched.clear();
        self.epoch += 1;
        self.records.push(Record::WorkerLost { now, epoch });
    }

    pub(crate) fn reset_prefix_cache(&mut self) {
        let now = self.tick();
        self.core.reset_prefix_cache();
        self.records.push(Record::ResetPrefixCache { now });
    }

    pub(crate) fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.plan();
            self.complete(None);
        }
    }

    /// Until nothing is open.
    pub(crate) fn finish(&mut self) {
        for _ in 0..1_000 {
            if !self.plan() && self.launched.is_empty() {
                return;
            }
            self.complete(None);
        }
        panic!("not finished after a thousand steps");
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.core.take_events(&mut events);
        events
    }
}
