//! The model: its shape and weights, and the step that runs it.

mod buffers;
mod engine;
mod filling;
#[expect(clippy::module_inception, reason = "the model itself")]
mod model;
mod phase;
mod plan;
mod program;
pub mod random;
mod report;
mod settings;
mod shape;
mod state;
mod weights;

pub use engine::{Engine, StepOutput, activation_bytes, bytes_per_block};
pub use plan::{PLACEHOLDER, PlanError, SamplingInput, StepInput};
pub use report::{Report, moved_bytes};
pub use settings::{Fusions, Settings};
pub use shape::{ModelError, ModelShape};
pub use weights::{LayerWeights, WeightOwner, Weights};
