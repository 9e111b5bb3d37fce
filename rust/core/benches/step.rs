//! The two calls of a step at several numbers of running requests, admission of a long prompt,
//! lookup of cached prefixes, and churn of the block pool. Each figure is one call's time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use diptych_core::{Core, CoreConfig, Event, RowStatus, StepResult};

mod made_up;

use made_up::{BLOCK, config, prompt, request, token};

/// Steps that a core decodes before it is built anew, outside of the measured time.
const STEPS: usize = 400;

/// A core whose requests all decode.
struct Decoding {
    core: Core,
    rows: Vec<(RowStatus, u32)>,
    events: Vec<Event>,
    steps: usize,
}

impl Decoding {
    fn new(running: usize) -> Self {
        let blocks = running * (2 + STEPS / BLOCK as usize + 2) + 1;
        let tokens = (running * BLOCK as usize).max(64) as u32;
        let mut core =
            Core::new(config(running as u32, tokens, blocks as u32), 0).expect("a valid config");
        for index in 0..running {
            let request = request(
                index as u64,
                prompt(index, 10 + index % 6),
                STEPS as u32 + 8,
            );
            core.submit(request, 0).expect("room for every request");
        }
        let mut decoding = Self {
            core,
            rows: Vec::new(),
            events: Vec::new(),
            steps: 0,
        };
        for _ in 0..2 {
            decoding.plan();
            decoding.complete();
        }
        decoding
    }

    fn plan(&mut self) -> Duration {
        let start = Instant::now();
        let plan = black_box(self.core.plan(0));
        let spent = start.elapsed();
        let plan = plan.expect("every request decodes");
        self.steps = plan.step as usize;
        self.rows.clear();
        for row in &plan.sampling {
            self.rows
                .push((RowStatus::Ok, token(row.row as usize, self.steps)));
        }
        spent
    }

    fn complete(&mut self) -> Duration {
        let result = StepResult {
            epoch: 0,
            step: self.steps as u64,
            duration_ns: Some(1_000_000),
            rows: &self.rows,
            candidates: &[],
        };
        let start = Instant::now();
        black_box(self.core.complete(&result, 0)).expect("the step is the oldest");
        let spent = start.elapsed();
        self.events.clear();
        self.core.take_events(&mut self.events);
        spent
    }
}

fn steps(criterion: &mut Criterion, name: &str, plan: bool) {
    let mut group = criterion.benchmark_group(name);
    for running in [1, 64, 256, 1024] {
        group.bench_function(BenchmarkId::from_parameter(running), |bencher| {
            let mut decoding = Decoding::new(running);
            bencher.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    if decoding.steps >= STEPS {
                        decoding = Decoding::new(running);
                    }
                    let planned = decoding.plan();
                    let completed = decoding.complete();
                    spent += if plan { planned } else { completed };
                }
                spent
            });
        });
    }
    group.finish();
}

fn plan(criterion: &mut Criterion) {
    steps(criterion, "plan", true);
}

fn complete(criterion: &mut Criterion) {
    steps(criterion, "complete", false);
}

/// Plans once and retires that step at once; gives the time of each call.
fn run_step(core: &mut Core) -> Option<(Duration, Duration)> {
    let start = Instant::now();
    let plan = black_box(core.plan(0));
    let planned = start.elapsed();
    let plan = plan?;
    let rows: Vec<_> = plan.sampling.iter().map(|_| (RowStatus::Ok, 5)).collect();
    let (epoch, step) = (plan.epoch, plan.step);
    let result = StepResult {
        epoch,
        step,
        duration_ns: Some(1_000_000),
        rows: &rows,
        candidates: &[],
    };
    let start = Instant::now();
    black_box(core.complete(&result, 0)).expect("the step is the oldest");
    Some((planned, start.elapsed()))
}

/// Runs requests to their ends, so that their blocks are cached.
fn run_out(core: &mut Core) {
    while run_step(core).is_some() {}
    core.take_events(&mut Vec::new());
}

/// The plan that admits a prompt of which a part is cached: lookup, pinning, reservation of the
/// rest, its block table and a chunk of 256 tokens.
fn admission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admission");
    for (name, length, cached) in [
        ("8k_half_cached", 8_192, 4_096),
        ("8k_cached", 8_192, 8_192),
        ("50k_cached", 50_000, 50_000),
    ] {
        let mut core = Core::new(config(1, 256, 8_192), 0).expect("a valid config");
        core.submit(request(0, prompt(1, cached), 1), 0)
            .expect("room for the request");
        run_out(&mut core);
        let mut whole = prompt(1, cached);
        whole.extend((cached..length).map(|position| token(2, position)));
        group.throughput(Throughput::Elements(length as u64 / u64::from(BLOCK)));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for submission in 1..=iterations {
                    let handle = core
                        .submit(request(submission, whole.clone(), 8), 0)
                        .expect("room for the request");
                    spent += run_step(&mut core).expect("the request is admitted").0;
                    core.abort(handle, 0);
                    core.take_events(&mut Vec::new());
                }
                spent
            });
        });
    }
    group.finish();
}

/// 1,024 blocks taken from the cold list in one admission and given back by an abort.
fn churn(criterion: &mut Criterion) {
    const BLOCKS: usize = 1_024;
    let mut group = criterion.benchmark_group("churn");
    group.throughput(Throughput::Elements(BLOCKS as u64));
    group.bench_function("allocate_and_free", |bencher| {
        let config = CoreConfig {
            prefix_cache: false,
            ..config(1, 1, 2_048)
        };
        let mut core = Core::new(config, 0).expect("a valid config");
        let whole = prompt(1, BLOCKS * BLOCK as usize);
        bencher.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for submission in 0..iterations {
                let handle = core
                    .submit(request(submission, whole.clone(), 8), 0)
                    .expect("room for the request");
                spent += run_step(&mut core).expect("the request is admitted").0;
                let start = Instant::now();
                core.abort(handle, 0);
                spent += start.elapsed();
                core.take_events(&mut Vec::new());
            }
            spent
        });
    });
    group.bench_function("evict_prefill_and_intern", |bencher| {
        let tokens = BLOCKS * BLOCK as usize;
        let mut core = Core::new(config(1, tokens as u32, 2_048), 0).expect("a valid config");
        let mut submission = 0;
        bencher.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                submission += 1;
                core.submit(
                    request(submission, prompt(submission as usize, tokens), 1),
                    0,
                )
                .expect("room for the request");
                let (planned, completed) = run_step(&mut core).expect("the request is admitted");
                spent += planned + completed;
                core.take_events(&mut Vec::new());
            }
            spent
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = plan, complete, admission, churn
}
criterion_main!(benches);
