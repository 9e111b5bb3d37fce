//! Which requests a core must accept and how it must refuse the others.

use diptych_core::{CoreConfig, Error, Request};

/// How a submission must be answered.
pub(crate) enum Answer {
    Accepted,
    Refused,
    /// A limit that the documents state to within one token.
    Either,
}

/// Judges a request before it is submitted while `waiting` others wait.
pub(crate) fn answer(request: &Request, waiting: u32, config: &CoreConfig) -> Answer {
    let prompt = request.prompt.len() as u32;
    let total = prompt + request.max_tokens;
    let bias = request.sampling.logit_bias.len() as u32;
    let penalised = request.sampling.frequency_penalty != 0.0;
    let side = u32::from(penalised) * (2 + total) + if bias > 0 { 1 + 2 * bias } else { 0 };
    let blocks = config.num_blocks - 1;
    let wrong = prompt == 0
        || request.max_tokens == 0
        || total > config.max_model_len
        || waiting >= config.max_queued_requests
        || request.prompt.iter().any(|&id| id >= config.vocabulary)
        || (total - 1).div_ceil(config.block_size) > blocks
        || side.saturating_sub(u32::from(penalised)) > config.side_words;
    if wrong {
        Answer::Refused
    } else if total.div_ceil(config.block_size) > blocks || side > config.side_words {
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
        Error::NeverFits {
            needed, available, ..
        }
        | Error::SideData { needed, available } => needed > available,
        Error::QueueFull { waiting } => *waiting >= config.max_queued_requests,
        _ => false,
    }
}
