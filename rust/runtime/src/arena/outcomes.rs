//! What a retired step gave.

use diptych_core::RowStatus;

use crate::arena::HostArenas;

/// One draw: which output token of which choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Drawn {
    pub(crate) request: u64,
    pub(crate) choice: u32,
    pub(crate) index: u32,
}

/// What a retired step gave.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// For each sampling row.
    pub(crate) rows: Vec<(RowStatus, u32)>,
    /// Log probabilities of the ids of those rows that asked for them.
    pub(crate) scores: Vec<(Drawn, f32)>,
}

impl HostArenas {
    /// Adds the log probabilities that were asked for; otherwise what is wrong with one.
    pub(super) fn scores(
        &mut self,
        image: usize,
        step: u64,
        into: &mut Outcomes,
    ) -> Result<(), String> {
        let launched = &self.launched[0];
        if launched.scored.is_empty() {
            return Ok(());
        }
        self.words.clear();
        let place = image + self.layout.logprobs;
        self.result
            .read_u32(place, launched.rows(), &mut self.words);
        for &(row, drawn) in &launched.scored {
            let score = f32::from_bits(self.words[row]);
            if into.rows[row].0 != RowStatus::Ok {
                continue;
            }
            // Rounding may lift a certain token's a little above.
            if !(score.is_finite() && score <= 1e-3) {
                return Err(format!(
                    "its result of step {step} has log probability {score} in row {row}"
                ));
            }
            into.scores.push((drawn, score.min(0.0)));
        }
        Ok(())
    }
}
