//! Results depend on a row's tokens alone.

use super::*;

/// The case computed in each manner gives the bits of the first.
fn hold(case: &Case, manners: &[Manner]) {
    let want = compute(case, &manners[0]);
    assert!(
        want.out
            .iter()
            .chain(&want.cache)
            .all(|value| value.is_finite()),
        "{case:?} {:?} lets garbage in",
        manners[0]
    );
    for manner in &manners[1..] {
        let got = compute(case, manner);
        let place = got
            .bits()
            .iter()
            .zip(want.bits())
            .position(|(got, want)| *got != want);
        assert_eq!(
            place,
            None,
            "{case:?} {manner:?} of {} outputs",
            want.out.len()
        );
    }
}

fn other_chunks() -> Vec<Manner> {
    let prefill_alone = Manner {
        decode: false,
        ..Manner::chunks(&[1])
    };
    vec![
        Manner::chunks(&[1]),
        Manner::chunks(&[usize::MAX]),
        Manner::chunks(&[255, 1, 1, 20]),
        Manner::chunks(&[7]),
        Manner {
            byte: 0,
            seed: 99,
            ..Manner::chunks(&[130, 33])
        },
        prefill_alone,
    ]
}

#[test]
fn any_chunks_give_the_bits_of_one_by_one() {
    for (format, arithmetic) in FORMATS {
        let case = Case {
            format,
            arithmetic,
            ..PLAIN
        };
        hold(&case, &other_chunks());
    }
}

#[test]
fn any_head_shape_gives_the_bits_of_one_by_one() {
    for (head_dim, group) in [
        (8, 1),
        (16, 3),
        (64, 4),
        (80, 8),
        (128, 3),
        (24, 5),
        (64, 13),
    ] {
        for (format, arithmetic) in [FORMATS[3], FORMATS[4]] {
            let case = Case {
                head_dim,
                group,
                format,
                arithmetic,
                kv_heads: 1,
                length: 280,
                ..PLAIN
            };
            hold(&case, &other_chunks()[..4]);
        }
    }
}

#[test]
fn block_sizes_do_not_matter() {
    for (format, arithmetic) in FORMATS {
        let mut want = None;
        for block_size in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            let case = Case {
                block_size,
                format,
                arithmetic,
                ..PLAIN
            };
            let bits = compute(&case, &Manner::chunks(&[290, 1])).bits();
            assert!(
                want.get_or_insert_with(|| bits.clone()) == &bits,
                "{case:?}"
            );
        }
    }
}

#[test]
fn members_and_splits_do_not_matter() {
    for (format, arithmetic) in [FORMATS[0], FORMATS[3], FORMATS[5]] {
        let case = Case {
            format,
            arithmetic,
            kv_heads: 1,
            length: 1100,
            ..PLAIN
        };
        let manners = [1, 2, 3, 7].map(|members| Manner {
            members,
            seed: members as u64,
            ..Manner::chunks(&[1090, 1])
        });
        hold(&case, &manners);
    }
}

#[test]
fn other_rows_do_not_matter() {
    let one = Case {
        length: 70,
        ..PLAIN
    };
    let many = Case {
        sequences: 9,
        ..one
    };
    for members in [1, 4] {
        let manner = Manner {
            members,
            ..Manner::chunks(&[60, 1])
        };
        let (one, many) = (compute(&one, &manner), compute(&many, &manner));
        assert!(one.out == many.out[..one.out.len()], "{members} members");
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for (format, arithmetic) in FORMATS {
        let case = Case {
            format,
            arithmetic,
            kv_heads: 1,
            ..PLAIN
        };
        let sets = InstructionSet::ALL
            .into_iter()
            .filter(|set| set.is_available());
        let manners: Vec<Manner> = sets
            .map(|set| Manner {
                set,
                ..Manner::chunks(&[290, 1])
            })
            .collect();
        hold(&case, &manners);
    }
}
