//! The choices that tell the field's schedulers apart.

use serde::{Deserialize, Serialize};

/// When requests may join those that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Only when all earlier ones have ended.
    Static,
    /// At every step.
    Continuous,
}

/// What a step is filled with first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// While there is a prompt to compute, steps compute nothing else.
    PrefillFirst,
    /// Decode rows are in every step; chunks of prompts fill it up to the budget.
    DecodeFirst,
}

/// Memory that a request must find before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// That of its first chunk.
    FirstChunk,
    /// That of its whole prompt, taken at once.
    WholePrompt,
    /// That of its prompt and `max_tokens`, taken at once: nothing is ever preempted.
    ReserveMax,
}

/// Which cached content gives way first. Content in use never does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The least recently used.
    Lru,
    /// The least recently used; content unused for this many seconds is not found any more.
    LruTtl(f64),
    /// Content used less often first, by a small sketch of counts that halve with time (`TinyLFU`,
    /// four levels); within a level the least recently used.
    FrequencyGuarded,
}

/// A scheduler of the field by its choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The name that options give.
    pub name: &'static str,
    /// When requests join.
    pub batching: Batching,
    /// What comes first.
    pub order: Order,
    /// What must be free.
    pub admission: Admission,
    /// Tokens per step; none: the device set's.
    pub budget: Option<u32>,
    /// Whom it is like.
    pub like: &'static str,
}

/// All reference policies.
pub const POLICIES: [Policy; 5] = [
    Policy {
        name: "static",
        batching: Batching::Static,
        order: Order::PrefillFirst,
        admission: Admission::ReserveMax,
        budget: None,
        like: "a batch runs until its last request ends; idle slots are not charged",
    },
    Policy {
        name: "prefill-first",
        batching: Batching::Continuous,
        order: Order::PrefillFirst,
        admission: Admission::WholePrompt,
        budget: None,
        like: "SGLang's default order, early vLLM: prompts go first, decodes wait",
    },
    Policy {
        name: "fixed-budget",
        batching: Batching::Continuous,
        order: Order::DecodeFirst,
        admission: Admission::WholePrompt,
        budget: Some(512),
        like: "Sarathi-Serve, vLLM since 2026: 512 tokens a step, decodes first",
    },
    Policy {
        name: "reserve-max",
        batching: Batching::Continuous,
        order: Order::DecodeFirst,
        admission: Admission::ReserveMax,
        budget: None,
        like: "TGI, TensorRT-LLM without eviction: prompt and max_tokens reserved",
    },
    Policy {
        name: "first-chunk",
        batching: Batching::Continuous,
        order: Order::DecodeFirst,
        admission: Admission::FirstChunk,
        budget: None,
        like: "vLLM before it reserved whole prompts: admitted on the first chunk",
    },
];
