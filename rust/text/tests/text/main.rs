//! The crate as its users see it.

mod chat;
mod common;
mod detokenise;
mod stop;
mod tokenizer;
