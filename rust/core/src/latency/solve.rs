//! How many prefill tokens a step has time for.
//!
//! A chunk of q tokens after h costs `row + token · q + pair · (h q + q² / 2)`: a parabola in q,
//! solved for the time that is left. Chunks are cut to whole tiles.

use crate::latency::{Coefficients, LatencyModel, StepKind, Work};

/// Steps in a row whose time had no room for a prompt, before a tile is computed all the same.
pub(crate) const PATIENCE: u32 = 4;

/// The largest margin that is planned with. What a step takes beyond it is noise of the machine, which
/// smaller chunks do not make smaller: they would only make prompts wait.
const MOST_MARGIN: f64 = 1.5;

/// Time for prefill in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeBudget {
    /// Nanoseconds left in terms of the model's predictions, margins taken off.
    left: f64,
    /// The whole step in the same terms.
    most: f64,
    /// Tokens that may be computed in any case: the overrun that is allowed.
    floor: u32,
    tile: u32,
    costs: Coefficients,
}

impl TimeBudget {
    /// The time that a step of at most `allowance` nanoseconds, of which the host needs `overhead`,
    /// has beside its decoding.
    pub(crate) fn new(
        model: &LatencyModel,
        decode: &Work,
        allowance: u64,
        overhead: u64,
        tile: u32,
        starved: u32,
    ) -> Self {
        let costs = *model.coefficients();
        let margin = |kind| model.margin(kind).min(MOST_MARGIN);
        let alone = costs.step_ns(decode) * margin(StepKind::Decode);
        let whole = allowance.saturating_sub(overhead.min(allowance / 4)) as f64;
        let beside = costs.step_ns(decode) - costs.constant(StepKind::Decode)
            + costs.constant(StepKind::Mixed);
        let infeasible = alone > whole;
        let most = whole / margin(StepKind::Mixed);
        Self {
            left: most - beside,
            most,
            floor: if infeasible || starved >= PATIENCE {
                tile
            } else {
                0
            },
            tile,
            costs,
        }
    }

    /// Tokens that may be computed although the prediction is longer than [`Self::most`].
    pub(crate) fn floor(&self) -> u32 {
        self.floor
    }

    /// The predicted duration of the step that keeps the target, in nanoseconds.
    pub(crate) fn most(&self) -> u64 {
        self.most as u64
    }

    /// Whether a chunk of a new prompt could be placed.
    pub(crate) fn has_room(&self) -> bool {
        self.floor > 0 || self.solve(0) >= self.tile
    }

    /// Tokens of a chunk for a prompt that has `history` in KV and could take `wanted` more, of
    /// `remaining` in all.
    pub(crate) fn grant(&self, history: u32, wanted: u32, remaining: u32) -> u32 {
        let fits = self.solve(history);
        let mut tokens = wanted.min(fits);
        if tokens < remaining && fits < wanted {
            tokens -= tokens % self.tile;
        }
        if tokens == 0 {
            tokens = wanted.min(self.floor);
        }
        tokens
    }

    /// Takes a placed chunk's time off.
    pub(crate) fn spend(&mut self, history: u32, tokens: u32, sampled: bool) {
        let mut work = Work::default();
        work.add_chunk(history, tokens);
        work.logit_rows = u32::from(sampled);
        let cost = self.costs.step_ns(&work) - self.costs.prefill_step;
        self.floor = self.floor.saturating_sub(tokens);
        self.left -= cost;
    }

    /// What is left beside further rows of logits.
    pub(crate) fn less_logits(mut self, rows: u32) -> Self {
        self.left -= f64::from(rows) * self.costs.logit_row;
        self
    }

    /// Divides the time: at most `tenths` of it, but at least a tile's, go to the part that is
    /// returned; `None` where less than two tiles' time is left or a tile is given regardless of time.
    pub(crate) fn split(&mut self, tenths: f64) -> Option<Self> {
        let tile = self.cost_of_tile();
        if self.floor > 0 || self.left < 2.0 * tile {
            return None;
        }
        let share = (self.left * tenths * 0.1).max(tile);
        self.left -= share;
        Some(Self {
            left: share,
            floor: 0,
            ..*self
        })
    }

    /// Takes back what a part has not used.
    pub(crate) fn merge(&mut self, part: &Self) {
        self.left += part.left;
    }

    fn cost_of_tile(&self) -> f64 {
        let mut work = Work::default();
        work.add_chunk(0, self.tile);
        work.logit_rows = 1;
        // A hair more, so that rounding does not cost the tile again.
        (self.costs.step_ns(&work) - self.costs.prefill_step) * 1.001
    }

    /// The longest chunk after `history` for which there is time.
    fn solve(&self, history: u32) -> u32 {
        let costs = &self.costs;
        let time = self.left - costs.prefill_row - costs.logit_row;
        if time <= 0.0 {
            return 0;
        }
        let linear = costs.prefill_token + costs.prefill_pair * f64::from(history);
        let root = (linear * linear + 2.0 * costs.prefill_pair * time).sqrt();
        // The form of the solution that does not cancel; without any cost there is no limit.
        let tokens = 2.0 * time / (linear + root);
        if tokens.is_finite() {
            tokens as u32
        } else {
            u32::MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(allowance_ms: u64, starved: u32, rows: u32) -> TimeBudget {
        let mut decode = Work::default();
        for _ in 0..rows {
            decode.add_decode(100);
        }
        let model = LatencyModel::default();
        TimeBudget::new(&model, &decode, allowance_ms * 1_000_000, 0, 16, starved)
    }

    #[test]
    fn a_granted_chunk_fits_and_one_more_tile_does_not() {
        for history in [0, 1_000, 10_000] {
            let budget = budget(100, 0, 4);
            let tokens = budget.grant(history, 10_000, 20_000);
            assert!(tokens > 0 && tokens < 10_000 && tokens.is_multiple_of(16));
            let mut spent = budget;
            spent.spend(history, tokens, true);
            assert!(spent.left >= 0.0);
            let mut over = budget;
            over.spend(history, tokens + 16, true);
            assert!(over.left < 0.0);
        }
    }

    #[test]
    fn noise_takes_no_more_than_a_third_of_the_time() {
        let mut model = LatencyModel::default();
        let mut mixed = Work::default();
        mixed.add_decode(100);
        mixed.add_chunk(0, 16);
        for step in 0..400 {
            let time = if step % 4 == 0 { 200 } else { 20 };
            model.observe(&mixed, time * 1_000_000);
        }
        assert!(model.margin(StepKind::Mixed) > 2.0);
        let mut decode = Work::default();
        decode.add_decode(100);
        let budget = TimeBudget::new(&model, &decode, 90_000_000, 0, 16, 0);
        assert_eq!(budget.most(), 60_000_000);
    }

    #[test]
    fn a_target_that_decoding_alone_misses_leaves_one_tile_a_step() {
        let mut budget = budget(1, 0, 4);
        assert!(budget.has_room());
        assert_eq!(budget.grant(0, 500, 500), 16);
        budget.spend(0, 16, false);
        assert!(!budget.has_room());
        assert_eq!(budget.grant(0, 500, 500), 0);
    }

    #[test]
    fn a_prompt_that_never_fits_gets_a_tile_now_and_then() {
        // Decoding fits into 20 ms with its margin, a tile beside it does not.
        assert!(!budget(20, PATIENCE - 1, 4).has_room());
        assert_eq!(budget(20, PATIENCE, 4).grant(0, 9, 9), 9);
        assert_eq!(budget(20, PATIENCE, 4).grant(0, 90, 90), 16);
    }

    #[test]
    fn the_end_of_a_prompt_is_not_cut_to_tiles() {
        assert_eq!(budget(100, 0, 1).grant(64, 21, 21), 21);
    }
}
