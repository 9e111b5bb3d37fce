//! When memory peaks: the formula of `LightLLM`'s scheduler over buckets of predicted ends.
//!
//! Order the running requests by their predicted ends. Just before the k-th end, those before it
//! are gone and all others have grown until then: the most of these sums is the peak. Requests are
//! kept in 256 buckets by the step of their end, so that they need no moving while time passes and
//! a peak takes one scan, whatever their number. Sizes are in blocks: a request that stays takes at
//! most one block more than its tokens fill, and none takes more than it is predicted to end with.

use std::hash::{Hash, Hasher};

const CELLS: usize = 256;

/// A running request's place on the horizon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stay {
    /// Total outputs that are predicted.
    pub(crate) predicted: u32,
    /// Private blocks that are counted.
    pub(crate) held: u32,
    /// Private blocks at its predicted end.
    last: u32,
    /// Number of the cell of its predicted end.
    until: u64,
}

/// The requests of one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    requests: u32,
    held: u32,
    last: u32,
}

/// All running requests by predicted end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Horizon {
    /// Cell `n` is at `n` mod [`CELLS`]; those before `first` were merged into it.
    cells: Vec<Cell>,
    first: u64,
    step: u64,
    held: u32,
    /// A cell is 2^shift steps wide.
    shift: u32,
}

impl Horizon {
    /// Wide enough for outputs of `longest` tokens.
    pub(crate) fn new(longest: u32) -> Self {
        let mut shift = 0;
        while longest >> shift > CELLS as u32 - 3 {
            shift += 1;
        }
        Self {
            cells: vec![Cell::default(); CELLS],
            first: 0,
            step: 0,
            held: 0,
            shift,
        }
    }

    /// The same moment with nobody running.
    pub(crate) fn emptied(&self) -> Self {
        let mut empty = self.clone();
        empty.clear();
        empty
    }

    pub(crate) fn clear(&mut self) {
        self.cells.fill(Cell::default());
        self.held = 0;
    }

    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Time passes. Who should have ended, and has not, is expected to end next.
    pub(crate) fn advance(&mut self, step: u64) {
        self.step = step;
        while self.first < step >> self.shift {
            let late = std::mem::take(&mut self.cells[self.first as usize % CELLS]);
            self.first += 1;
            let next = &mut self.cells[self.first as usize % CELLS];
            next.requests += late.requests;
            next.held += late.held;
            next.last += late.last;
        }
    }

    /// The stay of a request that holds `held` private blocks and ends `remaining` steps ahead
    /// with `last`.
    pub(crate) fn stay(&self, predicted: u32, remaining: u32, held: u32, last: u32) -> Stay {
        Stay {
            predicted,
            held,
            last: last.max(held),
            until: (self.step + u64::from(remaining)) >> self.shift,
        }
    }

    pub(crate) fn insert(&mut self, stay: &Stay) {
        let cell = self.cell(stay);
        cell.requests += 1;
        cell.held += stay.held;
        cell.last += stay.last;
        self.held += stay.held;
    }

    pub(crate) fn remove(&mut self, stay: &Stay) {
        let cell = self.cell(stay);
        cell.requests -= 1;
        cell.held -= stay.held;
        cell.last -= stay.last;
        self.held -= stay.held;
    }

    pub(crate) fn grow(&mut self, stay: &mut Stay) {
        self.cell(stay).held += 1;
        self.held += 1;
        stay.held += 1;
        if stay.held > stay.last {
            self.cell(stay).last += 1;
            stay.last += 1;
        }
    }

    pub(crate) fn hash_stay(&self, stay: &Stay, state: &mut impl Hasher) {
        let until = (stay.until.max(self.first) << self.shift).saturating_sub(self.step);
        (stay.predicted, stay.held, stay.last, until).hash(state);
    }

    fn cell(&mut self, stay: &Stay) -> &mut Cell {
        &mut self.cells[stay.until.max(self.first) as usize % CELLS]
    }

    /// Private blocks at the worst moment ahead if `candidate` runs too, and with it a number of
    /// others that end when it does.
    pub(crate) fn peak_with(
        &self,
        candidate: &Stay,
        (others, other): (u32, &Stay),
        block_size: u32,
    ) -> u64 {
        let block_shift = block_size.trailing_zeros();
        let own = candidate.until.max(self.first);
        let (mut peak, mut later_held, mut later) = (0, 0, 0);
        for ahead in (0..CELLS as u64).rev() {
            let number = self.first + ahead;
            let mut cell = self.cells[number as usize % CELLS];
            if number == own {
                cell.requests += 1 + others;
                cell.held += candidate.held + others * other.held;
                cell.last += candidate.last + others * other.last;
            }
            if cell.requests == 0 {
                continue;
            }
            let until = ((number + 1) << self.shift) - self.step;
            let growth = (until + u64::from(block_size) - 1) >> block_shift;
            peak = peak.max(u64::from(cell.last) + later_held + later * growth);
            later_held += u64::from(cell.held);
            later += u64::from(cell.requests);
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks at every moment until all have ended, one token a step each, by brute force.
    fn exact(stays: &[(u32, u32)], block_size: u32) -> u64 {
        let longest = stays
            .iter()
            .map(|&(_, remaining)| remaining)
            .max()
            .unwrap_or(0);
        let at = |moment: u32| {
            stays
                .iter()
                .filter(|&&(_, remaining)| remaining >= moment)
                .map(|&(held, _)| u64::from(held + moment.div_ceil(block_size)))
                .sum()
        };
        (0..=longest).map(at).max().unwrap_or(0)
    }

    #[test]
    fn the_peak_is_never_below_the_exact_one_and_close_to_it() {
        let mut state = 7_u64;
        let mut draw = |limit: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 33) % limit) as u32
        };
        for round in 0..500 {
            let block_size = 1 << draw(5);
            let longest = 100 + draw(3_000);
            let mut horizon = Horizon::new(longest);
            horizon.advance(u64::from(draw(1_000)));
            let mut stays: Vec<(u32, u32)> = (0..=draw(30))
                .map(|_| (1 + draw(40), 1 + draw(u64::from(longest))))
                .collect();
            let stay = |horizon: &Horizon, (held, remaining): (u32, u32)| {
                let last = held + remaining.div_ceil(block_size);
                horizon.stay(remaining, remaining, held, last)
            };
            for &one in &stays[1..] {
                let stay = stay(&horizon, one);
                horizon.insert(&stay);
            }
            let (others, other) = (draw(4), (draw(40), stays[0].1));
            let candidate = stay(&horizon, stays[0]);
            let peak = horizon.peak_with(&candidate, (others, &stay(&horizon, other)), block_size);
            stays.extend((0..others).map(|_| other));
            let exact = exact(&stays, block_size);
            let slack =
                stays.len() as u64 * (1 + (1_u64 << horizon.shift).div_ceil(u64::from(block_size)));
            assert!(
                (exact..=exact + slack).contains(&peak),
                "round {round}: {peak} for {exact}"
            );
        }
    }

    #[test]
    fn who_is_late_is_kept_and_can_leave() {
        let mut horizon = Horizon::new(1_000);
        let mut stay = horizon.stay(10, 10, 3, 4);
        horizon.insert(&stay);
        horizon.advance(5_000);
        horizon.grow(&mut stay);
        horizon.grow(&mut stay);
        assert_eq!(horizon.held(), 5);
        let nobody = horizon.stay(1, 1, 0, 0);
        assert_eq!(horizon.peak_with(&nobody, (0, &nobody), 16), 5);
        horizon.remove(&stay);
        assert_eq!(horizon, horizon.emptied());
    }
}
