//! Single kernels, for the tests that hold each against its reference.

use diptych_cpu::matrix::{Encoding, Matrix, Source, pack, packed_bytes};
use diptych_cpu::product::Product;
use diptych_cpu::rows::RowBuffer;
use diptych_cpu::sampling::{Sampler, SamplingRow, Scores};
use diptych_cpu::simd::{Isa, Kernel, LANES};
use pyo3::prelude::*;
use serde::Deserialize;

use super::aligned::Aligned;
use super::{OptionsError, arithmetic, format, instruction_set, items, read_options};
use crate::array::Array;
use crate::errors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProductOptions {
    inputs: usize,
    /// How `weight` is stored: `f32`, or blocks of ggml by their format's name.
    encoding: String,
    format: String,
    arithmetic: String,
    instruction_set: Option<String>,
}

/// rows [n × inputs] f32 × the transpose of weight [outputs × inputs], packed in a format: [n × outputs] f32.
#[pyfunction]
pub(crate) fn product(
    weight: &Bound<'_, PyAny>,
    rows: &Bound<'_, PyAny>,
    options: &[u8],
) -> PyResult<Array> {
    let options: ProductOptions = read_options(options)?;
    let (weight, rows) = (items::<u8>(weight)?, items::<f32>(rows)?);
    weight_times_rows(&weight, &rows, &options)
        .map(Array::from)
        .map_err(|error| errors::options(&error))
}

fn weight_times_rows(
    weight: &[u8],
    rows: &[f32],
    options: &ProductOptions,
) -> Result<Vec<f32>, OptionsError> {
    let inputs = options.inputs.max(1);
    let (format, encoding) = (format(&options.format)?, encoding(&options.encoding)?);
    let set = instruction_set(options.instruction_set.as_deref())?;
    let outputs = weight.len() / encoding.row_bytes(inputs).max(1);
    let source = Source {
        encoding,
        rows: outputs,
        inputs,
        bytes: weight,
    };
    let mut packed = Aligned::new(packed_bytes(format, outputs, inputs));
    let order: Vec<u32> = (0..outputs as u32).collect();
    pack(format, &source, &order, 0, packed.bytes_mut())?;
    let count = rows.len() / inputs;
    if rows.len() != count * inputs {
        let (found, wanted) = (rows.len(), count * inputs);
        return Err(OptionsError::Length {
            name: "rows",
            found,
            wanted,
        });
    }
    let buffer = RowBuffer::new(format.form(arithmetic(&options.arithmetic)?), inputs, count)?;
    set.run(Fill {
        buffer: &buffer,
        rows,
        inputs,
    });
    let matrix = Matrix {
        format,
        outputs,
        inputs,
        bytes: packed.bytes(),
    };
    let stride = matrix.panels() * LANES;
    let mut out = vec![0.0; count * stride];
    let product = Product {
        matrix,
        rows: buffer.rows(),
        row_range: 0..count,
        panels: 0..matrix.panels(),
        out: out.as_mut_ptr(),
        out_stride: stride,
        prefetch: true,
    };
    // SAFETY: `out` holds `count` rows of whole panels, and everything is this thread's own.
    unsafe { product.run(set) };
    Ok(out
        .chunks_exact(stride)
        .flat_map(|row| &row[..outputs])
        .copied()
        .collect())
}

fn encoding(name: &str) -> Result<Encoding, OptionsError> {
    Ok(match name {
        "f32" => Encoding::F32,
        "q4_0" => Encoding::Q4_0,
        "q4_1" => Encoding::Q4_1,
        "q5_0" => Encoding::Q5_0,
        "q8_0" => Encoding::Q8_0,
        "q4_k" => Encoding::Q4K,
        "q6_k" => Encoding::Q6K,
        _ => {
            return Err(OptionsError::Unknown {
                name: "encoding",
                value: name.to_owned(),
                known: "f32, q4_0, q4_1, q5_0, q8_0, q4_k and q6_k",
            });
        }
    })
}

/// Puts rows into a buffer.
struct Fill<'a> {
    buffer: &'a RowBuffer,
    rows: &'a [f32],
    inputs: usize,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "what a kernel runs is compiled where its instruction set is switched on"
    )]
    fn run<I: Isa>(self, isa: I) {
        for (index, row) in self.rows.chunks_exact(self.inputs).enumerate() {
            // SAFETY: a slice of one row's values, and this thread's own buffer.
            unsafe { self.buffer.put(isa, index, 0, row.as_ptr(), row.len()) };
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleOptions {
    vocabulary: usize,
    instruction_set: Option<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    seed: u64,
    output_index: u32,
    choice_index: u32,
    /// Ids of prompt and output.
    history: Option<(Vec<u32>, Vec<u32>)>,
    /// Ids and what is added to their logits.
    bias: Option<(Vec<u32>, Vec<f32>)>,
}

/// Samples rows of logits [n × vocabulary] f32: status [n], ids [n], their log probabilities [n] f32.
#[pyfunction]
pub(crate) fn sample(logits: &Bound<'_, PyAny>, options: &[u8]) -> PyResult<(Array, Array, Array)> {
    let options: SampleOptions = read_options(options)?;
    let mut logits = items::<f32>(logits)?;
    let found = logits.len();
    let wanted = options.rows.len() * options.vocabulary;
    if found != wanted {
        let name = "logits";
        return Err(errors::options(&OptionsError::Length {
            name,
            found,
            wanted,
        }));
    }
    let set = instruction_set(options.instruction_set.as_deref())
        .map_err(|error| errors::options(&error))?;
    let mut sampler = Sampler::new();
    let (mut status, mut ids, mut logprobs) = (Vec::new(), Vec::new(), Vec::new());
    for (row, logits) in options
        .rows
        .iter()
        .zip(logits.chunks_exact_mut(options.vocabulary))
    {
        let bits: Option<Vec<u32>> = row
            .bias
            .as_ref()
            .map(|(_, values)| values.iter().map(|value| value.to_bits()).collect());
        let mut logprob = 0.0;
        let scores = Scores {
            logprob: &mut logprob,
            ids: &mut [],
            logprobs: &mut [],
        };
        let row = sampling_row(row, bits.as_deref());
        let (found, id) = sampler.sample_scored(set, logits, &row, scores);
        status.push(found as i32);
        ids.push(id.cast_signed());
        logprobs.push(logprob);
    }
    Ok((status.into(), ids.into(), logprobs.into()))
}

fn sampling_row<'a>(row: &'a Row, bias_bits: Option<&'a [u32]>) -> SamplingRow<'a> {
    let bias_ids = row.bias.as_ref().map(|(ids, _)| ids.as_slice());
    SamplingRow {
        temperature: row.temperature,
        top_k: row.top_k,
        top_p: row.top_p,
        min_p: row.min_p,
        presence_penalty: row.presence_penalty,
        frequency_penalty: row.frequency_penalty,
        repetition_penalty: row.repetition_penalty,
        seed: row.seed,
        output_index: row.output_index,
        choice_index: row.choice_index,
        wants_logprob: true,
        candidates: 0,
        history: row
            .history
            .as_ref()
            .map(|(prompt, output)| (prompt.as_slice(), output.as_slice())),
        bias: bias_ids.zip(bias_bits),
        mask: None,
    }
}
