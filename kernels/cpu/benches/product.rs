//! Time of one product: GFLOP/s and GB/s of weights for the shapes of a small model.
//!
//! `cargo bench -p diptych-cpu --bench product -- [format=bf16,f32] [set=avx512] [inputs=576] [outputs=960]
//! [rows=1,8] [threads=1,2] [prefetch=0,1] [seconds=0.05]`
//!
//! Weights are taken from a pool larger than the caches, one matrix after the other, as a step over the layers does.
//! Each figure is the best of its repetitions, in time of the processor.

use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use diptych_cpu::matrix::{Arithmetic, Encoding, Format, Matrix, Source, pack, packed_bytes};
use diptych_cpu::memory::Region;
use diptych_cpu::product::Product;
use diptych_cpu::rows::RowBuffer;
use diptych_cpu::simd::InstructionSet;

/// Larger than any cache near.
const POOL: usize = 128 << 20;

/// Times that each case is measured.
const ROUNDS: u32 = 4;
/// Operations between two looks at the clock.
const BATCH: usize = 2_000_000_000;

/// Formats by name, with the arithmetic they are multiplied in.
const FORMATS: [(&str, Format, Arithmetic); 11] = [
    ("bf16", Format::Bf16, Arithmetic::Bf16),
    ("bf16xf32", Format::Bf16, Arithmetic::F32),
    ("f16", Format::F16, Arithmetic::F32),
    ("f32", Format::F32, Arithmetic::F32),
    ("int8", Format::Int8, Arithmetic::F32),
    ("q8_0", Format::Q8_0, Arithmetic::F32),
    ("q4_0", Format::Q4_0, Arithmetic::F32),
    ("q4_1", Format::Q4_1, Arithmetic::F32),
    ("q5_0", Format::Q5_0, Arithmetic::F32),
    ("q4_k", Format::Q4K, Arithmetic::F32),
    ("q6_k", Format::Q6K, Arithmetic::F32),
];

/// What the command line asks for.
struct Options {
    formats: Vec<String>,
    set: InstructionSet,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    rows: Vec<usize>,
    threads: Vec<usize>,
    prefetch: Vec<usize>,
    time: Duration,
}

impl Options {
    fn read() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let value = |name: &str, default: &str| {
            let found = arguments
                .iter()
                .find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or(default).to_owned()
        };
        let numbers = |name: &str, default: &str| {
            let list = value(name, default);
            let numbers = list.split(',').map(|number| number.parse().expect(name));
            numbers.collect::<Vec<usize>>()
        };
        let set = value("set", InstructionSet::detect().name());
        let seconds: f64 = value("seconds", "0.05").parse().expect("seconds");
        Self {
            formats: value("format", "bf16")
                .split(',')
                .map(str::to_owned)
                .collect(),
            set: set.parse().expect("an instruction set"),
            inputs: numbers("inputs", "576,1536"),
            outputs: numbers("outputs", "576,960,3072"),
            rows: numbers("rows", "1,8,32,128,512"),
            threads: numbers("threads", "1"),
            prefetch: numbers("prefetch", "1"),
            time: Duration::from_secs_f64(seconds),
        }
    }
}

/// Matrices that fill a pool, and rows to multiply with them.
struct Case {
    format: Format,
    inputs: usize,
    outputs: usize,
    pool: Region,
    count: usize,
    rows: RowBuffer,
}

fn random(count: usize, seed: &mut u64) -> Vec<f32> {
    let next = |_| {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(next).collect()
}

impl Case {
    fn new(
        format: Format,
        arithmetic: Arithmetic,
        shape: (usize, usize),
        options: &Options,
    ) -> Option<Self> {
        let (inputs, outputs) = shape;
        format.check(inputs).ok()?;
        let bytes = packed_bytes(format, outputs, inputs);
        let count = (POOL / bytes).max(1);
        let pool = Region::new(bytes * count, true).expect("memory");
        // SAFETY: nobody else has the pool yet.
        let all = unsafe { std::slice::from_raw_parts_mut(pool.address(), bytes * count) };
        let (first, others) = all.split_at_mut(bytes);
        fill(format, shape, first)?;
        others
            .chunks_exact_mut(bytes)
            .for_each(|other| other.copy_from_slice(first));
        let most = *options.rows.iter().max()?;
        let mut rows = RowBuffer::new(format.form(arithmetic), inputs, most).expect("memory");
        let mut seed = 0x1234_5678_9abc_def1;
        for row in 0..most {
            rows.write(options.set, row, &random(inputs, &mut seed));
        }
        Some(Self {
            format,
            inputs,
            outputs,
            pool,
            count,
            rows,
        })
    }

    fn matrix(&self, index: usize) -> Matrix<'_> {
        let bytes = packed_bytes(self.format, self.outputs, self.inputs);
        // SAFETY: the pool holds `count` matrices, and is not written any more.
        let bytes = unsafe {
            let start = self.pool.address().add(index % self.count * bytes);
            std::slice::from_raw_parts(start, bytes)
        };
        Matrix {
            format: self.format,
            outputs: self.outputs,
            inputs: self.inputs,
            bytes,
        }
    }

    /// The best seconds per product of some panels, and all panels done so by one thread.
    fn measure(&self, options: &Options, rows: usize, panels: Range<usize>, prefetch: bool) -> f64 {
        let stride = panels.len() * 16;
        let mut out = vec![0.0_f32; stride * rows];
        // A whole turn through the pool, so that no share of it lies in a cache; less where arithmetic dominates.
        let turn = (BATCH / (2 * self.inputs * self.outputs * rows)).clamp(1, self.count);
        let end = Instant::now() + options.time / ROUNDS;
        let (mut best, mut index) = (f64::INFINITY, 0);
        while Instant::now() < end || index < turn {
            let start = cpu_seconds();
            for _ in 0..turn {
                let product = Product {
                    matrix: self.matrix(index),
                    rows: self.rows.rows(),
                    row_range: 0..rows,
                    panels: panels.clone(),
                    out: out.as_mut_ptr(),
                    out_stride: stride,
                    prefetch,
                };
                // SAFETY: `out` has that many sums and is ours; the rows are not written any more.
                unsafe { product.run(options.set) };
                index += 1;
            }
            best = best.min((cpu_seconds() - start) / turn as f64);
        }
        best
    }

    /// The same on several threads, each with its share of the panels: the slowest counts.
    fn time(&self, options: &Options, rows: usize, threads: usize, prefetch: bool) -> f64 {
        let panels = self.matrix(0).panels();
        std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads)
                .map(|thread| {
                    let part = panels * thread / threads..panels * (thread + 1) / threads;
                    scope.spawn(move || self.measure(options, rows, part, prefetch))
                })
                .collect();
            let times = parts.into_iter().map(|part| part.join().expect("a thread"));
            times.fold(0.0, f64::max)
        })
    }
}

/// What this thread has computed so far: time that it had to wait for a processor does not count.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is written to a local value.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Packs random weights.
fn fill(format: Format, (inputs, outputs): (usize, usize), out: &mut [u8]) -> Option<()> {
    let mut seed = 0x0123_4567_89ab_cdef;
    let order: Vec<u32> = (0..1).collect();
    for output in 0..outputs {
        let values = random(inputs, &mut seed);
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let source = Source {
            encoding: Encoding::F32,
            rows: 1,
            inputs,
            bytes: &bytes,
        };
        pack(format, &source, &order, output, out).ok()?;
    }
    Some(())
}

fn main() {
    let options = Options::read();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} | format, K × N, rows, threads, prefetch: µs, GFLOP/s, GB/s of weights",
        options.set.name()
    )
    .expect("standard output");
    for (name, format, arithmetic) in FORMATS {
        if !options.formats.iter().any(|asked| asked == name) {
            continue;
        }
        for &inputs in &options.inputs {
            for &outputs in &options.outputs {
                let shape = (inputs, outputs);
                let Some(case) = Case::new(format, arithmetic, shape, &options) else {
                    writeln!(out, "{name:8} {inputs:4} × {outputs:5}: not from floats")
                        .expect("standard output");
                    continue;
                };
                table(&mut out, name, &case, &options).expect("standard output");
            }
        }
    }
}

fn table(out: &mut impl Write, name: &str, case: &Case, options: &Options) -> std::io::Result<()> {
    let (inputs, outputs) = (case.inputs, case.outputs);
    let bytes = packed_bytes(case.format, outputs, inputs) as f64;
    for &rows in &options.rows {
        // Turn and turn about, so that what else the machine does meets all alike.
        let mut best = vec![f64::INFINITY; options.threads.len() * options.prefetch.len()];
        for _ in 0..ROUNDS {
            let mut best = best.iter_mut();
            for &threads in &options.threads {
                for &prefetch in &options.prefetch {
                    let best = best.next().expect("one each");
                    *best = best.min(case.time(options, rows, threads, prefetch == 1));
                }
            }
        }
        let mut best = best.into_iter();
        for &threads in &options.threads {
            for &prefetch in &options.prefetch {
                let time = best.next().expect("one each");
                writeln!(
                    out,
                    "{name:8} {inputs:4} × {outputs:5}, {rows:3} rows, {threads} threads, prefetch {prefetch}: {:9.1} {:7.1} {:6.1}",
                    time * 1e6,
                    2.0 * (rows * inputs * outputs) as f64 / time * 1e-9,
                    bytes / time * 1e-9
                )?;
            }
        }
    }
    Ok(())
}
