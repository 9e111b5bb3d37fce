//! CPU kernels of Diptych: packed weights, paged attention, sampling, and the step that joins them.
//!
//! Every kernel is written once over [`simd::Isa`], and what it computes for a row depends on that row alone: never on
//! the other rows, the number of threads, the chunking of a prompt or the place of its blocks.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "kernels are unsafe as a whole: each states once what its caller must keep"
)]
#![expect(
    clippy::inline_always,
    reason = "an instruction set is switched on at one place; what runs under it must be compiled there"
)]

pub mod matrix;
pub mod memory;
pub mod model;
pub mod simd;
