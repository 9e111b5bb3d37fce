//! What a caller submits.

use serde::{Deserialize, Serialize};

use crate::beam::Beams;

/// Names a request for its whole life; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Handle {
    /// Index of the request's slot.
    pub slot: u32,
    /// Counts the uses of that slot.
    pub generation: u32,
}

/// Sampling parameters of a request, in the order in which they apply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Multiplies positive and divides negative logits of every token seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of the given ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Below 1e-5 greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// Key of the request's random numbers.
    pub seed: u64,
    /// Whether the sampled ids' log probabilities are wanted.
    pub logprob: bool,
    /// How many of the likeliest ids are wanted with theirs, beside each sampled one; only with `logprob`.
    pub top_logprobs: u32,
    /// Whether the prompt's log probabilities are wanted, each token's but the first one's, with those
    /// of so many of the likeliest ids. Then all of the prompt is computed, whatever is cached.
    pub prompt_logprobs: Option<u32>,
}

impl Default for Sampling {
    /// Greedy, nothing adjusted.
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            logprob: false,
            top_logprobs: 0,
            prompt_logprobs: None,
        }
    }
}

/// A request as the core sees it: token ids and limits, no text.
///
/// The default has no prompt and asks for no output: both must be given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Engine-wide number of the request in order of submission; returned in its events.
    pub submission: u64,
    /// Prompt token ids, at least one.
    pub prompt: Vec<u32>,
    /// Most output tokens, at least 1; prompt + `max_tokens` is at most `max_model_len`.
    pub max_tokens: u32,
    /// Sampled ids that end the output (they belong to it): end of sequence and `stop_token_ids`.
    pub stop_ids: Vec<u32>,
    /// Output tokens before which no stop id can be sampled; one that comes nevertheless ends nothing.
    pub min_tokens: u32,
    /// Whether every output is drawn under a mask, of which [`crate::Core::mask_ready`] tells. The masks
    /// see to `min_tokens` then, as far as they can: a stop id that they allow ends the output.
    pub masked: bool,
    /// Whether the text side searches stop strings and answers with [`crate::Core::text_ack`].
    pub has_stop_strings: bool,
    /// Outputs drawn from the one prompt, 1 to `max_running`; each has its own random numbers.
    pub choices: u32,
    /// Search for the likeliest outputs instead of drawing them; `choices` is the width. Then
    /// `sampling` is the default, and there are no stop strings.
    pub beams: Option<Beams>,
    /// Prefix blocks are shared only between equal namespaces.
    pub namespace: u64,
    /// Target for the gap between its tokens in nanoseconds, instead of the engine's; at least 1.
    pub target_itl_ns: Option<u64>,
    /// Class of urgency: lower goes first, 0 before all others. A class waits while a more urgent
    /// one has anybody to admit, but for one admission in 65, and gives its blocks and rows to it.
    pub priority: u8,
    /// Who asks, as a number of the caller's making: within a class, tenants share by weight.
    pub tenant: u64,
    /// When all of the output must be there, in nanoseconds of the clock of `now`: at that moment
    /// the request ends with [`crate::FinishReason::Timeout`], whatever it has.
    pub deadline: Option<u64>,
    /// When the first output token must be there: otherwise the request ends with
    /// [`crate::FinishReason::FirstTokenTimeout`].
    pub first_token_deadline: Option<u64>,
    /// Nanoseconds after its last use for which the request's cached prefix can be found; `None`: until
    /// it is evicted (or as long as the eviction policy says). What others use too lives as long as
    /// the longest of them asks.
    pub cache_ttl_ns: Option<u64>,
    /// Class of the request's cached prefix, 0 to 3: a higher one is evicted later, whatever its age.
    pub retention: u8,
    /// Sampling parameters.
    pub sampling: Sampling,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            submission: 0,
            prompt: Vec::new(),
            max_tokens: 0,
            stop_ids: Vec::new(),
            min_tokens: 0,
            masked: false,
            has_stop_strings: false,
            choices: 1,
            beams: None,
            namespace: 0,
            target_itl_ns: None,
            priority: 0,
            tenant: 0,
            deadline: None,
            first_token_deadline: None,
            cache_ttl_ns: None,
            retention: 0,
            sampling: Sampling::default(),
        }
    }
}
