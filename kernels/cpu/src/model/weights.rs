//! The weights of a model, borrowed from whoever holds them.

use std::fmt::Display;

use super::shape::{ModelError, ModelShape};
use crate::matrix::{Matrix, packed_bytes};
use crate::simd::LANES;

/// Weights of one decoder layer.
#[derive(Clone, Debug)]
pub struct LayerWeights<'a> {
    /// `[hidden]`.
    pub input_norm: &'a [f32],
    /// Outputs: query heads, key heads, value heads. In several matrices, one after the other, where they are stored in
    /// different formats; all but the last are whole panels.
    pub qkv: Vec<Matrix<'a>>,
    /// In the order of its matrices' outputs, like every bias.
    pub qkv_bias: Option<&'a [f32]>,
    /// `hidden` × `heads × head_dim`.
    pub output: Matrix<'a>,
    /// `[hidden]`.
    pub output_bias: Option<&'a [f32]>,
    /// `[hidden]`.
    pub post_norm: &'a [f32],
    /// Outputs interleaved by panels: 16 of the gate, the same 16 of up, the next 16 of the gate, …
    pub gate_up: Matrix<'a>,
    /// `[2 × intermediate]`, interleaved likewise.
    pub gate_up_bias: Option<&'a [f32]>,
    /// `hidden` × `intermediate`.
    pub down: Matrix<'a>,
    /// `[hidden]`.
    pub down_bias: Option<&'a [f32]>,
}

impl<'a> LayerWeights<'a> {
    /// Its matrices, in the order of a step.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix<'a>> {
        self.qkv
            .iter()
            .chain([&self.output, &self.gate_up, &self.down])
    }
}

/// All weights. `head` may be the embedding's own bytes.
#[derive(Clone, Debug)]
pub struct Weights<'a> {
    /// `vocabulary` × `hidden`.
    pub embedding: Matrix<'a>,
    /// From the first to the last.
    pub layers: Vec<LayerWeights<'a>>,
    /// `[hidden]`.
    pub norm: &'a [f32],
    /// `vocabulary` × `hidden`.
    pub head: Matrix<'a>,
}

/// Whoever holds the bytes of a model: a packed file, or buffers.
pub trait WeightOwner: Send + Sync {
    /// The model's shape.
    fn shape(&self) -> ModelShape;
    /// Its weights; their bytes stay where they are as long as the owner lives.
    fn weights(&self) -> Weights<'_>;
}

impl Weights<'_> {
    /// Checks every weight against `shape`.
    ///
    /// # Errors
    /// The first weight that is not as the shape wants it.
    pub fn check(&self, shape: &ModelShape) -> Result<(), ModelError> {
        let (hidden, qkv) = (shape.hidden, shape.qkv_size());
        let (attended, wide) = (shape.attended_size(), shape.intermediate);
        let found = self.layers.len();
        expect(
            "the number of layers",
            found == shape.layers,
            &found,
            &shape.layers,
        )?;
        check_matrix("the embedding", &self.embedding, shape.vocabulary, hidden)?;
        check_matrix("the head", &self.head, shape.vocabulary, hidden)?;
        check_vector("the last norm", self.norm, hidden)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let name = |part: &str| format!("{part} of layer {index}");
            check_vector(&name("the input norm"), layer.input_norm, hidden)?;
            check_vector(&name("the post norm"), layer.post_norm, hidden)?;
            check_parts(&name("qkv"), &layer.qkv, qkv, hidden)?;
            if let Some(bias) = layer.qkv_bias {
                check_vector(&name("the bias of qkv"), bias, qkv)?;
            }
            let matrices = [
                ("output", &layer.output, layer.output_bias, hidden, attended),
                (
                    "gate_up",
                    &layer.gate_up,
                    layer.gate_up_bias,
                    2 * wide,
                    hidden,
                ),
                ("down", &layer.down, layer.down_bias, hidden, wide),
            ];
            for (part, matrix, bias, outputs, inputs) in matrices {
                check_matrix(&name(part), matrix, outputs, inputs)?;
                if let Some(bias) = bias {
                    check_vector(&name(&format!("the bias of {part}")), bias, outputs)?;
                }
            }
        }
        Ok(())
    }

    /// Bytes that one step reads of these weights at least: all but the embedding, unless it is the head.
    #[must_use]
    pub fn step_bytes(&self) -> usize {
        let layers = self.layers.iter().map(|layer| {
            let matrices = layer.matrices();
            matrices.map(|matrix| matrix.bytes.len()).sum::<usize>()
        });
        layers.sum::<usize>() + self.head.bytes.len()
    }
}

fn expect(
    name: &str,
    fits: bool,
    found: &dyn Display,
    wanted: &dyn Display,
) -> Result<(), ModelError> {
    if fits {
        return Ok(());
    }
    Err(ModelError::Weight {
        name: name.to_string(),
        found: found.to_string(),
        wanted: wanted.to_string(),
    })
}

fn check_vector(name: &str, values: &[f32], size: usize) -> Result<(), ModelError> {
    let found = format!("{} values", values.len());
    expect(name, values.len() == size, &found, &size)
}

/// Checks matrices whose outputs follow one another.
fn check_parts(
    name: &str,
    parts: &[Matrix],
    outputs: usize,
    inputs: usize,
) -> Result<(), ModelError> {
    let found: usize = parts.iter().map(|part| part.outputs).sum();
    expect(
        name,
        found == outputs,
        &format!("{found} outputs"),
        &outputs,
    )?;
    for (index, part) in parts.iter().enumerate() {
        check_matrix(name, part, part.outputs, inputs)?;
        let whole = part.outputs.is_multiple_of(LANES) || index + 1 == parts.len();
        let found = format!("part {index} of {} outputs", part.outputs);
        expect(name, whole, &found, &"a multiple of 16")?;
    }
    Ok(())
}

fn check_matrix(
    name: &str,
    matrix: &Matrix,
    outputs: usize,
    inputs: usize,
) -> Result<(), ModelError> {
    let found = format!("{} × {}", matrix.outputs, matrix.inputs);
    let fits = matrix.outputs == outputs && matrix.inputs == inputs;
    expect(name, fits, &found, &format!("{outputs} × {inputs}"))?;
    let format = matrix.format.check(inputs);
    format.map_err(|error| ModelError::Format {
        name: name.to_string(),
        error,
    })?;
    let (found, wanted) = (
        matrix.bytes.len(),
        packed_bytes(matrix.format, outputs, inputs),
    );
    let bytes = |count: usize| format!("{count} bytes");
    expect(name, found == wanted, &bytes(found), &bytes(wanted))?;
    let aligned = matrix.bytes.as_ptr().align_offset(64) == 0;
    expect(name, aligned, &"not aligned", &"bytes aligned to 64")
}
