//! Random traffic against a worker whose next token is a hash of the prefix that it reads back
//! through its own block tables, with every invariant checked after every call.

mod masks;

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::config::{Admission, Eviction, HashMode, PrefillOrder};
use crate::latency::{Coefficients, Work};
use crate::{
    Core, CoreConfig, Event, FinishReason, Handle, Request, RowStatus, Sampling, SamplingRow,
    StepPlan, StepResult,
};

const VOCABULARY: u32 = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % u64::from(limit)) as u32
    }
}

fn next_token(prefix: &[u32], choice: u32) -> u32 {
    let mut hasher = DefaultHasher::new();
    (prefix, choice).hash(&mut hasher);
    (hasher.finish() % u64::from(VOCABULARY)) as u32
}

#[derive(Default)]
struct Worker {
    tables: HashMap<i32, Vec<i32>>,
    kv: HashMap<i64, u32>,
    last: HashMap<i32, u32>,
}

impl Worker {
    fn run(&mut self, plan: &StepPlan, block_size: i64) -> Vec<(RowStatus, u32)> {
        let mut read = 0;
        for (index, row) in plan.delta_rows.iter().enumerate() {
            let table = self.tables.entry(*row).or_default();
            let (start, count) = (
                plan.delta_starts[index] as usize,
                plan.delta_counts[index] as usize,
            );
            assert!(start <= table.len(), "a hole in a block table");
            table.truncate(start);
            table.extend_from_slice(&plan.delta_blocks[read..read + count]);
            read += count;
        }
        for &[source, destination, count, _] in &plan.block_copies {
            for offset in 0..i64::from(count) {
                let token = self.kv[&(i64::from(source) * block_size + offset)];
                let slot = i64::from(destination) * block_size + offset;
                self.kv.insert(slot, token);
            }
        }
        let mut owners = vec![0; plan.token_ids.len()];
        for (index, row) in plan.rows.iter().enumerate() {
            let (start, end) = (plan.query_starts[index], plan.query_starts[index + 1]);
            let range = start as usize..end as usize;
            for (id, slot) in plan.token_ids[range.clone()]
                .iter()
                .zip(&plan.slots[range.clone()])
            {
                let id = if *id == -1 {
                    self.last[row]
                } else {
                    *id as u32
                };
                self.kv.insert(*slot, id);
            }
            owners[range].fill(index);
        }
        let mut sample = |row: &SamplingRow| {
            let index = owners[row.token as usize];
            let table = &self.tables[&plan.rows[index]];
            let prefix: Vec<u32> = (0..i64::from(plan.sequence_lengths[index]))
                .map(|position| {
                    let block = i64::from(table[(position / block_size) as usize]);
                    self.kv[&(block * block_size + position % block_size)]
                })
                .collect();
            let id = next_token(&prefix, row.choice_index);
            self.last.insert(row.row as i32, id);
            (RowStatus::Ok, id)
        };
        plan.sampling.iter().map(&mut sample).collect()
    }
}

struct Open {
    handle: Handle,
    tokens: Vec<u32>,
    outputs: u32,
    acked: u32,
    stop_strings: bool,
    masked: bool,
    /// Outputs whose masks are known.
    masks: u32,
}

/// A step, its duration and its rows.
type Launched = (u64, u64, Vec<(RowStatus, u32)>);

struct Soak {
    core: Core,
    random: Random,
    worker: Worker,
    launched: VecDeque<Launched>,
    open: HashMap<(u64, u32), Open>,
    submitted: u64,
    epoch: u64,
    finished: HashMap<FinishReason, u32>,
    hostile: bool,
    now: u64,
}

impl Soak {
    fn new(seed: u64, config: CoreConfig, hostile: bool) -> Self {
        Self {
            core: Core::new(config, 0).unwrap(),
            random: Random(seed * 2 + 1),
            worker: Worker::default(),
            launched: VecDeque::new(),
            open: HashMap::new(),
            submitted: 0,
            epoch: 0,
            finished: HashMap::new(),
            hostile,
            now: 0,
        }
    }

    fn submit(&mut self) {
        let prompt: Vec<u32> = (0..=self.random.below(9))
            .map(|_| self.random.below(2))
            .collect();
        let sampling = self.sampling();
        let request = Request {
            submission: self.submitted,
            prompt: prompt.clone(),
            max_tokens: 1 + self.random.below(12),
            stop_ids: if self.random.below(8) == 0 {
                vec![2]
            } else {
                vec![]
            },
            min_tokens: self.random.below(4).saturating_sub(1),
            masked: self.random.below(5) == 0,
            has_stop_strings: self.random.below(5) == 0,
            choices: match self.random.below(3) {
                0 => 1 + self.random.below(3),
                _ => 1,
            },
            beams: None,
            namespace: u64::from(self.random.below(8) / 7),
            target_itl_ns: (self.random.below(4) == 0).then_some(20_000_000),
            priority: [1, 1, 1, 0, 2][self.random.below(5) as usize],
            tenant: u64::from(self.random.below(3)),
            deadline: (self.random.below(12) == 0)
                .then(|| self.now + u64::from(self.random.below(100)) * 1_000_000),
            first_token_deadline: (self.random.below(12) == 0)
                .then(|| self.now + u64::from(self.random.below(30)) * 1_000_000),
            cache_ttl_ns: (self.random.below(4) == 0).then(|| u64::from(self.random.below(60))),
            retention: (self.random.below(16) / 4) as u8 * u8::from(self.random.below(2) == 0),
            sampling,
        };
        let (stop_strings, masked) = (request.has_stop_strings, request.masked);
        let choices = request.choices;
        if let Ok(handle) = self.core.submit(request, self.now) {
            for choice in 0..choices {
                let open = Open {
                    handle: self.core.choice(handle, choice).unwrap(),
                    tokens: prompt.clone(),
                    outputs: 0,
                    acked: 0,
                    masks: 0,
                    stop_strings,
                    masked,
                };
                self.open.insert((self.submitted, choice), open);
            }
            self.submitted += 1;
        }
    }

    fn sampling(&mut self) -> Sampling {
        let penalised = self.random.below(6) == 0;
        Sampling {
            repetition_penalty: if penalised { 1.5 } else { 1.0 },
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: if self.random.below(6) == 0 {
                vec![(1, 2.0)]
            } else {
                vec![]
            },
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            logprob: false,
            top_logprobs: 0,
            prompt_logprobs: (self.random.below(8) == 0).then_some(1),
        }
    }

    fn plan(&mut self) -> bool {
        let block_size = i64::from(self.core.config.block_size);
        let Some(plan) = self.core.plan(self.now).cloned() else {
            return false;
        };
        let mut result = self.worker.run(&plan, block_size);
        self.mask_rows(&plan, &mut result);
        let time = Coefficients::default().step_ns(&Work::of(&plan)) as u64;
        let noise = u64::from(self.random.below(400)) * time / 1000;
        let outlier = if self.random.below(50) == 0 { 10 } else { 1 };
        self.launched
            .push_back((plan.step, (time + noise) * outlier, result));
        true
    }

    fn complete(&mut self) -> bool {
        let Some((step, duration, mut rows)) = self.launched.pop_front() else {
            return false;
        };
        if self.hostile && !rows.is_empty() && self.random.below(8) == 0 {
            let index = self.random.below(rows.len() as u32) as usize;
            rows[index] = match self.random.below(4) {
                0 => (RowStatus::Nan, 0),
                1 => (RowStatus::Ok, VOCABULARY),
                _ => (RowStatus::NotSampled, 0),
            };
        }
        let result = StepResult {
            epoch: self.epoch,
            step,
            duration_ns: (self.random.below(9) > 0).then_some(duration),
            rows: &rows,
            candidates: &[],
        };
        self.now += duration + 100_000;
        self.core.complete(&result, self.now).unwrap();
        true
    }

    fn lose_worker(&mut self) {
        self.core.worker_lost(self.epoch, false, self.now).unwrap();
        assert_eq!(self.core.stats().used_blocks, 0);
        assert_eq!(self.core.stats().cached_blocks, 0);
        self.epoch += 1;
        self.launched.clear();
        self.worker = Worker::default();
    }

    fn ack(&mut self) {
        let mut names: Vec<_> = self.open.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            let open = self.open.get_mut(&name).unwrap();
            if open.stop_strings {
                open.acked += self.random.below(open.outputs - open.acked + 1);
                let stop = (self.random.below(20) == 0 && open.acked > 0).then_some(open.acked);
                self.core.text_ack(open.handle, open.acked, stop).unwrap();
            }
            if open.masked {
                open.mask(&mut self.core);
            }
        }
    }

    fn drain(&mut self) {
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
                    let open = self.open.get_mut(&(submission, choice)).unwrap();
                    assert_eq!(index, open.outputs);
                    let expected = next_token(&open.tokens, choice);
                    assert_eq!(token, expected, "request {submission}, choice {choice}");
                    open.tokens.push(token);
                    open.outputs += 1;
                }
                Event::Finished {
                    submission,
                    choice,
                    reason,
                } => {
                    self.open.remove(&(submission, choice)).unwrap();
                    *self.finished.entry(reason).or_default() += 1;
                }
                Event::Admitted { submission, .. } => {
                    assert!(self.open.contains_key(&(submission, 0)));
                }
                Event::Preempted { submission, choice }
                | Event::Requeued { submission, choice } => {
                    assert!(self.open.contains_key(&(submission, choice)));
                }
            }
        }
        self.core.check_all().unwrap();
    }

    fn operate(&mut self) {
        self.now += 1;
        match self.random.below(20) {
            0..=2 => self.submit(),
            3 if self.random.below(3) == 0 => {
                let pick = self.random.below(self.open.len().max(1) as u32) as usize;
                let mut names: Vec<_> = self.open.keys().copied().collect();
                names.sort_unstable();
                if let Some(name) = names.get(pick) {
                    self.core.abort(self.open[name].handle, self.now);
                }
            }
            4 if self.hostile && self.random.below(4) == 0 => self.lose_worker(),
            5 if self.hostile && self.random.below(6) == 0 => self.core.reset_prefix_cache(),
            6 | 7 => self.ack(),
            8..=13 => {
                self.complete();
            }
            _ => {
                self.plan();
            }
        }
        self.drain();
    }

    /// With acknowledgements arriving, everything ends and nothing is left behind.
    fn run_out(&mut self) {
        for _ in 0..4000 {
            self.ack();
            self.drain();
            let planned = self.plan();
            self.drain();
            let completed = self.complete();
            self.drain();
            if self.open.is_empty() && !planned && !completed {
                break;
            }
        }
        assert!(self.open.is_empty(), "stuck: {:?}", self.core);
        assert_eq!(self.core.stats().used_blocks, 0);
    }
}

fn config(seed: u64, hash: HashMode) -> CoreConfig {
    CoreConfig {
        block_size: 1 << (seed % 3),
        num_blocks: 24 >> (seed % 3),
        max_running: 1 + (seed % 5) as u32,
        max_batched_tokens: 5 + (seed % 7) as u32,
        max_prefill_tokens: (seed.is_multiple_of(2)).then_some(1 + (seed % 4) as u32),
        prefill_tile: 1 + (seed / 5 % 4) as u32,
        target_itl_ns: (seed % 4 == 1).then_some(10_000_000 + seed % 9 * 1_000_000),
        max_model_len: 40,
        max_queued_requests: 8,
        max_queued_tokens: seed.is_multiple_of(5).then_some(30),
        max_ttft_ns: seed.is_multiple_of(7).then_some(40_000_000),
        prefill_order: [
            PrefillOrder::Fcfs,
            PrefillOrder::ShortestUncached,
            PrefillOrder::LongestCachedPrefix,
        ][(seed % 3) as usize],
        overlap_depth: (seed % 3) as u8,
        prefix_cache: !seed.is_multiple_of(11),
        side_words: 30,
        vocabulary: VOCABULARY,
        hash,
        admission: [
            Admission::WholePrompt,
            Admission::default(),
            Admission::NoEviction,
        ][(seed % 3) as usize],
        eviction: [
            Eviction::Lru,
            Eviction::LruWithTtl { ttl_ns: 90 },
            Eviction::FrequencyGuarded,
        ][(seed / 5 % 3) as usize],
        ..CoreConfig::default()
    }
}

/// Each is 300 random operations and the end of all that they began. `DIPTYCH_SOAK_SEEDS` sets a
/// longer run: 4,000 are 1,200,000 operations.
fn seeds() -> u64 {
    std::env::var("DIPTYCH_SOAK_SEEDS").map_or(600, |seeds| {
        seeds
            .parse()
            .unwrap_or_else(|_| panic!("DIPTYCH_SOAK_SEEDS={seeds} is not a number"))
    })
}

#[test]
fn every_token_is_the_hash_of_its_prefix_and_nothing_is_left() {
    let mut finished: HashMap<FinishReason, u32> = HashMap::new();
    let mut preemptions = 0;
    for seed in 0..seeds() {
        let hash = [
            HashMode::Keyed(seed),
            HashMode::Constant,
            HashMode::FirstToken,
        ][(seed / 7 % 3) as usize];
        let mut soak = Soak::new(seed, config(seed / 3, hash), seed % 3 == 2);
        for _ in 0..300 {
            soak.operate();
        }
        soak.run_out();
        for (reason, count) in soak.finished {
            *finished.entry(reason).or_default() += count;
        }
        preemptions += soak.core.stats().preemptions;
    }
    assert!(preemptions > 100, "{preemptions} preemptions");
    assert!(finished.len() >= 9, "{finished:?}");
}
