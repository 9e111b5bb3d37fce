//! Each policy does what sets it apart, and caches give up what they should.

use super::memory::Memory;
use super::{Eviction, POLICIES, Reference};
use crate::scheduler::{END_OF_SEQUENCE, Job, Outcome, Scheduler, Step};
use crate::{Engine, PrefillOrder};

fn engine(blocks: u32) -> Engine {
    Engine {
        block_size: 4,
        blocks,
        max_running: 8,
        max_batched_tokens: 32,
        max_prefill_tokens: None,
        max_model_len: 1_000,
        max_queued_requests: 100,
        overlap_depth: 0,
        prefix_cache: true,
        target_itl_ns: None,
        prefill_tile: 1,
        prefill_order: PrefillOrder::Fcfs,
        max_ttft_ns: None,
    }
}

/// A scheduler with a clock, whose requests run to `max_tokens`.
struct Rig {
    scheduler: Reference,
    outcomes: Vec<Outcome>,
    now: u64,
}

impl Rig {
    fn new(policy: &str, blocks: u32) -> Self {
        let policy = POLICIES.into_iter().find(|known| known.name == policy);
        let policy = policy.expect("a known policy");
        Self {
            scheduler: Reference::new(policy, Eviction::Lru, &engine(blocks)),
            outcomes: Vec::new(),
            now: 0,
        }
    }

    fn submit(&mut self, submission: u64, prompt: u32, max_tokens: u32) {
        let first = submission as u32 * 1_000 + 1;
        let job = Job {
            submission,
            prompt: (first..first + prompt).collect(),
            max_tokens,
            tenant: 1,
            ..Job::default()
        };
        self.scheduler
            .submit(job, self.now)
            .expect("room in the queue");
    }

    /// One step: its rows that decode and its prompt tokens.
    fn step(&mut self) -> (u32, u32) {
        let mut step = Step::default();
        self.scheduler.plan(self.now, &mut step);
        let ids = vec![END_OF_SEQUENCE + 1; step.samples.len()];
        self.now += 1;
        self.scheduler
            .complete(&ids, 1, self.now)
            .expect("one id for each sample");
        self.scheduler.take_outcomes(&mut self.outcomes);
        self.scheduler
            .check()
            .expect("blocks are where they should be");
        (step.shape.decode_rows, step.shape.prefill_tokens)
    }

    fn preemptions(&self) -> usize {
        let preempted = |outcome: &&Outcome| matches!(outcome, Outcome::Preempted { .. });
        self.outcomes.iter().filter(preempted).count()
    }

    fn run_out(&mut self) {
        for _ in 0..10_000 {
            if self.step() == (0, 0) {
                break;
            }
        }
        let gauges = self.scheduler.gauges();
        assert_eq!(
            (gauges.running, gauges.waiting, gauges.used_blocks),
            (0, 0, 0)
        );
    }
}

#[test]
fn prefill_first_stops_decodes_and_a_fixed_budget_does_not() {
    let mut first = Rig::new("prefill-first", 100);
    let mut budget = Rig::new("fixed-budget", 100);
    for rig in [&mut first, &mut budget] {
        rig.submit(1, 8, 20);
        assert_eq!(rig.step(), (0, 8));
        assert_eq!(rig.step(), (1, 0));
        rig.submit(2, 40, 5);
    }
    assert_eq!(
        [first.step(), first.step(), first.step()],
        [(0, 32), (0, 8), (2, 0)]
    );
    assert_eq!(
        [budget.step(), budget.step(), budget.step()],
        [(1, 31), (1, 9), (2, 0)]
    );
}

#[test]
fn a_static_batch_is_joined_by_nobody() {
    let mut rig = Rig::new("static", 100);
    rig.submit(1, 8, 2);
    rig.submit(2, 8, 6);
    rig.step();
    rig.submit(3, 8, 2);
    assert_eq!(
        (0..5).map(|_| rig.step().0).collect::<Vec<u32>>(),
        [2, 1, 1, 1, 1]
    );
    assert_eq!(rig.step(), (0, 8));
}

#[test]
fn whole_prompts_wait_for_room_and_first_chunks_thrash() {
    let mut whole = Rig::new("fixed-budget", 30);
    let mut chunk = Rig::new("first-chunk", 30);
    for rig in [&mut whole, &mut chunk] {
        rig.submit(1, 60, 40);
        rig.submit(2, 80, 20);
        rig.run_out();
    }
    assert_eq!(whole.preemptions(), 0);
    assert!(chunk.preemptions() > 0);
}

#[test]
fn reserved_outputs_are_never_preempted_and_admit_fewer() {
    let mut whole = Rig::new("fixed-budget", 24);
    let mut reserve = Rig::new("reserve-max", 24);
    for rig in [&mut whole, &mut reserve] {
        for submission in 1..=6 {
            rig.submit(submission, 8, 30);
        }
        rig.step();
    }
    assert_eq!(reserve.scheduler.gauges().running, 2);
    assert!(whole.scheduler.gauges().running > 2);
    whole.run_out();
    reserve.run_out();
    assert!(whole.preemptions() > 0);
    assert_eq!(reserve.preemptions(), 0);
}

/// Fills content 1, 2, … in order, each used once and released; then content 1 is used once more.
fn cache(eviction: Eviction) -> Memory {
    let mut memory = Memory::new(4, eviction);
    for hash in 1..=4 {
        assert!(memory.take(1));
        memory.fill(hash);
        memory.release(hash, hash * 1_000_000_000);
    }
    for _ in 0..3 {
        memory.acquire(1);
        memory.release(1, 5_000_000_000);
    }
    memory
}

fn found(memory: &Memory, now_s: u64) -> Vec<u64> {
    let is_found = |hash: &u64| memory.find(&[*hash], now_s * 1_000_000_000).0 == 1;
    (1..=4).filter(is_found).collect()
}

#[test]
fn the_least_recently_used_gives_way_first() {
    let mut memory = cache(Eviction::Lru);
    assert!(memory.take(2));
    assert_eq!(found(&memory, 6), [1, 4]);
    assert_eq!(memory.check(2), Ok(()));
}

#[test]
fn content_past_its_time_is_not_found() {
    let memory = cache(Eviction::LruTtl(2.5));
    assert_eq!(found(&memory, 5), [1, 3, 4]);
    assert_eq!(found(&memory, 7), [1]);
    assert_eq!(memory.available(), 4);
}

#[test]
fn what_is_used_often_outlives_what_is_newer() {
    let mut memory = cache(Eviction::FrequencyGuarded);
    for hash in 2..=4 {
        memory.acquire(hash);
        memory.release(hash, 6_000_000_000);
    }
    assert!(memory.take(3));
    assert_eq!(found(&memory, 7), [1]);
    let mut plain = cache(Eviction::Lru);
    for hash in 2..=4 {
        plain.acquire(hash);
        plain.release(hash, 6_000_000_000);
    }
    assert!(plain.take(3));
    assert_eq!(found(&plain, 7), [4]);
}

#[test]
fn owned_content_is_never_evicted_and_equal_content_is_shared() {
    let mut memory = Memory::new(2, Eviction::Lru);
    assert!(memory.take(2));
    memory.fill(7);
    memory.fill(7);
    assert_eq!(memory.available(), 1);
    assert!(!memory.take(2));
    memory.release(7, 0);
    assert!(!memory.take(2));
    memory.release(7, 0);
    assert!(memory.take(2));
}
