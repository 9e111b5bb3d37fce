//! Whole models: what they compute, and that it depends on nothing else.

mod bits;
mod plain;
mod plans;
mod sampling;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use diptych_cpu::kv::KvFormat;
use diptych_cpu::matrix::{Arithmetic, Format};
use diptych_cpu::model::random::{RandomFormats, RandomModel};
use diptych_cpu::model::{
    Engine, Fusions, ModelShape, SamplingInput, Settings, StepInput, WeightOwner,
};
use diptych_cpu::simd::InstructionSet;

/// hidden 48, 64 or 256; the formats of 32 and 256 inputs need the larger ones.
fn shape(hidden: usize) -> ModelShape {
    let (heads, kv_heads, head_dim, intermediate) = match hidden {
        48 => (6, 2, 8, 80),
        64 => (4, 1, 16, 96),
        _ => (8, 4, 32, 512),
    };
    ModelShape {
        vocabulary: 97,
        hidden,
        intermediate,
        layers: 2,
        heads,
        kv_heads,
        head_dim,
        epsilon: 1e-5,
        rope_frequencies: (0..head_dim / 2)
            .map(|pair| 0.3_f32.powi(pair as i32))
            .collect(),
    }
}

fn model(hidden: usize, layers: Format, biases: bool, tied: bool) -> Arc<RandomModel> {
    let formats = RandomFormats {
        embedding: layers,
        layers,
        head: (!tied).then_some(layers),
        biases,
    };
    Arc::new(RandomModel::new(shape(hidden), formats, 7).unwrap())
}

fn settings() -> Settings {
    Settings {
        set: InstructionSet::detect(),
        threads: 1,
        arithmetic: Arithmetic::F32,
        kv: KvFormat::F32,
        block_size: 16,
        num_blocks: 64,
        max_running: 8,
        max_tokens: 64,
        max_model_len: 64,
        vocabulary: 90,
        huge_pages: false,
        fusions: Fusions::ALL,
    }
}

/// Ids of a prompt.
fn prompt(seed: usize, length: usize) -> Vec<i32> {
    (0..length)
        .map(|place| ((place * 31 + seed * 17 + place * place * seed) % 90) as i32)
        .collect()
}

/// A plan that owns its arrays.
#[derive(Clone, Debug, Default)]
struct Plan {
    token_ids: Vec<i32>,
    positions: Vec<i32>,
    slots: Vec<i64>,
    rows: Vec<i32>,
    query_starts: Vec<i32>,
    sequence_lengths: Vec<i32>,
    num_decode_rows: usize,
    delta_rows: Vec<i32>,
    delta_starts: Vec<i32>,
    delta_counts: Vec<i32>,
    delta_blocks: Vec<i32>,
    block_copies: Vec<i32>,
    sampling: Sampling,
}

/// Sampling rows that own their arrays.
#[derive(Clone, Debug, Default)]
struct Sampling {
    tokens: Vec<i32>,
    rows: Vec<i32>,
    temperature: Vec<f32>,
    top_k: Vec<i32>,
    top_p: Vec<f32>,
    min_p: Vec<f32>,
    presence: Vec<f32>,
    frequency: Vec<f32>,
    repetition: Vec<f32>,
    seed: Vec<i64>,
    output_index: Vec<i32>,
    choice_index: Vec<i32>,
    penalty_offset: Vec<i32>,
    bias_offset: Vec<i32>,
    logprobs: Vec<i32>,
    masked: Vec<i32>,
    masks: Arc<Vec<AtomicU32>>,
    side: Vec<u32>,
}

impl Sampling {
    fn push(&mut self, token: i32, row: i32, temperature: f32) {
        self.tokens.push(token);
        self.rows.push(row);
        self.temperature.push(temperature);
        self.top_k.push(0);
        self.top_p.push(1.0);
        self.min_p.push(0.0);
        self.presence.push(0.0);
        self.frequency.push(0.0);
        self.repetition.push(1.0);
        self.seed.push(i64::from(row) + 5);
        self.output_index.push(token);
        self.choice_index.push(0);
        self.penalty_offset.push(-1);
        self.bias_offset.push(-1);
        self.logprobs.push(-1);
        self.masked.push(0);
    }

    fn input(&self) -> SamplingInput<'_> {
        SamplingInput {
            tokens: &self.tokens,
            rows: &self.rows,
            temperature: &self.temperature,
            top_k: &self.top_k,
            top_p: &self.top_p,
            min_p: &self.min_p,
            presence_penalty: &self.presence,
            frequency_penalty: &self.frequency,
            repetition_penalty: &self.repetition,
            seed: &self.seed,
            output_index: &self.output_index,
            choice_index: &self.choice_index,
            penalty_offset: &self.penalty_offset,
            bias_offset: &self.bias_offset,
            logprobs: &self.logprobs,
            masked: &self.masked,
            masks: &self.masks,
            side: &self.side,
        }
    }
}

impl Plan {
    fn input(&self) -> StepInput<'_> {
        StepInput {
            token_ids: &self.token_ids,
            positions: &self.positions,
            slots: &self.slots,
            rows: &self.rows,
            query_starts: &self.query_starts,
            sequence_lengths: &self.sequence_lengths,
            num_decode_rows: self.num_decode_rows,
            delta_rows: &self.delta_rows,
            delta_starts: &self.delta_starts,
            delta_counts: &self.delta_counts,
            delta_blocks: &self.delta_blocks,
            block_copies: &self.block_copies,
            sampling: self.sampling.input(),
        }
    }
}

/// An engine, and where its sequences stand. Sequence i has state row i.
struct Driver {
    engine: Engine,
    /// Blocks to be given out, the last first.
    free: Vec<i32>,
    tables: Vec<Vec<i32>>,
    lengths: Vec<usize>,
}

/// Tokens that one sequence brings.
type Chunk<'a> = (usize, &'a [i32]);

impl Driver {
    fn new<M: WeightOwner + 'static>(model: &Arc<M>, settings: Settings) -> Self {
        let engine = Engine::new(model.clone(), settings).unwrap();
        // SAFETY: no step is running.
        unsafe { engine.pool().fill(0xff) };
        Self {
            free: (1..settings.num_blocks as i32).rev().collect(),
            tables: vec![Vec::new(); settings.max_running],
            lengths: vec![0; settings.max_running],
            engine,
        }
    }

    /// The plan of a step: rows in the order given, decode rows (`decode` of them) first. Every token is sampled.
    fn plan(&mut self, chunks: &[Chunk], decode: usize) -> Plan {
        let size = self.engine.settings().block_size;
        let mut plan = Plan {
            num_decode_rows: decode,
            query_starts: vec![0],
            ..Plan::default()
        };
        for (row, tokens) in chunks {
            let (table, start) = (&mut self.tables[*row], self.lengths[*row]);
            let end = start + tokens.len();
            let before = table.len();
            while table.len() * size < end {
                table.push(self.free.pop().unwrap());
            }
            if table.len() > before {
                plan.delta_rows.push(*row as i32);
                plan.delta_starts.push(before as i32);
                plan.delta_counts.push((table.len() - before) as i32);
                plan.delta_blocks.extend(&table[before..]);
            }
            for position in start..end {
                let slot =
                    i64::from(table[position / size]) * size as i64 + (position % size) as i64;
                plan.sampling
                    .push(plan.token_ids.len() as i32, *row as i32, 0.0);
                plan.token_ids.push(tokens[position - start]);
                plan.positions.push(position as i32);
                plan.slots.push(slot);
            }
            plan.rows.push(*row as i32);
            plan.query_starts.push(plan.token_ids.len() as i32);
            plan.sequence_lengths.push(end as i32);
            self.lengths[*row] = end;
        }
        plan
    }

    /// Logits of all tokens of a step, one row each.
    fn step(&mut self, chunks: &[Chunk], decode: usize) -> Vec<Vec<f32>> {
        let plan = self.plan(chunks, decode);
        let logits = self.engine.logits(&plan.input()).unwrap();
        let vocabulary = self.engine.settings().vocabulary;
        logits.chunks(vocabulary).map(<[f32]>::to_vec).collect()
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let row = |row: &Vec<f32>| row.iter().map(|value| value.to_bits()).collect();
    rows.iter().map(row).collect()
}
