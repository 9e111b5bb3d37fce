//! How scoring rows reach the worker: as sampling rows whose bias leaves one id.
//!
//! Log probabilities are those before bias, so a worker that samples and scores knows nothing of prompts.

use std::borrow::Cow;

use diptych_core::scoring::ScoringRow;
use diptych_core::{SamplingRow, StepPlan};

use crate::arena::Drawn;

/// Added to a logit: whatever the others are, it is the largest.
pub(crate) const ONLY: f32 = 1e30;

/// A plan's sampling rows and side data as the worker reads them. Scoring rows come last: of a state row the first one's id stays.
pub(super) struct LogitRows<'a> {
    pub(super) rows: Cow<'a, [SamplingRow]>,
    pub(super) side: Cow<'a, [u32]>,
}

impl<'a> LogitRows<'a> {
    pub(super) fn of(plan: &'a StepPlan) -> Self {
        let mut all = Self {
            rows: Cow::Borrowed(&plan.sampling),
            side: Cow::Borrowed(&plan.side),
        };
        if plan.scoring.is_empty() {
            return all;
        }
        let side = all.side.to_mut();
        let scoring = plan.scoring.iter().map(|row| {
            let offset = side.len() as u32;
            side.extend([1, row.id, ONLY.to_bits()]);
            sampling_row(row, offset)
        });
        all.rows = Cow::Owned(plan.sampling.iter().cloned().chain(scoring).collect());
        all
    }

    /// Rows whose log probability is wanted, with what they draw, and how many likeliest ids beside it; those from
    /// `samples` on are the prompts'.
    pub(super) fn scored(&self, samples: usize) -> Vec<(usize, Drawn, usize)> {
        let wanted = self.rows.iter().enumerate().filter(|(_, row)| row.logprob);
        let scored = wanted.map(|(index, row)| {
            let mut drawn = Drawn::of(row);
            if index >= samples {
                drawn.choice = Drawn::PROMPT;
            }
            (index, drawn, row.candidates as usize)
        });
        scored.collect()
    }

    /// Rows that ask for continuations of beams, and how many.
    pub(super) fn beams(&self) -> Vec<(usize, usize)> {
        let rows = self.rows.iter().enumerate();
        let beams = rows.filter(|(_, row)| row.candidates > 0 && !row.logprob);
        beams
            .map(|(index, row)| (index, row.candidates as usize))
            .collect()
    }
}

fn sampling_row(row: &ScoringRow, bias_offset: u32) -> SamplingRow {
    SamplingRow {
        token: row.token,
        row: row.row,
        output_index: row.position,
        choice_index: 0,
        submission: row.submission,
        seed: 0,
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        logprob: true,
        masked: false,
        candidates: row.candidates,
        penalty_offset: None,
        bias_offset: Some(bias_offset),
    }
}
