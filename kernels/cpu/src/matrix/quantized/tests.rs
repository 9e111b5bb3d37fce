use half::{bf16, f16};

use super::super::{Encoding, Format, Matrix, MatrixError, Source, pack, packed_bytes, read_row};
use super::{GROUP, Group, panel};

/// Blocks of 512 weights and what the package gguf reads from them: see `fixtures/make.py`.
const FIXTURES: [(Encoding, Format, &[u8]); 6] = [
    (
        Encoding::Q4_0,
        Format::Q4_0,
        include_bytes!("fixtures/q4_0.bin"),
    ),
    (
        Encoding::Q4_1,
        Format::Q4_1,
        include_bytes!("fixtures/q4_1.bin"),
    ),
    (
        Encoding::Q5_0,
        Format::Q5_0,
        include_bytes!("fixtures/q5_0.bin"),
    ),
    (
        Encoding::Q8_0,
        Format::Q8_0,
        include_bytes!("fixtures/q8_0.bin"),
    ),
    (
        Encoding::Q4K,
        Format::Q4K,
        include_bytes!("fixtures/q4k.bin"),
    ),
    (
        Encoding::Q6K,
        Format::Q6K,
        include_bytes!("fixtures/q6k.bin"),
    ),
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    let chunks = bytes.as_chunks::<4>().0.iter();
    chunks.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Packs all rows in order.
fn packed(format: Format, source: &Source) -> Result<Vec<u8>, MatrixError> {
    let mut bytes = vec![0; packed_bytes(format, source.rows, source.inputs)];
    let order: Vec<u32> = (0..source.rows as u32).collect();
    pack(format, source, &order, 0, &mut bytes)?;
    Ok(bytes)
}

fn rows_of(format: Format, (outputs, inputs): (usize, usize), bytes: &[u8]) -> Vec<Vec<f32>> {
    let matrix = Matrix {
        format,
        outputs,
        inputs,
        bytes,
    };
    let mut out = vec![0.0; inputs];
    (0..outputs)
        .map(|row| {
            read_row(&matrix, row, &mut out);
            out.clone()
        })
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn files_are_read_as_gguf_reads_them() {
    for (encoding, format, fixture) in FIXTURES {
        let (blocks, values) = fixture.split_at(encoding.row_bytes(512));
        let want = floats(values);
        let source = Source {
            encoding,
            rows: 1,
            inputs: 512,
            bytes: blocks,
        };
        let rows = rows_of(format, (1, 512), &packed(format, &source).unwrap());
        assert_eq!(bits(&rows[0]), bits(&want), "{format:?}");
        let wide = rows_of(
            Format::F32,
            (1, 512),
            &packed(Format::F32, &source).unwrap(),
        );
        assert_eq!(bits(&wide[0]), bits(&want), "{format:?} as f32");
        let rounded = rows_of(
            Format::Bf16,
            (1, 512),
            &packed(Format::Bf16, &source).unwrap(),
        );
        let want: Vec<f32> = want
            .iter()
            .map(|&value| bf16::from_f32(value).to_f32())
            .collect();
        assert_eq!(bits(&rounded[0]), bits(&want), "{format:?} as bf16");
    }
}

#[test]
fn every_output_of_a_panel_has_its_place() {
    // Blocks of one row, each row from another place of the fixture, in another order, by two calls.
    for (encoding, format, fixture) in FIXTURES {
        let (weights, size) = encoding.block();
        let (blocks, values) = fixture.split_at(encoding.row_bytes(512));
        let inputs = 256;
        let row_bytes = encoding.row_bytes(inputs);
        let rows = 21;
        let steps = 256 / weights + 1;
        let start = |row: usize| row * 5 % steps;
        let bytes: Vec<u8> = (0..rows)
            .flat_map(|row| &blocks[start(row) * size..][..row_bytes])
            .copied()
            .collect();
        let source = Source {
            encoding,
            rows,
            inputs,
            bytes: &bytes,
        };
        let order: Vec<u32> = (0..rows as u32)
            .map(|output| output * 8 % rows as u32)
            .collect();
        let mut out = vec![0; packed_bytes(format, rows, inputs)];
        pack(format, &source, &order[..9], 0, &mut out).unwrap();
        pack(format, &source, &order[9..], 9, &mut out).unwrap();
        let want = floats(values);
        for (output, row) in rows_of(format, (rows, inputs), &out).iter().enumerate() {
            let at = start(order[output] as usize) * weights;
            assert_eq!(
                bits(row),
                bits(&want[at..][..inputs]),
                "{format:?} {output}"
            );
        }
    }
}

#[test]
fn packing_loses_nothing() {
    for (encoding, format, fixture) in FIXTURES {
        let source = Source {
            encoding,
            rows: 1,
            inputs: 512,
            bytes: &fixture[..encoding.row_bytes(512)],
        };
        let bytes = packed(format, &source).unwrap();
        for index in 0..512 / GROUP {
            let want = super::blocks::group(encoding, source.bytes, index);
            assert_eq!(panel::read(format, (&bytes, 16), 0, index).0, want);
        }
        // No format is stored in more than its file's bits, but for the alignment of a panel.
        let slack = bytes.len() - 16 * encoding.row_bytes(512);
        assert!(slack < 64, "{format:?}: {slack} bytes more");
    }
}

/// Values as weights are: mostly small, some large.
fn weights(count: usize) -> Vec<f32> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count)
        .map(|i| (next() + next() + next()) * if i % 61 == 0 { 0.3 } else { 0.05 })
        .collect()
}

fn source_of(bytes: &[u8], rows: usize, inputs: usize) -> Source<'_> {
    Source {
        encoding: Encoding::F32,
        rows,
        inputs,
        bytes,
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Σ of squared errors after rounding.
fn error(format: Format, values: &[f32], inputs: usize) -> f64 {
    let rows = values.len() / inputs;
    let bytes = bytes_of(values);
    let packed = packed(format, &source_of(&bytes, rows, inputs)).unwrap();
    let read = rows_of(format, (rows, inputs), &packed).concat();
    let squares = read
        .iter()
        .zip(values)
        .map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum()
}

#[test]
fn eight_bits_round_to_the_nearest_code() {
    let values = weights(18 * 96);
    for (format, span) in [(Format::Int8, 96), (Format::Q8_0, GROUP)] {
        let bytes = bytes_of(&values);
        let packed = packed(format, &source_of(&bytes, 18, 96)).unwrap();
        let read = rows_of(format, (18, 96), &packed).concat();
        for (values, read) in values.chunks(span).zip(read.chunks(span)) {
            let largest = values
                .iter()
                .fold(0.0_f32, |most, value| most.max(value.abs()));
            for (value, read) in values.iter().zip(read) {
                // Half a step, and what the rounding of the scale to 11 bits moves the largest code.
                let step = largest / 127.0;
                assert!(
                    (value - read).abs() <= step * (0.5 + 127.0 / 4096.0),
                    "{format:?}"
                );
            }
        }
    }
}

/// The error of ggml's own `quantize_row_q4_0_ref` and `quantize_row_q4_1_ref`, on one group.
fn reference_error(format: Format, values: &[f32]) -> f64 {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let extreme = if most.abs() >= least.abs() {
        most
    } else {
        least
    };
    let (scale, minimum) = if format == Format::Q4_0 {
        (extreme / -8.0, 0.0)
    } else {
        ((most - least) / 15.0, least)
    };
    let [scale_read, minimum_read] = [scale, minimum].map(|value| f16::from_f32(value).to_f32());
    let squares = values.iter().map(|value| {
        let offset = if format == Format::Q4_0 { 8.0 } else { 0.0 };
        let code = ((value - minimum) / scale + offset + 0.5)
            .floor()
            .clamp(0.0, 15.0);
        f64::from((code - offset) * scale_read + minimum_read - value).powi(2)
    });
    squares.sum()
}

#[test]
fn the_search_for_four_bits_beats_the_plain_scale() {
    let values = weights(64 * 64);
    for (format, bound) in [(Format::Q4_0, 0.94), (Format::Q4_1, 0.94)] {
        let mut total = (0.0, 0.0);
        for group in values.chunks(GROUP) {
            let (searched, plain) = (error(format, group, GROUP), reference_error(format, group));
            assert!(
                searched <= plain * 1.000_1,
                "{format:?}: {searched} > {plain}"
            );
            total = (total.0 + searched, total.1 + plain);
        }
        assert!(total.0 < bound * total.1, "{format:?}: {total:?}");
    }
}

#[test]
fn constants_zeros_and_tiny_groups_keep_their_values() {
    for format in [Format::Int8, Format::Q8_0, Format::Q4_0, Format::Q4_1] {
        assert!(error(format, &[0.0; 64], 64) <= 0.0);
        assert!(error(format, &[0.5; 64], 64) < 64.0 * (0.5_f64 / 1000.0).powi(2));
        assert!(error(format, &[-1e-9; 64], 64) <= 64.0 * 1e-18);
        assert!(error(format, &[1e-40; 64], 64) <= 64.0 * 1e-80);
    }
}

#[test]
fn int8_takes_any_number_of_inputs() {
    let values = weights(17 * 45);
    assert!(error(Format::Int8, &values, 45) < 1e-3);
    assert_eq!(
        Format::Q8_0.check(45),
        Err(MatrixError::Inputs {
            format: Format::Q8_0,
            inputs: 45,
            multiple: 32
        })
    );
}

#[test]
fn what_has_no_value_in_the_format_is_refused() {
    for format in [Format::Int8, Format::Q8_0, Format::Q4_0, Format::Q4_1] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
            if format == Format::Int8 && bad.is_finite() {
                continue;
            }
            let mut values = weights(2 * 96);
            values[96 + 40] = bad;
            let bytes = bytes_of(&values);
            match packed(format, &source_of(&bytes, 2, 96)) {
                Err(MatrixError::NotFinite {
                    row: 1, input: 40, ..
                }) => {}
                other => panic!("{format:?} {bad}: {other:?}"),
            }
        }
    }
    let mut blocks = [0; 34];
    blocks[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let source = Source {
        encoding: Encoding::Q8_0,
        rows: 1,
        inputs: 32,
        bytes: &blocks,
    };
    assert!(matches!(
        packed(Format::Q8_0, &source),
        Err(MatrixError::NotFinite { row: 0, .. })
    ));
    for format in [Format::Q4_0, Format::Int8] {
        assert_eq!(
            packed(format, &source),
            Err(MatrixError::Conversion {
                encoding: Encoding::Q8_0,
                format
            })
        );
    }
}

#[test]
fn codes_are_rounded_alike_on_every_instruction_set() {
    use crate::simd::InstructionSet;
    let values = weights(64 * GROUP);
    for format in [Format::Int8, Format::Q8_0, Format::Q4_0, Format::Q4_1] {
        let run = |set: InstructionSet| {
            let mut groups = vec![Group::default(); 64];
            let scale = set.run(super::rounding::Round {
                format,
                values: &values,
                groups: &mut groups,
            });
            (scale.to_bits(), groups)
        };
        for set in InstructionSet::ALL {
            if set.is_available() {
                assert_eq!(run(set), run(InstructionSet::Portable), "{}", set.name());
            }
        }
    }
}
