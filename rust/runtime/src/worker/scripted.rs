//! A worker without a model: the next token is a hash of the whole prefix, or comes from a script.
//!
//! In hash mode it keeps one `u32` per KV slot, writes the step's ids by their slots and reads every prefix back through its own block tables, so
//! that a wrong slot, table, length or order gives wrong ids. It is an oracle of the host's plans as much as a stand-in for a model.

use std::collections::HashSet;
use std::time::Duration;

use diptych_core::PLACEHOLDER;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::arena::scoring::ONLY;
use crate::control::{Init, encode};
use crate::worker::{Mark, Port, PortError, RowMask, Step, Work};

/// What a KV slot holds before it is written. No vocabulary reaches it.
const POISON: u32 = u32::MAX;

/// Result status of a row.
mod status {
    pub(super) const OK: i32 = 0;
    pub(super) const NAN: i32 = 1;
    pub(super) const NOT_SAMPLED: i32 = 3;
}

/// `options` of a scripted worker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    num_blocks: u32,
    /// Line `i + c mod n` answers choice `c` of submission `i`; `null` is hash mode.
    #[serde(default)]
    script: Option<Vec<Vec<u32>>>,
    /// Duration of a step in milliseconds.
    #[serde(default)]
    step_ms: f64,
    /// Ends a script line; hash mode never gives it.
    eos_id: u32,
    /// Hash mode never gives these.
    #[serde(default)]
    special_ids: Vec<u32>,
    #[serde(default)]
    faults: Faults,
}

/// Deliberate faults, for tests of the host and of services.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Faults {
    /// The start-up fails with this message.
    fail_start: Option<String>,
    /// After the first epoch the start-up fails with this message.
    fail_later: Option<String>,
    /// NaN for these [submission, output index].
    nan: Vec<(u64, u32)>,
    /// An impossible id for these [submission, output index].
    bad_id: Vec<(u64, u32)>,
    /// In its first epoch: an impossible status in this step.
    garbage_step: Option<u64>,
    /// In its first epoch: an exception in this step.
    raise_step: Option<u64>,
    /// In its first epoch: the end of the worker in this step.
    die_step: Option<u64>,
    /// The end of the worker whenever it computes this submission.
    die_at_submission: Option<u64>,
    /// Masks are not looked at.
    ignore_masks: bool,
    /// The number of blocks after the first epoch.
    num_blocks_later: Option<u32>,
}

/// The whole life of a scripted worker: until the host says `shutdown` or is gone.
///
/// # Errors
/// [`PortError`] as soon as the host breaks the protocol; the host was told of a failed start-up before.
pub fn run_scripted(port: &Port) -> Result<(), PortError> {
    let init = port.init_message()?;
    let mut worker = match Scripted::new(&init) {
        Ok(worker) => worker,
        Err(message) => return port.fail("ValueError", &message),
    };
    port.hello(&worker.hello()?)?;
    port.ready(&encode(&serde_json::json!({"import": 0.0}))?)?;
    while let Some(work) = port.next()? {
        match work {
            Work::Control(control) => {
                if control.name() == "reset" {
                    worker.tables.fill(0);
                    worker.last_ids.fill(POISON);
                }
                control.reply(&encode(&serde_json::json!({"steps": worker.steps}))?)?;
            }
            Work::Step(step) => {
                if !worker.run(&step)? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

struct Scripted {
    options: Options,
    skipped: HashSet<u32>,
    vocabulary: u32,
    block_size: usize,
    /// Table positions per state row.
    table_length: usize,
    /// `[max_running, table_length]` block ids.
    tables: Vec<i32>,
    /// One token id per KV slot.
    kv: Vec<u32>,
    /// The id that each state row sampled last.
    last_ids: Vec<u32>,
    first_epoch: bool,
    steps: u64,
}

impl Scripted {
    fn new(init: &Init) -> Result<Self, String> {
        let options: Options =
            serde_json::from_value(serde_json::Value::Object(init.options.clone()))
                .map_err(|error| format!("options of the scripted worker: {error}"))?;
        let first_epoch = init.epoch == 1;
        let faults = &options.faults;
        let later = faults.fail_later.as_ref().filter(|_| !first_epoch);
        if let Some(message) = faults.fail_start.as_ref().or(later) {
            return Err(message.clone());
        }
        if options.script.as_ref().is_some_and(Vec::is_empty) {
            return Err("the script has no line: give at least one array of ids".to_owned());
        }
        let mut skipped: HashSet<u32> = options.special_ids.iter().copied().collect();
        skipped.insert(options.eos_id);
        let later = options.faults.num_blocks_later.filter(|_| !first_epoch);
        let num_blocks = later.unwrap_or(options.num_blocks);
        if (0..init.vocabulary).all(|id| skipped.contains(&id)) {
            return Err(format!(
                "all {} ids of the vocabulary are special: hash mode has none to give",
                init.vocabulary
            ));
        }
        let step_ms = options.step_ms;
        if !(0.0..=60_000.0).contains(&step_ms) {
            return Err(format!("step_ms is {step_ms}: from 0 to 60000"));
        }
        let block_size = init.block_size as usize;
        let table_length = (init.max_model_len as usize).div_ceil(block_size);
        Ok(Self {
            options: Options {
                num_blocks,
                ..options
            },
            skipped,
            vocabulary: init.vocabulary,
            block_size,
            table_length,
            tables: vec![0; init.max_running as usize * table_length],
            kv: vec![POISON; num_blocks as usize * block_size],
            last_ids: vec![POISON; init.max_running as usize],
            first_epoch,
            steps: 0,
        })
    }

    fn hello(&self) -> Result<Vec<u8>, PortError> {
        Ok(encode(&serde_json::json!({
            "vocabulary": self.vocabulary,
            "num_blocks": self.options.num_blocks,
            "kv_layout": {"bytes_per_block": self.block_size * 4},
            "buckets": [],
            "capabilities": [],
            "implementation": {"worker": "scripted"},
        }))?)
    }

    /// Runs a step; false if a fault ends this worker.
    fn run(&mut self, step: &Step) -> Result<bool, PortError> {
        self.steps += 1;
        step.mark(Mark::Start);
        if self.options.step_ms > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(self.options.step_ms / 1000.0));
        }
        let faults = &self.options.faults;
        let here = |at: Option<u64>| self.first_epoch && at == Some(step.step());
        let submissions = step.slice::<i64>("submission");
        let killer = faults.die_at_submission.map(u64::cast_signed);
        if here(faults.die_step) || submissions.iter().any(|it| killer == Some(*it)) {
            return Ok(false);
        }
        if here(faults.raise_step) {
            step.publish_error("RuntimeError", "the fault that was asked for")?;
            return Ok(true);
        }
        let garbage = here(faults.garbage_step);
        match self.compute(step) {
            Ok((mut status, ids)) => {
                let scores = match self.scores(step, &ids) {
                    Ok(scores) => scores,
                    Err(message) => {
                        step.publish_error("PlanError", &message)?;
                        return Ok(true);
                    }
                };
                if garbage {
                    status.fill(77);
                }
                step.mark(Mark::DecodeDone);
                let candidates = (
                    scores.likely_ids.as_slice(),
                    scores.likely_logprobs.as_slice(),
                );
                step.publish_all(&status, &ids, Some(&scores.logprobs), candidates)?;
            }
            Err(message) => step.publish_error("PlanError", &message)?,
        }
        Ok(true)
    }

    fn compute(&mut self, step: &Step) -> Result<(Vec<i32>, Vec<i32>), String> {
        self.apply_deltas(step)?;
        self.copy_blocks(step)?;
        self.store_tokens(step)?;
        let rows = step.num_sampling_rows();
        let (mut statuses, mut ids) = (vec![status::OK; rows], vec![0; rows]);
        let indexes = step.slice::<i32>("output_index");
        let choices = step.slice::<i32>("choice_index");
        let state_rows = step.slice::<i32>("sampling_rows");
        for (row, submission) in step.slice::<i64>("submission").iter().enumerate() {
            let place = (submission.cast_unsigned(), indexes[row].cast_unsigned());
            if let Some(only) = only_id(step, row) {
                ids[row] = only.cast_signed();
                continue;
            }
            let id = match &self.options.script {
                Some(script) => {
                    let line = place.0 + u64::from(choices[row].cast_unsigned());
                    scripted_id(script, (line, place.1), self.options.eos_id)
                }
                None => self.hashed_id(step, row)?,
            };
            let id = match step.mask(row) {
                _ if self.options.faults.ignore_masks => id,
                RowMask::None => id,
                RowMask::Ready(bits) => first_allowed(bits, id, self.vocabulary)?,
                RowMask::Late => {
                    statuses[row] = status::NOT_SAMPLED;
                    continue;
                }
            };
            ids[row] = id.cast_signed();
            self.last_ids[state_rows[row] as usize] = id;
            if self.options.faults.nan.contains(&place) {
                statuses[row] = status::NAN;
            }
            if self.options.faults.bad_id.contains(&place) {
                ids[row] = self.vocabulary.cast_signed();
            }
        }
        Ok((statuses, ids))
    }

    fn apply_deltas(&mut self, step: &Step) -> Result<(), String> {
        let (starts, counts) = (
            step.slice::<i32>("delta_starts"),
            step.slice::<i32>("delta_counts"),
        );
        let mut blocks = step.slice::<i32>("delta_blocks");
        for (index, row) in step.slice::<i32>("delta_rows").iter().enumerate() {
            let (start, count) = (starts[index] as usize, counts[index] as usize);
            let end = start.saturating_add(count);
            let first = *row as usize * self.table_length;
            let target = (end <= self.table_length)
                .then(|| self.tables.get_mut(first + start..first + end))
                .flatten()
                .filter(|_| count <= blocks.len())
                .ok_or_else(|| {
                    format!("delta {index}: row {row} positions {start}..{end} do not exist")
                })?;
            target.copy_from_slice(&blocks[..count]);
            blocks = &blocks[count..];
        }
        Ok(())
    }

    fn copy_blocks(&mut self, step: &Step) -> Result<(), String> {
        let (copies, rest) = step.slice::<i32>("block_copies").as_chunks::<4>();
        debug_assert!(rest.is_empty(), "four numbers make a copy");
        let (blocks, size) = (self.options.num_blocks.cast_signed(), self.block_size);
        for copy in copies {
            let [source, destination, count, kind] = *copy;
            let exists = |block: i32| (1..blocks).contains(&block);
            if !exists(source) || !exists(destination) || kind != 0 || count as usize > size {
                return Err(format!("block copy {copy:?}: the pool has {blocks} blocks"));
            }
            let first = source as usize * size;
            let beginning = first..first + count as usize;
            self.kv.copy_within(beginning, destination as usize * size);
        }
        Ok(())
    }

    fn store_tokens(&mut self, step: &Step) -> Result<(), String> {
        let slots = step.slice::<i64>("slots");
        let positions = step.slice::<i32>("positions");
        let starts = step.slice::<i32>("query_starts");
        let ids = step.slice::<i32>("token_ids");
        for (index, row) in step.slice::<i32>("rows").iter().enumerate() {
            for token in starts[index] as usize..starts[index + 1] as usize {
                let expected = self.slot(*row, positions[token] as usize)?;
                if slots[token] != expected as i64 || slots[token] < self.block_size as i64 {
                    return Err(format!(
                        "token {token} of row {row}: slot {} at position {}, the block table says {expected}",
                        slots[token], positions[token]
                    ));
                }
                self.kv[expected] = match ids[token] {
                    // Each id is taken once: what nobody sampled in between shows when it is read.
                    PLACEHOLDER => std::mem::replace(&mut self.last_ids[*row as usize], POISON),
                    id => id.cast_unsigned(),
                };
            }
        }
        Ok(())
    }

    fn slot(&self, row: i32, position: usize) -> Result<usize, String> {
        let place = position / self.block_size;
        let block = (place < self.table_length)
            .then(|| self.tables.get(row as usize * self.table_length + place))
            .flatten()
            .ok_or_else(|| format!("row {row} has no position {position}"))?;
        let slot = *block as usize * self.block_size + position % self.block_size;
        if slot < self.kv.len() {
            return Ok(slot);
        }
        Err(format!(
            "row {row} names block {block}, the pool has {}",
            self.options.num_blocks
        ))
    }

    /// The log probabilities that rows ask for, of ids and of the likeliest ids: every id has a made-up logit that anybody can
    /// compute again from the prefix. In hash mode those that are never sampled have no share.
    fn scores(&self, step: &Step, ids: &[i32]) -> Result<Scores, String> {
        let mut scores = Scores {
            logprobs: vec![0.0; ids.len()],
            ..Scores::default()
        };
        for (row, &count) in step.slice::<i32>("logprobs").iter().enumerate() {
            if count < 0 {
                continue;
            }
            let digest = xxh3_64(&self.prefix(step, row)?);
            let scripted = self.options.script.is_some();
            let mut all: Vec<(f32, u32)> = (0..self.vocabulary)
                .filter(|id| scripted || !self.skipped.contains(id))
                .map(|id| (logit(digest, id), id))
                .collect();
            let sum: f64 = all.iter().map(|&(logit, _)| f64::from(logit).exp()).sum();
            let logprob = |logit: f32| (f64::from(logit) - sum.ln()) as f32;
            scores.logprobs[row] = logprob(logit(digest, ids[row].cast_unsigned())).min(0.0);
            if count == 0 {
                continue;
            }
            all.sort_by(|(left, _), (right, _)| right.total_cmp(left));
            for (logit, id) in all.into_iter().take(count as usize) {
                scores.likely_ids.push(id.cast_signed());
                scores.likely_logprobs.push(logprob(logit));
            }
        }
        Ok(scores)
    }

    /// The next id of sampling row `row`, from the prefix that its token row has in KV.
    fn hashed_id(&self, step: &Step, row: usize) -> Result<u32, String> {
        let mut prefix = self.prefix(step, row)?;
        let choice = step.slice::<i32>("choice_index")[row];
        if choice > 0 {
            prefix.extend_from_slice(&choice.to_le_bytes());
        }
        Ok(next_id(&prefix, self.vocabulary, &self.skipped))
    }

    /// The bytes of the tokens up to the one whose row `row` samples.
    fn prefix(&self, step: &Step, row: usize) -> Result<Vec<u8>, String> {
        let token = step.slice::<i32>("sampling_tokens")[row] as usize;
        let ends = step.slice::<i32>("query_starts").iter().skip(1);
        let index = ends.take_while(|&&end| end as usize <= token).count();
        // A choice that is being forked has no table yet.
        let state_row = step.slice::<i32>("rows")[index];
        let length = step.slice::<i32>("positions")[token] as usize + 1;
        let mut prefix = Vec::with_capacity(length * 4);
        for position in 0..length {
            let id = self.kv[self.slot(state_row, position)?];
            if id == POISON {
                return Err(format!(
                    "row {state_row} reads position {position}, which was never written"
                ));
            }
            prefix.extend_from_slice(&id.to_le_bytes());
        }
        Ok(prefix)
    }
}

/// The one id that a row's bias leaves.
fn only_id(step: &Step, row: usize) -> Option<u32> {
    let offset = usize::try_from(step.slice::<i32>("bias_offset")[row]).ok()?;
    match step.slice::<u32>("side").get(offset..offset + 3)? {
        &[1, id, bits] if f32::from_bits(bits) >= ONLY => Some(id),
        _ => None,
    }
}

/// Log probabilities of a step's rows.
#[derive(Debug, Default)]
struct Scores {
    logprobs: Vec<f32>,
    likely_ids: Vec<i32>,
    likely_logprobs: Vec<f32>,
}

/// A made-up logit of an id after a prefix with this hash, from 0 to 8.
fn logit(prefix: u64, id: u32) -> f32 {
    let mixed = (prefix ^ u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 48) as f32 / 8192.0
}

/// `xxh3_64(prefix)`, for further choices with their index as one more id, modulo the vocabulary, stepped over skipped ids.
fn next_id(prefix: &[u8], vocabulary: u32, skipped: &HashSet<u32>) -> u32 {
    let mut id = (xxh3_64(prefix) % u64::from(vocabulary)) as u32;
    while skipped.contains(&id) {
        id = (id + 1) % vocabulary;
    }
    id
}

/// The first id from `id` on, the first after the last, that a mask allows.
fn first_allowed(bits: &[u32], id: u32, vocabulary: u32) -> Result<u32, String> {
    let within = |word: usize, kept: u32| {
        let found = bits[word] & kept;
        (found != 0).then(|| word as u32 * 32 + found.trailing_zeros())
    };
    let first = id as usize / 32;
    let behind = (first + 1..bits.len()).chain(0..=first);
    let found = within(first, u32::MAX << (id % 32))
        .or_else(|| behind.into_iter().find_map(|word| within(word, u32::MAX)));
    found
        .filter(|id| *id < vocabulary)
        .ok_or_else(|| "a mask allows no id of the vocabulary".to_owned())
}

fn scripted_id(script: &[Vec<u32>], (submission, index): (u64, u32), eos: u32) -> u32 {
    let line = &script[(submission % script.len() as u64) as usize];
    line.get(index as usize).copied().unwrap_or(eos)
}
