//! Mooncake's traces: JSON lines with the ids of 512-token blocks, so that what prompts share is in the file.

use serde::Deserialize;

use super::generator::allowed;
use super::lines::TraceLines;
use super::{Arrival, Source, Workload};
use crate::Error;
use crate::oracle::append;
use crate::random::mix;

/// Tokens that one id stands for.
const BLOCK: u32 = 512;

#[derive(Deserialize)]
struct Line {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

struct Mooncake {
    lines: TraceLines,
    workload: Workload,
}

pub(super) fn open(path: &str, speed: f64, workload: &Workload) -> Result<Source, Error> {
    Ok(Box::new(Mooncake {
        lines: TraceLines::open(path, speed)?,
        workload: workload.clone(),
    }))
}

impl Mooncake {
    fn arrival(&mut self, line: &str) -> Result<Arrival, Error> {
        let line: Line =
            serde_json::from_str(line).map_err(|error| self.lines.problem(error.to_string()))?;
        let needed = line.input_length.div_ceil(BLOCK) as usize;
        if line.input_length == 0 || line.hash_ids.len() < needed {
            let ids = line.hash_ids.len();
            let problem = format!(
                "{} tokens need {needed} hash_ids, there are {ids}",
                line.input_length
            );
            return Err(self.lines.problem(problem));
        }
        let mut prompt = Vec::with_capacity(needed * BLOCK as usize);
        for &id in &line.hash_ids[..needed] {
            append(&mut prompt, mix(id ^ 0x626c_6f63_6b00_0000), BLOCK);
        }
        prompt.truncate(line.input_length as usize);
        let output = line.output_length.max(1);
        Ok(Arrival {
            at: self.lines.moment(line.timestamp / 1e3)?,
            prompt,
            output,
            max_tokens: allowed(&self.workload, output),
            tenant: 1,
            ..Arrival::default()
        })
    }
}

impl Iterator for Mooncake {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next()?;
        Some(line.and_then(|line| self.arrival(&line)))
    }
}
