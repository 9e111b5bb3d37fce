//! Rows in the float forms.

use half::bf16;

use super::*;

fn values(count: usize) -> Vec<f32> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 40) as f32 / 4096.0 - 2048.0
    };
    (0..count).map(next).collect()
}

fn available() -> impl Iterator<Item = InstructionSet> {
    let all = InstructionSet::ALL.into_iter();
    all.filter(|set| set.is_available())
}

#[test]
fn a_row_reads_back_as_written_and_touches_no_other() {
    for set in available() {
        for inputs in [2, 30, 32, 34, 64, 100] {
            for form in [Form::F32, Form::Bf16] {
                let mut buffer = RowBuffer::new(form, inputs, 3).unwrap();
                let row = values(inputs);
                buffer.write(set, 1, &row);
                let rows = buffer.rows();
                for (index, &value) in row.iter().enumerate() {
                    let read = |row: usize| unsafe {
                        match form {
                            Form::F32 => *rows.row(row).cast::<f32>().add(index),
                            _ => (*rows.row(row).cast::<bf16>().add(index)).to_f32(),
                        }
                    };
                    let want = match form {
                        Form::F32 => value,
                        _ => bf16::from_f32(value).to_f32(),
                    };
                    assert_eq!(read(1).to_bits(), want.to_bits());
                    assert_eq!((read(0), read(2)), (0.0, 0.0));
                }
            }
        }
    }
}

#[test]
fn rounds_to_the_nearest_bfloat16_ties_to_even() {
    for set in available() {
        let mut buffer = RowBuffer::new(Form::Bf16, 4, 1).unwrap();
        let bits = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0xbf80_7fff_u32];
        buffer.write(set, 0, &bits.map(f32::from_bits));
        let got = unsafe { *buffer.rows().row(0).cast::<[u16; 4]>() };
        assert_eq!(got, [0x3f80, 0x3f82, 0x3f81, 0xbf80]);
    }
}

#[test]
fn rows_lie_an_odd_number_of_cache_lines_apart() {
    for form in [Form::F32, Form::Bf16, Form::Int8, Form::Int8Halves] {
        for inputs in [2, 64, 576, 1024, 1536, 4096] {
            let bytes = RowBuffer::bytes(form, inputs, 1);
            assert!(bytes.is_multiple_of(64) && !bytes.is_multiple_of(128));
        }
    }
}

#[test]
#[should_panic(expected = "row < self.rows")]
fn refuses_a_row_that_is_not_there() {
    let mut buffer = RowBuffer::new(Form::F32, 32, 2).unwrap();
    buffer.write(InstructionSet::Portable, 2, &values(32));
}

/// Codes × scale of a group's columns, and their sum.
fn read<G: Int8Group>(rows: &Rows, row: usize, group: usize) -> (Vec<f32>, f32) {
    let group = unsafe { &*rows.row(row).cast::<G>().add(group) };
    let part = GROUP / G::PARTS;
    let values = group.codes().iter().enumerate();
    let values = values.map(|(column, &code)| group.scale(column / part) * f32::from(code));
    (values.collect(), group.sum())
}

#[test]
fn an_outlier_costs_the_columns_under_its_own_scale_only() {
    for set in available() {
        let mut row = values(64);
        row[40] = 3.0e6;
        for (form, alone) in [(Form::Int8, 32..64), (Form::Int8Halves, 32..48)] {
            let mut buffer = RowBuffer::new(form, 64, 2).unwrap();
            buffer.write(set, 1, &row);
            let rows = buffer.rows();
            assert_eq!((rows.form(), rows.count()), (form, 2));
            for group in 0..2 {
                let (got, sum) = match form {
                    Form::Int8 => read::<Whole>(&rows, 1, group),
                    _ => read::<Halved>(&rows, 1, group),
                };
                assert!((got.iter().sum::<f32>() - sum).abs() <= sum.abs() * 1e-5);
                for (column, got) in got.into_iter().enumerate() {
                    let column = group * GROUP + column;
                    let largest = if alone.contains(&column) {
                        3.0e6
                    } else {
                        2048.0
                    };
                    let error = (got - row[column]).abs();
                    assert!(
                        error <= largest / 253.9,
                        "{}: column {column} is off by {error}",
                        set.name()
                    );
                }
            }
        }
    }
}
