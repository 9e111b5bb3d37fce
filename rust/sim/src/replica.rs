//! One engine: a scheduler, a device that runs one step at a time, and the fake model.

use std::collections::VecDeque;
use std::time::Instant;

use crate::latency::Device;
use crate::metrics::Distribution;
use crate::scheduler::{Outcome, Scheduler, Step};

/// One in this many steps is timed by a real clock.
const TIMED: u64 = 16;

pub(crate) struct Replica {
    pub(crate) scheduler: Box<dyn Scheduler>,
    device: Device,
    /// Samples and times of launched steps, oldest first.
    launched: VecDeque<(Vec<u64>, u64)>,
    spare: Vec<Vec<u64>>,
    step: Step,
    /// When the device has run everything launched.
    free_at: u64,
    pub(crate) work: Work,
    pub(crate) outcomes: Vec<Outcome>,
}

/// What a replica's steps were, in sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) steps: u64,
    pub(crate) tokens: u64,
    pub(crate) prefill_tokens: u64,
    pub(crate) decode_rows: u64,
    pub(crate) busy_ns: u64,
}

/// What the real clock said of the scheduler's calls.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) plan: Distribution,
    pub(crate) complete: Distribution,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            plan: Distribution::new(3),
            complete: Distribution::new(3),
        }
    }
}

impl Replica {
    pub(crate) fn new(scheduler: Box<dyn Scheduler>, device: Device) -> Self {
        Self {
            scheduler,
            device,
            launched: VecDeque::new(),
            spare: Vec::new(),
            step: Step::default(),
            free_at: 0,
            work: Work::default(),
            outcomes: Vec::new(),
        }
    }

    /// Plans and launches a step: when it will have ended, or none where nothing can be launched.
    pub(crate) fn launch(&mut self, now: u64, host: Option<&mut Host>) -> Option<u64> {
        self.step.clear();
        let timed = host.filter(|_| self.work.steps.is_multiple_of(TIMED));
        let planned = match timed {
            Some(host) => {
                let start = Instant::now();
                let planned = self.scheduler.plan(now, &mut self.step);
                let spent = start.elapsed();
                if planned {
                    host.plan.record(spent.as_nanos() as u64);
                }
                planned
            }
            None => self.scheduler.plan(now, &mut self.step),
        };
        if !planned {
            return None;
        }
        let start = self.free_at.max(now + self.device.host_ns());
        let time = self.device.run(&self.step.shape);
        self.free_at = start + time;
        self.work.steps += 1;
        self.work.tokens += u64::from(self.step.shape.tokens());
        self.work.prefill_tokens += u64::from(self.step.shape.prefill_tokens);
        self.work.decode_rows += u64::from(self.step.shape.decode_rows);
        self.work.busy_ns += time;
        let mut samples = self.spare.pop().unwrap_or_default();
        samples.clear();
        samples.append(&mut self.step.samples);
        self.launched.push_back((samples, time));
        Some(self.free_at)
    }

    /// Submissions that the newest launched step samples.
    pub(crate) fn newest_samples(&self) -> &[u64] {
        self.launched.back().map_or(&[], |(samples, _)| samples)
    }

    /// Takes the samples of the oldest launched step, which has ended, and its time in nanoseconds.
    pub(crate) fn ended_step(&mut self) -> (Vec<u64>, u64) {
        self.launched.pop_front().unwrap_or_default()
    }

    /// Gives the scheduler what the ended step sampled.
    pub(crate) fn complete(
        &mut self,
        (samples, time_ns): (Vec<u64>, u64),
        ids: &[u32],
        now: u64,
        host: Option<&mut Host>,
    ) -> Result<(), String> {
        self.spare.push(samples);
        match host.filter(|_| self.work.steps.is_multiple_of(TIMED)) {
            Some(host) => {
                let start = Instant::now();
                let result = self.scheduler.complete(ids, time_ns, now);
                host.complete.record(start.elapsed().as_nanos() as u64);
                result
            }
            None => self.scheduler.complete(ids, time_ns, now),
        }
    }
}
