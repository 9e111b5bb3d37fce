//! Float products against their definition, bit by bit, on every instruction set.

use half::bf16;

use super::*;
use crate::matrix::{Arithmetic, Encoding, Source, pack, packed_bytes, read_row};
use crate::rows::RowBuffer;

const CASES: [(Format, Arithmetic); 4] = [
    (Format::F32, Arithmetic::F32),
    (Format::F16, Arithmetic::F32),
    (Format::Bf16, Arithmetic::F32),
    (Format::Bf16, Arithmetic::Bf16),
];

/// Marks sums that must not be touched.
const UNTOUCHED: u32 = 0x7fc0_1234;

fn random(count: usize, mut seed: u64) -> Vec<f32> {
    let next = |_| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let value = (seed >> 40) as f32 / (1 << 23) as f32 - 1.0;
        // Some so small that their products are subnormal.
        if seed.is_multiple_of(16) {
            value * 1e-20
        } else {
            value
        }
    };
    (0..count).map(next).collect()
}

/// A packed matrix, rows and what their product must be.
struct Case {
    format: Format,
    inputs: usize,
    outputs: usize,
    weights: Vec<u8>,
    rows: RowBuffer,
    /// Rows × outputs.
    want: Vec<f32>,
}

impl Case {
    fn new(kind: (Format, Arithmetic), inputs: usize, outputs: usize, count: usize) -> Self {
        let (format, arithmetic) = kind;
        let bytes: Vec<u8> = random(inputs * outputs, 3)
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let source = Source {
            encoding: Encoding::F32,
            rows: outputs,
            inputs,
            bytes: &bytes,
        };
        let order: Vec<u32> = (0..outputs as u32).collect();
        let mut weights = vec![0; packed_bytes(format, outputs, inputs)];
        pack(format, &source, &order, 0, &mut weights).unwrap();
        let values = random(inputs * count, 5);
        let mut rows = RowBuffer::new(format.form(arithmetic), inputs, count).unwrap();
        for (row, values) in values.chunks_exact(inputs).enumerate() {
            rows.write(InstructionSet::Portable, row, values);
        }
        let mut case = Self {
            format,
            inputs,
            outputs,
            weights,
            rows,
            want: Vec::new(),
        };
        let mut weight = vec![0.0; inputs];
        case.want = vec![0.0; outputs * count];
        for output in 0..outputs {
            read_row(&case.matrix(), output, &mut weight);
            for (row, values) in values.chunks_exact(inputs).enumerate() {
                case.want[row * outputs + output] = if format.form(arithmetic) == Form::Bf16 {
                    dot_pairs(&weight, values)
                } else {
                    dot(&weight, values)
                };
            }
        }
        case
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix {
            format: self.format,
            outputs: self.outputs,
            inputs: self.inputs,
            bytes: &self.weights,
        }
    }

    /// Multiplies part of it and compares every sum.
    fn check(&self, set: InstructionSet, row_range: Range<usize>, panels: Range<usize>) {
        let stride = panels.len() * LANES + 3;
        let mut out = vec![f32::from_bits(UNTOUCHED); row_range.len() * stride];
        let product = Product {
            matrix: self.matrix(),
            rows: self.rows.rows(),
            row_range: row_range.clone(),
            panels: panels.clone(),
            out: out.as_mut_ptr(),
            out_stride: stride,
            prefetch: panels.start.is_multiple_of(2),
        };
        unsafe { product.run(set) };
        for (index, got) in out.iter().enumerate() {
            let (row, column) = (row_range.start + index / stride, index % stride);
            let output = panels.start * LANES + column;
            let want = if column >= panels.len() * LANES {
                UNTOUCHED
            } else if output >= self.outputs {
                0
            } else {
                self.want[row * self.outputs + output].to_bits()
            };
            assert_eq!(
                got.to_bits(),
                want,
                "{:?} on {}, rows {row_range:?}, panels {panels:?}: row {row}, output {output}",
                self.format,
                set.name()
            );
        }
    }
}

/// One sum in order of the inputs.
fn dot(weights: &[f32], values: &[f32]) -> f32 {
    let pairs = weights.iter().zip(values);
    pairs.fold(0.0, |sum, (weight, value)| weight.mul_add(*value, sum))
}

/// The same for pairs of bfloat16: of each pair the second first, and no subnormal numbers.
fn dot_pairs(weights: &[f32], values: &[f32]) -> f32 {
    let flushed = |value: f32| {
        if value.is_subnormal() {
            0.0 * value
        } else {
            value
        }
    };
    let mut sum = 0.0;
    for (weights, values) in weights.chunks_exact(2).zip(values.chunks_exact(2)) {
        for half in [1, 0] {
            let value = flushed(bf16::from_f32(values[half]).to_f32());
            sum = flushed(flushed(weights[half]).mul_add(value, sum));
        }
    }
    sum
}

fn available() -> impl Iterator<Item = InstructionSet> {
    let all = InstructionSet::ALL.into_iter();
    all.filter(|set| set.is_available())
}

#[test]
fn every_number_of_rows_gives_the_defined_bits() {
    for kind in CASES {
        for inputs in [2, 34, 96] {
            let case = Case::new(kind, inputs, 86, 40);
            for set in available() {
                for rows in 1..=40 {
                    case.check(set, 0..rows, 0..6);
                }
            }
        }
    }
}

#[test]
fn every_range_of_rows_and_panels_gives_the_defined_bits() {
    for kind in CASES {
        let case = Case::new(kind, 38, 119, 15);
        for set in available() {
            for first in 0..8 {
                for end in first..=8 {
                    case.check(set, first..end + 7, first..end);
                    case.check(set, first..first + 1, first..end);
                    case.check(set, first..first, first..end);
                }
            }
        }
    }
}

#[test]
fn many_rows_and_inputs_give_the_defined_bits() {
    for kind in CASES {
        let case = Case::new(kind, 1536, 70, 131);
        for set in available().filter(|&set| set != InstructionSet::Portable) {
            case.check(set, 0..131, 0..5);
            case.check(set, 17..100, 1..4);
        }
    }
}

#[test]
fn odd_inputs_are_served_where_weights_are_not_pairs() {
    for kind in [CASES[0], CASES[1]] {
        for inputs in [1, 3, 33, 95] {
            let case = Case::new(kind, inputs, 35, 13);
            for set in available() {
                case.check(set, 0..13, 0..3);
            }
        }
    }
}

#[test]
#[should_panic(expected = "F16 weights × Bf16 rows")]
fn refuses_rows_of_another_form() {
    let case = Case::new(CASES[1], 32, 16, 1);
    let rows = RowBuffer::new(Form::Bf16, 32, 1).unwrap();
    let mut out = [0.0_f32; 16];
    let product = Product {
        matrix: case.matrix(),
        rows: rows.rows(),
        row_range: 0..1,
        panels: 0..1,
        out: out.as_mut_ptr(),
        out_stride: 16,
        prefetch: false,
    };
    unsafe { product.run(InstructionSet::Portable) };
}
