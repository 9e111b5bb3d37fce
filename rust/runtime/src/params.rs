//! A request's parameters, as JSON.

use serde::{Deserialize, Deserializer};

use crate::EngineError;
use crate::grammar::{CallParams, GrammarParams};
use crate::urgency::{is_time, tenant_number};
use diptych_core::Sampling;
use diptych_core::beam::Beams;

/// Bytes of a tenant's name.
const MAX_TENANT: usize = 256;

/// All keys but optional ones and `priority` must be there: their defaults belong to the caller.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent switches of the API"
)]
pub(crate) struct Params {
    pub(crate) max_tokens: Option<u32>,
    /// Output tokens before which neither a stop id nor a stop string ends the output.
    pub(crate) min_tokens: u32,
    #[serde(deserialize_with = "narrow")]
    pub(crate) temperature: f32,
    /// −1 and 0 are off.
    pub(crate) top_k: i64,
    #[serde(deserialize_with = "narrow")]
    pub(crate) top_p: f32,
    #[serde(deserialize_with = "narrow")]
    pub(crate) min_p: f32,
    #[serde(deserialize_with = "narrow")]
    pub(crate) presence_penalty: f32,
    #[serde(deserialize_with = "narrow")]
    pub(crate) frequency_penalty: f32,
    #[serde(deserialize_with = "narrow")]
    pub(crate) repetition_penalty: f32,
    pub(crate) seed: Option<i64>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) include_stop_str_in_output: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) spaces_between_special_tokens: bool,
    pub(crate) add_special_tokens: bool,
    pub(crate) return_prompt_ids: bool,
    /// The answer to a chat with tools is complete with so many calls.
    #[serde(default)]
    pub(crate) max_tool_calls: Option<u32>,
    /// Target for the gap between two tokens in nanoseconds, instead of the engine's.
    pub(crate) target_itl_ns: Option<u64>,
    /// Outputs to draw from the prompt.
    pub(crate) n: u32,
    /// Whether the mean log probability of each output is wanted.
    pub(crate) mean_logprob: bool,
    /// Whether each output token's log probability is wanted, with those of so many of the likeliest ids.
    #[serde(default)]
    pub(crate) logprobs: Option<u32>,
    /// Whether each prompt token's log probability is wanted, with those of so many of the likeliest ids.
    #[serde(default)]
    pub(crate) prompt_logprobs: Option<u32>,
    /// Whether the prompt's text is told.
    #[serde(default)]
    pub(crate) return_prompt_text: bool,
    /// Search for the likeliest outputs, `n` wide, instead of drawing them.
    #[serde(default)]
    pub(crate) beams: Option<Beams>,
    /// Class of urgency, lower first.
    #[serde(default)]
    pub(crate) priority: u8,
    /// Who asks: tenants of a class share by weight.
    #[serde(default)]
    pub(crate) tenant: Option<String>,
    /// Seconds from arrival until the request ends, whatever it has.
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    /// Seconds from arrival until its first token must be there.
    #[serde(default)]
    pub(crate) ttft_timeout: Option<f64>,
    /// Whose cached prefixes it may find and add to; empty: those of everybody without one.
    pub(crate) cache_salt: String,
    /// Seconds after its last use for which its cached prefix can be found.
    pub(crate) cache_ttl: Option<f64>,
    pub(crate) cache_retention: u8,
    /// What the whole output must look like.
    #[serde(default)]
    pub(crate) grammar: Option<GrammarParams>,
    /// How the answer to a chat calls tools, where that is more than the model's own affair.
    #[serde(default)]
    pub(crate) calls: Option<CallParams>,
    /// Whether the last frame says why the request went as it did.
    #[serde(default)]
    pub(crate) explain: bool,
}

/// Most outputs of one prompt.
pub(crate) const MAX_CHOICES: u32 = 128;
/// Most likeliest ids beside an output token.
const MAX_LOGPROBS: u32 = 20;
/// Longest salt in bytes, and the longest time to live in seconds: a year.
const MAX_SALT_BYTES: usize = 512;
pub(crate) const MAX_TTL_S: f64 = 366.0 * 86_400.0;
/// Highest class of cached prefixes.
const MAX_RETENTION: u8 = 3;

/// What is too large for a narrow number becomes infinite, so that its check can name it.
fn narrow<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    f64::deserialize(from).map(|number| number as f32)
}

impl Params {
    /// Reads and checks parameters for a model with `vocabulary` ids.
    pub(crate) fn from_json(json: &[u8], vocabulary: u32) -> Result<Self, EngineError> {
        let params: Self = serde_json::from_slice(json).map_err(|error| {
            EngineError::InvalidRequest(format!("sampling parameters: {error}"))
        })?;
        let problems = params.problems(vocabulary);
        if problems.is_empty() {
            return Ok(params);
        }
        Err(EngineError::InvalidRequest(problems.join("; ")))
    }

    fn problems(&self, vocabulary: u32) -> Vec<String> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
        ];
        let mut problems: Vec<String> = ranges
            .into_iter()
            .filter(|(_, value, low, high)| !(low..=high).contains(&value))
            .map(|(name, value, low, high)| format!("{name} is {value}: from {low} to {high}"))
            .collect();
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            problems.push(format!("top_p is {}: above 0, at most 1", self.top_p));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            problems.push(format!(
                "repetition_penalty is {}: above 0",
                self.repetition_penalty
            ));
        }
        if self.top_k < -1 {
            problems.push(format!(
                "top_k is {}: -1 or 0 (off), or at least 1",
                self.top_k
            ));
        }
        if self.max_tokens == Some(0) && !self.shows_prompt() {
            problems.push(
                "max_tokens is 0: ask for at least one token, or for something of the prompt"
                    .to_owned(),
            );
        }
        if let Some(most) = self.max_tokens.filter(|&most| most < self.min_tokens) {
            let least = self.min_tokens;
            problems.push(format!("min_tokens is {least}: at most max_tokens, {most}"));
        }
        if self.max_tool_calls == Some(0) {
            problems.push("max_tool_calls is 0: at least one, or none".to_owned());
        }
        if self.target_itl_ns == Some(0) {
            problems.push("target_itl_ns is 0: at least 1, or none".to_owned());
        }
        self.grammar_problems(&mut problems);
        self.cache_problems(&mut problems);
        self.urgency_problems(&mut problems);
        if !(1..=MAX_CHOICES).contains(&self.n) {
            problems.push(format!("n is {}: from 1 to {MAX_CHOICES}", self.n));
        }
        self.logprob_problems(vocabulary, &mut problems);
        self.list_problems(vocabulary, &mut problems);
        problems
    }

    fn grammar_problems(&self, problems: &mut Vec<String>) {
        let field = match (&self.grammar, &self.calls) {
            (None, None) => return,
            (Some(grammar), None) => grammar.field.as_str(),
            (None, Some(calls)) => calls.field(),
            (Some(grammar), Some(calls)) => {
                let (one, other) = (calls.field(), &grammar.field);
                problems.push(format!(
                    "{one} with {other}: an output follows one grammar, ask for one of them"
                ));
                return;
            }
        };
        if self
            .calls
            .as_ref()
            .is_some_and(|calls| !calls.has_functions())
        {
            problems.push(format!("{field}: there is no function to call"));
        }
        if self.ignore_eos {
            problems.push(format!(
                "ignore_eos is true with {field}: where the grammar ends the output must end"
            ));
        }
        if self.beams.is_some() {
            problems.push(format!(
                "use_beam_search with {field}: it goes by the log probabilities alone"
            ));
        }
    }

    fn logprob_problems(&self, vocabulary: u32, problems: &mut Vec<String>) {
        let most = MAX_LOGPROBS.min(vocabulary);
        for (name, wanted) in [
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ] {
            if let Some(wanted) = wanted.filter(|&wanted| wanted > most) {
                problems.push(format!("{name} is {wanted}: at most {most}, or none"));
            }
        }
    }

    fn urgency_problems(&self, problems: &mut Vec<String>) {
        for (name, value) in [
            ("timeout", self.timeout),
            ("ttft_timeout", self.ttft_timeout),
        ] {
            if let Some(value) = value.filter(|&value| !is_time(value)) {
                problems.push(format!("{name} is {value}: a number of seconds above 0"));
            }
        }
        let name = self.tenant.as_deref().unwrap_or("-");
        if name.is_empty() || name.len() > MAX_TENANT {
            let length = name.len();
            problems.push(format!("tenant has {length} bytes: from 1 to {MAX_TENANT}"));
        }
    }

    fn cache_problems(&self, problems: &mut Vec<String>) {
        let salt = self.cache_salt.len();
        if salt > MAX_SALT_BYTES {
            problems.push(format!(
                "cache_salt has {salt} bytes: at most {MAX_SALT_BYTES}"
            ));
        }
        if let Some(ttl) = self
            .cache_ttl
            .filter(|ttl| !(0.0..=MAX_TTL_S).contains(ttl))
        {
            problems.push(format!("cache_ttl is {ttl}: from 0 to {MAX_TTL_S} seconds"));
        }
        if self.cache_retention > MAX_RETENTION {
            problems.push(format!(
                "cache_retention is {}: from 0 to {MAX_RETENTION}",
                self.cache_retention
            ));
        }
    }

    /// Whether the output follows a grammar.
    pub(crate) fn follows_grammar(&self) -> bool {
        self.grammar.is_some() || self.calls.is_some()
    }

    /// Whether the answer has text or log probabilities of the prompt.
    pub(crate) fn shows_prompt(&self) -> bool {
        self.prompt_logprobs.is_some() || self.return_prompt_text
    }

    /// Whether only the prompt is wanted: the one token that the core samples is dropped.
    pub(crate) fn drops_output(&self) -> bool {
        self.max_tokens == Some(0)
    }

    /// Whether the text side may end it before the core does.
    pub(crate) fn may_end_early(&self) -> bool {
        !self.drops_output() && (!self.stop.is_empty() || self.max_tool_calls.is_some())
    }

    /// Its time to live in nanoseconds.
    pub(crate) fn cache_ttl_ns(&self) -> Option<u64> {
        self.cache_ttl.map(|seconds| (seconds * 1e9) as u64)
    }

    fn list_problems(&self, vocabulary: u32, problems: &mut Vec<String>) {
        let mut biased: Vec<u32> = self.logit_bias.iter().map(|(id, _)| *id).collect();
        biased.sort_unstable();
        let mut pairs = biased.iter().zip(biased.iter().skip(1));
        if let Some((id, _)) = pairs.find(|(id, next)| id == next) {
            problems.push(format!("logit_bias names id {id} twice"));
        }
        for (id, value) in &self.logit_bias {
            if *id >= vocabulary {
                problems.push(format!("logit_bias names id {id}: below {vocabulary}"));
            }
            if !(-100.0..=100.0).contains(value) {
                problems.push(format!(
                    "logit_bias of id {id} is {value}: from -100 to 100"
                ));
            }
        }
        for id in self.stop_token_ids.iter().filter(|id| **id >= vocabulary) {
            problems.push(format!("stop_token_ids has {id}: below {vocabulary}"));
        }
        problems.truncate(16);
    }

    /// The core's number of the tenant.
    pub(crate) fn tenant_number(&self) -> u64 {
        tenant_number(self.tenant.as_deref())
    }

    /// What the core needs of them; `drawn` is the seed of a request without one.
    pub(crate) fn sampling(&self, drawn: u64) -> Sampling {
        Sampling {
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            temperature: self.temperature,
            top_k: u32::try_from(self.top_k.max(0)).unwrap_or(i32::MAX as u32),
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.map_or(drawn, i64::cast_unsigned),
            logprob: self.mean_logprob || self.logprobs.is_some(),
            top_logprobs: self.logprobs.unwrap_or_default(),
            prompt_logprobs: self.prompt_logprobs,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn json() -> serde_json::Value {
        serde_json::json!({
            "max_tokens": 4, "min_tokens": 0, "temperature": 0.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": null, "logit_bias": [], "stop": [],
            "stop_token_ids": [], "ignore_eos": false, "include_stop_str_in_output": false,
            "skip_special_tokens": true, "spaces_between_special_tokens": true, "add_special_tokens": true, "return_prompt_ids": false, "target_itl_ns": null,
            "cache_salt": "", "cache_ttl": null, "cache_retention": 0, "n": 1, "mean_logprob": false
        })
    }

    fn parse(key: &str, value: serde_json::Value) -> Result<Params, EngineError> {
        let mut all = json();
        all[key] = value;
        Params::from_json(all.to_string().as_bytes(), 100)
    }

    #[test]
    fn neutral_parameters_are_accepted() {
        let params = parse("seed", (-1).into()).unwrap();
        assert_eq!(params.sampling(7).seed, u64::MAX);
        assert_eq!(parse("top_k", 0.into()).unwrap().sampling(7).seed, 7);
    }

    #[test]
    fn a_time_to_live_is_kept_in_nanoseconds() {
        assert_eq!(
            parse("cache_ttl", 1.5.into()).unwrap().cache_ttl_ns(),
            Some(1_500_000_000)
        );
        assert_eq!(
            parse("cache_ttl", 0.into()).unwrap().cache_ttl_ns(),
            Some(0)
        );
        assert_eq!(
            parse("cache_salt", "ü".into()).unwrap().cache_ttl_ns(),
            None
        );
    }

    #[test]
    fn every_value_out_of_range_is_named() {
        let cases = [
            ("temperature", serde_json::json!(-0.1)),
            ("temperature", serde_json::json!(100.5)),
            ("temperature", serde_json::json!(1e308)),
            ("top_p", serde_json::json!(0.0)),
            ("top_p", serde_json::json!(1.5)),
            ("min_p", serde_json::json!(2)),
            ("top_k", serde_json::json!(-2)),
            ("presence_penalty", serde_json::json!(3)),
            ("frequency_penalty", serde_json::json!(-3)),
            ("repetition_penalty", serde_json::json!(0)),
            ("max_tokens", serde_json::json!(0)),
            ("target_itl_ns", serde_json::json!(0)),
            ("min_tokens", serde_json::json!(5)),
            ("max_tool_calls", serde_json::json!(0)),
            ("logit_bias", serde_json::json!([[1, 101.0]])),
            ("logit_bias", serde_json::json!([[100, 1.0]])),
            ("logit_bias", serde_json::json!([[1, 1.0], [1, 2.0]])),
            ("stop_token_ids", serde_json::json!([100])),
            ("timeout", serde_json::json!(0)),
            ("timeout", serde_json::json!(1e10)),
            ("ttft_timeout", serde_json::json!(-1)),
            ("tenant", serde_json::json!("")),
            ("tenant", serde_json::json!("x".repeat(257))),
            ("cache_salt", "x".repeat(513).into()),
            ("cache_ttl", serde_json::json!(-1)),
            ("cache_ttl", serde_json::json!(1e9)),
            ("cache_retention", serde_json::json!(4)),
            ("n", serde_json::json!(0)),
            ("n", serde_json::json!(129)),
        ];
        for (key, value) in cases {
            let error = parse(key, value.clone()).expect_err(&format!("{key} {value}"));
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn missing_and_unknown_keys_are_refused() {
        let mut all = json();
        all["tempersture"] = 1.into();
        let error = Params::from_json(all.to_string().as_bytes(), 100).unwrap_err();
        assert!(error.to_string().contains("tempersture"), "{error}");
        assert!(Params::from_json(b"{}", 100).is_err());
        assert!(Params::from_json(b"[]", 100).is_err());
    }
}
