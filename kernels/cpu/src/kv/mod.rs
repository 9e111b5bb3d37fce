//! The paged cache of keys and values.
//!
//! A block holds `block_size` tokens. Within it each KV head has its own bytes: keys, then values, then, where the
//! format has them, a scale per token for each. Keys lie in panels of 16 positions, a line for each pair of
//! dimensions; values in panels of 16 positions, a line for each pair of positions and 16 dimensions. So a score's
//! sixteen lanes are positions, an output's are dimensions, and neither needs a sum across lanes. Blocks of fewer than
//! 16 tokens keep plain rows, which attention gathers into panels.

mod layout;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::ops::Range;

use crate::memory::Region;

pub(crate) use layout::{HeadBlock, line_element};
#[cfg(test)]
pub(crate) use write::element;
pub(crate) use write::{encode, gather_row, put_row};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half floats.
    F16,
    /// Signed bytes with one f32 scale per token and KV head, for keys and for values.
    Int8,
}

impl KvFormat {
    /// Bytes of a number, without its share of a scale.
    #[must_use]
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// Which dimensions of the pool lie outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All layers and heads of a block lie together: a new block asks the system for few new pages.
    BlockMajor,
    /// All blocks of a layer lie together, and within them all heads of a block.
    LayerMajor,
    /// All blocks of a layer's head lie together.
    HeadMajor,
}

/// Sizes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Blocks, the null block included.
    pub blocks: usize,
    /// Tokens of a block: a power of two, 1 to 256.
    pub block_size: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Dimensions of a head: a multiple of 8.
    pub head_dim: usize,
    /// How the numbers are stored.
    pub format: KvFormat,
}

/// A pool that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// A size that the kernels do not serve.
    #[error("the KV cache is to have {name} = {value}: {allowed}")]
    Size {
        /// Field of [`KvShape`].
        name: &'static str,
        /// What it was.
        value: usize,
        /// What it may be.
        allowed: &'static str,
    },
    /// No memory.
    #[error(
        "the system gives no {bytes} bytes for the KV cache ({source}): ask for fewer with kv_cache_bytes"
    )]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl KvShape {
    /// Bytes that a block takes, all layers and heads together.
    #[must_use]
    pub fn bytes_per_block(&self) -> usize {
        self.layers * self.kv_heads * self.head_bytes()
    }

    /// Bytes of the whole pool.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks * self.bytes_per_block()
    }

    /// Refuses sizes that the kernels do not serve.
    ///
    /// # Errors
    /// [`KvError::Size`] names the first.
    pub fn check(&self) -> Result<(), KvError> {
        let wrong = |name, value, allowed| {
            Err(KvError::Size {
                name,
                value,
                allowed,
            })
        };
        if !self.block_size.is_power_of_two() || self.block_size > 256 {
            return wrong(
                "block_size",
                self.block_size,
                "a power of two from 1 to 256 is served",
            );
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > 1024 {
            return wrong(
                "head_dim",
                self.head_dim,
                "multiples of 8 up to 1,024 are served",
            );
        }
        for (name, value) in [
            ("layers", self.layers),
            ("blocks", self.blocks),
            ("kv_heads", self.kv_heads),
        ] {
            if value == 0 || value > 1 << 31 {
                return wrong(name, value, "at least 1 is needed, at most 2³¹ served");
            }
        }
        Ok(())
    }
}

/// Keys and values of every layer, block and KV head.
///
/// Attention reads and writes it through raw pointers: a step's plan sees to it that nobody reads what another writes.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    region: Region,
    layer_stride: usize,
    block_stride: usize,
    head_stride: usize,
}

impl KvPool {
    /// A pool of zeros whose pages are not there yet: see [`KvPool::populate`]. With `huge`, asks for huge pages.
    ///
    /// # Errors
    /// A size that is not served, or no memory.
    pub fn new(shape: KvShape, huge: bool) -> Result<Self, KvError> {
        Self::placed(shape, Placement::BlockMajor, huge)
    }

    /// The same with a choice of the order, for measurements.
    ///
    /// # Errors
    /// As [`KvPool::new`].
    pub fn placed(shape: KvShape, placement: Placement, huge: bool) -> Result<Self, KvError> {
        shape.check()?;
        let (bytes, head_bytes) = (shape.bytes(), shape.head_bytes());
        let region =
            Region::new(bytes, huge).map_err(|source| KvError::Memory { bytes, source })?;
        let all_heads = head_bytes * shape.kv_heads;
        let (layer_stride, block_stride, head_stride) = match placement {
            Placement::BlockMajor => (all_heads, all_heads * shape.layers, head_bytes),
            Placement::LayerMajor => (all_heads * shape.blocks, all_heads, head_bytes),
            Placement::HeadMajor => (
                all_heads * shape.blocks,
                head_bytes,
                head_bytes * shape.blocks,
            ),
        };
        Ok(Self {
            shape,
            region,
            layer_stride,
            block_stride,
            head_stride,
        })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Its memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Writes `byte` everywhere. 0xff is NaN in every floating-point format.
    ///
    /// # Safety
    /// Nobody else reads or writes the pool meanwhile.
    pub unsafe fn fill(&self, byte: u8) {
        std::ptr::write_bytes(self.region.address(), byte, self.region.bytes());
    }

    /// Brings `blocks` of a block-major pool into memory, so that no step waits for the system's pages. Others may use
    /// the pool meanwhile.
    ///
    /// # Errors
    /// As [`Region::populate`].
    pub fn populate(&self, blocks: Range<usize>) -> io::Result<()> {
        let bytes = self.block_stride;
        self.region
            .populate(blocks.start * bytes..blocks.end * bytes)
    }

    /// Copies a block, all layers and heads.
    ///
    /// # Safety
    /// Nobody else reads or writes the two blocks meanwhile.
    ///
    /// # Panics
    /// If there is no such block, or they are one.
    pub unsafe fn copy_block(&self, source: usize, target: usize) {
        let blocks = self.shape.blocks;
        assert!(
            source < blocks && target < blocks && source != target,
            "block {source} is copied to {target} in a pool of {blocks}",
        );
        for layer in 0..self.shape.layers {
            for head in 0..self.shape.kv_heads {
                let from = self.head_block(layer, source, head).keys;
                let to = self.head_block(layer, target, head).keys;
                std::ptr::copy_nonoverlapping(from, to, self.shape.head_bytes());
            }
        }
    }

    /// One head's part of a block.
    ///
    /// # Safety
    /// The indices are within the shape.
    #[inline(always)]
    pub(crate) unsafe fn head_block(&self, layer: usize, block: usize, head: usize) -> HeadBlock {
        debug_assert!(layer < self.shape.layers && block < self.shape.blocks);
        debug_assert!(head < self.shape.kv_heads);
        let place = layer * self.layer_stride + block * self.block_stride + head * self.head_stride;
        let keys = self.region.address().add(place);
        let values = keys.add(self.shape.key_bytes());
        HeadBlock {
            keys,
            values,
            scales: values.add(self.shape.value_bytes()).cast(),
        }
    }
}
