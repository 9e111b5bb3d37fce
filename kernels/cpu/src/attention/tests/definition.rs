//! Against softmax(q·k ÷ √d) v in f64.

use super::*;

/// Rotates in f64.
fn rotated(head: &[f32], position: usize, frequencies: &[f32]) -> Vec<f64> {
    let half = head.len() / 2;
    let mut out = vec![0.0; head.len()];
    for (pair, frequency) in frequencies.iter().enumerate() {
        let angle = f64::from(position as f32 * frequency);
        let (first, second) = (f64::from(head[pair]), f64::from(head[half + pair]));
        out[pair] = first * angle.cos() - second * angle.sin();
        out[half + pair] = second * angle.cos() + first * angle.sin();
    }
    out
}

/// One query head at one position of one sequence.
fn defined(case: &Case, qkv: &[f32], position: usize, head: usize) -> Vec<f64> {
    let (dims, frequencies) = (case.head_dim, case.frequencies());
    let part = |position: usize, index: usize| {
        let start = position * case.stride() + index * dims;
        &qkv[start..start + dims]
    };
    let kv_head = head / case.group;
    let query = rotated(part(position, head), position, &frequencies);
    let scores: Vec<f64> = (0..=position)
        .map(|other| {
            let key = rotated(part(other, case.heads() + kv_head), other, &frequencies);
            let sum: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
            sum * f64::from(case.scale())
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; dims];
    for (other, weight) in weights.iter().enumerate() {
        let value = part(other, case.heads() + case.kv_heads + kv_head);
        for (out, value) in out.iter_mut().zip(value) {
            *out += weight / total * f64::from(*value);
        }
    }
    out
}

fn tolerance(case: &Case) -> f64 {
    match (case.format, case.arithmetic) {
        (KvFormat::F32, _) => 1e-5,
        (KvFormat::F16, _) => 3e-3,
        (KvFormat::Bf16, _) => 4e-2,
        (KvFormat::Int8, _) => 8e-2,
    }
}

fn hold(case: &Case, manner: &Manner) {
    let results = compute(case, manner);
    let (qkv, width) = (case.qkv(), case.heads() * case.head_dim);
    let each = case.length * case.stride();
    for sequence in 0..case.sequences {
        for position in (0..case.length).filter(|p| p % 37 == 36 || *p < 3 || *p + 1 == case.length)
        {
            for head in 0..case.heads() {
                let want = defined(case, &qkv[sequence * each..], position, head);
                let start = (sequence * case.length + position) * width + head * case.head_dim;
                for (dim, want) in want.into_iter().enumerate() {
                    let got = f64::from(results.out[start + dim]);
                    assert!(
                        (got - want).abs() <= tolerance(case),
                        "{case:?} position {position} head {head} dimension {dim}: {got} is not {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_format_is_near_the_definition() {
    for (format, arithmetic) in FORMATS {
        let case = Case {
            format,
            arithmetic,
            ..PLAIN
        };
        hold(&case, &Manner::chunks(&[293, 1]));
    }
}

#[test]
fn every_head_shape_is_near_the_definition() {
    for head_dim in [8, 16, 64, 80, 128] {
        for (group, kv_heads) in [(1, 3), (3, 1), (4, 2), (8, 1), (13, 1)] {
            let case = Case {
                head_dim,
                group,
                kv_heads,
                length: 270,
                format: KvFormat::F32,
                ..PLAIN
            };
            hold(&case, &Manner::chunks(&[264, 1]));
        }
    }
}

#[test]
fn several_sequences_keep_apart() {
    let case = Case {
        sequences: 3,
        length: 40,
        format: KvFormat::F32,
        ..PLAIN
    };
    hold(&case, &Manner::chunks(&[33, 1]));
}
