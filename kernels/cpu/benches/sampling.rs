//! Time of sampling one row of 49,152 logits, in microseconds: the least of many, kinds of rows interleaved.

#![expect(clippy::print_stdout, reason = "figures are what it is for")]
#![expect(
    clippy::inline_always,
    reason = "kernels are compiled where their instruction set is switched on"
)]

use std::time::Instant;

use diptych_cpu::sampling::{Best, Sampler, SamplingRow, uniform};
use diptych_cpu::simd::{InstructionSet, Isa, Kernel};

const VOCABULARY: usize = 49_152;
const ROUNDS: usize = 200;

/// Normally distributed logits, and a few that stand out where `peaked`.
fn logits(peaked: bool) -> Vec<f32> {
    let normal = |id: usize| {
        let (a, b) = (uniform(1, id as u32, 0), uniform(1, id as u32, 1));
        (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos() * 2.5
    };
    let mut logits: Vec<f32> = (0..VOCABULARY).map(|id| normal(id) as f32).collect();
    if peaked {
        for rank in 0..40 {
            logits[rank * 1201] = 16.0 - (rank as f32).sqrt();
        }
    }
    logits
}

struct Greedy<'a>(&'a [f32]);

impl Kernel for Greedy<'_> {
    type Output = Best;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Best {
        let mut best = Best::new();
        for (index, tile) in self.0.chunks(1024).enumerate() {
            // SAFETY: a slice's own values.
            unsafe { best.see(isa, index as u32 * 1024, tile.as_ptr(), tile.len()) };
        }
        best
    }
}

struct Case {
    name: &'static str,
    row: SamplingRow<'static>,
    peaked: bool,
}

fn cases() -> Vec<Case> {
    let row = SamplingRow {
        temperature: 1.0,
        ..SamplingRow::default()
    };
    let case = |name, peaked, row| Case { name, row, peaked };
    let top_k = |top_k| SamplingRow { top_k, ..row };
    let top_p = |top_p| SamplingRow { top_p, ..row };
    vec![
        case("greedy", true, SamplingRow::default()),
        case("top-k 40", true, top_k(40)),
        case("top-k 1000", true, top_k(1000)),
        case(
            "top-k 40, top-p 0.9",
            true,
            SamplingRow {
                top_p: 0.9,
                ..top_k(40)
            },
        ),
        case("min-p 0.05", true, SamplingRow { min_p: 0.05, ..row }),
        case("top-p 0.9, peaked", true, top_p(0.9)),
        case("top-p 0.9, flat", false, top_p(0.9)),
        case("temperature alone, peaked", true, row),
        case("temperature alone, flat", false, row),
        case(
            "temperature 3, flat",
            false,
            SamplingRow {
                temperature: 3.0,
                ..row
            },
        ),
    ]
}

/// Microseconds of one call.
fn time(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    call();
    start.elapsed().as_secs_f64() * 1e6
}

fn main() {
    let (peaked, flat) = (logits(true), logits(false));
    for set in InstructionSet::ALL
        .into_iter()
        .filter(|set| set.is_available())
    {
        let cases = cases();
        let mut sampler = Sampler::new();
        let mut times = vec![Vec::new(); cases.len()];
        let mut greedy = f64::INFINITY;
        for round in 0..ROUNDS {
            greedy = greedy.min(time(|| {
                std::hint::black_box(set.run(Greedy(&peaked)).finish());
            }));
            for (case, times) in cases.iter().zip(&mut times) {
                let mut logits = if case.peaked {
                    peaked.clone()
                } else {
                    flat.clone()
                };
                let row = SamplingRow {
                    output_index: round as u32,
                    ..case.row
                };
                times.push(time(|| {
                    std::hint::black_box(sampler.sample(set, &mut logits, &row));
                }));
            }
        }
        let bandwidth = VOCABULARY as f64 * 4e-3 / greedy;
        println!(
            "{}: tiles of greedy {greedy:.1} µs, {bandwidth:.0} GB/s",
            set.name()
        );
        for (case, times) in cases.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
            println!(
                "  {:28} least {least:6.1}  median {median:6.1}  99 % {most:6.1}",
                case.name
            );
        }
    }
}
