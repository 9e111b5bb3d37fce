//! Products against a plain scalar definition, bit by bit.

use std::ops::Range;

use crate::matrix::{
    Arithmetic, Encoding, Form, Format, GROUP, Group, Matrix, Source, group_at, pack, packed_bytes,
};
use crate::product::Product;
use crate::rows::RowBuffer;
use crate::simd::{InstructionSet, Isa, Kernel, LANES};

const FORMATS: [Format; 7] = [
    Format::Int8,
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q4K,
    Format::Q6K,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn float(&mut self) -> f32 {
        f32::from(self.next() as u16) / 32768.0 - 1.0
    }
}

/// A packed matrix of random weights.
fn packed(format: Format, outputs: usize, inputs: usize, random: &mut Random) -> Vec<u8> {
    let encoding = match format {
        Format::Q8_0 => Encoding::Q8_0,
        Format::Q4_0 => Encoding::Q4_0,
        Format::Q4_1 => Encoding::Q4_1,
        Format::Q5_0 => Encoding::Q5_0,
        Format::Q4K => Encoding::Q4K,
        Format::Q6K => Encoding::Q6K,
        _ => Encoding::F32,
    };
    let (weights, size) = encoding.block();
    let blocks = outputs * inputs / weights;
    let halves: &[usize] = match encoding {
        Encoding::Q4_1 | Encoding::Q4K => &[0, 2],
        Encoding::Q6K => &[208],
        _ => &[0],
    };
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        if encoding == Encoding::F32 {
            bytes.extend(random.float().to_le_bytes());
            continue;
        }
        let mut block: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
        for &at in halves {
            let scale = half::f16::from_f32(random.float() * 0.01);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        bytes.extend(block);
    }
    let source = Source {
        encoding,
        rows: outputs,
        inputs,
        bytes: &bytes,
    };
    let order: Vec<u32> = (0..outputs as u32).collect();
    let mut out = vec![0; packed_bytes(format, outputs, inputs)];
    pack(format, &source, &order, 0, &mut out).unwrap();
    out
}

fn form(format: Format) -> Form {
    format.form(Arithmetic::F32)
}

/// A group of activations, by the definition: codes, and a scale for each half.
struct Activations {
    codes: [i32; GROUP],
    scales: [f32; 2],
}

fn rounded(values: &[f32], form: Form) -> Vec<Activations> {
    let part = if form == Form::Int8 { GROUP } else { GROUP / 2 };
    let groups = values.chunks(GROUP).map(|values| {
        let (mut codes, mut scales) = ([0; GROUP], [0.0; 2]);
        for (index, values) in values.chunks(part).enumerate() {
            let largest = values
                .iter()
                .fold(0.0_f32, |most, value| most.max(value.abs()));
            for (code, value) in codes[index * part..].iter_mut().zip(values) {
                *code = (value * (127.0 / largest)).round_ties_even() as i32;
            }
            scales[index] = largest / 127.0;
        }
        if part == GROUP {
            scales[1] = scales[0];
        }
        Activations { codes, scales }
    });
    groups.collect()
}

/// Adds a group's part to a sum.
fn add(format: Format, group: &Group, activations: &Activations, sum: f32) -> f32 {
    let Activations { codes, scales } = activations;
    let (d, m) = (group.scale.to_f32(), group.minimum.to_f32());
    let [first, second] = group.small;
    let (offset, factors) = match format {
        Format::Int8 | Format::Q8_0 => (128, [d; 2]),
        Format::Q4_0 => (8, [d; 2]),
        Format::Q5_0 => (16, [d; 2]),
        Format::Q4_1 => (0, [d; 2]),
        Format::Q4K => (0, [d * f32::from(first); 2]),
        _ => (
            32,
            [d * f32::from(first as i8), d * f32::from(second as i8)],
        ),
    };
    let dot = |range: Range<usize>| {
        let products = group.codes[range.clone()].iter().zip(&codes[range]);
        let sum: i32 = products
            .map(|(&code, a)| (i32::from(code) - offset) * a)
            .sum();
        sum as f32
    };
    if format == Format::Int8 {
        return dot(0..GROUP).mul_add(scales[0], sum);
    }
    let sum = dot(0..16).mul_add(factors[0] * scales[0], sum);
    let sum = dot(16..32).mul_add(factors[1] * scales[1], sum);
    let total = |half: usize| scales[half] * codes[half * 16..][..16].iter().sum::<i32>() as f32;
    match format {
        Format::Q4_1 => m.mul_add(total(0) + total(1), sum),
        Format::Q4K => (0.0 - m * f32::from(second)).mul_add(total(0) + total(1), sum),
        _ => sum,
    }
}

fn expected(matrix: &Matrix, output: usize, activations: &[Activations]) -> f32 {
    if output >= matrix.outputs {
        return 0.0;
    }
    let mut sum = 0.0;
    let mut output_scale = 1.0;
    for (index, activations) in activations.iter().enumerate() {
        let (group, scale) = group_at(matrix, output, index);
        sum = add(matrix.format, &group, activations, sum);
        output_scale = scale.unwrap_or(1.0);
    }
    sum * output_scale
}

struct Put<'a>(&'a RowBuffer, usize, &'a [f32]);

impl Kernel for Put<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        unsafe { self.0.put(isa, self.1, 0, self.2.as_ptr(), self.2.len()) };
    }
}

fn buffer(set: InstructionSet, form: Form, rows: &[Vec<f32>]) -> RowBuffer {
    let buffer = RowBuffer::new(form, rows[0].len(), rows.len()).unwrap();
    for (row, values) in rows.iter().enumerate() {
        set.run(Put(&buffer, row, values));
    }
    buffer
}

fn available() -> impl Iterator<Item = InstructionSet> {
    InstructionSet::ALL
        .into_iter()
        .filter(|set| set.is_available())
}

/// Every number of rows up to 40, on every instruction set, all panels; then parts of them.
fn check(format: Format, outputs: usize, inputs: usize) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (inputs * outputs) as u64);
    let bytes = packed(format, outputs, inputs, &mut random);
    let matrix = Matrix {
        format,
        outputs,
        inputs,
        bytes: &bytes,
    };
    let rows: Vec<Vec<f32>> = (0..40)
        .map(|_| (0..inputs).map(|_| random.float().powi(3)).collect())
        .collect();
    let panels = matrix.panels();
    let want: Vec<Vec<u32>> = rows
        .iter()
        .map(|row| {
            let activations = rounded(row, form(format));
            let outputs = 0..panels * LANES;
            outputs
                .map(|output| expected(&matrix, output, &activations).to_bits())
                .collect()
        })
        .collect();
    let case = Case { matrix, rows, want };
    for set in available() {
        case.check(set);
    }
}

/// Rows and the bits that they give.
struct Case<'a> {
    matrix: Matrix<'a>,
    rows: Vec<Vec<f32>>,
    want: Vec<Vec<u32>>,
}

impl Case<'_> {
    fn check(&self, set: InstructionSet) {
        let buffer = buffer(set, form(self.matrix.format), &self.rows);
        let panels = self.matrix.panels();
        for count in 1..=40 {
            self.compare((set, &buffer), 0..count, 0..panels);
        }
        for start in 0..panels {
            for end in start..=panels {
                self.compare((set, &buffer), 3..4, start..end);
                self.compare((set, &buffer), 5..12, start..end);
            }
        }
    }

    fn compare(
        &self,
        (set, buffer): (InstructionSet, &RowBuffer),
        row_range: Range<usize>,
        panels: Range<usize>,
    ) {
        let stride = panels.len() * LANES + 16;
        let mut out = vec![7.5_f32; row_range.len() * stride];
        let product = Product {
            matrix: self.matrix,
            rows: buffer.rows(),
            row_range: row_range.clone(),
            panels: panels.clone(),
            out: out.as_mut_ptr(),
            out_stride: stride,
            prefetch: row_range.len().is_multiple_of(2),
        };
        unsafe { product.run(set) };
        for (row, got) in row_range.clone().zip(out.chunks(stride)) {
            let (sums, rest) = got.split_at(panels.len() * LANES);
            let want = &self.want[row][panels.start * LANES..panels.end * LANES];
            let place = sums.iter().zip(want).position(|(got, &want)| {
                // Zero has no sign here.
                (got + 0.0).to_bits() != (f32::from_bits(want) + 0.0).to_bits()
            });
            let (format, name) = (self.matrix.format, set.name());
            assert_eq!(
                place, None,
                "{format:?} {name} {row_range:?} {panels:?} row {row}"
            );
            assert!(
                rest.iter()
                    .all(|value| value.to_bits() == 7.5_f32.to_bits())
            );
        }
    }
}

#[test]
fn products_are_the_scalar_sums_to_the_bit() {
    for format in FORMATS {
        check(
            format,
            7 * LANES - 3,
            if format.check(96).is_ok() { 96 } else { 512 },
        );
    }
}

#[test]
fn any_number_of_inputs_that_a_format_takes_is_served() {
    check(Format::Int8, LANES, 45);
    for format in FORMATS {
        for inputs in [32, 64, 160, 256, 576] {
            if format.check(inputs).is_ok() {
                check(format, 2 * LANES, inputs);
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_gives_nan_and_harms_no_other() {
    let mut random = Random(77);
    for format in FORMATS {
        let bytes = packed(format, 32, 512, &mut random);
        let matrix = Matrix {
            format,
            outputs: 32,
            inputs: 512,
            bytes: &bytes,
        };
        let mut rows = vec![vec![0.5; 512]; 4];
        (rows[1][7], rows[2][300]) = (f32::NAN, f32::NEG_INFINITY);
        for set in available() {
            let buffer = buffer(set, form(format), &rows);
            let mut out = vec![0.0_f32; 4 * 32];
            let product = Product {
                matrix,
                rows: buffer.rows(),
                row_range: 0..4,
                panels: 0..2,
                out: out.as_mut_ptr(),
                out_stride: 32,
                prefetch: false,
            };
            unsafe { product.run(set) };
            for (row, sums) in out.chunks(32).enumerate() {
                assert!(
                    sums.iter()
                        .all(|sum| sum.is_nan() == (row == 1 || row == 2))
                );
            }
        }
    }
}
