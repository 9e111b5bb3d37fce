//! Which requests a core must accept and how it must refuse the others.

use diptych_core::config::Admission;
use diptych_core::{CoreConfig, Error, Request, Stats};

/// How a submission must be answered.
pub(crate) enum Answer {
    Accepted,
    Refused,
    /// A limit that the documents state to within one token, or that depends on what the prefix
    /// cache has or on the pace so far.
    Either,
}

/// Judges a request before it is submitted.
pub(crate) fn answer(request: &Request, stats: &Stats, config: &CoreConfig) -> Answer {
    let prompt = request.prompt.len() as u32;
    let total = prompt + request.max_tokens;
    let banned = if request.min_tokens > 0 && !request.masked {
        request.stop_ids.len()
    } else {
        0
    };
    let bias = (request.sampling.logit_bias.len() + banned) as u32;
    let penalised = request.sampling.frequency_penalty != 0.0;
    let side = u32::from(penalised) * (2 + total) + if bias > 0 { 1 + 2 * bias } else { 0 };
    let blocks = config.num_blocks - 1;
    let choices = request.choices;
    let whole = prompt.div_ceil(config.block_size);
    let grows = (total.saturating_sub(1)).div_ceil(config.block_size) > whole;
    let tails = !prompt.is_multiple_of(config.block_size);
    let others = choices.saturating_sub(1);
    let begin = if config.admission == Admission::NoEviction {
        // Each runs to its end beside the others.
        let longest = total.saturating_sub(1).div_ceil(config.block_size);
        longest + others * (longest - (prompt / config.block_size).min(longest))
    } else {
        let outputs = choices * u32::from(grows);
        whole + others * u32::from(tails) + if others > 0 { outputs } else { 0 }
    };
    let wrong = prompt == 0
        || request.max_tokens == 0
        || !(1..=config.max_running).contains(&choices)
        || begin > blocks
        || total > config.max_model_len
        || stats.waiting >= config.max_queued_requests
        || request.prompt.iter().any(|&id| id >= config.vocabulary)
        || (total - 1).div_ceil(config.block_size) > blocks
        || side.saturating_sub(u32::from(penalised)) > config.side_words;
    let timely = config.max_ttft_ns.is_none()
        && request.deadline.is_none()
        && request.first_token_deadline.is_none();
    let short = config
        .max_queued_tokens
        .is_none_or(|limit| stats.waiting_tokens + u64::from(prompt) <= limit);
    if wrong {
        Answer::Refused
    } else if !timely
        || !(short || stats.waiting == 0)
        || total.div_ceil(config.block_size) > blocks
        || side > config.side_words
    {
        Answer::Either
    } else {
        Answer::Accepted
    }
}

/// The error that a single mistake must give.
pub(crate) fn names_the_mistake(error: &Error, request: &Request, config: &CoreConfig) -> bool {
    let total = (request.prompt.len() as u32).saturating_add(request.max_tokens);
    match error {
        Error::EmptyPrompt => request.prompt.is_empty(),
        Error::UnknownToken { id, .. } => *id >= config.vocabulary && request.prompt.contains(id),
        Error::NoOutput => request.max_tokens == 0,
        Error::ContextLength { .. } => total > config.max_model_len,
        Error::Choices {
            choices,
            max_running,
        } => *choices == 0 || choices > max_running,
        Error::NeverFits {
            needed, available, ..
        }
        | Error::ChoicesNeverFit {
            needed, available, ..
        }
        | Error::SideData { needed, available } => needed > available,
        Error::QueueFull { waiting, .. } => *waiting >= config.max_queued_requests,
        Error::QueuedTokens {
            queued,
            tokens,
            limit,
            ..
        } => *queued > 0 && queued + u64::from(*tokens) > *limit,
        Error::FirstTokenTooLate {
            predicted_ns,
            limit_ns,
            retry_after_ns,
        } => predicted_ns - limit_ns == *retry_after_ns && *retry_after_ns > 0,
        _ => false,
    }
}
