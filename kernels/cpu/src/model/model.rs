//! A model ready to run: weights that stay with their owner, small vectors filled up to whole groups.

use std::sync::Arc;

use super::shape::{ModelError, ModelShape};
use super::weights::{LayerWeights, WeightOwner, Weights};
use crate::rows::GROUP;

/// Norms and biases of a layer.
#[derive(Debug)]
pub(super) struct LayerVectors {
    pub(super) input_norm: Vec<f32>,
    pub(super) post_norm: Vec<f32>,
    pub(super) qkv_bias: Option<Vec<f32>>,
    pub(super) output_bias: Option<Vec<f32>>,
    pub(super) gate_up_bias: Option<Vec<f32>>,
    pub(super) down_bias: Option<Vec<f32>>,
}

/// A checked model.
pub(super) struct Model {
    pub(super) shape: ModelShape,
    pub(super) vectors: Vec<LayerVectors>,
    pub(super) norm: Vec<f32>,
    /// Borrowed from `owner`: never to be handed out.
    pub(super) weights: Weights<'static>,
    _owner: Arc<dyn WeightOwner>,
}

impl Model {
    pub(super) fn new(owner: Arc<dyn WeightOwner>) -> Result<Self, ModelError> {
        let shape = owner.shape();
        shape.check()?;
        // SAFETY: the bytes stay where they are as long as the owner lives, and it is kept beside them.
        let weights =
            unsafe { std::mem::transmute::<Weights<'_>, Weights<'static>>(owner.weights()) };
        weights.check(&shape)?;
        Ok(Self {
            vectors: weights.layers.iter().map(vectors).collect(),
            norm: filled(weights.norm),
            shape,
            weights,
            _owner: owner,
        })
    }
}

/// Zeros up to a multiple of 32.
fn filled(values: &[f32]) -> Vec<f32> {
    let mut filled = values.to_vec();
    filled.resize(values.len().next_multiple_of(GROUP), 0.0);
    filled
}

fn vectors(layer: &LayerWeights) -> LayerVectors {
    LayerVectors {
        input_norm: filled(layer.input_norm),
        post_norm: filled(layer.post_norm),
        qkv_bias: layer.qkv_bias.map(filled),
        output_bias: layer.output_bias.map(filled),
        gate_up_bias: layer.gate_up_bias.map(filled),
        down_bias: layer.down_bias.map(filled),
    }
}
