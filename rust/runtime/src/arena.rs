//! The host's side of the arenas: plans are copied in, results are copied out once and then checked. The host never reads a plan back.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use diptych_core::{RowStatus, SamplingRow, StepPlan};

use crate::layout::{
    Capacities, Count, ERROR_TEXT, FIELDS, Layout, SIDE, field_index, plan_word, result_word,
};
use crate::memory::Plain;
use crate::os::SharedMemory;

/// The arenas of one worker incarnation.
#[derive(Debug)]
pub(crate) struct HostArenas {
    layout: Layout,
    plan: SharedMemory,
    side: SharedMemory,
    result: SharedMemory,
    vocabulary: u32,
    words: Vec<u32>,
    /// Checksums of the launched plans, in debug builds: nothing may change a plan before its step has retired.
    shadows: VecDeque<u64>,
    counts: VecDeque<[usize; Count::ALL.len()]>,
}

/// What the result arena says about the oldest launched step.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Not published yet.
    Pending,
    /// The rows are in the caller's vector.
    Rows,
    /// The step raised.
    Raised { class: String, message: String },
    /// Nothing that a working worker writes.
    Garbage(String),
}

/// A plan that does not fit its arena: a bug of the capacities or of the core.
#[derive(Debug, thiserror::Error)]
#[error("step {step} has {entries} {count:?}, the arena holds {capacity}")]
pub(crate) struct Overflow {
    step: u64,
    count: Count,
    entries: usize,
    capacity: usize,
}

impl HostArenas {
    /// Fresh arenas, and their descriptors for the worker in the order plan, side, result.
    pub(crate) fn create(
        capacities: Capacities,
        vocabulary: u32,
    ) -> std::io::Result<(Self, [OwnedFd; 3])> {
        let layout = Layout::new(capacities);
        let copies = layout.copies();
        let (plan, plan_fd) = SharedMemory::create("diptych-plan", layout.plan_bytes * copies)?;
        let (side, side_fd) = SharedMemory::create("diptych-side", layout.side_bytes * copies)?;
        let (result, result_fd) =
            SharedMemory::create("diptych-result", layout.result_bytes * copies)?;
        let arenas = Self {
            layout,
            plan,
            side,
            result,
            vocabulary,
            words: Vec::new(),
            shadows: VecDeque::new(),
            counts: VecDeque::new(),
        };
        Ok((arenas, [plan_fd, side_fd, result_fd]))
    }

    /// Copies a plan into its image and publishes it.
    pub(crate) fn write_plan(&mut self, plan: &StepPlan) -> Result<(), Overflow> {
        let counts = [
            plan.token_ids.len(),
            plan.rows.len(),
            plan.delta_rows.len(),
            plan.delta_blocks.len(),
            plan.block_copies.len(),
            plan.sampling.len(),
            plan.side.len(),
        ];
        for (count, entries) in Count::ALL.into_iter().zip(counts) {
            let capacity = self.layout.capacities.of(count);
            if entries > capacity {
                return Err(Overflow {
                    step: plan.step,
                    count,
                    entries,
                    capacity,
                });
            }
        }
        self.write_token_rows(plan);
        self.write_sampling_rows(plan);
        let side = self.layout.image(plan.step) * self.layout.side_bytes;
        self.side.write(side, &plan.side);
        self.publish(plan, counts);
        if cfg!(debug_assertions) {
            self.shadows.push_back(self.checksum(plan.step, &counts));
            self.counts.push_back(counts);
        }
        Ok(())
    }

    fn publish(&self, plan: &StepPlan, counts: [usize; Count::ALL.len()]) {
        let image = self.layout.image(plan.step) * self.layout.plan_bytes;
        let set = |index, value| {
            let word = self.plan.word(image, index);
            word.store(value, Ordering::Relaxed);
        };
        set(plan_word::EPOCH, plan.epoch);
        set(plan_word::NUM_DECODE_ROWS, u64::from(plan.num_decode_rows));
        for (index, count) in counts.into_iter().enumerate() {
            set(plan_word::COUNTS + index, count as u64);
        }
        let published = self.plan.word(image, plan_word::PUBLISHED);
        published.store(plan.step, Ordering::Release);
    }

    fn write_token_rows(&self, plan: &StepPlan) {
        let step = plan.step;
        self.write(step, "token_ids", &plan.token_ids);
        self.write(step, "positions", &plan.positions);
        self.write(step, "slots", &plan.slots);
        self.write(step, "rows", &plan.rows);
        self.write(step, "query_starts", &plan.query_starts);
        self.write(step, "sequence_lengths", &plan.sequence_lengths);
        self.write(step, "delta_rows", &plan.delta_rows);
        self.write(step, "delta_starts", &plan.delta_starts);
        self.write(step, "delta_counts", &plan.delta_counts);
        self.write(step, "delta_blocks", &plan.delta_blocks);
        self.write(step, "block_copies", plan.block_copies.as_flattened());
    }

    fn write_sampling_rows(&self, plan: &StepPlan) {
        let offset = |offset: Option<u32>| offset.map_or(-1, u32::cast_signed);
        self.each(plan, "sampling_tokens", |row| row.token.cast_signed());
        self.each(plan, "sampling_rows", |row| row.row.cast_signed());
        self.each(plan, "temperature", |row| row.temperature);
        self.each(plan, "top_k", |row| row.top_k.cast_signed());
        self.each(plan, "top_p", |row| row.top_p);
        self.each(plan, "min_p", |row| row.min_p);
        self.each(plan, "presence_penalty", |row| row.presence_penalty);
        self.each(plan, "frequency_penalty", |row| row.frequency_penalty);
        self.each(plan, "repetition_penalty", |row| row.repetition_penalty);
        self.each(plan, "seed", |row| row.seed.cast_signed());
        self.each(plan, "output_index", |row| row.output_index.cast_signed());
        self.each(plan, "choice_index", |row| row.choice_index.cast_signed());
        self.each(plan, "submission", |row| row.submission.cast_signed());
        self.each(plan, "penalty_offset", |row| offset(row.penalty_offset));
        self.each(plan, "bias_offset", |row| offset(row.bias_offset));
        self.each(plan, "logprobs", |_| -1_i32);
    }

    fn write<T: Plain>(&self, step: u64, name: &str, values: &[T]) {
        self.plan
            .write(self.offset(step, name, size_of::<T>()), values);
    }

    fn each<T: Plain>(&self, plan: &StepPlan, name: &str, value: impl Fn(&SamplingRow) -> T) {
        let offset = self.offset(plan.step, name, size_of::<T>());
        self.plan
            .write_each(offset, plan.sampling.iter().map(value));
    }

    fn offset(&self, step: u64, name: &str, item: usize) -> usize {
        let Some(index) = field_index(name) else {
            unreachable!("no array is called {name}")
        };
        debug_assert_eq!(FIELDS[index].item.size(), item, "{name}");
        self.layout.image(step) * self.layout.plan_bytes + self.layout.offsets[index]
    }

    /// Looks for the result of `step`, which sampled `rows` rows; fills `into` with their outcomes.
    pub(crate) fn take_result(
        &mut self,
        epoch: u64,
        step: u64,
        rows: usize,
        into: &mut Vec<(RowStatus, u32)>,
    ) -> Outcome {
        let image = self.layout.image(step) * self.layout.result_bytes;
        let published = self.result.word(image, result_word::PUBLISHED);
        let published = published.load(Ordering::Acquire);
        if published != step {
            let previous = step.saturating_sub(self.layout.copies() as u64);
            if published == previous || published == 0 {
                return Outcome::Pending;
            }
            return Outcome::Garbage(format!("it published step {published} instead of {step}"));
        }
        let word = |index| self.result.word(image, index).load(Ordering::Relaxed);
        let (result_epoch, error) = (word(result_word::EPOCH), word(result_word::ERROR));
        if result_epoch != epoch {
            return Outcome::Garbage(format!(
                "its result of step {step} is of epoch {result_epoch}, not {epoch}"
            ));
        }
        if let Some(changed) = self.check_shadow(step) {
            return Outcome::Garbage(changed);
        }
        match error {
            0 => self.rows(image, step, rows, into),
            1 => self.raised(image, step),
            code => Outcome::Garbage(format!("its result of step {step} has error code {code}")),
        }
    }

    fn rows(
        &mut self,
        image: usize,
        step: u64,
        rows: usize,
        into: &mut Vec<(RowStatus, u32)>,
    ) -> Outcome {
        self.words.clear();
        let (status, ids) = (image + self.layout.status, image + self.layout.ids);
        self.result.read_u32(status, rows, &mut self.words);
        self.result.read_u32(ids, rows, &mut self.words);
        let (statuses, ids) = self.words.split_at(rows);
        into.clear();
        for (row, (status, id)) in statuses.iter().zip(ids).enumerate() {
            let status = match status {
                0 if *id >= self.vocabulary => RowStatus::BadId,
                0 => RowStatus::Ok,
                1 => RowStatus::Nan,
                2 => RowStatus::BadId,
                3 => RowStatus::NotSampled,
                other => {
                    return Outcome::Garbage(format!(
                        "its result of step {step} has status {} in row {row}",
                        other.cast_signed()
                    ));
                }
            };
            into.push((status, *id));
        }
        Outcome::Rows
    }

    fn raised(&self, image: usize, step: u64) -> Outcome {
        let length = |index| self.result.word(image, index).load(Ordering::Relaxed) as usize;
        let (class, message) = (
            length(result_word::CLASS_BYTES),
            length(result_word::MESSAGE_BYTES),
        );
        if class > ERROR_TEXT || message > ERROR_TEXT || class + message > ERROR_TEXT {
            return Outcome::Garbage(format!(
                "its error of step {step} has a text of {class} and {message} bytes"
            ));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let bytes = self
            .result
            .read_bytes(image + self.layout.error_text, class + message);
        Outcome::Raised {
            class: text(&bytes[..class]),
            message: text(&bytes[class..]),
        }
    }

    fn check_shadow(&mut self, step: u64) -> Option<String> {
        let (expected, counts) = (self.shadows.pop_front()?, self.counts.pop_front()?);
        let found = self.checksum(step, &counts);
        (found != expected).then(|| format!("the plan of step {step} was changed in flight"))
    }

    /// Over every used byte of a plan image and its side data.
    fn checksum(&self, step: u64, counts: &[usize; Count::ALL.len()]) -> u64 {
        let layout = &self.layout;
        let image = layout.image(step);
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for (index, field) in FIELDS.iter().enumerate() {
            let bytes = field.items(counts[field.count as usize]) * field.item.size();
            let part = if index == SIDE {
                self.side.read_bytes(image * layout.side_bytes, bytes)
            } else {
                let offset = image * layout.plan_bytes + layout.offsets[index];
                self.plan.read_bytes(offset, bytes)
            };
            hasher.update(&part);
        }
        let header = (0..plan_word::COUNTS + counts.len())
            .map(|index| self.plan.word(image * layout.plan_bytes, index));
        for word in header {
            hasher.update(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        hasher.digest()
    }
}
