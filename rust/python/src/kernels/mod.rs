//! `diptych_core.kernels`: the native CPU kernels, as a worker and as tests use them.
//!
//! Options cross as JSON, arrays by the buffer protocol. The GIL is released wherever something is computed.

mod aligned;
mod attend;
mod model;
mod parts;
mod plan;
mod self_test;
mod settings;
mod weights;

pub(crate) use attend::attention;
pub(crate) use model::Model;
pub(crate) use parts::{product, sample};
pub(crate) use self_test::Mismatch;
pub(crate) use weights::{Weights, pack_weights};

use diptych_cpu::matrix::{Arithmetic, Format};
use diptych_cpu::simd::InstructionSet;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::DeserializeOwned;

use crate::errors;

/// What the kernels refuse before they compute anything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OptionsError {
    /// No JSON, or not the options that are asked for.
    #[error("options of the kernels: {0}")]
    Json(#[from] serde_json::Error),
    /// A name that nothing has.
    #[error("{name} {value:?} is not known: {known} are")]
    Unknown {
        name: &'static str,
        value: String,
        known: &'static str,
    },
    /// A set that this machine lacks.
    #[error("this machine has no {0}: leave instruction_set out to take its fastest")]
    Unavailable(&'static str),
    /// An array of another length than the options say.
    #[error("{name} has {found} values, the options ask for {wanted}")]
    Length {
        name: &'static str,
        found: usize,
        wanted: usize,
    },
    /// A weight that does not fit its format.
    #[error(transparent)]
    Matrix(#[from] diptych_cpu::matrix::MatrixError),
    /// A cache that cannot be made.
    #[error(transparent)]
    Kv(#[from] diptych_cpu::kv::KvError),
    /// Rows that contradict each other or the cache.
    #[error(transparent)]
    Rows(#[from] diptych_cpu::attention::RowsError),
    /// No memory.
    #[error("no memory: {0}")]
    Memory(#[from] std::io::Error),
}

/// The instruction sets of this machine, the fastest first.
#[pyfunction]
pub(crate) fn instruction_sets() -> Vec<&'static str> {
    let sets = InstructionSet::ALL.into_iter();
    sets.filter(|set| set.is_available())
        .map(InstructionSet::name)
        .collect()
}

/// Reads options from JSON.
fn read_options<T: DeserializeOwned>(json: &[u8]) -> PyResult<T> {
    serde_json::from_slice(json).map_err(|error| errors::options(&error.into()))
}

/// The set called `name`, or the fastest.
fn instruction_set(name: Option<&str>) -> Result<InstructionSet, OptionsError> {
    let Some(name) = name else {
        return Ok(InstructionSet::detect());
    };
    let set: InstructionSet = name.parse().map_err(|_| OptionsError::Unknown {
        name: "instruction_set",
        value: name.to_owned(),
        known: "avx512, avx2 and portable",
    })?;
    if set.is_available() {
        Ok(set)
    } else {
        Err(OptionsError::Unavailable(set.name()))
    }
}

/// The arithmetic by the name of its dtype.
fn arithmetic(name: &str) -> Result<Arithmetic, OptionsError> {
    match name {
        "float32" => Ok(Arithmetic::F32),
        "bfloat16" => Ok(Arithmetic::Bf16),
        _ => Err(OptionsError::Unknown {
            name: "arithmetic",
            value: name.to_owned(),
            known: "float32 and bfloat16",
        }),
    }
}

/// The format by its own name in lower case.
fn format(name: &str) -> Result<Format, OptionsError> {
    Ok(match name {
        "f32" => Format::F32,
        "bf16" => Format::Bf16,
        "f16" => Format::F16,
        "int8" => Format::Int8,
        "q8_0" => Format::Q8_0,
        "q4_0" => Format::Q4_0,
        "q4_1" => Format::Q4_1,
        "q5_0" => Format::Q5_0,
        "q4_k" => Format::Q4K,
        "q6_k" => Format::Q6K,
        _ => {
            return Err(OptionsError::Unknown {
                name: "format",
                value: name.to_owned(),
                known: "f32, bf16, f16, int8, q8_0, q4_0, q4_1, q5_0, q4_k and q6_k",
            });
        }
    })
}

/// A copy of a Python buffer's items.
fn items<T: Element + Copy>(buffer: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    PyBuffer::<T>::get(buffer)?.to_vec(buffer.py())
}

/// JSON for Python.
fn as_bytes<'py>(py: Python<'py>, value: &serde_json::Value) -> Bound<'py, PyBytes> {
    PyBytes::new(py, value.to_string().as_bytes())
}
