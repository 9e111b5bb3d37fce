//! What a retired step gave.

use diptych_core::RowStatus;

use crate::arena::HostArenas;
use crate::layout::CANDIDATES;

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
    /// Continuations of beams, for each row that asked for them as many as it asked for.
    pub(crate) candidates: Vec<(u32, f32)>,
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

    /// Takes the continuations that were asked for; whether they make sense, the core says.
    pub(super) fn candidates(&mut self, image: usize, into: &mut Outcomes) {
        into.candidates.clear();
        let launched = &self.launched[0];
        for &(row, wanted) in &launched.beams {
            let place = |section: usize| image + section + row * CANDIDATES * 4;
            self.words.clear();
            let ids = place(self.layout.candidate_ids);
            self.result.read_u32(ids, wanted, &mut self.words);
            let logprobs = place(self.layout.candidate_logprobs);
            self.result.read_u32(logprobs, wanted, &mut self.words);
            let (ids, logprobs) = self.words.split_at(wanted);
            let logprobs = logprobs.iter().map(|&bits| f32::from_bits(bits));
            into.candidates.extend(ids.iter().copied().zip(logprobs));
        }
    }
}
