//! How a model is run, from JSON.

use diptych_cpu::kv::KvFormat;
use diptych_cpu::model::{Fusions, Settings};
use pyo3::prelude::*;
use serde::Deserialize;

use super::{OptionsError, arithmetic, instruction_set, read_options};
use crate::errors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsOptions {
    instruction_set: Option<String>,
    threads: usize,
    arithmetic: String,
    kv: String,
    block_size: usize,
    num_blocks: usize,
    max_running: usize,
    max_tokens: usize,
    max_model_len: usize,
    vocabulary: usize,
    #[serde(default = "yes")]
    huge_pages: bool,
    /// Fusions that are switched off.
    #[serde(default)]
    without: Vec<String>,
}

fn yes() -> bool {
    true
}

/// The settings in `json`.
pub(super) fn read_settings(json: &[u8]) -> PyResult<Settings> {
    let options: SettingsOptions = read_options(json)?;
    settings(&options).map_err(|error| errors::options(&error))
}

fn settings(options: &SettingsOptions) -> Result<Settings, OptionsError> {
    Ok(Settings {
        set: instruction_set(options.instruction_set.as_deref())?,
        threads: options.threads,
        arithmetic: arithmetic(&options.arithmetic)?,
        kv: kv_format(&options.kv)?,
        block_size: options.block_size,
        num_blocks: options.num_blocks,
        max_running: options.max_running,
        max_tokens: options.max_tokens,
        max_model_len: options.max_model_len,
        vocabulary: options.vocabulary,
        huge_pages: options.huge_pages,
        fusions: fusions(&options.without)?,
    })
}

fn fusions(without: &[String]) -> Result<Fusions, OptionsError> {
    let mut fusions = Fusions::ALL;
    for name in without {
        let fusion = match name.as_str() {
            "swiglu" => &mut fusions.swiglu,
            "argmax" => &mut fusions.argmax,
            "prefetch" => &mut fusions.prefetch,
            _ => {
                return Err(OptionsError::Unknown {
                    name: "without",
                    value: name.clone(),
                    known: "swiglu, argmax and prefetch",
                });
            }
        };
        *fusion = false;
    }
    Ok(fusions)
}

/// The format by the name of its dtype.
pub(super) fn kv_format(name: &str) -> Result<KvFormat, OptionsError> {
    match name {
        "float32" => Ok(KvFormat::F32),
        "bfloat16" => Ok(KvFormat::Bf16),
        "float16" => Ok(KvFormat::F16),
        "int8" => Ok(KvFormat::Int8),
        _ => Err(OptionsError::Unknown {
            name: "kv",
            value: name.to_owned(),
            known: "float32, bfloat16, float16 and int8",
        }),
    }
}
