//! One small case before anything is served: the chosen instructions must give the bits that plain Rust gives.

use std::sync::Arc;

use diptych_cpu::matrix::{Encoding, Format, Matrix, MatrixError, Source, pack, packed_bytes};
use diptych_cpu::model::{
    Engine, LayerWeights, ModelError, ModelShape, PlanError, SamplingInput, Settings, StepInput,
    WeightOwner, Weights,
};
use diptych_cpu::simd::InstructionSet;

use super::aligned::Aligned;

const HIDDEN: usize = 32;
const WIDE: usize = 64;
const HEAD_DIM: usize = 16;
const QKV: usize = 4 * HEAD_DIM;
const VOCABULARY: usize = 40;
/// Tokens of the small prompt: more than a block.
const TOKENS: usize = 11;
const BLOCK: usize = 8;

/// Why the small case failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    /// Other bits.
    #[error(
        "the {set} kernels give {found:e} where plain Rust gives {wanted:e} (logit {index}, {format:?} weights, {kv:?} cache): this build cannot serve on this machine; use kernels='reference'"
    )]
    Logits {
        set: &'static str,
        found: f32,
        wanted: f32,
        index: usize,
        format: Format,
        kv: diptych_cpu::kv::KvFormat,
    },
    /// The case could not be run.
    #[error("the kernels' self-test: {0}")]
    Model(#[from] ModelError),
    /// The case could not be made.
    #[error("the kernels' self-test: {0}")]
    Matrix(#[from] MatrixError),
    /// The case was refused.
    #[error("the kernels' self-test: {0}")]
    Plan(#[from] PlanError),
}

/// Runs a small model with the arithmetic and cache of `settings` in floating-point and in integer weights.
pub(super) fn self_test(settings: &Settings) -> Result<(), Mismatch> {
    if settings.set == InstructionSet::Portable {
        return Ok(());
    }
    for format in [Format::Bf16, Format::Q8_0] {
        let owner = Arc::new(SmallModel::new(format)?);
        let logits = |set| -> Result<Vec<f32>, Mismatch> {
            let small = Settings {
                set,
                threads: 1,
                block_size: BLOCK,
                num_blocks: 4,
                max_running: 1,
                max_tokens: TOKENS,
                max_model_len: 2 * BLOCK,
                vocabulary: VOCABULARY,
                huge_pages: false,
                ..*settings
            };
            Ok(Engine::new(owner.clone(), small)?.logits(&step())?)
        };
        let (found, wanted) = (logits(settings.set)?, logits(InstructionSet::Portable)?);
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if let Some(index) = found.iter().zip(&wanted).position(differs) {
            return Err(Mismatch::Logits {
                set: settings.set.name(),
                found: found[index],
                wanted: wanted[index],
                index,
                format,
                kv: settings.kv,
            });
        }
    }
    Ok(())
}

const IDS: [i32; TOKENS] = [1, 39, 7, 7, 0, 21, 13, 34, 2, 30, 18];
const POSITIONS: [i32; TOKENS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
const SLOTS: [i64; TOKENS] = [24, 25, 26, 27, 28, 29, 30, 31, 8, 9, 10];

/// A prompt over two scattered blocks, its last token sampled.
fn step() -> StepInput<'static> {
    StepInput {
        token_ids: &IDS,
        positions: &POSITIONS,
        slots: &SLOTS,
        rows: &[0],
        query_starts: &[0, TOKENS as i32],
        sequence_lengths: &[TOKENS as i32],
        num_decode_rows: 0,
        delta_rows: &[0],
        delta_starts: &[0],
        delta_counts: &[2],
        delta_blocks: &[3, 1],
        block_copies: &[],
        sampling: SamplingInput {
            tokens: &[TOKENS as i32 - 1],
            rows: &[0],
            temperature: &[0.0],
            top_k: &[0],
            top_p: &[1.0],
            min_p: &[0.0],
            presence_penalty: &[0.0],
            frequency_penalty: &[0.0],
            repetition_penalty: &[1.0],
            seed: &[0],
            output_index: &[0],
            choice_index: &[0],
            penalty_offset: &[-1],
            bias_offset: &[-1],
            logprobs: &[-1],
            masked: &[0],
            masks: &[],
            side: &[],
        },
    }
}

/// One layer of weights that look random.
struct SmallModel {
    format: Format,
    norm: Vec<f32>,
    embedding: Aligned,
    qkv: Aligned,
    output: Aligned,
    gate_up: Aligned,
    down: Aligned,
}

impl SmallModel {
    fn new(format: Format) -> Result<Self, MatrixError> {
        Ok(Self {
            format,
            norm: numbers(HIDDEN, 1).map(|value| 1.0 + value).collect(),
            embedding: packed(format, VOCABULARY, HIDDEN, 2)?,
            qkv: packed(format, QKV, HIDDEN, 3)?,
            output: packed(format, HIDDEN, 2 * HEAD_DIM, 4)?,
            gate_up: packed(format, 2 * WIDE, HIDDEN, 5)?,
            down: packed(format, HIDDEN, WIDE, 6)?,
        })
    }

    fn matrix<'a>(&self, bytes: &'a Aligned, outputs: usize, inputs: usize) -> Matrix<'a> {
        Matrix {
            format: self.format,
            outputs,
            inputs,
            bytes: bytes.bytes(),
        }
    }
}

impl WeightOwner for SmallModel {
    fn shape(&self) -> ModelShape {
        ModelShape {
            vocabulary: VOCABULARY,
            hidden: HIDDEN,
            intermediate: WIDE,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: HEAD_DIM,
            epsilon: 1e-5,
            rope_frequencies: (0..HEAD_DIM / 2)
                .map(|pair| 0.5_f32.powi(pair as i32))
                .collect(),
        }
    }

    fn weights(&self) -> Weights<'_> {
        let embedding = self.matrix(&self.embedding, VOCABULARY, HIDDEN);
        Weights {
            embedding,
            layers: vec![LayerWeights {
                input_norm: &self.norm,
                qkv: vec![self.matrix(&self.qkv, QKV, HIDDEN)],
                qkv_bias: None,
                output: self.matrix(&self.output, HIDDEN, 2 * HEAD_DIM),
                output_bias: None,
                post_norm: &self.norm,
                gate_up: self.matrix(&self.gate_up, 2 * WIDE, HIDDEN),
                gate_up_bias: None,
                down: self.matrix(&self.down, HIDDEN, WIDE),
                down_bias: None,
            }],
            norm: &self.norm,
            head: embedding,
        }
    }
}

/// Numbers from −0.5 to 0.5 by a linear congruential generator.
fn numbers(count: usize, seed: u32) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9);
    (0..count).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    })
}

fn packed(
    format: Format,
    outputs: usize,
    inputs: usize,
    seed: u32,
) -> Result<Aligned, MatrixError> {
    let weight: Vec<u8> = numbers(outputs * inputs, seed)
        .flat_map(f32::to_le_bytes)
        .collect();
    let source = Source {
        encoding: Encoding::F32,
        rows: outputs,
        inputs,
        bytes: &weight,
    };
    let order: Vec<u32> = (0..outputs as u32).collect();
    let mut packed = Aligned::new(packed_bytes(format, outputs, inputs));
    pack(format, &source, &order, 0, packed.bytes_mut())?;
    Ok(packed)
}
