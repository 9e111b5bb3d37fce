//! Log probabilities of prompts: evaluation asks how likely a given text is.
//!
//! The logits of a token say how likely the next one was, so every token of such a prompt is computed, and
//! a step takes no more of it than bounds the logits that are there at once. What they say does not
//! concern the core: it asks, and the runtime hands the answers on.

use crate::StepPlan;
use crate::active::Active;

/// A token of a prompt whose log probability is wanted, after all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoringRow {
    /// Index of the token before it among the step's tokens, whose logits say it.
    pub token: u32,
    /// Worker state row of the request.
    pub row: u32,
    /// Engine-wide number of the request.
    pub submission: u64,
    /// Its place in the prompt.
    pub position: u32,
    /// The token.
    pub id: u32,
    /// How many of the likeliest ids are wanted with their log probabilities.
    pub candidates: u32,
}

/// Most scoring rows of a step: bounds the logits that prompts ask for.
pub const MOST_SCORING_ROWS: u32 = 256;

impl Active {
    /// How many of the likeliest ids are wanted beside each token of the prompt; `None` where its log
    /// probabilities are not wanted, or told already.
    pub(crate) fn wants_scores(&self) -> Option<u32> {
        self.prompt_logprobs().filter(|_| self.outputs() == 0)
    }

    /// Tokens of the prompt that follow the next `count`, the first of all aside.
    pub(crate) fn num_scores(&self, count: u32) -> u32 {
        let last = (self.prompt - 1).min(self.computed + count);
        last.saturating_sub(self.computed)
    }
}

impl StepPlan {
    /// Asks for the log probabilities of the prompt's tokens that follow the next `count`; how many.
    pub(crate) fn write_scoring(&mut self, request: &Active, count: u32) -> u32 {
        let Some(candidates) = request.wants_scores() else {
            return 0;
        };
        let start = request.computed;
        let rows = request.num_scores(count);
        for position in start..start + rows {
            self.scoring.push(ScoringRow {
                token: self.token_ids.len() as u32 + position - start,
                row: request.row,
                submission: request.submission(),
                position: position + 1,
                id: request.tokens[position as usize + 1],
                candidates,
            });
        }
        rows
    }
}
