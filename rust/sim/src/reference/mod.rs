//! The field's other schedulers, small and made of choices, to be compared with the core on the same arrivals.
//!
//! One step at a time, first come, first served, the newest preempted first and computed again. What they share
//! with the core they share on purpose, so that a difference in results is a difference in policy.

mod entry;
mod memory;
mod policy;
mod sketch;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

pub use policy::{Admission, Batching, Eviction, Order, POLICIES, Policy};

use crate::Engine;
use crate::scheduler::{END_OF_SEQUENCE, End, Gauges, Job, Outcome, Refusal, Scheduler, Step};
use entry::Entry;
use memory::Memory;

/// A request's share of the launched step.
#[derive(Clone, Copy, Debug)]
struct Share {
    slot: usize,
    submission: u64,
    count: u32,
    sampled: bool,
}

/// A scheduler of the field.
#[derive(Debug)]
pub struct Reference {
    policy: Policy,
    engine: Engine,
    budget: u32,
    memory: Memory,
    entries: Vec<Option<Entry>>,
    vacant: Vec<usize>,
    slots: HashMap<u64, usize>,
    waiting: VecDeque<usize>,
    /// In order of admission.
    running: Vec<usize>,
    launched: Vec<Share>,
    /// Whether the plan being made preempted somebody.
    preempted: bool,
    outcomes: Vec<Outcome>,
}

impl Reference {
    /// A scheduler with this policy and the engine's sizes.
    #[must_use]
    pub fn new(policy: Policy, eviction: Eviction, engine: &Engine) -> Self {
        let widest = engine.max_batched_tokens;
        Self {
            policy,
            budget: policy.budget.map_or(widest, |budget| budget.min(widest)),
            memory: Memory::new(engine.blocks, eviction),
            engine: engine.clone(),
            entries: Vec::new(),
            vacant: Vec::new(),
            slots: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            launched: Vec::new(),
            preempted: false,
            outcomes: Vec::new(),
        }
    }

    fn entry(&mut self, slot: usize) -> &mut Entry {
        self.entries[slot]
            .as_mut()
            .expect("a listed slot is in use")
    }

    fn place(&mut self, slot: usize, count: u32) {
        let entry = self.entry(slot);
        let share = Share {
            slot,
            submission: entry.submission,
            count,
            sampled: count == entry.remaining(),
        };
        self.launched.push(share);
    }

    /// Makes the request own the blocks of its first `tokens` tokens, preempting the newest if need be.
    /// False: it was itself the newest.
    fn grow(&mut self, slot: usize, tokens: u32, now: u64) -> bool {
        let block_size = self.engine.block_size;
        loop {
            let entry = self.entry(slot);
            let missing = tokens.div_ceil(block_size).saturating_sub(entry.owned());
            if self.memory.take(missing) {
                self.entry(slot).private += missing;
                return true;
            }
            let victim = *self.running.last().expect("somebody runs: this one");
            self.preempt(victim, now);
            if victim == slot {
                return false;
            }
        }
    }

    fn preempt(&mut self, slot: usize, now: u64) {
        self.preempted = true;
        self.give_back(slot, now);
        self.running.retain(|&other| other != slot);
        self.launched.retain(|share| share.slot != slot);
        self.waiting.push_front(slot);
        let submission = self.entry(slot).submission;
        self.outcomes.push(Outcome::Preempted { submission });
    }

    fn give_back(&mut self, slot: usize, now: u64) {
        let entry = self.entries[slot]
            .as_mut()
            .expect("a listed slot is in use");
        for &hash in entry.hashes[..entry.filled as usize].iter().rev() {
            self.memory.release(hash, now);
        }
        self.memory.give(entry.private);
        entry.filled = 0;
        entry.private = 0;
        entry.computed = 0;
    }

    fn place_decodes(&mut self, now: u64, budget: &mut u32) {
        let mut position = 0;
        while *budget > 0
            && let Some(&slot) = self.running.get(position)
        {
            let entry = self.entry(slot);
            let upto = entry.computed + 1;
            if !entry.is_decoding() {
                position += 1;
            } else if self.grow(slot, upto, now) {
                self.place(slot, 1);
                *budget -= 1;
                position += 1;
            }
        }
    }

    fn place_prefills(&mut self, now: u64, budget: &mut u32) {
        let mut position = 0;
        while *budget > 0
            && let Some(&slot) = self.running.get(position)
        {
            let entry = self.entry(slot);
            let count = entry.remaining().min(*budget);
            let upto = entry.computed + count;
            if entry.is_decoding() {
                position += 1;
            } else if self.grow(slot, upto, now) {
                self.place(slot, count);
                *budget -= count;
                position += 1;
            }
        }
    }

    /// Takes in the head of the queue as long as it fits.
    fn admit(&mut self, now: u64, budget: &mut u32) {
        let is_static = self.policy.batching == Batching::Static;
        while (*budget > 0 || is_static)
            && self.running.len() < self.engine.max_running as usize
            && let Some(&slot) = self.waiting.front()
            && self.try_admit(slot, *budget, now)
        {
            self.waiting.pop_front();
            self.running.push(slot);
            let count = self.entry(slot).remaining().min(*budget);
            if count > 0 {
                self.place(slot, count);
                *budget -= count;
            }
        }
    }

    fn try_admit(&mut self, slot: usize, budget: u32, now: u64) -> bool {
        let block_size = self.engine.block_size;
        let admission = self.policy.admission;
        let prefix_cache = self.engine.prefix_cache;
        let entry = self.entries[slot]
            .as_mut()
            .expect("a listed slot is in use");
        let (found, idle) = if prefix_cache {
            // At least one token is computed: somebody has to produce logits.
            let reusable = (entry.known() - 1) / block_size;
            self.memory.find(&entry.hashes[..reusable as usize], now)
        } else {
            (0, 0)
        };
        let cached = found * block_size;
        let tokens = match admission {
            Admission::FirstChunk => entry.known().min(cached + budget),
            Admission::WholePrompt => entry.known(),
            Admission::ReserveMax => entry.prompt + entry.max_tokens - 1,
        };
        let missing = tokens.div_ceil(block_size) - found;
        if self.memory.available() - idle < missing {
            return false;
        }
        for &hash in &entry.hashes[..found as usize] {
            self.memory.acquire(hash);
        }
        let taken = self.memory.take(missing);
        debug_assert!(taken, "the blocks were counted before");
        entry.filled = found;
        entry.private = missing;
        entry.computed = cached;
        if !entry.admitted {
            entry.admitted = true;
            let submission = entry.submission;
            self.outcomes.push(Outcome::Admitted { submission, cached });
        }
        true
    }

    /// The request's new positions are computed: blocks that are full get their content.
    fn advance(&mut self, slot: usize, count: u32) {
        let entry = self.entries[slot]
            .as_mut()
            .expect("a listed slot is in use");
        entry.computed += count;
        if !self.engine.prefix_cache {
            return;
        }
        while entry.filled < entry.computed / self.engine.block_size {
            self.memory.fill(entry.hashes[entry.filled as usize]);
            entry.filled += 1;
            entry.private -= 1;
        }
    }

    fn end(&mut self, slot: usize, end: End, now: u64) {
        self.give_back(slot, now);
        self.running.retain(|&other| other != slot);
        self.waiting.retain(|&other| other != slot);
        let entry = self.entries[slot].take().expect("an open request");
        self.vacant.push(slot);
        self.slots.remove(&entry.submission);
        self.outcomes.push(Outcome::Ended {
            submission: entry.submission,
            end,
        });
    }
}

impl Scheduler for Reference {
    fn submit(&mut self, job: Job, _now: u64) -> Result<u64, Refusal> {
        let tokens = job.prompt.len() as u64 + u64::from(job.max_tokens);
        let block_size = u64::from(self.engine.block_size);
        let needed = (tokens - 1).div_ceil(block_size);
        let available = self.memory.blocks();
        if tokens > u64::from(self.engine.max_model_len) || needed > u64::from(available) {
            return Err(Refusal::Impossible(format!(
                "{tokens} tokens need {needed} blocks, there are {available}, and the context is {}",
                self.engine.max_model_len
            )));
        }
        if self.waiting.len() >= self.engine.max_queued_requests as usize {
            let waiting = self.waiting.len();
            return Err(Refusal::Overloaded(format!("{waiting} requests wait")));
        }
        let submission = job.submission;
        let entry = Entry::new(job, self.engine.block_size);
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[slot] = Some(entry);
        self.slots.insert(submission, slot);
        self.waiting.push_back(slot);
        Ok(submission)
    }

    fn abort(&mut self, ticket: u64, now: u64) {
        if let Some(&slot) = self.slots.get(&ticket) {
            self.end(slot, End::Aborted, now);
        }
    }

    fn plan(&mut self, now: u64, step: &mut Step) -> bool {
        if !self.launched.is_empty() {
            return false;
        }
        self.preempted = false;
        let mut budget = self.budget;
        let joinable = match self.policy.batching {
            Batching::Static => self.running.is_empty(),
            Batching::Continuous => true,
        };
        if self.policy.order == Order::DecodeFirst {
            self.place_decodes(now, &mut budget);
        }
        self.place_prefills(now, &mut budget);
        if joinable && !self.preempted {
            self.admit(now, &mut budget);
        }
        if self.policy.order == Order::PrefillFirst && self.launched.is_empty() {
            self.place_decodes(now, &mut budget);
        }
        for share in &self.launched {
            let entry = self.entries[share.slot].as_ref().expect("just placed");
            if entry.is_decoding() {
                step.shape.add_decode(u64::from(entry.computed + 1));
            } else {
                step.shape
                    .add_prefill(u64::from(entry.computed), share.count);
            }
            if share.sampled {
                step.samples.push(share.submission);
            }
        }
        step.shape.logits = step.samples.len() as u32;
        !self.launched.is_empty()
    }

    fn complete(&mut self, ids: &[u32], _time_ns: u64, now: u64) -> Result<(), String> {
        let mut ids = ids.iter();
        let mut launched = std::mem::take(&mut self.launched);
        for share in launched.drain(..) {
            let id = if share.sampled { ids.next() } else { None };
            if self.slots.get(&share.submission) != Some(&share.slot) {
                continue;
            }
            self.advance(share.slot, share.count);
            if let Some(&id) = id {
                let entry = self.entry(share.slot);
                entry.push(id);
                let last = id == END_OF_SEQUENCE || entry.outputs() == entry.max_tokens;
                let submission = share.submission;
                self.outcomes.push(Outcome::Token { submission });
                if last {
                    self.end(share.slot, End::Finished, now);
                }
            }
        }
        self.launched = launched;
        Ok(())
    }

    fn take_outcomes(&mut self, into: &mut Vec<Outcome>) {
        into.append(&mut self.outcomes);
    }

    fn gauges(&self) -> Gauges {
        let blocks = self.memory.blocks();
        Gauges {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            used_blocks: blocks - self.memory.available(),
            blocks,
        }
    }

    fn check(&self) -> Result<(), String> {
        let private = self.entries.iter().flatten().map(|entry| entry.private);
        self.memory.check(private.sum())
    }
}
