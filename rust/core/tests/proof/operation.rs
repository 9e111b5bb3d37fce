//! What can happen to a core, as data that shrinks.

use std::collections::BTreeMap;

use proptest::prelude::*;

use diptych_core::config::{Admission, Eviction, HashMode, PrefillOrder};
use diptych_core::{CoreConfig, Request, Sampling};

use crate::worker::Misbehaviour;

/// One thing that happens. Numbers that select are taken modulo what there is to select from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Submit(Draft),
    /// Aborts the request with this number, whatever its state.
    Abort(u8),
    /// Plans and launches; one sampling row of the step may misbehave.
    Plan(Option<(u8, Misbehaviour)>),
    Complete,
    /// A result that is not the next one: it must be refused and change nothing.
    Stale(u8),
    /// The text side searched some more tokens of a request with stop strings.
    Acknowledge {
        request: u8,
        tokens: u8,
    },
    /// An acknowledgement that goes backwards or too far.
    WrongAcknowledge(u8),
    /// The mask of a request's next output becomes known.
    Mask(u8),
    /// A mask of an output that cannot be next.
    WrongMask(u8),
    WorkerLost,
    ResetPrefixCache,
    /// Time passes, in microseconds.
    Wait(u16),
}

/// A request in few numbers: prompts are paths in a small prefix tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Draft {
    pub(crate) stem: u8,
    pub(crate) length: u8,
    pub(crate) tail: u8,
    pub(crate) max_tokens: u8,
    pub(crate) stop_id: Option<u8>,
    /// The text side finds a stop string wherever this token is sampled.
    pub(crate) stop_string: Option<u8>,
    pub(crate) namespace: u8,
    /// Time to live of its cached blocks in nanoseconds.
    pub(crate) ttl: Option<u32>,
    pub(crate) retention: u8,
    pub(crate) penalties: bool,
    pub(crate) masked: bool,
    pub(crate) bias: u8,
    pub(crate) seed: u8,
    pub(crate) priority: u8,
    pub(crate) tenant: u8,
    /// From submission, in microseconds.
    pub(crate) timeout: Option<u16>,
    pub(crate) first_token_timeout: Option<u16>,
    pub(crate) choices: u8,
    pub(crate) mistake: Option<Mistake>,
}

/// What a caller does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mistake {
    EmptyPrompt,
    UnknownToken,
    NoOutput,
    TooLong,
    NoChoice,
}

impl Draft {
    pub(crate) fn prompt(&self, vocabulary: u32) -> Vec<u32> {
        let common = u32::from(self.length).saturating_sub(u32::from(self.tail) % 4);
        (0..u32::from(self.length))
            .map(|index| {
                let branch = if index < common {
                    0
                } else {
                    u32::from(self.tail)
                };
                let stem = u32::from(self.stem).wrapping_mul(0x85eb_ca6b);
                let fork = branch.wrapping_mul(0xc2b2_ae35);
                let mixed = (index + 1)
                    .wrapping_mul(0x9e37_79b1)
                    .wrapping_add(stem.wrapping_add(fork));
                (mixed >> 16) % vocabulary
            })
            .collect()
    }

    /// The request that this draft stands for under `config`.
    pub(crate) fn request(&self, submission: u64, config: &CoreConfig, now: u64) -> Request {
        let after = |timeout: Option<u16>| Some(now + u64::from(timeout?) * 1_000);
        let vocabulary = config.vocabulary;
        let mut request = Request {
            submission,
            prompt: self.prompt(vocabulary),
            max_tokens: u32::from(self.max_tokens),
            stop_ids: self
                .stop_id
                .iter()
                .map(|&id| u32::from(id) % vocabulary)
                .collect(),
            min_tokens: u32::from(self.seed) % 3,
            masked: self.masked,
            has_stop_strings: self.stop_string.is_some(),
            choices: u32::from(self.choices),
            beams: None,
            namespace: u64::from(self.namespace),
            target_itl_ns: (self.tail == 5).then_some(15_000_000),
            priority: self.priority,
            tenant: u64::from(self.tenant),
            deadline: after(self.timeout),
            first_token_deadline: after(self.first_token_timeout),
            cache_ttl_ns: self.ttl.map(u64::from),
            retention: self.retention,
            sampling: self.sampling(vocabulary),
        };
        match self.mistake {
            Some(Mistake::EmptyPrompt) => request.prompt.clear(),
            Some(Mistake::UnknownToken) => request.prompt[0] = vocabulary,
            Some(Mistake::NoOutput) => request.max_tokens = 0,
            Some(Mistake::NoChoice) => request.choices = 0,
            Some(Mistake::TooLong) => request.max_tokens = config.max_model_len,
            None => {}
        }
        request
    }

    fn sampling(&self, vocabulary: u32) -> Sampling {
        Sampling {
            repetition_penalty: if self.penalties { 1.25 } else { 1.0 },
            presence_penalty: 0.0,
            frequency_penalty: if self.penalties { 0.5 } else { 0.0 },
            logit_bias: (0..u32::from(self.bias))
                .map(|index| (index % vocabulary, index as f32 - 1.0))
                .collect(),
            temperature: 0.7,
            top_k: 3,
            top_p: 0.9,
            min_p: 0.1,
            seed: u64::from(self.seed),
            logprob: self.bias > 1,
            top_logprobs: u32::from(self.bias > 2),
            prompt_logprobs: None,
        }
    }
}

/// Order of prefills, bounds of the queue, and the weight of one tenant.
fn queues() -> impl Strategy<Value = (PrefillOrder, Option<u64>, Option<u64>, u32)> {
    let orders = prop_oneof![
        Just(PrefillOrder::Fcfs),
        Just(PrefillOrder::ShortestUncached),
        Just(PrefillOrder::LongestCachedPrefix),
    ];
    let tokens = proptest::option::weighted(0.3, 10u64..120);
    let ttft = proptest::option::weighted(0.3, 20_000u64..400_000);
    (orders, tokens, ttft, 10u32..100_000)
}

/// Policies of memory.
fn memories() -> impl Strategy<Value = (Admission, Eviction)> {
    let admission = prop_oneof![
        3 => Just(Admission::WholePrompt),
        2 => Just(Admission::default()),
        1 => Just(Admission::PredictedPeak { preempted_per_mille: 500, watermark_per_mille: 0 }),
        1 => Just(Admission::NoEviction),
    ];
    let eviction = prop_oneof![
        2 => Just(Eviction::Lru),
        1 => (0u64..100_000).prop_map(|ttl_ns| Eviction::LruWithTtl { ttl_ns }),
        2 => Just(Eviction::FrequencyGuarded),
    ];
    (admission, eviction)
}

/// Sizes around which blocks, budgets and rows all run out now and then.
pub(crate) fn configs(overlap_depth: u8) -> impl Strategy<Value = CoreConfig> {
    let hash = prop_oneof![
        3 => any::<u64>().prop_map(HashMode::Keyed),
        1 => Just(HashMode::Constant),
        1 => Just(HashMode::FirstToken),
    ];
    let sizes = (
        0u32..4,
        18u32..64,
        1u32..6,
        0u32..24,
        proptest::option::of(1u32..12),
    );
    let limits = (
        3u32..50,
        30u32..90,
        2u32..9,
        proptest::bool::weighted(0.85),
        proptest::option::weighted(0.4, 1u64..40),
    );
    let policies = (queues(), memories());
    (sizes, limits, hash, policies).prop_map(move |(sizes, limits, hash, policies)| CoreConfig {
        admission: policies.1.0,
        eviction: policies.1.1,
        block_size: 1 << sizes.0,
        num_blocks: 2 + (sizes.1 >> sizes.0),
        max_running: sizes.2,
        max_batched_tokens: sizes.2 + sizes.3,
        max_prefill_tokens: sizes.4,
        prefill_tile: 1 + limits.2 % 4,
        target_itl_ns: limits.4.map(|milliseconds| milliseconds * 1_000_000),
        max_model_len: 40,
        max_queued_requests: limits.2,
        prefill_order: policies.0.0,
        max_queued_tokens: policies.0.1,
        max_ttft_ns: policies.0.2,
        tenant_weights: BTreeMap::from([(1, policies.0.3)]),
        overlap_depth,
        prefix_cache: limits.3,
        side_words: limits.1,
        vocabulary: limits.0,
        hash,
        // One operation tells at most a few events a block.
        kv_events: 256,
        #[cfg(feature = "planted-faults")]
        fault: None,
    })
}

pub(crate) fn drafts() -> impl Strategy<Value = Draft> {
    let prompt = (0u8..3, 1u8..26, 0u8..6);
    let ends = (
        1u8..14,
        proptest::option::weighted(0.3, any::<u8>()),
        proptest::option::weighted(0.3, any::<u8>()),
    );
    let mistake = prop_oneof![
        Just(Mistake::EmptyPrompt),
        Just(Mistake::UnknownToken),
        Just(Mistake::NoOutput),
        Just(Mistake::TooLong),
        Just(Mistake::NoChoice),
    ];
    let sampling = (
        proptest::bool::weighted(0.15),
        prop_oneof![5 => Just(0u8), 1 => 1u8..4],
        0u8..2,
        prop_oneof![5 => Just(1u8), 2 => 2u8..5],
        proptest::bool::weighted(0.25),
    );
    let timeout = || proptest::option::weighted(0.1, 1u16..120);
    let queue = (
        prop_oneof![3 => Just(1u8), 1 => 0u8..3],
        0u8..3,
        timeout(),
        timeout(),
    );
    let namespace = (
        prop_oneof![4 => Just(0u8), 1 => Just(1u8)],
        proptest::option::weighted(0.3, 0u32..60_000),
        prop_oneof![2 => Just(0u8), 1 => 0u8..4],
    );
    let mistake = proptest::option::weighted(0.03, mistake);
    (prompt, ends, namespace, sampling, queue, mistake).prop_map(
        |(prompt, ends, namespace, sampling, queue, mistake)| Draft {
            stem: prompt.0,
            length: prompt.1,
            tail: prompt.2,
            max_tokens: ends.0,
            stop_id: ends.1,
            stop_string: ends.2,
            namespace: namespace.0,
            ttl: namespace.1,
            retention: namespace.2,
            penalties: sampling.0,
            bias: sampling.1,
            seed: sampling.2,
            masked: sampling.4,
            priority: queue.0,
            tenant: queue.1,
            timeout: queue.2,
            first_token_timeout: queue.3,
            choices: sampling.3,
            mistake,
        },
    )
}

pub(crate) fn operations() -> impl Strategy<Value = Operation> {
    let misbehaviour = prop_oneof![
        Just(Misbehaviour::Nan),
        Just(Misbehaviour::BadId),
        Just(Misbehaviour::IdPastVocabulary),
        Just(Misbehaviour::NotSampled),
    ];
    let fault = proptest::option::weighted(0.06, (any::<u8>(), misbehaviour));
    prop_oneof![
        16 => drafts().prop_map(Operation::Submit),
        4 => any::<u8>().prop_map(Operation::Abort),
        40 => fault.prop_map(Operation::Plan),
        36 => Just(Operation::Complete),
        1 => any::<u8>().prop_map(Operation::Stale),
        10 => (any::<u8>(), any::<u8>())
            .prop_map(|(request, tokens)| Operation::Acknowledge { request, tokens }),
        1 => any::<u8>().prop_map(Operation::WrongAcknowledge),
        12 => any::<u8>().prop_map(Operation::Mask),
        1 => any::<u8>().prop_map(Operation::WrongMask),
        1 => Just(Operation::WorkerLost),
        1 => Just(Operation::ResetPrefixCache),
        1 => (1u16..40).prop_map(Operation::Wait),
    ]
}
