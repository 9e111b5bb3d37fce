//! Text for an inference engine, exact to the byte: tokenising, incremental detokenising, stop strings, chat templates, events.
//!
//! A token is a byte string, in all common tokenizers. [`Tokenizer`] turns text into ids and gives the [`TokenTable`] that
//! maps ids back to bytes; a [`TextStream`] per request turns the ids of an answer into text as they come. Where a
//! decoder looks at neighbours, what it does to each token is in the table too, and the rest is done on the text as it
//! comes. Three promises hold for any ids, any prompt and any chunking:
//!
//! 1. the joined deltas equal the tokenizer's own decode of all ids, less what the prompt settled (see [`TextStream`]).
//!    Bytes that are no UTF-8 are decoded as by `String::from_utf8_lossy`; so does the tokenizer's own decode, but that it
//!    makes U+FFFD of each byte in a run of byte tokens (`<0x0A>`) if any of them is wrong;
//! 2. a character is sent with the token that completes it, and bytes that can no longer become one are sent as U+FFFD
//!    at once, so at most three bytes wait and a token costs the same at the end of an answer as at its start;
//! 3. with stop strings, exactly the text before the earliest-completing match is sent, and at any moment only a suffix
//!    that may still become part of that match is held back.
//!
//! A [`ChatTemplate`] makes a prompt of a conversation, and an [`AnswerParser`] finds tool calls and reasoning in the answer.
//! [`sse::Chunks`] makes the events of a stream of it.
//!
//! A [`GrammarCompiler`] makes a [`Matcher`] of a JSON schema, a regular expression, choices, a Lark grammar or tool calls; it
//! says which tokens may come next.
//!
//! Nothing here starts a thread or keeps a global; everything may be used from any thread.

mod answer;
mod chat;
mod decoder;
mod detokenizer;
mod error;
mod grammar;
pub mod sse;
mod steps;
mod stop;
mod stream;
mod table;
mod tokenizer;

pub use answer::{
    AnswerDelta, AnswerFormats, AnswerParser, CallDelta, merge_calls, reasoning_format_names,
    tool_format_names,
};
pub use chat::{ChatTemplate, Rendered};
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use grammar::{
    Calls, Function, Grammar, GrammarCompiler, MAX_CHOICES, MAX_GRAMMAR_BYTES, Matcher, Reasoning,
    Stopper, avoid,
};
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, StopMatch};
pub use stream::{StreamOptions, TextStream};
pub use table::{Piece, TokenTable};
pub use tokenizer::Tokenizer;
