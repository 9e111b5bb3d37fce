//! The same bits, whatever else is in the step and however it is run.

use super::*;

/// Quantized formats with a hidden size that fits.
pub(super) const QUANTIZED: [(Format, usize); 7] = [
    (Format::Int8, 64),
    (Format::Q8_0, 64),
    (Format::Q4_0, 64),
    (Format::Q4_1, 64),
    (Format::Q5_0, 64),
    (Format::Q4K, 256),
    (Format::Q6K, 256),
];

const LENGTH: usize = 37;

/// Sequence 2 alone, all of its prompt at once.
fn whole(model: &Arc<RandomModel>, settings: Settings) -> Vec<Vec<u32>> {
    let ids = prompt(2, LENGTH);
    let logits = Driver::new(model, settings).step(&[(2, &ids)], 0);
    assert!(logits.iter().flatten().all(|value| value.is_finite()));
    bits(&logits)
}

/// Sequence 2 in chunks that end at `cuts`, then token by token, while other sequences come and go.
fn mixed(
    model: &Arc<RandomModel>,
    settings: Settings,
    cuts: &[usize],
    order: u64,
) -> Vec<Vec<u32>> {
    let (ids, other, third) = (prompt(2, LENGTH), prompt(5, 64), prompt(6, 64));
    let mut driver = Driver::new(model, settings);
    let count = driver.free.len();
    for place in 0..count {
        driver
            .free
            .swap(place, (place * 7 + order as usize * 13) % count);
    }
    driver.step(&[(0, &other[..9])], 0);
    let (mut found, mut done) = (Vec::new(), 0);
    for &cut in cuts {
        let decoded = driver.lengths[0];
        let chunks = [(0, &other[decoded..=decoded]), (2, &ids[done..cut])];
        found.extend(driver.step(&chunks, 1).split_off(1));
        done = cut;
    }
    for place in done..LENGTH {
        let prefilled = driver.lengths[5];
        let chunks = [
            (0, &other[driver.lengths[0]..=driver.lengths[0]]),
            (2, &ids[place..=place]),
            (5, &third[prefilled..prefilled + 2]),
        ];
        let rows = if driver.lengths[0] + 1 < LENGTH && prefilled + 2 < LENGTH {
            &chunks[..]
        } else {
            &chunks[1..2]
        };
        let mine = rows.iter().position(|(row, _)| *row == 2).unwrap();
        found.push(driver.step(rows, rows.len().min(2)).swap_remove(mine));
    }
    bits(&found)
}

fn variants(base: Settings) -> Vec<Settings> {
    let mut all = vec![base];
    all.extend([2, 3, 7].map(|threads| Settings { threads, ..base }));
    all.extend([1, 4, 32].map(|block_size| Settings {
        block_size,
        num_blocks: 1024 / block_size,
        ..base
    }));
    for set in InstructionSet::ALL {
        if set.is_available() {
            all.push(Settings {
                set,
                threads: 2,
                ..base
            });
        }
    }
    let one = |change: fn(&mut Fusions)| {
        let mut fusions = Fusions::ALL;
        change(&mut fusions);
        Settings {
            fusions,
            threads: 2,
            ..base
        }
    };
    all.push(Settings {
        fusions: Fusions::NONE,
        ..base
    });
    all.push(one(|fusions| fusions.swiglu = false));
    all
}

fn check(model: &Arc<RandomModel>, base: Settings) {
    let wanted = whole(model, base);
    for settings in variants(base) {
        assert_eq!(whole(model, settings), wanted, "{settings:?}");
        let found = mixed(model, settings, &[1, 5, 6, 23], settings.threads as u64);
        assert_eq!(found, wanted, "{settings:?}");
    }
    assert_eq!(mixed(model, base, &[16, 32], 3), wanted);
    assert_eq!(mixed(model, base, &[], 1), wanted);
}

#[test]
fn float_formats_give_the_same_bits_however_they_are_run() {
    for kv in [KvFormat::F32, KvFormat::F16] {
        check(
            &model(48, Format::F32, true, false),
            Settings { kv, ..settings() },
        );
    }
    check(&model(48, Format::F16, false, true), settings());
    for arithmetic in [Arithmetic::F32, Arithmetic::Bf16] {
        for kv in [KvFormat::Bf16, KvFormat::Int8] {
            let base = Settings {
                arithmetic,
                kv,
                ..settings()
            };
            check(&model(48, Format::Bf16, true, true), base);
        }
    }
}

#[test]
fn quantized_formats_give_the_same_bits_however_they_are_run() {
    for (format, hidden) in QUANTIZED {
        check(&model(hidden, format, false, true), settings());
    }
}

#[test]
fn a_forked_sequence_goes_on_with_the_same_bits() {
    for kv in [KvFormat::F32, KvFormat::Bf16, KvFormat::Int8] {
        let settings = Settings { kv, ..settings() };
        let model = model(48, Format::F32, false, true);
        let (ids, other) = (prompt(2, LENGTH), prompt(5, LENGTH));
        let want = whole(&model, settings);
        let mut driver = Driver::new(&model, settings);
        let cut = settings.block_size + settings.block_size / 2 + 1;
        driver.step(&[(2, &ids[..cut])], 0);
        let full = cut / settings.block_size;
        let (source, own) = (driver.tables[2][full], driver.free.pop().unwrap());
        driver.tables[3] = [&driver.tables[2][..full], &[own]].concat();
        driver.lengths[3] = cut;
        // The sequence that it was forked from takes another way, in the block that is copied.
        let mut plan = driver.plan(&[(2, &other[..1]), (3, &ids[cut..=cut])], 2);
        plan.delta_rows.push(3);
        plan.delta_starts.push(0);
        plan.delta_counts.push(driver.tables[3].len() as i32);
        plan.delta_blocks.extend(&driver.tables[3]);
        plan.block_copies = vec![source, own, (cut % settings.block_size) as i32, 0];
        let logits = driver.engine.logits(&plan.input()).unwrap();
        let vocabulary = settings.vocabulary;
        let mut found = vec![logits[vocabulary..].to_vec()];
        for place in cut + 1..LENGTH {
            let next = driver.lengths[2] - cut;
            let chunks = [(2, &other[next..=next]), (3, &ids[place..=place])];
            found.extend(driver.step(&chunks, 2).split_off(1));
        }
        assert_eq!(bits(&found), want[cut..], "{kv:?}");
    }
}
