//! The real core behind the seam: nothing of it is imitated.

use diptych_core::config::HashMode;
use diptych_core::{
    Core, CoreConfig, Event, FinishReason, Handle, Request, RowStatus, StepPlan, StepResult,
};

use crate::latency::Shape;
use crate::scheduler::{
    END_OF_SEQUENCE, End, Gauges, Job, Outcome, Refusal, Scheduler, Step, VOCABULARY,
};
use crate::{Engine, Error, PrefillOrder};

/// A [`Core`] with the buffers of its calls.
#[derive(Debug)]
pub struct CoreScheduler {
    core: Core,
    /// Launched steps, oldest first: their numbers.
    launched: std::collections::VecDeque<u64>,
    rows: Vec<(RowStatus, u32)>,
    events: Vec<Event>,
}

impl CoreScheduler {
    /// A core with these sizes.
    ///
    /// # Errors
    /// [`Error::Core`].
    pub fn new(engine: &Engine) -> Result<Self, Error> {
        Ok(Self {
            core: Core::new(config(engine), 0)?,
            launched: std::collections::VecDeque::new(),
            rows: Vec::new(),
            events: Vec::new(),
        })
    }
}

fn config(engine: &Engine) -> CoreConfig {
    CoreConfig {
        block_size: engine.block_size,
        num_blocks: engine.blocks + 1,
        max_running: engine.max_running,
        max_batched_tokens: engine.max_batched_tokens,
        max_prefill_tokens: engine.max_prefill_tokens,
        max_model_len: engine.max_model_len,
        max_queued_requests: engine.max_queued_requests,
        overlap_depth: engine.overlap_depth,
        prefix_cache: engine.prefix_cache,
        target_itl_ns: engine.target_itl_ns,
        prefill_tile: engine.prefill_tile,
        prefill_order: order(engine.prefill_order),
        max_ttft_ns: engine.max_ttft_ns,
        vocabulary: VOCABULARY,
        // Any key: a lookup is verified, so it changes no decision.
        hash: HashMode::Keyed(0x5eed),
        ..CoreConfig::default()
    }
}

fn order(order: PrefillOrder) -> diptych_core::config::PrefillOrder {
    match order {
        PrefillOrder::Fcfs => diptych_core::config::PrefillOrder::Fcfs,
        PrefillOrder::ShortestUncached => diptych_core::config::PrefillOrder::ShortestUncached,
        PrefillOrder::LongestCachedPrefix => {
            diptych_core::config::PrefillOrder::LongestCachedPrefix
        }
    }
}

fn request(job: Job) -> Request {
    Request {
        submission: job.submission,
        prompt: job.prompt,
        max_tokens: job.max_tokens,
        stop_ids: vec![END_OF_SEQUENCE],
        tenant: job.tenant,
        priority: job.priority,
        deadline: job.deadline,
        first_token_deadline: job.first_token_deadline,
        ..Request::default()
    }
}

/// What the time of a planned step depends on.
pub(crate) fn shape(plan: &StepPlan) -> Shape {
    let mut shape = Shape {
        logits: plan.sampling.len() as u32,
        ..Shape::default()
    };
    let decode_rows = plan.num_decode_rows as usize;
    for (row, &length) in plan.sequence_lengths.iter().enumerate() {
        if row < decode_rows {
            shape.add_decode(length as u64);
        } else {
            let count = plan.query_starts[row + 1] - plan.query_starts[row];
            shape.add_prefill((length - count) as u64, count as u32);
        }
    }
    shape
}

fn outcome(event: &Event) -> Option<Outcome> {
    Some(match *event {
        Event::Admitted {
            submission, cached, ..
        } => Outcome::Admitted { submission, cached },
        Event::Token { submission, .. } => Outcome::Token { submission },
        Event::Preempted { submission, .. } => Outcome::Preempted { submission },
        Event::Finished {
            submission, reason, ..
        } => Outcome::Ended {
            submission,
            end: end(reason),
        },
        // No worker is lost here.
        Event::Requeued { .. } => return None,
    })
}

fn end(reason: FinishReason) -> End {
    match reason {
        FinishReason::StopToken(_) | FinishReason::Length => End::Finished,
        FinishReason::Aborted => End::Aborted,
        FinishReason::Timeout | FinishReason::FirstTokenTimeout => End::Expired,
        _ => End::Failed,
    }
}

impl Scheduler for CoreScheduler {
    fn submit(&mut self, job: Job, now: u64) -> Result<u64, Refusal> {
        match self.core.submit(request(job), now) {
            Ok(handle) => Ok(u64::from(handle.slot) << 32 | u64::from(handle.generation)),
            Err(
                error @ (diptych_core::Error::QueueFull { .. }
                | diptych_core::Error::QueuedTokens { .. }
                | diptych_core::Error::FirstTokenTooLate { .. }),
            ) => Err(Refusal::Overloaded(error.to_string())),
            Err(error) => Err(Refusal::Impossible(error.to_string())),
        }
    }

    fn abort(&mut self, ticket: u64, now: u64) {
        let handle = Handle {
            slot: (ticket >> 32) as u32,
            generation: ticket as u32,
        };
        self.core.abort(handle, now);
    }

    fn plan(&mut self, now: u64, step: &mut Step) -> bool {
        let Some(plan) = self.core.plan(now) else {
            return false;
        };
        step.shape = shape(plan);
        step.samples
            .extend(plan.sampling.iter().map(|row| row.submission));
        self.launched.push_back(plan.step);
        true
    }

    fn complete(&mut self, ids: &[u32], time_ns: u64, now: u64) -> Result<(), String> {
        let step = self
            .launched
            .pop_front()
            .ok_or("complete without a launched step")?;
        self.rows.clear();
        self.rows.extend(ids.iter().map(|&id| (RowStatus::Ok, id)));
        let result = StepResult {
            epoch: 0,
            step,
            rows: &self.rows,
            candidates: &[],
            duration_ns: Some(time_ns),
        };
        self.core
            .complete(&result, now)
            .map_err(|error| error.to_string())
    }

    fn take_outcomes(&mut self, into: &mut Vec<Outcome>) {
        self.core.take_events(&mut self.events);
        into.extend(self.events.iter().filter_map(outcome));
        self.events.clear();
    }

    fn gauges(&self) -> Gauges {
        let stats = self.core.stats();
        Gauges {
            running: stats.running,
            waiting: stats.waiting,
            used_blocks: stats.used_blocks,
            blocks: stats.blocks,
        }
    }

    fn check(&self) -> Result<(), String> {
        self.core.check_all()
    }
}
