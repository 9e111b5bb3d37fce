//! The crate as its users see it.

mod common;
mod detokenise;
mod stop;
mod tokenizer;
