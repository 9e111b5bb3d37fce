//! From token ids to text, on a thread of its own.

mod answer;
mod shown_prompt;
mod stream;
mod thread;

pub(crate) use answer::Answer;
pub(crate) use shown_prompt::ShownPrompt;
pub(crate) use thread::run_text;
