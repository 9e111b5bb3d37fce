//! The core's refusals in the words of a request.

use diptych_core::Error;

use crate::frame::FailureKind;
use crate::messages::Problem;

/// What a request is told when the core refuses it.
pub(super) fn refusal(error: &Error) -> Problem {
    let kind = match error {
        Error::ContextLength { .. } => FailureKind::ContextLength,
        Error::NeverFits { .. } | Error::ChoicesNeverFit { .. } => FailureKind::NeverFits,
        Error::QueueFull { .. } => FailureKind::QueueFull,
        Error::QueuedTokens { .. } => FailureKind::QueuedTokens,
        Error::FirstTokenTooLate { .. } => FailureKind::TooLate,
        Error::EmptyPrompt | Error::UnknownToken { .. } => FailureKind::InvalidPrompt,
        _ => FailureKind::InvalidParameter,
    };
    let problem = Problem::new(kind, message(error));
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
        Error::ChoicesNeverFit {
            choices,
            prompt,
            block_size,
            needed,
            available,
        } => problem
            .with("n", choices)
            .with("prompt_tokens", prompt)
            .with("block_size", block_size)
            .with("needed_blocks", needed)
            .with("available_blocks", available),
        Error::BeamWidth {
            width,
            stop_ids,
            needed,
            most,
        } => problem
            .with("n", width)
            .with("stop_ids", stop_ids)
            .with("needed_continuations", needed)
            .with("most_continuations", most),
        Error::UnknownToken { id, vocabulary } => {
            problem.with("token_id", id).with("vocabulary", vocabulary)
        }
        _ => overload(problem, error),
    }
}

/// What is told of work that would wait too long.
fn overload(problem: Problem, error: &Error) -> Problem {
    match *error {
        Error::QueueFull {
            waiting,
            retry_after_ns,
        } => retry_after(problem.with("requests_waiting", waiting), retry_after_ns),
        Error::QueuedTokens {
            queued,
            tokens,
            limit,
            retry_after_ns,
        } => {
            let problem = problem
                .with("tokens_waiting", queued)
                .with("uncached_prompt_tokens", tokens)
                .with("max_queued_tokens", limit);
            retry_after(problem, retry_after_ns)
        }
        Error::FirstTokenTooLate {
            predicted_ns,
            limit_ns,
            retry_after_ns,
        } => {
            let problem = problem
                .with("predicted_ttft_s", seconds(predicted_ns))
                .with("limit_s", seconds(limit_ns));
            retry_after(problem, Some(retry_after_ns))
        }
        _ => problem,
    }
}

/// The core's words, with times as people read them, and with the field at fault in front.
fn message(error: &Error) -> String {
    match *error {
        Error::BeamSampling { .. } => format!("use_beam_search: {error}"),
        Error::BeamWidth { width, .. } => format!("n is {width}: {error}"),
        Error::SideData { .. } => format!("logit_bias: {error}"),
        Error::FirstTokenTooLate {
            predicted_ns,
            limit_ns,
            ..
        } => format!(
            "the first token is expected after {:.1} s, later than the limit of {:.1} s (max_ttft_ms, or the request's timeouts): retry later",
            seconds(predicted_ns),
            seconds(limit_ns)
        ),
        _ => error.to_string(),
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

/// Tells whole seconds, at least one, where the core could tell.
fn retry_after(problem: Problem, nanoseconds: Option<u64>) -> Problem {
    match nanoseconds {
        Some(nanoseconds) => {
            let whole = nanoseconds.div_ceil(1_000_000_000).max(1);
            problem.with("retry_after_s", whole)
        }
        None => problem,
    }
}
