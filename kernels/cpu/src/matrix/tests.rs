//! Packing of the float formats.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

const FLOATS: [Format; 3] = [Format::F32, Format::Bf16, Format::F16];

fn source(values: &[f32], encoding: Encoding) -> Vec<u8> {
    let bytes = values.iter().map(|&value| match encoding {
        Encoding::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        Encoding::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    });
    bytes.flatten().collect()
}

fn rounded(value: f32, format: Format) -> f32 {
    match format {
        Format::Bf16 => bf16::from_f32(value).to_f32(),
        Format::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Packs one row of values, alone.
fn pack_row(format: Format, values: &[f32]) -> Result<Vec<u8>, MatrixError> {
    let bytes = source(values, Encoding::F32);
    let source = Source {
        encoding: Encoding::F32,
        rows: 1,
        inputs: values.len(),
        bytes: &bytes,
    };
    let mut out = vec![0; packed_bytes(format, 1, values.len())];
    pack(format, &source, &[0], 0, &mut out)?;
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rows_read_back_in_the_order_asked_for(
        half in 1_usize..40,
        values in prop::collection::vec(-60000.0_f32..60000.0, 80 * 37),
        order in prop::collection::vec(0_u32..37, 1..50),
        cut in 0_usize..50,
    ) {
        let inputs = 2 * half;
        let cut = cut.min(order.len());
        for encoding in [Encoding::F32, Encoding::Bf16, Encoding::F16] {
            let bytes = source(&values[..37 * inputs], encoding);
            let source = Source { encoding, rows: 37, inputs, bytes: &bytes };
            for format in FLOATS {
                let mut out = vec![0; packed_bytes(format, order.len(), inputs)];
                pack(format, &source, &order[cut..], cut, &mut out).unwrap();
                pack(format, &source, &order[..cut], 0, &mut out).unwrap();
                let matrix = Matrix { format, outputs: order.len(), inputs, bytes: &out };
                let mut row = vec![0.0; inputs];
                for (output, &from) in order.iter().enumerate() {
                    read_row(&matrix, output, &mut row);
                    for (input, got) in row.iter().enumerate() {
                        let given = values[from as usize * inputs + input];
                        let held = match encoding {
                            Encoding::Bf16 => rounded(given, Format::Bf16),
                            Encoding::F16 => rounded(given, Format::F16),
                            _ => given,
                        };
                        prop_assert_eq!(got.to_bits(), rounded(held, format).to_bits());
                    }
                }
            }
        }
    }
}

#[test]
fn rounds_to_the_nearest_ties_to_even() {
    let read = |format, value: f32| {
        let packed = pack_row(format, &[value, 0.0]).unwrap();
        f32::from_le_bytes([0, 0, packed[0], packed[1]]).to_bits() >> 16
    };
    assert_eq!(read(Format::Bf16, f32::from_bits(0x3f80_8000)), 0x3f80);
    assert_eq!(read(Format::Bf16, f32::from_bits(0x3f81_8000)), 0x3f82);
    assert_eq!(read(Format::Bf16, f32::from_bits(0x3f80_8001)), 0x3f81);
    assert_eq!(read(Format::F16, 1.0 + 1.0 / 2048.0), 0x3c00);
    assert_eq!(read(Format::F16, 1.0 + 3.0 / 2048.0), 0x3c02);
    assert_eq!(read(Format::F16, 65519.0), 0x7bff);
}

#[test]
fn refuses_what_is_not_finite_and_says_where() {
    for format in FLOATS {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = pack_row(format, &[1.0, value]).unwrap_err();
            assert!(
                matches!(
                    error,
                    MatrixError::NotFinite {
                        input: 1,
                        row: 0,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }
    assert!(pack_row(Format::F16, &[65520.0]).is_err());
    assert!(pack_row(Format::Bf16, &[f32::MAX, 0.0]).is_err());
    assert!(pack_row(Format::F32, &[f32::MAX]).is_ok());
}

#[test]
fn refuses_shapes_that_do_not_fit() {
    assert!(Format::Bf16.check(3).is_err());
    assert!(Format::F16.check(3).is_ok());
    assert!(Format::F32.check(0).is_err());
    let bytes = [0; 32];
    let source = |rows, inputs| Source {
        encoding: Encoding::F32,
        rows,
        inputs,
        bytes: &bytes,
    };
    let mut out = vec![0; packed_bytes(Format::F32, 16, 4)];
    let mut packed = |source: &Source, order: &[u32], first| {
        pack(Format::F32, source, order, first, &mut out).map_err(|error| error.to_string())
    };
    assert_eq!(packed(&source(2, 4), &[0, 1, 1], 13), Ok(()));
    let error = packed(&source(2, 4), &[0, 1, 1], 14).unwrap_err();
    assert!(error.contains("14..17"), "{error}");
    let error = packed(&source(2, 4), &[2], 0).unwrap_err();
    assert!(error.contains("row 2"), "{error}");
    let error = packed(&source(3, 4), &[0], 0).unwrap_err();
    assert!(error.contains("32 bytes"), "{error}");
}

#[test]
fn panels_are_whole_cache_lines() {
    for format in FLOATS {
        for inputs in 1..100 {
            assert!(format.panel_bytes(inputs).is_multiple_of(64));
        }
    }
}
