//! Models of random numbers, for tests and measurements.

use super::shape::ModelShape;
use super::weights::{LayerWeights, WeightOwner, Weights};
use crate::matrix::{Encoding, Format, Matrix, MatrixError, Source, pack, packed_bytes};
use crate::memory::Region;
use crate::simd::LANES;

/// How the weights of a random model are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomFormats {
    /// Of the embedding.
    pub embedding: Format,
    /// Of all projections.
    pub layers: Format,
    /// Of the head; none where the embedding serves.
    pub head: Option<Format>,
    /// Every projection has a bias.
    pub biases: bool,
}

struct Packed {
    format: Format,
    outputs: usize,
    inputs: usize,
    memory: Region,
}

impl Packed {
    fn matrix(&self) -> Matrix<'_> {
        // SAFETY: the whole region, which nobody writes any more.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.memory.address(), self.memory.bytes()) };
        Matrix {
            format: self.format,
            outputs: self.outputs,
            inputs: self.inputs,
            bytes,
        }
    }
}

struct RandomLayer {
    norms: [Vec<f32>; 2],
    /// qkv, output, gate and up, down.
    matrices: [Packed; 4],
    biases: Option<[Vec<f32>; 4]>,
}

impl RandomLayer {
    fn weights(&self) -> LayerWeights<'_> {
        let bias = |index: usize| self.biases.as_ref().map(|biases| &biases[index][..]);
        let [qkv, output, gate_up, down] = &self.matrices;
        LayerWeights {
            input_norm: &self.norms[0],
            qkv: vec![qkv.matrix()],
            qkv_bias: bias(0),
            output: output.matrix(),
            output_bias: bias(1),
            post_norm: &self.norms[1],
            gate_up: gate_up.matrix(),
            gate_up_bias: bias(2),
            down: down.matrix(),
            down_bias: bias(3),
        }
    }
}

/// A model whose weights are random numbers of a variance that keeps activations moderate.
pub struct RandomModel {
    shape: ModelShape,
    embedding: Packed,
    head: Option<Packed>,
    layers: Vec<RandomLayer>,
    norm: Vec<f32>,
}

/// Uniform numbers by xorshift (Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    /// Between −`width` and `width`.
    fn next(&mut self, width: f32) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0) * width
    }

    fn vector(&mut self, size: usize, middle: f32, width: f32) -> Vec<f32> {
        (0..size).map(|_| middle + self.next(width)).collect()
    }

    fn matrix(
        &mut self,
        format: Format,
        outputs: usize,
        inputs: usize,
    ) -> Result<Packed, MatrixError> {
        let bytes = packed_bytes(format, outputs, inputs);
        let memory = Region::new(bytes, true).expect("memory for a random model");
        // SAFETY: fresh memory of this length.
        let out = unsafe { std::slice::from_raw_parts_mut(memory.address(), bytes) };
        let encoding = match format {
            Format::Q5_0 => Encoding::Q5_0,
            Format::Q4K => Encoding::Q4K,
            Format::Q6K => Encoding::Q6K,
            _ => Encoding::F32,
        };
        format.check(inputs)?;
        let mut row = Vec::new();
        for output in 0..outputs {
            self.row(encoding, inputs, &mut row);
            let source = Source {
                encoding,
                rows: 1,
                inputs,
                bytes: &row,
            };
            pack(format, &source, &[0], output, out)?;
        }
        Ok(Packed {
            format,
            outputs,
            inputs,
            memory,
        })
    }

    /// A row as a file has it. Blocks get random codes and a scale that keeps the variance.
    fn row(&mut self, encoding: Encoding, inputs: usize, row: &mut Vec<u8>) {
        row.clear();
        let width = (3.0 / inputs as f32).sqrt();
        let (weights, bytes) = encoding.block();
        if encoding == Encoding::F32 {
            for _ in 0..inputs {
                row.extend(self.next(width).to_le_bytes());
            }
            return;
        }
        // (offset, half float) of each block's scales; Q4K's minimum takes 7.5 of 15 steps off.
        let scales: &[(usize, f32)] = match encoding {
            Encoding::Q5_0 => &[(0, 1.0 / 16.0)],
            Encoding::Q4K => &[(0, 1.0 / 7.5 / 32.0), (2, 1.0 / 32.0)],
            _ => &[(208, 1.0 / 32.0 / 64.0)],
        };
        for _ in 0..inputs / weights {
            let start = row.len();
            row.extend((0..bytes).map(|_| (self.next(128.0) as i32) as u8));
            for (offset, scale) in scales {
                let half = half::f16::from_f32(scale * width).to_le_bytes();
                row[start + offset..start + offset + 2].copy_from_slice(&half);
            }
        }
    }
}

impl RandomModel {
    /// A model of `shape`; the same `seed` gives the same weights.
    ///
    /// # Errors
    /// Sizes that a format does not allow.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(shape: ModelShape, formats: RandomFormats, seed: u64) -> Result<Self, MatrixError> {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (hidden, wide) = (shape.hidden, shape.intermediate);
        let embedding = numbers.matrix(formats.embedding, shape.vocabulary, hidden)?;
        let head = formats
            .head
            .map(|format| numbers.matrix(format, shape.vocabulary, hidden));
        let sizes = [
            (shape.qkv_size(), hidden),
            (hidden, shape.attended_size()),
            (2 * wide, hidden),
            (hidden, wide),
        ];
        let mut layers = Vec::with_capacity(shape.layers);
        for _ in 0..shape.layers {
            let [a, b, c, d] =
                sizes.map(|(outputs, inputs)| numbers.matrix(formats.layers, outputs, inputs));
            let mut bias = |outputs| numbers.vector(outputs, 0.0, 0.1);
            let biases = formats
                .biases
                .then(|| sizes.map(|(outputs, _)| bias(outputs)));
            layers.push(RandomLayer {
                norms: [
                    numbers.vector(hidden, 1.0, 0.2),
                    numbers.vector(hidden, 1.0, 0.2),
                ],
                matrices: [a?, b?, c?, d?],
                biases,
            });
        }
        Ok(Self {
            norm: numbers.vector(hidden, 1.0, 0.2),
            embedding,
            head: head.transpose()?,
            layers,
            shape,
        })
    }
}

impl WeightOwner for RandomModel {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn weights(&self) -> Weights<'_> {
        Weights {
            embedding: self.embedding.matrix(),
            layers: self.layers.iter().map(RandomLayer::weights).collect(),
            norm: &self.norm,
            head: self.head.as_ref().unwrap_or(&self.embedding).matrix(),
        }
    }
}

/// Row of a gate and up matrix, interleaved by panels, that belongs to gate (`up` false) or up output `index`.
#[must_use]
pub fn interleaved_row(index: usize, up: bool) -> usize {
    index / LANES * 2 * LANES + usize::from(up) * LANES + index % LANES
}
