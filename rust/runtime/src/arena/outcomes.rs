//! What a retired step gave.

use diptych_core::RowStatus;

use crate::arena::HostArenas;
use crate::layout::CANDIDATES;

/// Rounding may lift a certain token's a little above 0.
const MOST_LOGPROB: f32 = 1e-3;

/// One draw: which output token of which choice; or which token of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Drawn {
    pub(crate) request: u64,
    pub(crate) choice: u32,
    pub(crate) index: u32,
}

/// The log probability of what was drawn, and the likeliest ids with theirs, best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Score {
    pub(crate) logprob: f32,
    pub(crate) likeliest: Vec<(u32, f32)>,
}

impl Drawn {
    /// Stands for the prompt, whose tokens `index` then counts.
    pub(crate) const PROMPT: u32 = u32::MAX;
}

/// What a retired step gave.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// For each sampling row.
    pub(crate) rows: Vec<(RowStatus, u32)>,
    /// Log probabilities of the ids of those rows that asked for them.
    pub(crate) scores: Vec<(Drawn, Score)>,
    /// Continuations of beams, for each row that asked for them as many as it asked for.
    pub(crate) candidates: Vec<(u32, f32)>,
    /// The rows that were drawn under a mask.
    pub(crate) masked: Vec<(usize, Drawn)>,
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
        let samples = into.rows.len() - launched.scoring.len();
        let scored = launched.scoring.iter().zip(&into.rows[samples..]);
        for (row, (wanted, &(status, id))) in (samples..).zip(scored) {
            if status == RowStatus::Ok && id != *wanted {
                return Err(format!(
                    "its result of step {step} scores token {id} in row {row} instead of {wanted}"
                ));
            }
        }
        self.words.clear();
        let place = image + self.layout.logprobs;
        self.result
            .read_u32(place, launched.rows(), &mut self.words);
        for &(row, drawn, wanted) in &launched.scored {
            if into.rows[row].0 != RowStatus::Ok {
                continue;
            }
            let logprob = f32::from_bits(self.words[row]);
            let mut likeliest = self.likeliest(image, row, wanted);
            let all = likeliest.iter().map(|&(_, logprob)| logprob);
            let mut all = all.chain([logprob]);
            let wrong = all.find(|logprob| logprob.is_nan() || *logprob > MOST_LOGPROB);
            // What was sampled had a share; what is merely likely after it may have had none.
            if let Some(wrong) = wrong.or((!logprob.is_finite()).then_some(logprob)) {
                return Err(format!(
                    "its result of step {step} has log probability {wrong} in row {row}"
                ));
            }
            for (_, logprob) in &mut likeliest {
                *logprob = logprob.min(0.0);
            }
            let logprob = logprob.min(0.0);
            into.scores.push((drawn, Score { logprob, likeliest }));
        }
        Ok(())
    }

    /// Takes the continuations that were asked for; whether they make sense, the core says.
    pub(super) fn candidates(&self, image: usize, into: &mut Outcomes) {
        into.candidates.clear();
        for &(row, wanted) in &self.launched[0].beams {
            into.candidates.extend(self.likeliest(image, row, wanted));
        }
    }

    /// The ids that a row names with their log probabilities.
    fn likeliest(&self, image: usize, row: usize, wanted: usize) -> Vec<(u32, f32)> {
        let place = |section: usize| image + section + row * CANDIDATES * 4;
        let mut words = Vec::with_capacity(2 * wanted);
        if wanted > 0 {
            let ids = place(self.layout.candidate_ids);
            self.result.read_u32(ids, wanted, &mut words);
            let logprobs = place(self.layout.candidate_logprobs);
            self.result.read_u32(logprobs, wanted, &mut words);
        }
        let (ids, logprobs) = words.split_at(wanted);
        let logprobs = logprobs.iter().map(|&bits| f32::from_bits(bits));
        ids.iter().copied().zip(logprobs).collect()
    }
}
