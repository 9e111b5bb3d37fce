//! The crate as its users see it.

mod call_cases;
mod calls;
mod chat;
mod chat_values;
mod common;
mod decoders;
mod detokenise;
mod exact;
mod grammar;
mod grammar_limits;
mod kinds;
mod sse;
mod stop;
mod threads;
mod tokenizer;
