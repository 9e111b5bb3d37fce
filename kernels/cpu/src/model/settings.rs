//! How a model is run.

use super::shape::{ModelError, ModelShape};
use crate::kv::KvFormat;
use crate::matrix::Arithmetic;
use crate::simd::InstructionSet;

/// What is done in one pass, and gains by it. All on; each can be switched off to be measured, and gives the same bits
/// either way.
///
/// Others gained less than 3 % in every step and are no switches any more. Norms that write the form of the next product,
/// residual sums over a tile's sums and keys turned on their way into the cache stay in one pass, because two passes take
/// more code and buffers; norms of few rows by every thread for itself are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusions {
    /// `SwiGLU` over the sums of a tile, instead of a pass over all of them.
    pub swiglu: bool,
    /// The best logit of a greedy row over the sums of a tile, instead of a pass over all its logits.
    pub argmax: bool,
    /// Weights are asked for ahead of their use from two rows on, and the cache's lines in attention.
    pub prefetch: bool,
}

impl Fusions {
    /// Everything in one pass.
    pub const ALL: Self = Self {
        swiglu: true,
        argmax: true,
        prefetch: true,
    };
    /// Everything in passes of its own.
    pub const NONE: Self = Self {
        swiglu: false,
        argmax: false,
        prefetch: false,
    };
}

impl Default for Fusions {
    fn default() -> Self {
        Self::ALL
    }
}

/// How a model is run: limits that a plan must keep, and choices that do not change results except `arithmetic` and `kv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The instructions used.
    pub set: InstructionSet,
    /// Threads, the caller's included.
    pub threads: usize,
    /// Arithmetic of bfloat16 weights and of attention.
    pub arithmetic: Arithmetic,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Tokens of a block: a power of two up to 256.
    pub block_size: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// State rows.
    pub max_running: usize,
    /// Tokens of a step.
    pub max_tokens: usize,
    /// Tokens of a sequence.
    pub max_model_len: usize,
    /// Ids that may be read and sampled: at most the model's.
    pub vocabulary: usize,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// What is done in one pass.
    pub fusions: Fusions,
}

impl Settings {
    /// Checks that a model of `shape` can be run so.
    ///
    /// # Errors
    /// The first setting that does not fit, and what would do.
    pub fn check(&self, shape: &ModelShape) -> Result<(), ModelError> {
        let most = i32::MAX as usize;
        let counts = 1..most;
        let vocabulary = (1..=shape.vocabulary).contains(&self.vocabulary);
        let slots = self.num_blocks.checked_mul(self.block_size);
        let blocks = counts.contains(&self.num_blocks) && slots.is_some();
        let size = self.block_size.is_power_of_two() && self.block_size <= 256;
        let positive = "1 to 2³¹ − 2 will do";
        let rules = [
            (
                "block_size",
                self.block_size,
                size,
                "a power of two from 1 to 256 will do",
            ),
            ("num_blocks", self.num_blocks, blocks, positive),
            (
                "max_running",
                self.max_running,
                counts.contains(&self.max_running),
                positive,
            ),
            (
                "max_tokens",
                self.max_tokens,
                counts.contains(&self.max_tokens),
                positive,
            ),
            (
                "max_model_len",
                self.max_model_len,
                counts.contains(&self.max_model_len),
                positive,
            ),
            (
                "vocabulary",
                self.vocabulary,
                vocabulary,
                "1 to the model's will do",
            ),
        ];
        for (name, value, fits, allowed) in rules {
            if !fits {
                return Err(ModelError::Shape {
                    name,
                    value,
                    allowed,
                });
            }
        }
        if !self.set.is_available() {
            let name = self.set.name();
            return Err(ModelError::InstructionSet { name });
        }
        Ok(())
    }

    /// Columns of the block tables.
    #[must_use]
    pub fn max_blocks(&self) -> usize {
        self.max_model_len.div_ceil(self.block_size)
    }
}
