//! Invariant 35: tenants who wait all the time are served by their weights, and time spent idle
//! earns nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use diptych_core::config::PrefillOrder;
use diptych_core::{Core, CoreConfig, Event, Request, RowStatus, StepResult};

use crate::engine::{pool_of, prompt, request};

const LONGEST: usize = 30;
const BLOCKS: u32 = 40;

/// The bound of virtual token counters: twice the dearest prompt, or the dearest pool of outputs.
const BOUND: f64 = 2.0 * 2.0 * (BLOCKS * 4) as f64;

/// A core whose tenants always have something waiting, and what each was served.
struct Fair {
    core: Core,
    /// Tenant and prompt length of each submission.
    submitted: Vec<(u64, u64)>,
    waiting: BTreeMap<u64, u32>,
    /// Weighted tokens: an uncached prompt token counts 1, an output 2.
    service: BTreeMap<u64, u64>,
    random: u32,
    now: u64,
}

impl Fair {
    fn new(order: PrefillOrder, weights: &[(u64, u32)], seed: u32) -> Self {
        Self::with(
            CoreConfig {
                prefill_order: order,
                tenant_weights: weights.iter().copied().collect(),
                ..pool_of(BLOCKS)
            },
            seed,
        )
    }

    fn with(config: CoreConfig, seed: u32) -> Self {
        let config = CoreConfig {
            prefix_cache: false,
            ..config
        };
        Self {
            core: Core::new(config, 1).expect("usable"),
            submitted: Vec::new(),
            waiting: BTreeMap::new(),
            service: BTreeMap::new(),
            random: seed,
            now: 0,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(1_664_525);
        self.random = self.random.wrapping_add(1_013_904_223);
        (self.random >> 8) as usize % limit
    }

    fn submit(&mut self, tenant: u64, longest: usize) {
        let length = 1 + self.below(longest);
        let outputs = 1 + self.below(12) as u32;
        self.ask(tenant, length, outputs);
    }

    fn ask(&mut self, tenant: u64, length: usize, outputs: u32) {
        let submission = self.submitted.len() as u64;
        let asked = Request {
            submission,
            tenant,
            priority: 3,
            ..request(&prompt(submission as u32, length), outputs)
        };
        self.core.submit(asked, self.now).expect("room");
        self.submitted.push((tenant, length as u64));
        *self.waiting.entry(tenant).or_default() += 1;
    }

    /// Gives each of these tenants five waiting requests and runs a step.
    fn step(&mut self, backlogged: &[u64]) {
        for &tenant in backlogged {
            while self.waiting.get(&tenant).copied().unwrap_or(0) < 5 {
                self.submit(tenant, LONGEST);
            }
        }
        self.run_step();
    }

    /// Returns the prompt tokens of the step.
    fn run_step(&mut self) -> usize {
        let Some(plan) = self.core.plan(self.now) else {
            return 0;
        };
        let prefilled = plan.token_ids.len() - plan.num_decode_rows as usize;
        let rows = vec![(RowStatus::Ok, 7); plan.sampling.len()];
        let result = StepResult {
            epoch: 1,
            step: plan.step,
            duration_ns: None,
            rows: &rows,
            candidates: &[],
        };
        self.core
            .complete(&result, self.now)
            .expect("the oldest step");
        self.core.check_all().expect("every invariant holds");
        let mut events = Vec::new();
        self.core.take_events(&mut events);
        for event in events {
            self.count(event);
        }
        prefilled
    }

    fn count(&mut self, event: Event) {
        match event {
            Event::Admitted { submission, .. } => {
                let (tenant, _) = self.submitted[submission as usize];
                *self.waiting.get_mut(&tenant).expect("it waited") -= 1;
            }
            Event::Token {
                submission, index, ..
            } => {
                let (tenant, length) = self.submitted[submission as usize];
                let prompt = if index == 0 { length } else { 0 };
                *self.service.entry(tenant).or_default() += prompt + 2;
            }
            _ => {}
        }
    }

    fn served(&self, tenant: u64) -> f64 {
        self.service.get(&tenant).copied().unwrap_or(0) as f64
    }
}

fn orders() -> impl Strategy<Value = PrefillOrder> {
    prop_oneof![
        Just(PrefillOrder::Fcfs),
        Just(PrefillOrder::ShortestUncached),
        Just(PrefillOrder::LongestCachedPrefix),
    ]
}

fn runner() -> TestRunner {
    TestRunner::new(Config {
        cases: 16,
        failure_persistence: None,
        ..Config::default()
    })
}

/// Over every interval, whoever else is there, in every order of prefills.
#[test]
fn two_tenants_who_wait_all_the_time_are_served_by_their_weights() {
    let cases = (orders(), any::<u32>(), 1u32..5, 1u32..5, any::<bool>());
    let outcome = runner().run(&cases, |(order, seed, left, right, crowd)| {
        let weights = [(1, left * 500), (2, right * 500)];
        let mut fair = Fair::new(order, &weights, seed);
        let share = |weight: u32| f64::from(weight) / 2.0;
        let (mut least, mut most) = (0.0_f64, 0.0_f64);
        for step in 0..800 {
            if crowd && step % 7 == 0 {
                fair.submit(3 + step % 5, LONGEST);
            }
            fair.step(&[1, 2]);
            let gap = fair.served(1) / share(left) - fair.served(2) / share(right);
            least = least.min(gap);
            most = most.max(gap);
        }
        let bound = BOUND / share(left.min(right)).min(1.0);
        prop_assert!(most - least <= bound, "{least} to {most}, bound {bound}");
        let busy = fair.served(1) + fair.served(2);
        prop_assert!(busy > 6.0 * BOUND, "only {busy} was served");
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A tenant that was away while two others were served comes back as an equal, not as a creditor.
#[test]
fn idle_tenants_earn_no_credit() {
    let outcome = runner().run(&(orders(), any::<u32>()), |(order, seed)| {
        let mut fair = Fair::new(order, &[], seed);
        for _ in 0..20 {
            fair.step(&[1, 2, 3]);
        }
        for _ in 0..600 {
            fair.step(&[1, 2]);
        }
        let before = [fair.served(1), fair.served(3)];
        for step in 0..300 {
            fair.step(&[1, 2, 3]);
            let gained = fair.served(3) - before[1] - (fair.served(1) - before[0]);
            prop_assert!(gained.abs() <= BOUND, "step {step}: {gained} more");
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// Nor does a debt vanish by leaving for a moment.
#[test]
fn a_tenant_that_leaves_and_comes_back_is_not_forgiven() {
    let mut fair = Fair::new(PrefillOrder::Fcfs, &[], 1);
    let mut gap: f64 = 0.0;
    for _ in 0..400 {
        // Tenant 1 asks for one request at a time and is gone in between.
        if fair.waiting.get(&1).copied().unwrap_or(0) == 0 {
            fair.submit(1, LONGEST);
        }
        fair.step(&[2]);
        gap = gap.max(fair.served(1) - fair.served(2));
    }
    assert!(gap <= BOUND, "{gap}");
}

/// 7.3 (3) in small: whoever asks twenty times as often makes nobody else wait longer.
#[test]
fn a_flood_of_one_tenant_delays_no_other() {
    let wait_of = |flood: usize| {
        let mut fair = Fair::new(PrefillOrder::Fcfs, &[], 5);
        let mut waits = Vec::new();
        for round in 0..40 {
            for _ in 0..flood {
                fair.submit(1, 8);
            }
            fair.submit(2 + round % 2, 8);
            let mut steps = 0;
            while fair.waiting[&(2 + round % 2)] > 0 {
                fair.run_step();
                steps += 1;
            }
            waits.push(steps);
        }
        waits.sort_unstable();
        waits[waits.len() - 1]
    };
    let (alone, beside) = (wait_of(0), wait_of(20));
    assert!(beside <= 14 * alone, "{beside} steps, alone {alone}");
    assert!(beside <= 14, "{beside} steps");
}

/// A flood's prompts are always old, those that run too: age puts them before their own tenant's only.
#[test]
fn old_prompts_of_a_flood_go_before_no_other_tenant() {
    let mut fair = Fair::new(PrefillOrder::Fcfs, &[], 3);
    for _ in 0..60 {
        fair.submit(1, LONGEST);
    }
    for round in 0..20 {
        fair.now += 120_000_000_000;
        fair.run_step();
        let tenant = 2 + round % 2;
        let before = fair.served(tenant);
        fair.submit(tenant, 4);
        fair.submit(1, LONGEST);
        let mut steps = 0;
        while fair.served(tenant) <= before {
            fair.run_step();
            steps += 1;
        }
        assert!(steps <= 14, "round {round}: {steps} steps");
    }
}

/// A request that ends before its prompt was computed costs its tenant what was computed.
#[test]
fn what_was_not_computed_is_given_back() {
    let mut fair = Fair::new(PrefillOrder::Fcfs, &[], 9);
    fair.step(&[1, 2]);
    // Tenant 1 asks for long prompts and leaves each after a step or two.
    for round in 0..60 {
        let submission = fair.submitted.len() as u64;
        let asked = Request {
            submission,
            tenant: 1,
            priority: 3,
            ..request(&prompt(submission as u32, 60), 1)
        };
        let handle = fair.core.submit(asked, 0).expect("room");
        fair.submitted.push((1, 0));
        *fair.waiting.entry(1).or_default() += 1;
        fair.step(&[2]);
        fair.core.abort(handle, 0);
        if round % 2 == 0 {
            fair.run_step();
        }
    }
    let (left, right) = (fair.served(1), fair.served(2));
    fair.waiting.insert(1, 0);
    for _ in 0..200 {
        fair.step(&[1, 2]);
    }
    let gap = (fair.served(1) - left) - (fair.served(2) - right);
    assert!(gap.abs() <= BOUND, "{gap}");
}

/// A flood of long prompts of tenant 1, of which `waiting` are left beside those that run.
fn flood(config: CoreConfig, waiting: u32) -> Fair {
    let mut fair = Fair::with(config, 7);
    for _ in 0..waiting + 8 {
        fair.ask(1, 30, 4);
    }
    for _ in 0..12 {
        fair.run_step();
    }
    fair
}

/// Max-min: a prompt of many steps takes no turns with the flood's, it has the steps for itself but
/// for the tenth that is for those who are admitted.
#[test]
fn who_asks_for_little_is_served_before_a_flood() {
    let config = CoreConfig {
        max_batched_tokens: 16,
        ..pool_of(100)
    };
    let mut fair = flood(config, 40);
    fair.ask(2, 60, 1);
    let mut steps = 0;
    while fair.served(2) == 0.0 {
        fair.run_step();
        steps += 1;
    }
    assert!(steps <= 6, "{steps} steps for 60 tokens");
    assert!(fair.waiting[&1] > 20, "the flood has ended");
}

/// Forty tenants who always ask for a little each: the flood does not wait until all of them have their
/// lead, it is next after four leads of four steps.
#[test]
fn many_small_tenants_do_not_starve_a_flood() {
    let config = CoreConfig {
        max_batched_tokens: 16,
        ..pool_of(100)
    };
    let mut fair = flood(config, 200);
    let before = fair.waiting[&1];
    let mut steps = 0;
    while fair.waiting[&1] == before {
        for tenant in 2..42 {
            if fair.waiting.get(&tenant).copied().unwrap_or(0) == 0 {
                fair.ask(tenant, 16, 1);
            }
        }
        fair.run_step();
        steps += 1;
        assert!(steps <= 120, "the flood waits for every lead");
    }
}

/// While others have requests open, a flood takes an eighth of a step and leaves rows free; without
/// them, everything.
#[test]
fn a_flood_leaves_room_for_who_comes_next() {
    let config = CoreConfig {
        max_batched_tokens: 512,
        max_running: 32,
        prefill_tile: 4,
        ..pool_of(400)
    };
    let ask = |fair: &mut Fair| (0..100).for_each(|_| fair.ask(1, 30, 30));
    let mut alone = Fair::with(config.clone(), 7);
    ask(&mut alone);
    assert!(alone.run_step() > 400, "less than a step");
    alone.run_step();
    assert_eq!(alone.core.stats().running, 32, "the flood has all rows");
    let mut fair = Fair::with(config, 7);
    fair.ask(2, 4, 40);
    fair.run_step();
    ask(&mut fair);
    let mut most = 0;
    for step in 0..30 {
        let prefilled = fair.run_step();
        // The flood has as many requests as the other at first.
        assert!(step == 0 || prefilled <= 64, "step {step}: {prefilled}");
        most = most.max(fair.core.stats().running);
    }
    assert_eq!(most, 30);
}
