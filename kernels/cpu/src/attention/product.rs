//! The two products of attention over the panels of a tile, in registers.

use super::lines::{Element, Lines};
use super::{PANELS, TILE};
use crate::simd::{Isa, LANES};

/// Addresses of the 16 panels of a tile.
pub(super) type Panels = [*const u8; PANELS];

/// Rows whose scores are computed at once, where `left` remain: factors of queries are packed in such groups.
#[inline(always)]
pub(super) fn rows_at_once<I: Isa>(left: usize) -> usize {
    let most = if I::REGISTERS >= 32 { 12 } else { 6 };
    if left >= most { most } else { left.min(4) }
}

/// Scores of one group of rows over the first `panels` panels, rounded up to whole calls:
/// scores[row × TILE + position] = Σ keys[position][dim] × query[row][dim], dimensions in order.
///
/// # Safety
/// Every address of `keys` is a panel of `pairs` lines (the second ones are asked for only); `queries` holds `pairs` × `rows` pairs of factors; `scores`
/// holds `rows` × [`TILE`].
#[inline(always)]
pub(super) unsafe fn scores<I: Isa, L: Lines>(
    isa: I,
    keys: [&Panels; 2],
    panels: usize,
    (queries, rows, pairs): (*const u32, usize, usize),
    scores: *mut f32,
) {
    let query = (queries, pairs);
    if I::REGISTERS >= 32 {
        match rows {
            12 => all_panels::<I, L, 12, 2>(isa, keys, panels, query, scores),
            4 => all_panels::<I, L, 4, 4>(isa, keys, panels, query, scores),
            3 => all_panels::<I, L, 3, 4>(isa, keys, panels, query, scores),
            2 => all_panels::<I, L, 2, 4>(isa, keys, panels, query, scores),
            _ => all_panels::<I, L, 1, 4>(isa, keys, panels, query, scores),
        }
    } else {
        match rows {
            6 => all_panels::<I, L, 6, 1>(isa, keys, panels, query, scores),
            4 => all_panels::<I, L, 4, 1>(isa, keys, panels, query, scores),
            3 => all_panels::<I, L, 3, 2>(isa, keys, panels, query, scores),
            2 => all_panels::<I, L, 2, 2>(isa, keys, panels, query, scores),
            _ => all_panels::<I, L, 1, 4>(isa, keys, panels, query, scores),
        }
    }
}

#[inline(always)]
unsafe fn all_panels<I: Isa, L: Lines, const R: usize, const N: usize>(
    isa: I,
    [keys, ahead]: [&Panels; 2],
    panels: usize,
    (queries, pairs): (*const u32, usize),
    scores: *mut f32,
) {
    let mut panel = 0;
    while panel < panels {
        let mut at = [std::ptr::null(); N];
        let mut next = [std::ptr::null(); N];
        let mut i = 0;
        while i < N {
            at[i] = keys[panel + i];
            next[i] = ahead[panel + i];
            i += 1;
        }
        let mut sums = [[isa.splat(0.0); N]; R];
        let mut query = queries;
        let mut pair = 0;
        while pair < pairs {
            let mut lines = [L::load(isa, at[0]); N];
            let mut i = 0;
            while i < N {
                lines[i] = L::load(isa, at[i].add(pair * L::Element::BYTES));
                isa.prefetch_second(next[i].wrapping_add(pair * L::Element::BYTES));
                i += 1;
            }
            let mut row = 0;
            while row < R {
                let factors = L::factors(isa, query.add(row * L::WORDS));
                let mut i = 0;
                while i < N {
                    sums[row][i] = L::add(isa, sums[row][i], lines[i], factors);
                    i += 1;
                }
                row += 1;
            }
            query = query.add(R * L::WORDS);
            pair += 1;
        }
        for (row, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                isa.store(scores.add(row * TILE + (panel + i) * LANES), *sum);
            }
        }
        panel += N;
    }
}

/// Rows of weights over the values of a tile.
#[derive(Clone, Copy)]
pub(super) struct Weighted<'a> {
    pub(super) values: &'a Panels,
    /// What is asked for meanwhile.
    pub(super) ahead: &'a Panels,
    /// Vectors of 16 dimensions.
    pub(super) groups: usize,
    /// Of pairs of factors, a row each [`TILE`] of them.
    pub(super) weights: *const u32,
    /// Of sums, a row each 16 × `groups`.
    pub(super) sums: *mut f32,
}

/// sums[row][dim] += Σ weights[row][position] × values[position][dim] over the first counts[row] positions, in order.
///
/// # Safety
/// Every address of `values` up to the largest count is a panel; `weights` and `sums` hold as many rows as `counts`;
/// a weight after an odd count is zero.
#[inline(always)]
pub(super) unsafe fn weighted<I: Isa, L: Lines>(isa: I, rows: Weighted<'_>, counts: &[usize]) {
    let mut row = 0;
    while row < counts.len() {
        let left = counts.len() - row;
        let some = if I::REGISTERS >= 32 {
            if left >= 6 { 6 } else { left.min(4) }
        } else {
            left.min(3)
        };
        let common = counts[row..row + some].iter().min().map_or(0, |c| c / 2);
        let part = rows.after::<L>(row);
        if I::REGISTERS >= 32 {
            match some {
                6 => all_groups::<I, L, 6, 4>(isa, part, 0, common),
                4 => all_groups::<I, L, 4, 4>(isa, part, 0, common),
                3 => all_groups::<I, L, 3, 4>(isa, part, 0, common),
                2 => all_groups::<I, L, 2, 4>(isa, part, 0, common),
                _ => all_groups::<I, L, 1, 4>(isa, part, 0, common),
            }
        } else {
            match some {
                3 => all_groups::<I, L, 3, 2>(isa, part, 0, common),
                2 => all_groups::<I, L, 2, 2>(isa, part, 0, common),
                _ => all_groups::<I, L, 1, 4>(isa, part, 0, common),
            }
        }
        for (i, count) in counts.iter().enumerate().skip(row).take(some) {
            let part = rows.after::<L>(i);
            if count / 2 > common {
                all_groups::<I, L, 1, 4>(isa, part, common, count / 2);
            }
            if count % 2 == 1 {
                last_position::<I, L>(isa, part, count / 2);
            }
        }
        row += some;
    }
}

impl Weighted<'_> {
    #[inline(always)]
    unsafe fn after<L: Lines>(self, row: usize) -> Self {
        Self {
            weights: self.weights.add(row * (TILE / 2) * L::WORDS),
            sums: self.sums.add(row * self.groups * LANES),
            ..self
        }
    }
}

#[inline(always)]
unsafe fn all_groups<I: Isa, L: Lines, const R: usize, const D: usize>(
    isa: I,
    rows: Weighted<'_>,
    start: usize,
    end: usize,
) {
    let mut group = 0;
    while group + D <= rows.groups {
        some_groups::<I, L, R, D>(isa, rows, group, (start, end));
        group += D;
    }
    while group < rows.groups {
        some_groups::<I, L, R, 1>(isa, rows, group, (start, end));
        group += 1;
    }
}

/// R rows, D vectors of dimensions from `group`, pairs of positions `start`..`end`.
#[inline(always)]
unsafe fn some_groups<I: Isa, L: Lines, const R: usize, const D: usize>(
    isa: I,
    rows: Weighted<'_>,
    group: usize,
    (start, end): (usize, usize),
) {
    let stride = rows.groups * LANES;
    let to = rows.sums.add(group * LANES);
    let mut sums = [[isa.splat(0.0); D]; R];
    for (row, sums) in sums.iter_mut().enumerate() {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = isa.load(to.add(row * stride + i * LANES));
        }
    }
    let mut pair = start;
    while pair < end {
        let place = (pair % (LANES / 2) * rows.groups + group) * L::Element::BYTES;
        let at = rows.values.get_unchecked(pair / (LANES / 2)).add(place);
        let next = rows
            .ahead
            .get_unchecked(pair / (LANES / 2))
            .wrapping_add(place);
        let mut lines = [L::load(isa, at); D];
        isa.prefetch_second(next);
        let mut i = 1;
        while i < D {
            lines[i] = L::load(isa, at.add(i * L::Element::BYTES));
            isa.prefetch_second(next.wrapping_add(i * L::Element::BYTES));
            i += 1;
        }
        let mut row = 0;
        while row < R {
            let from = rows.weights.add((row * (TILE / 2) + pair) * L::WORDS);
            let factors = L::factors(isa, from);
            let mut i = 0;
            while i < D {
                sums[row][i] = L::add(isa, sums[row][i], lines[i], factors);
                i += 1;
            }
            row += 1;
        }
        pair += 1;
    }
    for (row, sums) in sums.iter().enumerate() {
        for (i, sum) in sums.iter().enumerate() {
            isa.store(to.add(row * stride + i * LANES), *sum);
        }
    }
}

/// One row's last position, whose neighbour is none of the sequence.
#[inline(always)]
unsafe fn last_position<I: Isa, L: Lines>(isa: I, row: Weighted<'_>, pair: usize) {
    let factors = L::factors(isa, row.weights.add(pair * L::WORDS));
    let place = pair % (LANES / 2) * row.groups * L::Element::BYTES;
    let at = row.values[pair / (LANES / 2)].add(place);
    for group in 0..row.groups {
        let line = L::load_first(isa, at.add(group * L::Element::BYTES));
        let sum = row.sums.add(group * LANES);
        isa.store(sum, L::add(isa, isa.load(sum), line, factors));
    }
}
