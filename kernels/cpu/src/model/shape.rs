//! What a checkpoint of the Llama family is, without its numbers.

use thiserror::Error;

use crate::kv::KvError;
use crate::matrix::MatrixError;
use crate::simd::LANES;

/// Why a model cannot be run.
#[derive(Debug, Error)]
pub enum ModelError {
    /// A size that no kernel serves, or that contradicts another.
    #[error("{name} is {value}: {allowed}")]
    Shape {
        /// Which size.
        name: &'static str,
        /// Its value, or how many.
        value: usize,
        /// What would do.
        allowed: &'static str,
    },
    /// A weight that is not as the shape wants it.
    #[error("{name} is {found}, but the model's shape wants {wanted}")]
    Weight {
        /// Which weight.
        name: String,
        /// What it is.
        found: String,
        /// What it should be.
        wanted: String,
    },
    /// A weight in a format that its sizes do not allow.
    #[error("{name}: {error}")]
    Format {
        /// Which weight.
        name: String,
        /// What the format says.
        error: MatrixError,
    },
    /// A cache that cannot be made.
    #[error(transparent)]
    Cache(#[from] KvError),
    /// Instructions that this machine does not have.
    #[error("this machine does not have the instruction set {name}: portable runs everywhere")]
    InstructionSet {
        /// Which.
        name: &'static str,
    },
    /// The system gave no memory.
    #[error("no memory for {what}: {error}")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// The system gave no threads.
    #[error("cannot start {threads} threads: {error}; set fewer threads")]
    Threads {
        /// How many were wanted.
        threads: usize,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Sizes and constants of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Rows of the embedding and of the head.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP: a multiple of 16.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads: a divisor of `heads`.
    pub kv_heads: usize,
    /// Width of a head: a multiple of 8.
    pub head_dim: usize,
    /// Added to the mean square in a norm.
    pub epsilon: f32,
    /// Angle per position of each pair of dimensions, `head_dim / 2`, in radians.
    pub rope_frequencies: Vec<f32>,
}

impl ModelShape {
    /// Width of the joined q, k and v projection.
    #[must_use]
    pub fn qkv_size(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Width of what attention gives.
    #[must_use]
    pub fn attended_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Checks that the kernels serve these sizes.
    ///
    /// # Errors
    /// The first size that they do not serve, and what would do.
    pub fn check(&self) -> Result<(), ModelError> {
        for (name, value, fits, allowed) in self.rules() {
            if !fits {
                return Err(ModelError::Shape {
                    name,
                    value,
                    allowed,
                });
            }
        }
        Ok(())
    }

    /// Sizes: name, value, whether it will do, what would.
    fn rules(&self) -> [(&'static str, usize, bool, &'static str); 8] {
        let size = 1..=(1 << 24);
        let many = 1..=65_536;
        let ids = 1..=(i32::MAX as usize);
        let even = size.contains(&self.hidden) && self.hidden.is_multiple_of(2);
        let panels = size.contains(&self.intermediate) && self.intermediate.is_multiple_of(LANES);
        let divides = self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads);
        let eights = (8..=1024).contains(&self.head_dim) && self.head_dim.is_multiple_of(8);
        let pairs = self.rope_frequencies.len();
        [
            (
                "vocabulary",
                self.vocabulary,
                ids.contains(&self.vocabulary),
                "1 to 2³¹ − 1 will do",
            ),
            (
                "hidden",
                self.hidden,
                even,
                "an even number up to 2²⁴ will do",
            ),
            (
                "intermediate",
                self.intermediate,
                panels,
                "a multiple of 16 up to 2²⁴ will do",
            ),
            (
                "layers",
                self.layers,
                many.contains(&self.layers),
                "1 to 65,536 will do",
            ),
            (
                "heads",
                self.heads,
                many.contains(&self.heads),
                "1 to 65,536 will do",
            ),
            (
                "kv_heads",
                self.kv_heads,
                divides,
                "a divisor of the number of heads will do",
            ),
            (
                "head_dim",
                self.head_dim,
                eights,
                "a multiple of 8 up to 1,024 will do",
            ),
            (
                "rope_frequencies",
                pairs,
                pairs == self.head_dim / 2,
                "half of head_dim is wanted",
            ),
        ]
    }
}
