//! Why the core decided as it did, as types: what traces, usage and `explain` show.
//!
//! Every limit that can hold a request back, cut a chunk or take blocks away has a variant here.
//! Whoever adds a limit adds its variant, names it in `ALL` and `name`, and reports it where the
//! limit is applied.

use serde::Serialize;

/// What kept a request from being computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum WaitReason {
    /// No limit: the launched steps had to retire before another could be planned.
    Step,
    /// No worker was ready.
    Worker,
    /// Every state row (`max_running`) was taken.
    Rows,
    /// The step's tokens (`max_batched_tokens`) were spent on others.
    StepTokens,
    /// The step's prefill tokens (`max_prefill_tokens`) were spent on others.
    PrefillTokens,
    /// Too few KV blocks were free for the request that was next.
    Blocks,
    /// Blocks were free, but kept for the running requests to grow into after a preemption.
    Reserve,
    /// Blocks were free, but it and the running requests would not fit at the peak that is predicted.
    PredictedPeak,
    /// Blocks were free, but promised to the running requests, of which none may be evicted.
    Promised,
    /// A running request was computing the next block of its prompt, which then comes from the cache.
    SharedPrefix,
    /// The step had just preempted somebody, so it admitted nobody.
    Preemption,
    /// Launched steps still named the request, which had been preempted.
    InFlight,
    /// Another choice of the same prompt was computing it.
    SharedPrefill,
    /// A beam whose likeliest continuations were there, but not those of the others.
    OtherBeams,
    /// Held back while the request that kills workers was sought.
    Trial,
    /// Running, but the text side had not searched the last tokens for stop strings.
    TextAck,
    /// The mask of its next token was late, or not yet known after one was: running, or without its row and
    /// blocks, which others could use.
    Mask,
    /// Running, but a step had no room for its penalties or logit bias.
    SideData,
    /// Running, but its next block was still fenced by a launched step.
    FencedBlock,
    /// The target for the gap between tokens of a decoding request left the step no time.
    StepTime,
    /// The tenant, which has more than its share of the running requests, had its part of the step.
    TenantShare,
}

impl WaitReason {
    /// Every reason, in order of its number.
    pub const ALL: [Self; 21] = [
        Self::Step,
        Self::Worker,
        Self::Rows,
        Self::StepTokens,
        Self::PrefillTokens,
        Self::Blocks,
        Self::Reserve,
        Self::PredictedPeak,
        Self::Promised,
        Self::SharedPrefix,
        Self::Preemption,
        Self::InFlight,
        Self::SharedPrefill,
        Self::OtherBeams,
        Self::Trial,
        Self::TextAck,
        Self::Mask,
        Self::SideData,
        Self::FencedBlock,
        Self::StepTime,
        Self::TenantShare,
    ];

    /// Whether it would not be if somebody gave a row or blocks back.
    pub(crate) fn is_want_of_room(self) -> bool {
        matches!(
            self,
            Self::Rows | Self::Blocks | Self::Reserve | Self::PredictedPeak
        )
    }

    /// Its name in traces, usage and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Worker => "worker",
            Self::Rows => "rows",
            Self::StepTokens => "step_tokens",
            Self::PrefillTokens => "prefill_tokens",
            Self::Blocks => "blocks",
            Self::Reserve => "reserve",
            Self::PredictedPeak => "predicted_peak",
            Self::Promised => "promised",
            Self::SharedPrefix => "shared_prefix",
            Self::Preemption => "preemption",
            Self::SharedPrefill => "shared_prefill",
            Self::OtherBeams => "other_beams",
            Self::InFlight => "in_flight",
            Self::Trial => "trial",
            Self::TextAck => "text_ack",
            Self::Mask => "mask",
            Self::SideData => "side_data",
            Self::FencedBlock => "fenced_block",
            Self::StepTime => "step_time",
            Self::TenantShare => "tenant_share",
        }
    }
}

/// Why no more of a prompt came from the prefix cache. Prefixes of other namespaces are never
/// looked at, so that none of these tells whether somebody else has asked the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum MatchEnd {
    /// Nothing was left to find: only the last token, which is always computed, and what does not
    /// fill a block with it.
    Complete,
    /// The cache is off.
    Off,
    /// The prompt does not fill one block besides its last token.
    UnderOneBlock,
    /// The nearest stored prefix goes on with another token at this position of the prompt.
    DifferentToken { position: u32 },
    /// The next block was stored and has been evicted this long ago.
    Evicted { ago_ns: u64 },
    /// The next block was stored until the whole cache was emptied, this long ago: by a reset or
    /// with a worker.
    Cleared { ago_ns: u64 },
    /// Nothing that goes on like this was stored, as far as is remembered.
    NeverStored,
}

impl MatchEnd {
    /// Its name in traces, usage and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Off => "off",
            Self::UnderOneBlock => "under_one_block",
            Self::DifferentToken { .. } => "different_token",
            Self::Evicted { .. } => "evicted",
            Self::Cleared { .. } => "cleared",
            Self::NeverStored => "never_stored",
        }
    }
}

/// Why a running request lost its blocks and is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum PreemptCause {
    /// Decoding requests needed more blocks than there were or would be, and this was the newest.
    Blocks,
    /// The worker died, and the KV with it.
    WorkerLost,
    /// A request of a more urgent class needed its row or blocks.
    MoreUrgent,
    /// It waited for a mask, and others could use its row and blocks.
    Mask,
}

impl PreemptCause {
    /// Every cause, in order of its number.
    pub const ALL: [Self; 4] = [Self::Blocks, Self::WorkerLost, Self::MoreUrgent, Self::Mask];

    /// Its name in traces, usage and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::WorkerLost => "worker_lost",
            Self::MoreUrgent => "more_urgent",
            Self::Mask => "mask",
        }
    }
}

/// What bounded the number of tokens that a step computed of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ChunkLimit {
    /// Nothing: the prompt ends with this chunk.
    Prompt,
    /// What was left of the step's tokens (`max_batched_tokens`).
    StepTokens,
    /// What was left of the step's prefill tokens (`max_prefill_tokens`).
    PrefillTokens,
    /// The last token waits: the text side is too far behind to sample.
    TextAck,
    /// The last token waits: its mask is not known.
    Mask,
    /// The last token waits: the step has no room for penalties or logit bias.
    SideData,
    /// The time that the target for the gap between tokens of a decoding request left for prompts.
    StepTime,
    /// What was left of the part of a step that a tenant with more than its share of it has.
    TenantShare,
    /// What was left of a step's log probabilities of prompts.
    PromptScores,
}

impl ChunkLimit {
    /// What a request waits for that the limit leaves no token at all.
    pub(crate) fn starving(self) -> WaitReason {
        match self {
            Self::Prompt => WaitReason::Step,
            Self::StepTokens | Self::PromptScores => WaitReason::StepTokens,
            Self::PrefillTokens => WaitReason::PrefillTokens,
            Self::TextAck => WaitReason::TextAck,
            Self::Mask => WaitReason::Mask,
            Self::SideData => WaitReason::SideData,
            Self::StepTime => WaitReason::StepTime,
            Self::TenantShare => WaitReason::TenantShare,
        }
    }

    /// Every limit, in order of its number.
    pub const ALL: [Self; 9] = [
        Self::Prompt,
        Self::StepTokens,
        Self::PrefillTokens,
        Self::TextAck,
        Self::Mask,
        Self::SideData,
        Self::StepTime,
        Self::TenantShare,
        Self::PromptScores,
    ];

    /// Its name in traces, usage and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::StepTokens => "step_tokens",
            Self::PrefillTokens => "prefill_tokens",
            Self::TextAck => "text_ack",
            Self::Mask => "mask",
            Self::SideData => "side_data",
            Self::StepTime => "step_time",
            Self::TenantShare => "tenant_share",
            Self::PromptScores => "prompt_scores",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_stands_at_its_number() {
        for (number, reason) in WaitReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        for (number, cause) in PreemptCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
        }
        for (number, limit) in ChunkLimit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, number);
        }
    }

    #[test]
    fn names_are_distinct() {
        let names = WaitReason::ALL.map(WaitReason::name);
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        let names = ChunkLimit::ALL.map(ChunkLimit::name);
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
