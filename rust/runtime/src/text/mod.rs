//! From token ids to text, on a thread of its own.

mod stream;
mod thread;

pub(crate) use thread::run_text;
