//! What arrives: when, how long, with which content, from whom.

mod azure;
mod content;
mod generator;
mod lines;
mod mooncake;
mod process;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::random::{Purpose, Stream};
pub(crate) use content::Content;

/// One request on its way to the router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// When, in nanoseconds from the start.
    pub at: u64,
    /// Prompt ids, at least one, none of them the end of sequence.
    pub prompt: Vec<u32>,
    /// Output tokens until the model ends of itself, at least 1.
    pub output: u32,
    /// Output tokens that the client allows.
    pub max_tokens: u32,
    /// From whom, from 1.
    pub tenant: u64,
    /// Nanoseconds after arrival at which the client leaves.
    pub abort_after: Option<u64>,
    /// Class of urgency, lower first.
    pub priority: u8,
    /// Nanoseconds after arrival at which all output must be there.
    pub timeout: Option<u64>,
    /// Nanoseconds after arrival at which the first token must be there.
    pub ttft_timeout: Option<u64>,
}

/// A workload: a generator with its shape, a trace, or a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// When requests arrive, and which of them are special.
    pub arrivals: Arrivals,
    /// How many arrive; a trace or list ends by itself.
    pub requests: u64,
    /// How long they are, where no trace says so.
    pub lengths: Lengths,
    /// What they share, where no trace says so.
    pub sharing: Sharing,
    /// Tenants that ordinary requests are spread over evenly.
    pub tenants: u64,
    /// Share of ordinary requests whose client leaves before `patience_s`.
    pub abort_share: f64,
    /// Seconds within which such a client leaves, at a random moment.
    pub patience_s: f64,
    /// What clients ask for as `max_tokens`; none: four times the mean output. Never less than the output.
    pub max_tokens: Option<u32>,
    /// Classes of urgency that requests are spread over evenly, 0 first. Reference policies have none.
    pub priorities: u8,
    /// Seconds within which all output must be there. Reference policies have no deadlines.
    pub timeout_s: Option<f64>,
    /// Seconds within which the first token must be there.
    pub ttft_timeout_s: Option<f64>,
    /// A tenant whose requests are drawn and left out, to see the others without it.
    pub without_tenant: Option<u64>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            arrivals: Arrivals::Poisson { rate: 1.0 },
            requests: 500,
            lengths: Lengths::default(),
            sharing: Sharing::default(),
            tenants: 1,
            abort_share: 0.0,
            patience_s: 10.0,
            max_tokens: None,
            priorities: 1,
            timeout_s: None,
            ttft_timeout_s: None,
            without_tenant: None,
        }
    }
}

/// Lengths in tokens, lognormal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lengths {
    /// Mean prompt.
    pub prompt: u32,
    /// Mean output.
    pub output: u32,
    /// Standard deviation of the logarithm of both; 0: all equal.
    pub spread: f64,
    /// Longest prompt, and longest output.
    pub longest: u32,
    /// Share of prompts that are longer.
    pub long_share: f64,
    /// How many times longer those are.
    pub long_factor: f64,
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            prompt: 512,
            output: 128,
            spread: 0.7,
            longest: 8_192,
            long_share: 0.0,
            long_factor: 10.0,
        }
    }
}

/// What prompts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sharing {
    /// Share of conversations that begin with a system prompt.
    pub system_share: f64,
    /// Tokens of a system prompt; they come on top of the prompt's length.
    pub system_tokens: u32,
    /// Different system prompts, chosen by Zipf's law with exponent 1.
    pub systems: u64,
    /// Mean turns of a conversation; each turn's prompt is the last one with its answer and more.
    pub turns: f64,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            system_share: 0.5,
            system_tokens: 256,
            systems: 8,
            turns: 1.0,
        }
    }
}

/// When requests arrive. Rates are requests a second, times seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// Independent of each other.
    Poisson { rate: f64 },
    /// Gamma distributed gaps with coefficient of variation `cv`: above 1 in bursts.
    Gamma { rate: f64, cv: f64 },
    /// A rate that swings by `depth` (0 to 1) of itself around `rate` every `period`.
    Diurnal { rate: f64, period: f64, depth: f64 },
    /// `factor` times the rate from `at` for `lasting`.
    FlashCrowd {
        rate: f64,
        at: f64,
        lasting: f64,
        factor: f64,
    },
    /// Tenant 1 sends `factor` times what each other tenant does; `rate` is of one of those.
    TenantFlood { rate: f64, factor: f64 },
    /// Every `every` seconds one prompt of `tokens` tokens from tenant 1 among the ordinary ones.
    LongPromptAttack { rate: f64, every: f64, tokens: u32 },
    /// Every `every` seconds `size` requests at once that share `tokens` fresh tokens.
    SamePrefixHerd {
        rate: f64,
        every: f64,
        size: u32,
        tokens: u32,
    },
    /// The clients of `share` of what arrives from `at` for `lasting` all leave at its end.
    AbortStorm {
        rate: f64,
        at: f64,
        lasting: f64,
        share: f64,
    },
    /// A CSV file with columns `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`; times divided by `speed`.
    Azure { path: String, speed: f64 },
    /// A JSONL file with timestamp (milliseconds), `input_length`, `output_length` and `hash_ids` of
    /// 512-token blocks; times divided by `speed`.
    Mooncake { path: String, speed: f64 },
    /// These, in order of time.
    List { list: Vec<Listed> },
}

/// A request of a list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// When, milliseconds.
    pub at_ms: f64,
    /// Prompt tokens, shared with nobody.
    pub prompt: u32,
    /// Output tokens.
    pub output: u32,
    /// What the client asks for; none: the output.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// From whom.
    #[serde(default = "first_tenant")]
    pub tenant: u64,
    /// When the client leaves, milliseconds after arrival.
    #[serde(default)]
    pub abort_after_ms: Option<f64>,
}

fn first_tenant() -> u64 {
    1
}

/// Arrivals in order of time, made one by one.
pub(crate) type Source = Box<dyn Iterator<Item = Result<Arrival, Error>>>;

impl Workload {
    /// The arrivals of this workload under a seed.
    pub(crate) fn source(&self, seed: u64) -> Result<Source, Error> {
        let source: Source = match &self.arrivals {
            Arrivals::Azure { path, speed } => azure::open(path, *speed, self, seed)?,
            Arrivals::Mooncake { path, speed } => mooncake::open(path, *speed, self)?,
            Arrivals::List { list } => generator::list(list.clone()),
            _ => Box::new(generator::Generator::new(self, seed).map(Ok)),
        };
        let limit = |seconds: f64| generator::nanoseconds(seconds);
        let (timeout, ttft_timeout) = (self.timeout_s.map(limit), self.ttft_timeout_s.map(limit));
        let classes = u64::from(self.priorities);
        let mut stream = Stream::new(seed, Purpose::Priorities);
        let source: Source = Box::new(source.map(move |arrival| {
            arrival.map(|arrival| Arrival {
                priority: stream.below(classes) as u8,
                timeout,
                ttft_timeout,
                ..arrival
            })
        }));
        Ok(match self.without_tenant {
            None => source,
            Some(left_out) => Box::new(source.filter(
                move |arrival| !matches!(arrival, Ok(arrival) if arrival.tenant == left_out),
            )),
        })
    }

    /// How many requests will arrive at most.
    pub(crate) fn expected(&self) -> Result<u64, Error> {
        match &self.arrivals {
            Arrivals::Azure { path, .. } => Ok(lines::count(path)?.saturating_sub(1)),
            Arrivals::Mooncake { path, .. } => lines::count(path),
            Arrivals::List { list } => Ok(list.len() as u64),
            _ => Ok(self.requests),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        process::check(&self.arrivals)?;
        let lengths = &self.lengths;
        if lengths.prompt == 0 || lengths.output == 0 || lengths.longest == 0 {
            return Err(Error::option(
                "workload.lengths",
                0,
                "at least 1 token each",
            ));
        }
        for (name, value, most) in [
            ("workload.lengths.spread", lengths.spread, 3.0),
            (
                "workload.sharing.system_share",
                self.sharing.system_share,
                1.0,
            ),
            ("workload.abort_share", self.abort_share, 1.0),
            (
                "workload.patience_s / 1,000,000",
                self.patience_s / 1e6,
                1.0,
            ),
            ("workload.lengths.long_share", lengths.long_share, 1.0),
            (
                "workload.lengths.long_factor / 1,000",
                lengths.long_factor / 1e3,
                1.0,
            ),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(Error::option(name, value, "from 0 to 1 (spread: to 3)"));
            }
        }
        if !(1.0..=1e4).contains(&self.sharing.turns) {
            let turns = self.sharing.turns;
            return Err(Error::option(
                "workload.sharing.turns",
                turns,
                "1 to 10,000",
            ));
        }
        for (name, seconds) in [
            ("workload.timeout_s", self.timeout_s),
            ("workload.ttft_timeout_s", self.ttft_timeout_s),
        ] {
            if let Some(seconds) = seconds.filter(|seconds| !(0.0..1e9).contains(seconds)) {
                return Err(Error::option(name, seconds, "from 0"));
            }
        }
        if self.tenants == 0 || self.sharing.systems == 0 || self.priorities == 0 {
            return Err(Error::option(
                "workload.tenants, priorities or systems",
                0,
                "at least 1",
            ));
        }
        Ok(())
    }
}
