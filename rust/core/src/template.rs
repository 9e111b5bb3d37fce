//! What all draws of a request have in common.

use crate::{Request, SamplingRow};

/// A sampling row but for what changes from draw to draw. See [`SamplingRow`] for the fields.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) submission: u64,
    seed: u64,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    pub(crate) choice_index: u32,
    pub(crate) candidates: u32,
    logprob: bool,
    masked: bool,
}

const _: () = assert!(size_of::<Template>() <= 56);

/// What one draw has of its own.
pub(crate) struct Draw {
    pub(crate) token: u32,
    pub(crate) row: u32,
    pub(crate) output_index: u32,
    pub(crate) penalty_offset: Option<u32>,
    pub(crate) bias_offset: Option<u32>,
}

impl Template {
    pub(crate) fn of(request: &Request) -> Self {
        let sampling = &request.sampling;
        Self {
            submission: request.submission,
            seed: sampling.seed,
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            choice_index: 0,
            candidates: sampling.top_logprobs,
            logprob: sampling.logprob,
            masked: request.masked,
        }
    }

    pub(crate) fn has_penalty(&self) -> bool {
        self.repetition_penalty.to_bits() != 1.0_f32.to_bits()
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    pub(crate) fn row(&self, draw: &Draw) -> SamplingRow {
        SamplingRow {
            token: draw.token,
            row: draw.row,
            output_index: draw.output_index,
            choice_index: self.choice_index,
            submission: self.submission,
            seed: self.seed,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            logprob: self.logprob,
            candidates: self.candidates,
            masked: self.masked,
            penalty_offset: draw.penalty_offset,
            bias_offset: draw.bias_offset,
        }
    }
}
