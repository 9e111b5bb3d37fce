//! The sampler against the definition written plainly, and the cases in which samplers are known to go wrong.

mod plain;

use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::weights::exp;
use super::*;
use crate::simd::{InstructionSet, Isa, Kernel};

const VOCABULARY: usize = 24;

fn sampled(logits: &[f32], row: &SamplingRow) -> (Status, u32) {
    let set = InstructionSet::detect();
    Sampler::new().sample(set, &mut logits.to_vec(), row)
}

fn sets() -> impl Iterator<Item = InstructionSet> {
    let all = InstructionSet::ALL.into_iter();
    all.filter(|set| set.is_available())
}

/// A row whose lists it owns.
#[derive(Clone, Debug, Default)]
struct Case {
    row: SamplingRow<'static>,
    history: Option<(Vec<u32>, Vec<u32>)>,
    bias: Vec<(u32, f32)>,
}

impl Case {
    fn with<R>(&self, use_row: impl FnOnce(&SamplingRow) -> R) -> R {
        let (ids, values): (Vec<u32>, Vec<f32>) = self.bias.iter().copied().unzip();
        let words: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        use_row(&SamplingRow {
            history: self.history.as_ref().map(|(a, b)| (&a[..], &b[..])),
            bias: (!ids.is_empty()).then_some((&ids[..], &words[..])),
            ..self.row
        })
    }
}

fn logit() -> impl Strategy<Value = f32> {
    let levels = [
        f32::NEG_INFINITY,
        -9.0,
        -1.5,
        -0.25,
        -0.0,
        0.0,
        0.5,
        1.0,
        1.0,
        2.0,
        6.0,
    ];
    prop_oneof![prop::sample::select(levels.to_vec()), -8.0_f32..8.0]
}

fn random_row() -> impl Strategy<Value = SamplingRow<'static>> {
    let vocabulary = VOCABULARY as i32;
    let pick = |values: &[f32]| prop::sample::select(values.to_vec());
    let cuts = (
        pick(&[0.0, -0.0, 1e-9, 1e-5, 1e-3, 0.3, 1.0, 2.0, 100.0]),
        prop::sample::select(vec![-1, 0, 1, 2, 3, 7, vocabulary - 1, vocabulary, 1000]),
        pick(&[1e-6, 0.1, 0.5, 0.75, 0.9, 0.999, 1.0]),
        pick(&[0.0, 0.01, 0.2, 1.0]),
    );
    let penalties = (
        pick(&[-2.0, 0.0, 0.5, 2.0]),
        pick(&[-1.0, 0.0, 0.25]),
        pick(&[0.5, 1.0, 1.3]),
    );
    let draw = (any::<u64>(), 0_u32..5000, 0_u32..4);
    (cuts, penalties, draw).prop_map(|(cuts, penalties, draw)| SamplingRow {
        temperature: cuts.0,
        top_k: cuts.1,
        top_p: cuts.2,
        min_p: cuts.3,
        presence_penalty: penalties.0,
        frequency_penalty: penalties.1,
        repetition_penalty: penalties.2,
        seed: draw.0,
        output_index: draw.1,
        choice_index: draw.2,
        ..SamplingRow::default()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let id = prop_oneof![0..VOCABULARY as u32 + 3, Just(u32::MAX)];
    let ids = || prop::collection::vec(id.clone(), 0..12);
    let value = prop::sample::select(vec![-100.0_f32, -1.0, 0.5, 100.0]);
    let bias = prop::collection::vec((0..VOCABULARY as u32, value), 0..4);
    let parts = (random_row(), prop::option::of((ids(), ids())), bias);
    parts.prop_map(|(row, history, bias)| Case { row, history, bias })
}

/// Normally distributed logits, from a seed.
fn plausible(vocabulary: usize, deviation: f64, seed: u64) -> Vec<f32> {
    let normal = |id: usize| {
        let (a, b) = (uniform(seed, id as u32, 0), uniform(seed, id as u32, 1));
        (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos() * deviation
    };
    (0..vocabulary).map(|id| normal(id) as f32).collect()
}

/// [`Best`] over a part of a row.
struct See<'a> {
    first: usize,
    logits: &'a [f32],
}

impl Kernel for See<'_> {
    type Output = Best;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Best {
        let (mut best, count) = (Best::new(), self.logits.len());
        // SAFETY: a slice's own values.
        unsafe { best.see(isa, self.first as u32, self.logits.as_ptr(), count) };
        best
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn every_row_equals_the_definition(
        logits in prop::collection::vec(logit(), VOCABULARY),
        case in case(),
        first in 0_usize..VOCABULARY,
    ) {
        case.with(|row| {
            let expected = plain::sampled(&logits, row);
            let mut sampler = Sampler::new();
            sampler.first_candidates = first;
            for set in sets() {
                let mut adjusted = logits.clone();
                prop_assert_eq!(sampler.sample(set, &mut adjusted, row), expected);
                prop_assert_eq!(adjusted, plain::adjusted(&logits, row));
            }
            if row.wants_argmax_only() {
                prop_assert_eq!(sampled(&logits, &SamplingRow::default()), expected);
            }
            Ok(())
        })?;
    }

    #[test]
    fn parts_seen_in_any_order_have_the_best_of_the_row(
        logits in prop::collection::vec(logit(), 1..2000),
        cut in any::<prop::sample::Index>(),
        nan in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut logits = logits;
        if let Some(place) = nan {
            let place = place.index(logits.len());
            logits[place] = f32::NAN;
        }
        let cut = cut.index(logits.len());
        let expected = plain::sampled(&logits, &SamplingRow::default());
        for set in sets() {
            let early = set.run(See { first: 0, logits: &logits[..cut] });
            let late = set.run(See { first: cut, logits: &logits[cut..] });
            for (mut best, other) in [(early, late), (late, early)] {
                best.merge(other);
                prop_assert_eq!(best.finish(), expected);
            }
        }
    }
}

#[test]
fn large_vocabularies_equal_the_definition_however_far_one_goes() {
    let cuts = [
        (0, 1.0, 0.0),
        (0, 0.9, 0.0),
        (0, 0.999, 0.0),
        (40, 1.0, 0.0),
        (700, 0.99, 0.0),
        (4999, 1.0, 0.0),
        (4000, 0.5, 0.001),
        (0, 1.0, 0.02),
    ];
    for seed in 0..60_u64 {
        let deviation = [0.01, 1.0, 3.0, 10.0][seed as usize % 4];
        let mut logits = plausible(5000, deviation, seed);
        if seed % 5 == 0 {
            // One far away, many equal, some excluded.
            logits[17] = -1e30;
            logits[100..2000].fill(0.5);
            logits[3000..3500].fill(f32::NEG_INFINITY);
        }
        for (index, (top_k, top_p, min_p)) in cuts.into_iter().enumerate() {
            let row = SamplingRow {
                temperature: [0.3, 1.0, 3.0, 50.0][(seed as usize / 4 + index) % 4],
                top_k,
                top_p,
                min_p,
                seed,
                output_index: index as u32,
                ..SamplingRow::default()
            };
            assert_eq!(
                sampled(&logits, &row),
                plain::sampled(&logits, &row),
                "{row:?}"
            );
        }
    }
}

#[test]
fn a_sampler_keeps_nothing_of_the_rows_before() {
    let mut sampler = Sampler::new();
    let history = [3_u32, 5, 3, 900];
    for seed in 0..200_u64 {
        let logits = plausible(1 + (seed as usize * 97) % 3000, 2.0, seed);
        let row = SamplingRow {
            temperature: 1.3,
            top_p: [1.0, 0.9][seed as usize % 2],
            frequency_penalty: 0.5,
            repetition_penalty: 1.2,
            seed,
            history: (seed % 3 == 0).then_some((&history[..2], &history[2..])),
            ..SamplingRow::default()
        };
        let set = InstructionSet::detect();
        let found = sampler.sample(set, &mut logits.clone(), &row);
        assert_eq!(found, sampled(&logits, &row));
    }
}

#[test]
fn known_answers_of_random123() {
    assert_eq!(
        philox([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert_eq!(
        philox(counter, [0xa409_3822, 0x299f_31d0]),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn numbers_are_spread_over_the_unit_interval() {
    let mut counts = [0_i32; 20];
    for index in 0..100_000 {
        let number = uniform(42, index, 0);
        assert!((0.0..1.0).contains(&number));
        counts[(number * 20.0) as usize] += 1;
    }
    // Chi-square with 19 degrees of freedom: 43.8 is exceeded once in a thousand.
    let squares = counts.iter().map(|count| f64::from(count - 5000).powi(2));
    assert!(squares.sum::<f64>() / 5000.0 < 43.8);
}

#[test]
fn the_exponential_is_that_of_the_standard_library_within_an_ulp() {
    assert_eq!(exp(0.0).to_bits(), 1.0_f64.to_bits());
    for beyond in [-746.0, -1e9, f64::NEG_INFINITY] {
        assert_eq!(exp(beyond).to_bits(), 0);
    }
    for index in 0..200_000 {
        let x = -745.0 * uniform(7, index, 0).powi(3);
        let (found, wanted) = (exp(x).to_bits(), x.exp().to_bits());
        assert!(
            found.abs_diff(wanted) <= 1,
            "exp({x}): {found:x}, {wanted:x}"
        );
    }
}

/// Ids that turn up in many draws.
fn drawn(logits: &[f32], row: &SamplingRow) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..400)
        .map(|seed| sampled(logits, &SamplingRow { seed, ..*row }).1)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn ties_and_exact_boundaries_keep_the_same_ids() {
    let row = SamplingRow {
        temperature: 1.0,
        ..SamplingRow::default()
    };
    let top_k = |top_k| SamplingRow { top_k, ..row };
    let top_p = |top_p| SamplingRow { top_p, ..row };
    let min_p = |min_p| SamplingRow { min_p, ..row };
    assert_eq!(drawn(&[1.0, 2.0, 2.0, 2.0, 3.0], &top_k(3)), [1, 2, 4]);
    assert_eq!(drawn(&[0.0; 6], &top_k(2)), [0, 1]);
    assert_eq!(drawn(&[0.0; 6], &top_k(1)), [0]);
    assert_eq!(drawn(&[0.0; 4], &top_p(0.5)), [0, 1]);
    assert_eq!(drawn(&[0.0; 4], &top_p(0.51)), [0, 1, 2]);
    assert_eq!(drawn(&[0.0; 4], &top_p(1e-6)), [0]);
    assert_eq!(drawn(&[0.0, 0.0, -1.0], &min_p(1.0)), [0, 1]);
    assert_eq!(drawn(&[-0.0, 0.0, 0.0], &top_k(2)), [0, 1]);
}

#[test]
fn tiny_temperatures_are_greedy_and_finite() {
    let logits = [3.0e4, 2.9e4, f32::NEG_INFINITY, 3.0e4 - 1.0];
    for power in 3..21 {
        let row = SamplingRow {
            temperature: 10.0_f32.powi(-power),
            seed: 3,
            ..SamplingRow::default()
        };
        assert_eq!(sampled(&logits, &row), (Status::Ok, 0));
    }
}

#[test]
fn rows_that_are_no_numbers_are_refused() {
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    for temperature in [0.0, 1.0] {
        let row = SamplingRow {
            temperature,
            ..SamplingRow::default()
        };
        for bad in [
            [nan; 4],
            [1.0, nan, 2.0, 3.0],
            [1.0, infinite, 2.0, 3.0],
            [-infinite; 4],
        ] {
            assert_eq!(sampled(&bad, &row), (Status::Nan, 0));
        }
    }
}

#[test]
fn records_are_read_where_they_are_and_refused_outside() {
    let side = [9, 2, 1, 10, 11, 12, 1, 5, 0x3f80_0000];
    assert_eq!(read_history(&side, -1), Ok(None));
    assert_eq!(read_history(&side, 1), Ok(Some((&[10, 11][..], &[12][..]))));
    assert_eq!(
        read_bias(&side, 6),
        Ok(Some((&[5][..], &[0x3f80_0000][..])))
    );
    let error = read_history(&side, 8).unwrap_err().to_string();
    assert_eq!(
        error,
        "penalty record at word 8 of the side data needs 10 words: there are 9"
    );
    assert!(read_bias(&side, 0).is_err());
    let row = SamplingRow {
        bias: Some((&[5], &[0])),
        ..SamplingRow::default()
    };
    let outside = SamplingError::BiasOutside {
        ids: vec![5],
        vocabulary: 4,
    };
    assert_eq!(row.check(4), Err(outside));
    assert_eq!(row.check(6), Ok(()));
}

/// The words of a mask that has come, or not.
fn words(allowed: u32, ready: bool) -> Vec<AtomicU32> {
    let words = [u32::from(ready), allowed];
    words.into_iter().map(AtomicU32::new).collect()
}

proptest! {
    #[test]
    fn a_mask_is_minus_infinity_for_the_others(
        logits in prop::collection::vec(logit(), VOCABULARY),
        row in random_row(),
        allowed in any::<u32>(),
    ) {
        let allowed = allowed & ((1 << VOCABULARY) - 1);
        let mask = words(allowed, true);
        let masked = sampled(&logits, &SamplingRow { mask: Some(&mask), ..row });
        let kept = |id: usize| allowed >> id & 1 == 1;
        let cut = |(id, &logit): (usize, &f32)| if kept(id) { logit } else { f32::NEG_INFINITY };
        let cut: Vec<f32> = logits.iter().enumerate().map(cut).collect();
        prop_assert_eq!(masked, sampled(&cut, &row));
        prop_assert!(masked.0 == Status::Nan || kept(masked.1 as usize));
    }
}

#[test]
fn a_row_whose_mask_has_not_come_is_not_sampled() {
    let mask = words(u32::MAX, false);
    let row = SamplingRow {
        mask: Some(&mask),
        ..SamplingRow::default()
    };
    assert!(!row.wants_argmax_only());
    assert_eq!(sampled(&[1.0; VOCABULARY], &row), (Status::NotSampled, 0));
    mask[0].store(1, Ordering::Release);
    assert_eq!(sampled(&[1.0; VOCABULARY], &row), (Status::Ok, 0));
}
