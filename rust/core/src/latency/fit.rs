//! Weighted least squares that forgets, in nine unknowns that may not be negative.
//!
//! Recursive least squares in information form: each observation adds its outer product to a
//! matrix, and the estimate is solved from it. Three choices differ from the textbook:
//!
//! - each kind of step has a matrix of its own, which decays faster when that kind is observed:
//!   steps of the other kinds make it older, not wrong;
//! - the estimate moves as little as the observations allow (a small penalty on its relative
//!   distance to the one before). What they cannot tell apart stays in the proportion it had, and what was not
//!   observed for long stays what it was: an hour of decoding takes nothing away from what is known
//!   of prompts, and nothing grows without bound meanwhile (the wind-up of a covariance);
//! - unknowns that come out negative are set to zero and the rest is solved again (the clamped
//!   active set of Lawson and Hanson's NNLS, without readmission within one solution).
//!
//! All sums run in a fixed order and only +, -, ×, ÷ and √ are used, which IEEE 754 rounds
//! correctly: equal observations give equal bits on every machine.

use super::coefficients::COUNT;

type Vector = [f64; COUNT];
type Matrix = [[f64; COUNT]; COUNT];

/// What is left of an observation's weight when another of its kind has come, or one of another.
const FORGETTING: f64 = 0.975;
const AGEING: f64 = 0.998;

/// Weight of staying at the estimate before, beside observations of weight 1. So after a long time
/// without any, one that is far off does not decide alone.
const INERTIA: f64 = 0.1;

/// Unknowns below this part of their prior are as free to move as if they were that large.
const LEAST_SCALE: f64 = 0.05;

#[derive(Clone, Copy, Debug)]
struct Evidence {
    matrix: Matrix,
    vector: Vector,
}

impl Evidence {
    fn scale(&mut self, factor: f64) {
        let entries = self.matrix.as_flattened_mut().iter_mut();
        for entry in entries.chain(&mut self.vector) {
            *entry *= factor;
        }
    }
}

const NOTHING: Evidence = Evidence {
    matrix: [[0.0; COUNT]; COUNT],
    vector: [0.0; COUNT],
};

/// Estimates unknowns of magnitude 1.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    kinds: [Evidence; 3],
    pub(super) estimate: Vector,
}

impl Fit {
    pub(super) fn new() -> Self {
        Self {
            kinds: [NOTHING; 3],
            estimate: [1.0; COUNT],
        }
    }

    /// Takes in that `row` · unknowns was `value`, with this weight.
    pub(super) fn observe(&mut self, kind: usize, row: &Vector, value: f64, weight: f64) {
        for (other, evidence) in self.kinds.iter_mut().enumerate() {
            let kept = if other == kind { FORGETTING } else { AGEING };
            evidence.scale(kept);
        }
        let evidence = &mut self.kinds[kind];
        for left in 0..COUNT {
            let weighted = weight * row[left];
            for (entry, right) in evidence.matrix[left].iter_mut().zip(row) {
                *entry += weighted * right;
            }
            evidence.vector[left] += weighted * value;
        }
        self.solve();
    }

    fn solve(&mut self) {
        let mut all = NOTHING;
        for evidence in &self.kinds {
            let entries = evidence.matrix.as_flattened().iter();
            for (sum, entry) in all.matrix.as_flattened_mut().iter_mut().zip(entries) {
                *sum += entry;
            }
            for (sum, entry) in all.vector.iter_mut().zip(&evidence.vector) {
                *sum += entry;
            }
        }
        for (index, before) in self.estimate.into_iter().enumerate() {
            let scale = before.max(LEAST_SCALE);
            let inertia = INERTIA / (scale * scale);
            all.matrix[index][index] += inertia;
            all.vector[index] += inertia * before;
        }
        self.estimate = solve_nonnegative(&all.matrix, &all.vector);
    }

    /// Every number that decides what comes next.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> + '_ {
        let evidence = self
            .kinds
            .iter()
            .flat_map(|kind| kind.matrix.as_flattened().iter().chain(&kind.vector));
        evidence.chain(&self.estimate).copied()
    }
}

fn solve_nonnegative(matrix: &Matrix, vector: &Vector) -> Vector {
    let mut free = [true; COUNT];
    loop {
        let solution = solve_free(matrix, vector, free);
        let mut negative = false;
        for index in 0..COUNT {
            if free[index] && solution[index] < 0.0 {
                free[index] = false;
                negative = true;
            }
        }
        if !negative {
            return solution;
        }
    }
}

/// Cholesky's method over the unknowns that are free; the others are zero.
fn solve_free(matrix: &Matrix, vector: &Vector, free: [bool; COUNT]) -> Vector {
    let mut factor = [[0.0; COUNT]; COUNT];
    let mut solution = [0.0; COUNT];
    for row in 0..COUNT {
        if !free[row] {
            continue;
        }
        let mut value = vector[row];
        for column in 0..=row {
            if !free[column] {
                continue;
            }
            let mut sum = matrix[row][column];
            let products = factor[row][..column].iter().zip(&factor[column]);
            for (left, right) in products {
                sum -= left * right;
            }
            factor[row][column] = if row == column {
                // The inertia keeps it above zero but for rounding.
                sum.max(matrix[row][row] * 1e-12).sqrt()
            } else {
                sum / factor[column][column]
            };
        }
        for column in 0..row {
            value -= factor[row][column] * solution[column];
        }
        solution[row] = value / factor[row][row];
    }
    for row in (0..COUNT).rev() {
        if !free[row] {
            continue;
        }
        let mut value = solution[row];
        for below in row + 1..COUNT {
            value -= factor[below][row] * solution[below];
        }
        solution[row] = value / factor[row][row];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknowns_are_recovered_and_never_negative() {
        let truth = [3.0, 0.0, 0.5, 1.5, 0.0, 2.0, 0.25, 1.0, 0.0];
        let mut fit = Fit::new();
        let mut state = 1_u64;
        for _ in 0..2_000 {
            let row: Vector = std::array::from_fn(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 40) as f64 / f64::from(1_u32 << 24)
            });
            let value = super::super::coefficients::dot(&truth, &row);
            fit.observe((state >> 33) as usize % 3, &row, value, 1.0);
            assert!(fit.estimate.iter().all(|&unknown| unknown >= 0.0));
        }
        for (estimate, unknown) in fit.estimate.iter().zip(truth) {
            assert!((estimate - unknown).abs() < 0.01, "{:?}", fit.estimate);
        }
    }

    #[test]
    fn what_observations_cannot_tell_apart_keeps_its_proportion() {
        let mut fit = Fit::new();
        let mut row = [0.0; COUNT];
        row[0] = 1.0;
        row[6] = 1.0;
        for _ in 0..500 {
            fit.observe(0, &row, 6.0, 1.0);
        }
        assert!((fit.estimate[0] - 3.0).abs() < 0.01 && (fit.estimate[6] - 3.0).abs() < 0.01);
        assert!((fit.estimate[3] - 1.0).abs() < 1e-9);
    }
}
