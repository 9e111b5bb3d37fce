//! What is refused before it can do harm.

use crate::active::{bans_stop_ids, side_words};
use crate::beam::MOST_CANDIDATES;
use crate::config::Admission;
use crate::pool::RETENTIONS;
use crate::{CoreConfig, Error, Request, Sampling};

/// Largest value of a field that crosses to the worker as int32.
const INT32: u32 = i32::MAX as u32;
const DEEPEST_OVERLAP: u8 = 2;

pub(crate) fn config(config: &CoreConfig) -> Result<(), Error> {
    let size = config.block_size;
    require(
        size.is_power_of_two() && size <= 256,
        ("block_size", size),
        "a power of two from 1 to 256",
    )?;
    let running = config.max_running;
    require(running >= 1, ("max_running", running), "at least 1")?;
    require(
        (running..=INT32).contains(&config.max_batched_tokens),
        ("max_batched_tokens", config.max_batched_tokens),
        "at least max_running, so that every running request can decode, and an int32",
    )?;
    require(
        config.max_prefill_tokens != Some(0),
        ("max_prefill_tokens", 0),
        "at least 1, or none",
    )?;
    require(
        config.prefill_tile >= 1,
        ("prefill_tile", config.prefill_tile),
        "at least 1",
    )?;
    require(
        config.target_itl_ns != Some(0),
        ("target_itl_ns", 0),
        "at least 1 nanosecond, or none",
    )?;
    queue(config)?;
    require(
        config.overlap_depth <= DEEPEST_OVERLAP,
        ("overlap_depth", u32::from(config.overlap_depth)),
        "0, 1 or 2",
    )?;
    for (name, value, least, expected) in [
        (
            "num_blocks",
            config.num_blocks,
            2,
            "an int32, at least 2: block 0 is never used",
        ),
        (
            "max_model_len",
            config.max_model_len,
            2,
            "an int32, at least one prompt and one output token",
        ),
        ("side_words", config.side_words, 0, "an int32"),
        ("vocabulary", config.vocabulary, 1, "an int32, at least 1"),
    ] {
        require((least..=INT32).contains(&value), (name, value), expected)?;
    }
    admission(config.admission)
}

fn admission(admission: Admission) -> Result<(), Error> {
    let Admission::PredictedPeak {
        preempted_per_mille: preempted,
        watermark_per_mille: watermark,
    } = admission
    else {
        return Ok(());
    };
    require(
        (1..=500).contains(&preempted),
        ("admission.preempted_per_mille", preempted),
        "1 to 500; to preempt nobody, NoEviction",
    )?;
    require(
        watermark <= 500,
        ("admission.watermark_per_mille", watermark),
        "at most 500",
    )
}

/// Bounds of the queue and shares of tenants.
fn queue(config: &CoreConfig) -> Result<(), Error> {
    require(
        config.max_queued_requests >= 1,
        ("max_queued_requests", config.max_queued_requests),
        "at least 1",
    )?;
    require(
        config.max_queued_tokens != Some(0),
        ("max_queued_tokens", 0),
        "at least 1, or none",
    )?;
    require(
        config.max_ttft_ns != Some(0),
        ("max_ttft_ns", 0),
        "at least 1, or none",
    )?;
    for &weight in config.tenant_weights.values() {
        require(
            (10..=100_000).contains(&weight),
            ("tenant_weights", weight),
            "thousandths from 10 to 100,000",
        )?;
    }
    Ok(())
}

fn require(
    holds: bool,
    (field, value): (&'static str, u32),
    expected: &'static str,
) -> Result<(), Error> {
    if holds {
        return Ok(());
    }
    Err(Error::Config {
        field,
        value: value.to_string(),
        expected,
    })
}

pub(crate) fn request(request: &Request, config: &CoreConfig) -> Result<(), Error> {
    if request.prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if request.max_tokens == 0 {
        return Err(Error::NoOutput);
    }
    if request.target_itl_ns == Some(0) {
        return Err(Error::NoTime);
    }
    let most = RETENTIONS as u8 - 1;
    if request.retention > most {
        return Err(Error::Retention {
            retention: request.retention,
            most,
        });
    }
    let vocabulary = config.vocabulary;
    let biased = request.sampling.logit_bias.iter().map(|&(id, _)| id);
    let banned = request.stop_ids.iter().copied();
    let banned = banned.filter(|_| bans_stop_ids(request));
    let mut ids = request.prompt.iter().copied().chain(biased).chain(banned);
    if let Some(id) = ids.find(|&id| id >= vocabulary) {
        return Err(Error::UnknownToken { id, vocabulary });
    }
    let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    let max_tokens = request.max_tokens;
    let length = u64::from(prompt) + u64::from(max_tokens);
    if length > u64::from(config.max_model_len) {
        return Err(Error::ContextLength {
            prompt,
            max_tokens,
            max_model_len: config.max_model_len,
        });
    }
    // The last token's KV is never written.
    let written = length as u32 - 1;
    let needed = written.div_ceil(config.block_size);
    let available = config.num_blocks - 1;
    if needed > available {
        return Err(Error::NeverFits {
            prompt,
            max_tokens,
            block_size: config.block_size,
            needed,
            available,
        });
    }
    choices(request, prompt, config)?;
    beams(request, vocabulary)?;
    logprobs(&request.sampling, vocabulary)?;
    side_data(request, written, config.side_words)
}

/// What a prompt and the first output of each choice take must fit at once, or where nobody may be
/// preempted, what they take in the end: see `admission`.
fn choices(request: &Request, prompt: u32, config: &CoreConfig) -> Result<(), Error> {
    let (choices, max_running) = (request.choices, config.max_running);
    if !(1..=max_running).contains(&choices) {
        return Err(Error::Choices {
            choices,
            max_running,
        });
    }
    let block_size = config.block_size;
    let whole = prompt.div_ceil(block_size);
    let longest = (prompt + request.max_tokens - 1).div_ceil(block_size);
    let needed = if request.beams.is_some() {
        // A beam that was preempted may have to compute everything again for itself, while the
        // others wait for it with what they hold.
        u64::from(choices) * u64::from(longest)
    } else if config.admission == Admission::NoEviction {
        let others = u64::from(choices - 1) * u64::from(longest - prompt / block_size);
        u64::from(longest) + others
    } else {
        let outputs = u64::from(choices) * u64::from(longest > whole);
        let tails = crate::fork::tails(prompt, block_size, choices);
        u64::from(whole) + u64::from(tails) + outputs
    };
    let available = config.num_blocks - 1;
    if choices > 1 && needed > u64::from(available) {
        return Err(Error::ChoicesNeverFit {
            choices,
            prompt,
            block_size,
            needed: u32::try_from(needed).unwrap_or(u32::MAX),
            available,
        });
    }
    Ok(())
}

/// As many likeliest ids as a step names for a row.
fn logprobs(sampling: &Sampling, vocabulary: u32) -> Result<(), Error> {
    let of_prompt = sampling.prompt_logprobs.unwrap_or_default();
    let (wanted, most) = (sampling.top_logprobs, MOST_CANDIDATES.min(vocabulary));
    if of_prompt > most {
        let wanted = of_prompt;
        return Err(Error::TopLogprobs { wanted, most });
    }
    if wanted > most || (wanted > 0 && !sampling.logprob) {
        let most = if sampling.logprob { most } else { 0 };
        return Err(Error::TopLogprobs { wanted, most });
    }
    Ok(())
}

/// What beam search needs, and what it knows nothing of.
fn beams(request: &Request, vocabulary: u32) -> Result<(), Error> {
    let Some(beams) = &request.beams else {
        return Ok(());
    };
    let (width, stop_ids) = (request.choices, request.stop_ids.len() as u32);
    let needed = crate::beam::candidates(width, stop_ids);
    let most = MOST_CANDIDATES.min(vocabulary);
    if needed > most {
        return Err(Error::BeamWidth {
            width,
            stop_ids,
            needed,
            most,
        });
    }
    let seeded = Sampling {
        seed: request.sampling.seed,
        ..Sampling::default()
    };
    let what = if request.has_stop_strings {
        "stop strings, and ends after a number of tool calls (parallel_tool_calls false)"
    } else if request.min_tokens > 0 {
        "min_tokens"
    } else if request.sampling != seeded {
        "temperature, cuts, penalties, bias and the log probabilities of ids"
    } else if request.masked {
        "masks"
    } else if !beams.length_penalty.is_finite() {
        "a length_penalty that is no finite number"
    } else {
        return Ok(());
    };
    Err(Error::BeamSampling { what })
}

fn side_data(request: &Request, longest: u32, available: u32) -> Result<(), Error> {
    let sampling = &request.sampling;
    let penalised = sampling.repetition_penalty.to_bits() != 1.0_f32.to_bits()
        || sampling.presence_penalty != 0.0
        || sampling.frequency_penalty != 0.0;
    let mut bias = sampling.logit_bias.len();
    if bans_stop_ids(request) {
        bias += request.stop_ids.len();
    }
    let needed = side_words(penalised, longest, bias as u32);
    if needed > available {
        return Err(Error::SideData { needed, available });
    }
    Ok(())
}
