//! The model: its shape and weights, and the step that runs it.

mod shape;
mod weights;

pub use shape::{ModelError, ModelShape};
pub use weights::{LayerWeights, WeightOwner, Weights};
