//! Packed models: checkpoints brought into the kernels' layout once, kept in a file, read or mapped at every start.
//!
//! A packed file is a header and the tensors, 64-byte aligned, in the order of a step:
//!
//! | tensor | outputs |
//! |---|---|
//! | `embedding`, and `head` unless it is the embedding | the vocabulary |
//! | `layers.N.qkv`, or `layers.N.qkv.0` to `.2` where they are quantized differently | query heads, key heads, value heads |
//! | `layers.N.gate_up` | 16 of the gate, the same 16 of up, and so on; filled up with zeros to whole panels |
//! | `layers.N.output`, `layers.N.down` | the residual stream |
//! | norms and biases | float32, in the order of their matrix's outputs |
//!
//! It holds the digest of the checkpoint's files and of its own bytes: what was made from another checkpoint, cut off or
//! damaged is refused.

mod cache;
mod digest;
mod error;
mod file;
mod formats;
mod gguf;
mod header;
mod layout;
mod pack;
mod parallel;
mod partial;
mod planned;
mod safetensors;
mod shape;
mod source;
mod stored;
#[cfg(test)]
mod tests;

pub use cache::CachedModel;
pub use digest::{Digest, digest};
pub use error::PackedError;
pub use file::PackedFile;
pub use formats::Formats;
pub use header::LAYOUT;
pub use pack::{Packing, pack_model};
pub use shape::LlamaShape;
pub use source::ModelSource;
