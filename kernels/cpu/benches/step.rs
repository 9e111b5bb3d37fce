//! Whole steps with the sample model's shapes and random weights: milliseconds of decode steps, tokens per second of
//! prefill.
//!
//! `cargo bench -p diptych-cpu --bench step -- [format …] [threads=N] [seconds=S] [set=NAME] [fusions]`

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use diptych_cpu::kv::KvFormat;
use diptych_cpu::matrix::{Arithmetic, Format};
use diptych_cpu::model::random::{RandomFormats, RandomModel};
use diptych_cpu::model::{Engine, Fusions, ModelShape, SamplingInput, Settings, StepInput};
use diptych_cpu::simd::InstructionSet;

const CONTEXT: usize = 256;
const PROMPT: usize = 512;
const BLOCK: usize = 16;

fn shape() -> ModelShape {
    let frequency = |pair: i32| 10_000_f32.powf(-(pair as f32) / 32.0);
    ModelShape {
        vocabulary: 49_152,
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        epsilon: 1e-5,
        rope_frequencies: (0..32).map(frequency).collect(),
    }
}

/// A step that asks for the last token of each row, greedily.
struct Plan {
    ids: Vec<i32>,
    positions: Vec<i32>,
    slots: Vec<i64>,
    rows: Vec<i32>,
    starts: Vec<i32>,
    lengths: Vec<i32>,
    decode: usize,
    tables: (Vec<i32>, Vec<i32>, Vec<i32>, Vec<i32>),
    last: Vec<i32>,
}

impl Plan {
    /// `rows` rows of `tokens` tokens that end at `length`.
    fn new(rows: usize, tokens: usize, length: usize) -> Self {
        let blocks = length.div_ceil(BLOCK);
        let first = length - tokens;
        let slot = |row: usize, position: usize| (row * blocks * BLOCK + position) as i64;
        let each = |place: usize| (place / tokens, first + place % tokens);
        let all = 0..rows * tokens;
        Self {
            ids: all
                .clone()
                .map(|place| (place * 97 % 49_000) as i32)
                .collect(),
            positions: all.clone().map(|place| each(place).1 as i32).collect(),
            slots: all
                .map(|place| slot(each(place).0, each(place).1))
                .collect(),
            rows: (0..rows as i32).collect(),
            starts: (0..=rows).map(|row| (row * tokens) as i32).collect(),
            lengths: vec![length as i32; rows],
            decode: if tokens == 1 { rows } else { 0 },
            tables: (
                (0..rows as i32).collect(),
                vec![0; rows],
                vec![blocks as i32; rows],
                (0..(rows * blocks) as i32).collect(),
            ),
            last: (0..rows)
                .map(|row| ((row + 1) * tokens - 1) as i32)
                .collect(),
        }
    }

    fn run(&self, engine: &mut Engine) -> u64 {
        let count = self.last.len();
        let (zeros, ones, none) = (vec![0.0; count], vec![1.0; count], vec![-1; count]);
        let (null, seed) = (vec![0; count], vec![0_i64; count]);
        let input = StepInput {
            token_ids: &self.ids,
            positions: &self.positions,
            slots: &self.slots,
            rows: &self.rows,
            query_starts: &self.starts,
            sequence_lengths: &self.lengths,
            num_decode_rows: self.decode,
            delta_rows: &self.tables.0,
            delta_starts: &self.tables.1,
            delta_counts: &self.tables.2,
            delta_blocks: &self.tables.3,
            block_copies: &[],
            sampling: SamplingInput {
                tokens: &self.last,
                rows: &self.rows,
                temperature: &zeros,
                top_k: &null,
                top_p: &ones,
                min_p: &zeros,
                presence_penalty: &zeros,
                frequency_penalty: &zeros,
                repetition_penalty: &ones,
                seed: &seed,
                output_index: &null,
                choice_index: &null,
                penalty_offset: &none,
                bias_offset: &none,
                logprobs: &none,
                masked: &null,
                masks: &[],
                side: &[],
            },
        };
        engine.run(&input, &|| ()).expect("a good plan").forward_ns
    }
}

/// Milliseconds of a step.
struct Times {
    least: f64,
    median: f64,
    /// Without head and sampling.
    layers: f64,
    /// Of all threads' processors, the least: what is left to compare on a busy machine.
    processor: f64,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            least,
            median,
            layers,
            processor,
        } = self;
        write!(
            f,
            "{least:7.2} ms least, {median:7.2} median, layers {layers:7.2}, processors {processor:7.2}"
        )
    }
}

/// Milliseconds that this process has spent on processors.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn measure(engine: &mut Engine, plan: &Plan, time: Duration) -> Times {
    let (mut times, mut layers, mut processor) = (Vec::new(), u64::MAX, f64::MAX);
    let end = Instant::now() + time;
    while times.len() < 3 || Instant::now() < end {
        let (start, spent) = (Instant::now(), processor_time());
        layers = layers.min(plan.run(engine));
        times.push(start.elapsed().as_secs_f64() * 1e3);
        processor = processor.min(processor_time() - spent);
    }
    times.sort_by(f64::total_cmp);
    Times {
        least: times[0],
        median: times[times.len() / 2],
        layers: layers as f64 / 1e6,
        processor,
    }
}

fn settings(arguments: &[String], set: InstructionSet) -> Settings {
    let value = |name: &str| {
        arguments
            .iter()
            .find_map(|argument| argument.strip_prefix(name))
    };
    Settings {
        set,
        threads: value("threads=").map_or(2, |text| text.parse().expect("a number")),
        arithmetic: if set.has_bf16_dot() {
            Arithmetic::Bf16
        } else {
            Arithmetic::F32
        },
        kv: KvFormat::Bf16,
        block_size: BLOCK,
        num_blocks: 32 * CONTEXT / BLOCK,
        max_running: 32,
        max_tokens: PROMPT,
        max_model_len: PROMPT,
        vocabulary: 49_152,
        huge_pages: true,
        fusions: Fusions::ALL,
    }
}

/// Everything in one pass, and each of them switched off.
fn variants(all: bool) -> Vec<(&'static str, Fusions)> {
    let fused = Fusions::ALL;
    let mut variants = vec![("fused", fused)];
    if all {
        let without = |name, change: fn(&mut Fusions)| {
            let mut fusions = fused;
            change(&mut fusions);
            (name, fusions)
        };
        variants.extend([
            without("no swiglu", |fusions| fusions.swiglu = false),
            without("no argmax", |fusions| fusions.argmax = false),
            without("no prefetch", |fusions| fusions.prefetch = false),
        ]);
    }
    variants
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        arguments
            .iter()
            .find_map(|argument| argument.strip_prefix(name))
    };
    let seconds = value("seconds=").map_or(1.0, |text| text.parse().expect("a number"));
    let set =
        value("set=").map_or_else(InstructionSet::detect, |text| text.parse().expect("a name"));
    let formats = [
        ("bf16", Format::Bf16),
        ("int8", Format::Int8),
        ("q8_0", Format::Q8_0),
        ("q4_0", Format::Q4_0),
        ("q4_1", Format::Q4_1),
    ];
    let chosen = |name: &str| arguments.iter().any(|argument| argument == name);
    for (name, format) in formats {
        let any = formats.iter().any(|(name, _)| chosen(name));
        if any && !chosen(name) {
            continue;
        }
        let formats = RandomFormats {
            embedding: if format == Format::Bf16 {
                format
            } else {
                Format::Q8_0
            },
            layers: format,
            head: None,
            biases: false,
        };
        let model = Arc::new(RandomModel::new(shape(), formats, 1).expect("a model"));
        for (variant, fusions) in variants(chosen("fusions")) {
            let settings = Settings {
                fusions,
                ..settings(&arguments, set)
            };
            let mut engine = Engine::new(model.clone(), settings).expect("an engine");
            if variant == "fused" {
                println!("{name}: {:?}", engine.report());
            }
            let time = Duration::from_secs_f64(seconds);
            for rows in [1, 2, 4, 8, 16, 32] {
                let times = measure(&mut engine, &Plan::new(rows, 1, CONTEXT), time);
                println!("{name} {variant} {rows:3} rows: {times}");
            }
            let times = measure(&mut engine, &Plan::new(1, PROMPT, PROMPT), time);
            let rate = PROMPT as f64 / times.least * 1e3;
            println!("{name} {variant} prefill {PROMPT}: {times}, {rate:.0} tokens/s");
        }
    }
}
