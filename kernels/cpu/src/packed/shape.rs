//! What a configuration says of a checkpoint.

use serde::{Deserialize, Serialize, Serializer};

use super::error::PackedError;
use crate::model::ModelShape;
use crate::simd::LANES;

/// Sizes and constants of a Llama checkpoint, in its own sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the configuration"
)]
pub struct LlamaShape {
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Added to the mean square in a norm.
    #[serde(serialize_with = "as_double")]
    pub norm_epsilon: f32,
    /// Whether the head is the embedding.
    pub tied_embeddings: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Angle per position of each pair of dimensions, `head_dim / 2`, in radians.
    #[serde(serialize_with = "all_as_doubles")]
    pub rope_frequencies: Vec<f32>,
}

// A parser that is off in the last bit of a double still reads the same float.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn as_double<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(f64::from(*value))
}

fn all_as_doubles<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|&value| f64::from(value)))
}

impl LlamaShape {
    /// Reads the shape from a JSON object with exactly these fields.
    ///
    /// # Errors
    /// What is missing, unknown or of another type.
    pub fn from_json(text: &str) -> Result<Self, PackedError> {
        serde_json::from_str(text)
            .map_err(|error| PackedError::Request(format!("the model's shape: {error}")))
    }

    /// The MLP's width as it is packed: whole panels, filled up with zeros.
    #[must_use]
    pub fn padded_intermediate(&self) -> usize {
        self.intermediate.next_multiple_of(LANES)
    }

    /// The shape of the packed model.
    #[must_use]
    pub fn model(&self) -> ModelShape {
        ModelShape {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            intermediate: self.padded_intermediate(),
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            epsilon: self.norm_epsilon,
            rope_frequencies: self.rope_frequencies.clone(),
        }
    }

    /// Checks that the kernels serve these sizes.
    pub(super) fn check(&self) -> Result<(), PackedError> {
        if self.intermediate > 1 << 24 {
            return Err(PackedError::Request(format!(
                "intermediate is {}: up to 2²⁴ will do",
                self.intermediate
            )));
        }
        self.model()
            .check()
            .map_err(|error| PackedError::Request(error.to_string()))
    }
}
