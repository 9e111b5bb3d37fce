//! The core's refusals in the words of a request.

use diptych_core::Error;

use crate::frame::FailureKind;
use crate::messages::Problem;

/// What a request is told when the core refuses it.
pub(super) fn refusal(error: &Error) -> Problem {
    let kind = match error {
        Error::ContextLength { .. } => FailureKind::ContextLength,
        Error::NeverFits { .. } => FailureKind::NeverFits,
        Error::QueueFull { .. } => FailureKind::QueueFull,
        Error::EmptyPrompt | Error::UnknownToken { .. } => FailureKind::InvalidPrompt,
        _ => FailureKind::InvalidParameter,
    };
    let problem = Problem::new(kind, error.to_string());
    match *error {
        Error::ContextLength {
            prompt,
            max_tokens,
            max_model_len,
        } => problem
            .with("prompt_tokens", prompt)
            .with("max_tokens", max_tokens)
            .with("max_model_len", max_model_len),
        Error::NeverFits {
            prompt,
            max_tokens,
            block_size,
            needed,
            available,
        } => problem
            .with("prompt_tokens", prompt)
            .with("max_tokens", max_tokens)
            .with("block_size", block_size)
            .with("needed_blocks", needed)
            .with("available_blocks", available),
        Error::UnknownToken { id, vocabulary } => {
            problem.with("token_id", id).with("vocabulary", vocabulary)
        }
        Error::QueueFull { waiting } => problem.with("requests_waiting", waiting),
        _ => problem,
    }
}
