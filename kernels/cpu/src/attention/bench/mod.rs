//! Measurements behind the cache's layout.

mod token_rows;

use std::io;
use std::sync::atomic::AtomicUsize;

use super::{AttentionLayer, AttentionPlan, StepRows, Switches, Turn};
use crate::kv::{KvFormat, KvPool, KvShape, Placement};
use crate::matrix::Arithmetic;
use crate::rope::Rope;
use crate::simd::{InstructionSet, Isa, Kernel};
use token_rows::TokenRows;

/// One way of keeping and reading the cache.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// As it is called in tables.
    pub name: &'static str,
    /// How numbers are stored.
    pub format: KvFormat,
    /// How they are multiplied.
    pub arithmetic: Arithmetic,
    /// Tokens of a block.
    pub block_size: usize,
    /// Panels of 16 positions; else one row for each token, as a plain cache has them (one thread, decode only).
    pub panels: bool,
    /// Order of heads and blocks.
    pub placement: Placement,
    /// Blocks lie in random order.
    pub shuffled: bool,
    /// The pool asks for huge pages.
    pub huge: bool,
    /// Parts of the kernel that can be left out.
    pub switches: Switches,
}

/// What is attended to.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Sequences.
    pub rows: usize,
    /// Positions of each.
    pub context: usize,
    /// New tokens of each: 1 is a decode step.
    pub queries: usize,
    /// Layers, each with its own cache.
    pub layers: usize,
    /// Threads.
    pub members: usize,
}

/// Heads of the sample model.
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;

struct Bench {
    variant: Variant,
    load: Load,
    pool: KvPool,
    plan: AttentionPlan,
    rope: Rope,
    tables: Vec<i32>,
    qkv: Vec<f32>,
    out: Vec<f32>,
}

struct Shared<'a>(&'a AttentionLayer<'a>);

// SAFETY: members write different places.
unsafe impl Sync for Shared<'_> {}

impl Bench {
    fn new(variant: Variant, load: Load) -> io::Result<Self> {
        let blocks_each = load.context.div_ceil(variant.block_size);
        let shape = KvShape {
            layers: load.layers,
            blocks: load.rows * blocks_each,
            block_size: variant.block_size,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            format: variant.format,
        };
        let pool =
            KvPool::placed(shape, variant.placement, variant.huge).map_err(io::Error::other)?;
        // SAFETY: nobody else has it. Small numbers in every format.
        unsafe { pool.fill(0x3c) };
        let mut tables: Vec<i32> = (0..shape.blocks as i32).collect();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for place in (1..tables.len()).rev().filter(|_| variant.shuffled) {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            tables.swap(place, (seed >> 33) as usize % (place + 1));
        }
        let tokens = load.rows * load.queries;
        let frequencies: Vec<f32> = (0_u8..32)
            .map(|pair| 10_000_f32.powf(-f32::from(pair) / 32.0))
            .collect();
        let qkv = (0..tokens * (HEADS + 2 * KV_HEADS) * HEAD_DIM)
            .map(|place| ((place * 7919) % 1009) as f32 / 504.5 - 1.0);
        Ok(Self {
            variant,
            load,
            pool,
            plan: AttentionPlan::new(&shape, HEADS, load.members)?,
            rope: Rope::new(&frequencies, load.context)?,
            tables,
            qkv: qkv.collect(),
            out: vec![0.0; tokens * HEADS * HEAD_DIM],
        })
    }

    /// Seconds of the quickest layer.
    fn run(&mut self) -> f64 {
        let (load, size) = (self.load, self.variant.block_size);
        let first = load.context - load.queries;
        let blocks_each = load.context.div_ceil(size);
        let tokens = (0..load.rows).flat_map(|row| (first..load.context).map(move |at| (row, at)));
        let (positions, slots): (Vec<i32>, Vec<i64>) = tokens
            .map(|(row, at)| {
                let block = i64::from(self.tables[row * blocks_each + at / size]);
                (at as i32, block * size as i64 + (at % size) as i64)
            })
            .unzip();
        let count = load.rows as i32;
        let starts: Vec<i32> = (0..=count).map(|row| row * load.queries as i32).collect();
        let numbers: Vec<i32> = (0..count).collect();
        let lengths = vec![load.context as i32; load.rows];
        let rows = StepRows {
            positions: &positions,
            slots: &slots,
            query_starts: &starts,
            sequence_lengths: &lengths,
            rows: &numbers,
            tables: &self.tables,
            table_stride: blocks_each,
            num_decode_rows: if load.queries == 1 { load.rows } else { 0 },
        };
        self.plan
            .plan(&rows, &mut self.rope)
            .expect("rows that fit the pool");
        let mut shortest = f64::INFINITY;
        // Downwards: what the processor reads ahead of a block must not be the next layer to be measured.
        for layer in (0..load.layers).rev() {
            let layer = AttentionLayer {
                pool: &self.pool,
                layer,
                rows: &rows,
                qkv: self.qkv.as_ptr(),
                qkv_stride: (HEADS + 2 * KV_HEADS) * HEAD_DIM,
                rope: &self.rope,
                scale: 0.125,
                arithmetic: self.variant.arithmetic,
                out: self.out.as_mut_ptr(),
                switches: self.variant.switches,
            };
            let start = seconds(load.members);
            if !self.variant.panels {
                InstructionSet::detect().run(TokenRows(&layer));
            }
            for phase in 0..if self.variant.panels {
                self.plan.phases()
            } else {
                0
            } {
                run_phase(&self.plan, phase, &layer, load.members);
            }
            shortest = shortest.min(seconds(load.members) - start);
        }
        shortest
    }
}

/// One thread's own time does not count while others have the processor; several have to wait for each other.
fn seconds(members: usize) -> f64 {
    let clock = match members {
        1 => libc::CLOCK_THREAD_CPUTIME_ID,
        _ => libc::CLOCK_MONOTONIC,
    };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is known, and the time ours.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn run_phase(plan: &AttentionPlan, phase: usize, layer: &AttentionLayer<'_>, members: usize) {
    let (claims, shared) = (AtomicUsize::new(0), Shared(layer));
    let set = InstructionSet::detect();
    let run = |member| {
        let shared = &shared;
        let turn = Turn {
            phase,
            member,
            claims: &claims,
        };
        // SAFETY: the buffers are of the load's size.
        unsafe { plan.run(set, turn, shared.0) };
    };
    let run = &run;
    std::thread::scope(|scope| {
        for member in 1..members {
            scope.spawn(move || run(member));
        }
        run(0);
    });
}

/// Reads all bytes in four streams, as fast as may be.
struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f32 {
        let stream = self.0.len() / 4 / 64 * 64;
        let mut sums = [isa.splat_int(0); 4];
        for place in (0..stream).step_by(64) {
            for (part, sum) in sums.iter_mut().enumerate() {
                // SAFETY: each stream lies within the bytes.
                let value =
                    unsafe { isa.load_int(self.0.as_ptr().add(part * stream + place).cast()) };
                *sum = isa.add_int(*sum, value);
            }
        }
        let sum = isa.add_int(isa.add_int(sums[0], sums[1]), isa.add_int(sums[2], sums[3]));
        isa.reduce_add(isa.to_float(sum))
    }
}

/// The shortest time of each variant, in seconds for one layer, over `rounds` interleaved rounds; and that of one
/// thread that only reads as many bytes as the first variant keeps.
///
/// # Errors
/// If the system has no memory.
pub fn measure(variants: &[Variant], load: Load, rounds: usize) -> io::Result<(Vec<f64>, f64)> {
    let made: io::Result<Vec<Bench>> = variants.iter().map(|one| Bench::new(*one, load)).collect();
    let mut benches = made?;
    let mut shortest = vec![f64::INFINITY; benches.len()];
    let mut read = f64::INFINITY;
    for _ in 0..rounds {
        let region = benches[0].pool.region();
        let bytes = region.bytes() / load.layers;
        for layer in 0..load.layers {
            // SAFETY: nobody writes.
            let bytes =
                unsafe { std::slice::from_raw_parts(region.address().add(layer * bytes), bytes) };
            let start = seconds(1);
            std::hint::black_box(InstructionSet::detect().run(Read(bytes)));
            read = read.min(seconds(1) - start);
        }
        for (bench, shortest) in benches.iter_mut().zip(&mut shortest) {
            *shortest = shortest.min(bench.run());
        }
    }
    Ok((shortest, read))
}

/// The layout in use.
pub const CHOSEN: Variant = Variant {
    name: "panels, blocks of 16, shuffled",
    format: KvFormat::Bf16,
    arithmetic: Arithmetic::Bf16,
    block_size: 16,
    panels: true,
    placement: Placement::BlockMajor,
    shuffled: true,
    huge: true,
    switches: Switches::ALL,
};

/// The alternatives to [`CHOSEN`], and parts left out of it.
#[must_use]
pub fn alternatives() -> Vec<Variant> {
    let left_out = |name, prefetch, share| Variant {
        name,
        switches: Switches { prefetch, share },
        ..CHOSEN
    };
    let named = |name| Variant { name, ..CHOSEN };
    vec![
        Variant {
            block_size: 256,
            placement: Placement::HeadMajor,
            shuffled: false,
            ..named("contiguous")
        },
        Variant {
            placement: Placement::HeadMajor,
            ..named("all blocks of a head together")
        },
        Variant {
            placement: Placement::LayerMajor,
            ..named("all blocks of a layer together")
        },
        Variant {
            panels: false,
            ..named("a row for each token")
        },
        Variant {
            huge: false,
            ..named("pages of 4 KiB")
        },
        left_out("no prefetch", false, true),
        left_out("query heads one by one", true, false),
        Variant {
            arithmetic: Arithmetic::F32,
            ..named("float32 arithmetic")
        },
        Variant {
            format: KvFormat::Int8,
            ..named("int8")
        },
    ]
}

/// One line of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Which variant.
    pub name: &'static str,
    /// Positions of each sequence.
    pub context: usize,
    /// Cache read each second, in 10⁹ bytes.
    pub gigabytes: f64,
    /// Its time ÷ that of [`CHOSEN`].
    pub ratio: f64,
}

/// Decodes 16,384 cached positions in one thread, [`CHOSEN`] against its [`alternatives`], for each context.
///
/// # Errors
/// If the system has no memory.
pub fn kv_layout(contexts: &[usize], rounds: usize) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for &context in contexts {
        let load = Load {
            rows: (16_384 / context).max(1),
            context,
            queries: 1,
            layers: 4,
            members: 1,
        };
        let variants: Vec<Variant> = std::iter::once(CHOSEN).chain(alternatives()).collect();
        let (times, read) = measure(&variants, load, rounds)?;
        let bytes = |one: &Variant| {
            (load.rows * context * 2 * KV_HEADS * HEAD_DIM * one.format.element_bytes()) as f64
        };
        lines.push(Line {
            name: "reading alone",
            context,
            gigabytes: bytes(&CHOSEN) / read / 1e9,
            ratio: read / times[0],
        });
        lines.extend(variants.iter().zip(&times).map(|(one, time)| Line {
            name: one.name,
            context,
            gigabytes: bytes(one) / time / 1e9,
            ratio: time / times[0],
        }));
    }
    Ok(lines)
}
