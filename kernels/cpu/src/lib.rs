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
#![allow(
    clippy::cast_ptr_alignment,
    reason = "rows, panels and files are bytes; each place says where it needs alignment"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by constants, often several arrays by one"
)]
#![cfg_attr(
    test,
    allow(
        clippy::undocumented_unsafe_blocks,
        reason = "tests call operations on arrays of the length that these ask for"
    )
)]

pub mod attention;
mod epilogue;
pub mod kv;
pub mod math;
pub mod matrix;
pub mod memory;
pub mod model;
mod norm;
pub mod packed;
pub mod pool;
pub mod product;
pub mod rope;
pub mod rows;
pub mod sampling;
pub mod simd;
