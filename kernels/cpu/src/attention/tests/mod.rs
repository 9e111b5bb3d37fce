//! Attention against its definition in f64, and against itself bit by bit.

mod bits;
mod definition;
mod refusals;

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::kv::{KvShape, element, line_element};

/// Sequences of one length over one pool.
#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    group: usize,
    kv_heads: usize,
    block_size: usize,
    format: KvFormat,
    arithmetic: Arithmetic,
    length: usize,
    sequences: usize,
}

const PLAIN: Case = Case {
    head_dim: 64,
    group: 3,
    kv_heads: 2,
    block_size: 16,
    format: KvFormat::Bf16,
    arithmetic: Arithmetic::F32,
    length: 300,
    sequences: 1,
};

const FORMATS: [(KvFormat, Arithmetic); 6] = [
    (KvFormat::F32, Arithmetic::F32),
    (KvFormat::F16, Arithmetic::F32),
    (KvFormat::Bf16, Arithmetic::F32),
    (KvFormat::Bf16, Arithmetic::Bf16),
    (KvFormat::Int8, Arithmetic::F32),
    (KvFormat::Int8, Arithmetic::Bf16),
];

/// How the sequences are computed.
#[derive(Clone, Debug)]
struct Manner {
    set: InstructionSet,
    members: usize,
    /// Tokens of each step; the last repeats. One token is a decode row where `decode` says so.
    chunks: Vec<usize>,
    decode: bool,
    /// Where blocks lie.
    seed: u64,
    byte: u8,
}

impl Manner {
    fn chunks(chunks: &[usize]) -> Self {
        Self {
            set: InstructionSet::detect(),
            members: 1,
            chunks: chunks.to_vec(),
            decode: true,
            seed: 1,
            byte: 0xff,
        }
    }
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed >> 11
}

impl Case {
    fn heads(&self) -> usize {
        self.group * self.kv_heads
    }

    fn stride(&self) -> usize {
        (self.heads() + 2 * self.kv_heads) * self.head_dim
    }

    fn blocks_each(&self) -> usize {
        self.length.div_ceil(self.block_size)
    }

    fn scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    fn frequencies(&self) -> Vec<f32> {
        let half = self.head_dim / 2;
        let exponent = |pair: usize| -(pair as f32) / half as f32;
        (0..half)
            .map(|pair| 10_000_f32.powf(exponent(pair)))
            .collect()
    }

    fn shape(&self) -> KvShape {
        KvShape {
            layers: 2,
            blocks: self.sequences * self.blocks_each() + 3,
            block_size: self.block_size,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            format: self.format,
        }
    }

    /// [sequences][length][stride]
    fn qkv(&self) -> Vec<f32> {
        let mut seed = 0x1234_5678_9abc_def1;
        (0..self.sequences * self.length * self.stride())
            .map(|_| {
                let unit = (random(&mut seed) % 20_001) as f32 / 10_000.0 - 1.0;
                unit * unit * unit * 4.0
            })
            .collect()
    }
}

/// Outputs `[sequences][length][heads × head_dim]`, and what the pool holds: keys and values of each token.
#[derive(PartialEq)]
struct Results {
    out: Vec<f32>,
    cache: Vec<f32>,
}

impl Results {
    fn bits(&self) -> Vec<u32> {
        let all = self.out.iter().chain(&self.cache);
        all.map(|value| value.to_bits()).collect()
    }
}

struct Engine<'a> {
    case: &'a Case,
    manner: &'a Manner,
    pool: KvPool,
    plan: AttentionPlan,
    rope: Rope,
    tables: Vec<i32>,
    qkv: Vec<f32>,
    out: Vec<f32>,
}

impl<'a> Engine<'a> {
    fn new(case: &'a Case, manner: &'a Manner) -> Self {
        let shape = case.shape();
        let pool = KvPool::new(shape, false).unwrap();
        // SAFETY: nobody else has it.
        unsafe { pool.fill(manner.byte) };
        let mut tables: Vec<i32> = (1..=(case.sequences * case.blocks_each()) as i32).collect();
        let mut seed = manner.seed;
        for place in (1..tables.len()).rev() {
            tables.swap(place, random(&mut seed) as usize % (place + 1));
        }
        let tokens = case.sequences * case.length;
        Self {
            case,
            manner,
            pool,
            plan: AttentionPlan::new(&shape, case.heads(), manner.members).unwrap(),
            rope: Rope::new(&case.frequencies(), case.length).unwrap(),
            tables,
            qkv: case.qkv(),
            out: vec![f32::NAN; tokens * case.heads() * case.head_dim],
        }
    }

    /// Runs `count` tokens of all sequences from position `start`.
    fn step(&mut self, start: usize, count: usize) {
        let case = self.case;
        let positions: Vec<i32> = (0..case.sequences)
            .flat_map(|_| (start..start + count).map(|position| position as i32))
            .collect();
        let table = |sequence: usize| &self.tables[sequence * case.blocks_each()..];
        let slots: Vec<i64> = (0..case.sequences * count)
            .map(|token| {
                let position = start + token % count;
                let block = table(token / count)[position / case.block_size];
                i64::from(block) * case.block_size as i64 + (position % case.block_size) as i64
            })
            .collect();
        let starts: Vec<i32> = (0..=case.sequences)
            .map(|row| (row * count) as i32)
            .collect();
        let lengths = vec![(start + count) as i32; case.sequences];
        let numbers: Vec<i32> = (0..case.sequences as i32).collect();
        let tables = std::mem::take(&mut self.tables);
        let rows = StepRows {
            positions: &positions,
            slots: &slots,
            query_starts: &starts,
            sequence_lengths: &lengths,
            rows: &numbers,
            tables: &tables,
            table_stride: case.blocks_each(),
            num_decode_rows: if count == 1 && self.manner.decode {
                case.sequences
            } else {
                0
            },
        };
        self.plan.plan(&rows, &mut self.rope).unwrap();
        self.attend(&rows, start, count);
        self.tables = tables;
    }

    fn attend(&mut self, rows: &StepRows<'_>, start: usize, count: usize) {
        let (case, width) = (self.case, self.case.heads() * self.case.head_dim);
        let tokens = (0..case.sequences).flat_map(|row| {
            (start..start + count).map(move |position| row * case.length + position)
        });
        let tokens: Vec<usize> = tokens.collect();
        let stride = case.stride();
        let qkv: Vec<f32> = tokens
            .iter()
            .flat_map(|token| &self.qkv[token * stride..(token + 1) * stride])
            .copied()
            .collect();
        let mut out = vec![f32::NAN; tokens.len() * width];
        let layer = AttentionLayer {
            pool: &self.pool,
            layer: 1,
            rows,
            qkv: qkv.as_ptr(),
            qkv_stride: stride,
            rope: &self.rope,
            scale: case.scale(),
            arithmetic: case.arithmetic,
            out: out.as_mut_ptr(),
            switches: Switches::ALL,
        };
        // Twice: what is reused from layer to layer has to be as new.
        for _ in 0..2 {
            for phase in 0..self.plan.phases() {
                run_phase(&self.plan, self.manner, phase, &layer);
            }
        }
        for (place, token) in tokens.into_iter().enumerate() {
            let to = &mut self.out[token * width..(token + 1) * width];
            to.copy_from_slice(&out[place * width..(place + 1) * width]);
        }
    }

    /// Keys, then values, of every token and head, with their scales.
    fn cache(&self) -> Vec<f32> {
        let (case, shape) = (self.case, self.case.shape());
        let mut found = Vec::new();
        for token in 0..case.sequences * case.length {
            let (row, position) = (token / case.length, token % case.length);
            let block = self.tables[row * case.blocks_each() + position / case.block_size];
            for head in 0..case.kv_heads {
                // SAFETY: within the pool.
                unsafe {
                    let part = self.pool.head_block(1, block as usize, head);
                    let offset = position % case.block_size;
                    found.extend(
                        (0..case.head_dim).map(|dim| stored(&shape, &part, offset, dim, true)),
                    );
                    found.extend(
                        (0..case.head_dim).map(|dim| stored(&shape, &part, offset, dim, false)),
                    );
                }
            }
        }
        found
    }
}

/// A number of the cache.
unsafe fn stored(
    shape: &KvShape,
    part: &crate::kv::HeadBlock,
    offset: usize,
    dim: usize,
    is_key: bool,
) -> f32 {
    let from = if is_key { part.keys } else { part.values };
    let (panel, position) = (offset / LANES, offset % LANES);
    let index = if !shape.has_panels() {
        offset * shape.head_dim + dim
    } else if is_key {
        let line = panel * shape.head_dim / 2 + dim / 2;
        line_element(shape.format, line, position, dim % 2)
    } else {
        let groups = shape.padded_dim() / LANES;
        let line = (panel * 8 + position / 2) * groups + dim / LANES;
        line_element(shape.format, line, dim % LANES, position % 2)
    };
    let scale = match shape.format {
        KvFormat::Int8 if is_key => *part.scales.add(offset),
        KvFormat::Int8 => *part.scales.add(shape.block_size + offset),
        _ => 1.0,
    };
    element(shape.format, from, index) * scale
}

/// Lets a layer's pointers cross into the members' threads.
struct Shared<'a>(&'a AttentionLayer<'a>);

// SAFETY: members write different places.
unsafe impl Sync for Shared<'_> {}

fn run_phase(plan: &AttentionPlan, manner: &Manner, phase: usize, layer: &AttentionLayer<'_>) {
    let claims = AtomicUsize::new(0);
    let shared = Shared(layer);
    let run = &|member| {
        let shared = &shared;
        let turn = Turn {
            phase,
            member,
            claims: &claims,
        };
        // SAFETY: pointers span the step.
        unsafe { plan.run(manner.set, turn, shared.0) };
    };
    if manner.members == 1 {
        return run(0);
    }
    std::thread::scope(|scope| {
        for member in 0..manner.members {
            scope.spawn(move || run(member));
        }
    });
}

fn compute(case: &Case, manner: &Manner) -> Results {
    let mut engine = Engine::new(case, manner);
    let (mut start, mut chunks) = (0, manner.chunks.iter());
    let mut chunk = 1;
    while start < case.length {
        chunk = chunks.next().copied().unwrap_or(chunk);
        let count = chunk.min(case.length - start);
        engine.step(start, count);
        start += count;
    }
    Results {
        cache: engine.cache(),
        out: engine.out,
    }
}
