//! Against a forward in f64 that knows nothing of panels, blocks and threads.

use diptych_cpu::matrix::{Matrix, read_row};
use diptych_cpu::model::Weights;
use diptych_cpu::model::random::interleaved_row;

use super::*;

fn row(matrix: &Matrix, index: usize) -> Vec<f64> {
    let mut out = vec![0.0; matrix.inputs];
    read_row(matrix, index, &mut out);
    out.into_iter().map(f64::from).collect()
}

fn apply(matrix: &Matrix, bias: Option<&[f32]>, input: &[f64]) -> Vec<f64> {
    let output = |index: usize| {
        let products = row(matrix, index).into_iter().zip(input);
        let sum: f64 = products.map(|(weight, value)| weight * value).sum();
        sum + bias.map_or(0.0, |bias| f64::from(bias[index]))
    };
    (0..matrix.outputs).map(output).collect()
}

fn norm(input: &[f64], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let square: f64 = input.iter().map(|value| value * value).sum();
    let root = (square / input.len() as f64 + f64::from(epsilon)).sqrt();
    input
        .iter()
        .zip(weight)
        .map(|(value, weight)| value / root * f64::from(*weight))
        .collect()
}

fn rotate(head: &mut [f64], position: usize, frequencies: &[f32]) {
    let half = frequencies.len();
    for (pair, frequency) in frequencies.iter().enumerate() {
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        let (first, second) = (head[pair], head[pair + half]);
        head[pair] = first * cosine - second * sine;
        head[pair + half] = second * cosine + first * sine;
    }
}

fn attend(shape: &ModelShape, all: &[Vec<f64>], position: usize) -> Vec<f64> {
    let (size, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let mut out = Vec::new();
    for head in 0..shape.heads {
        let key = (shape.heads + head / group) * size;
        let value = key + shape.kv_heads * size;
        let query = &all[position][head * size..][..size];
        let scores = all[..=position].iter().map(|other| {
            let products = query.iter().zip(&other[key..]);
            (products.map(|(a, b)| a * b).sum::<f64>() / (size as f64).sqrt()).exp()
        });
        let scores: Vec<f64> = scores.collect();
        let total: f64 = scores.iter().sum();
        for dimension in 0..size {
            let parts = scores.iter().zip(all);
            let sum: f64 = parts
                .map(|(score, other)| score * other[value + dimension])
                .sum();
            out.push(sum / total);
        }
    }
    out
}

/// Logits of all positions.
fn forward(shape: &ModelShape, weights: &Weights, ids: &[i32]) -> Vec<Vec<f64>> {
    let mut residual: Vec<Vec<f64>> = ids
        .iter()
        .map(|id| row(&weights.embedding, *id as usize))
        .collect();
    let add = |residual: &mut Vec<f64>, other: Vec<f64>| {
        residual
            .iter_mut()
            .zip(other)
            .for_each(|(value, other)| *value += other);
    };
    for layer in &weights.layers {
        let mut qkv = Vec::new();
        for (position, input) in residual.iter().enumerate() {
            let normed = norm(input, layer.input_norm, shape.epsilon);
            let mut out = Vec::new();
            for part in &layer.qkv {
                let bias = layer.qkv_bias.map(|bias| &bias[out.len()..]);
                out.extend(apply(part, bias, &normed));
            }
            let rotated = (shape.heads + shape.kv_heads) * shape.head_dim;
            for head in out[..rotated].chunks_mut(shape.head_dim) {
                rotate(head, position, &shape.rope_frequencies);
            }
            qkv.push(out);
        }
        for (position, value) in residual.iter_mut().enumerate() {
            let attended = attend(shape, &qkv, position);
            add(value, apply(&layer.output, layer.output_bias, &attended));
            let normed = norm(value, layer.post_norm, shape.epsilon);
            let gate_up = apply(&layer.gate_up, layer.gate_up_bias, &normed);
            let activated = (0..shape.intermediate).map(|index| {
                let gate = gate_up[interleaved_row(index, false)];
                gate / (1.0 + (-gate).exp()) * gate_up[interleaved_row(index, true)]
            });
            let activated: Vec<f64> = activated.collect();
            add(value, apply(&layer.down, layer.down_bias, &activated));
        }
    }
    let logits = |value: &Vec<f64>| {
        apply(
            &weights.head,
            None,
            &norm(value, weights.norm, shape.epsilon),
        )
    };
    residual.iter().map(logits).collect()
}

/// Root of the mean square of the difference, relative to that of the plain logits.
fn distance<M: WeightOwner + 'static>(model: &Arc<M>, settings: Settings) -> f64 {
    let ids = prompt(3, 41);
    let plain = forward(&model.shape(), &model.weights(), &ids);
    let mut driver = Driver::new(model, settings);
    let mut found = driver.step(&[(2, &ids[..33])], 0);
    for place in 33..ids.len() {
        found.extend(driver.step(&[(2, &ids[place..=place])], 1));
    }
    let (mut difference, mut size) = (0.0, 0.0);
    for (found, plain) in found.iter().zip(&plain) {
        for (found, plain) in found.iter().zip(plain) {
            difference += (f64::from(*found) - plain).powi(2);
            size += plain.powi(2);
        }
    }
    (difference / size).sqrt()
}

#[test]
fn float_weights_in_float_arithmetic_are_near_a_forward_in_double() {
    for format in [Format::F32, Format::Bf16, Format::F16] {
        for (biases, tied) in [(false, true), (true, false)] {
            let found = distance(&model(48, format, biases, tied), settings());
            assert!(found < 3e-6, "{format:?}: {found}");
        }
    }
}

#[test]
fn sixteen_bits_and_bytes_are_as_near_as_they_can() {
    let sixteen = Settings {
        arithmetic: Arithmetic::Bf16,
        kv: KvFormat::Bf16,
        ..settings()
    };
    let found = distance(&model(48, Format::Bf16, true, true), sixteen);
    assert!(found < 0.02, "{found}");
    let bytes = Settings {
        kv: KvFormat::Int8,
        ..settings()
    };
    let found = distance(&model(48, Format::F32, false, true), bytes);
    assert!(found < 0.02, "{found}");
    for (format, hidden) in super::bits::QUANTIZED {
        let found = distance(&model(hidden, format, false, true), settings());
        assert!(found < 0.03, "{format:?}: {found}");
    }
}

/// The first model, whose keys and values are projected by the second.
struct Joined(Arc<RandomModel>, Arc<RandomModel>);

/// Some panels of a matrix.
fn panels(matrix: Matrix, from: usize, outputs: usize) -> Matrix {
    let panel = matrix.format.panel_bytes(matrix.inputs);
    let bytes = from / 16 * panel..(from + outputs).div_ceil(16) * panel;
    Matrix {
        outputs,
        bytes: &matrix.bytes[bytes],
        ..matrix
    }
}

impl WeightOwner for Joined {
    fn shape(&self) -> ModelShape {
        self.0.shape()
    }

    fn weights(&self) -> Weights<'_> {
        let (mut weights, other) = (self.0.weights(), self.1.weights());
        let (queries, keys) = (
            self.shape().attended_size(),
            self.shape().kv_heads * self.shape().head_dim,
        );
        for (layer, other) in weights.layers.iter_mut().zip(other.layers) {
            layer.qkv = vec![
                panels(layer.qkv[0], 0, queries),
                panels(other.qkv[0], queries, keys),
                panels(other.qkv[0], queries + keys, keys),
            ];
        }
        weights
    }
}

#[test]
fn queries_keys_and_values_may_be_matrices_of_their_own() {
    let ids = prompt(3, 40);
    let logits = |driver: &mut Driver| bits(&driver.step(&[(2, &ids)], 0));
    for biases in [false, true] {
        let one = model(64, Format::Q8_0, biases, true);
        let split = Arc::new(Joined(one.clone(), one.clone()));
        for threads in [1, 3] {
            let settings = Settings {
                threads,
                ..settings()
            };
            let [whole, parts] = [
                logits(&mut Driver::new(&one, settings)),
                logits(&mut Driver::new(&split, settings)),
            ];
            assert_eq!(whole, parts);
        }
        let mixed = Arc::new(Joined(one, model(64, Format::F16, biases, true)));
        let found = distance(&mixed, settings());
        assert!(found < 0.03, "{found}");
    }
}
