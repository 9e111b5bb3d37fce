//! The host's side of the arenas: plans are copied in, results are copied out once and then checked. The host never reads a plan back.

mod masks;
mod outcomes;
pub(crate) mod scoring;
mod shadow;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use diptych_core::{RowStatus, SamplingRow, StepPlan};

pub(crate) use crate::arena::masks::MaskPlace;
use crate::arena::masks::Masked;
pub(crate) use crate::arena::outcomes::{Drawn, Outcomes, Score};
use crate::arena::scoring::LogitRows;
use crate::grammar::MaskDesk;
use crate::layout::{
    Capacities, Count, ERROR_TEXT, FIELDS, Layout, field_index, plan_word, result_word,
};
use crate::memory::Plain;
use crate::os::SharedMemory;

/// The arenas of one worker incarnation.
#[derive(Debug)]
pub(crate) struct HostArenas {
    layout: Layout,
    plan: SharedMemory,
    side: Arc<SharedMemory>,
    result: SharedMemory,
    vocabulary: u32,
    words: Vec<u32>,
    /// Whence masks come while a step runs.
    desk: Arc<MaskDesk>,
    launched: VecDeque<Launched>,
    launches: u64,
    /// The step whose result each image held last.
    results: Vec<u64>,
    /// When the step that retired last had ended, by the worker's clock.
    last_end: u64,
    gap_ns: Option<u64>,
}

/// A step that was launched and has not retired.
#[derive(Debug)]
struct Launched {
    step: u64,
    image: usize,
    counts: [usize; Count::ALL.len()],
    /// Whether all that it computes is one token a row.
    decodes_only: bool,
    /// Whether the worker had to wait for nothing but us between the step before and this one.
    follows: bool,
    /// The ids of the scoring rows, which come last.
    scoring: Vec<u32>,
    /// Sampling rows whose log probability is wanted, with what they draw, and how many likeliest ids beside it.
    scored: Vec<(usize, Drawn, usize)>,
    /// Sampling rows that ask for continuations, and how many.
    beams: Vec<(usize, usize)>,
    /// Sampling rows that are drawn under a mask.
    masked: Vec<Masked>,
    /// Checksum of the plan, in debug builds: nothing may change a plan before its step has retired.
    shadow: Option<u64>,
}

impl Launched {
    fn rows(&self) -> usize {
        self.counts[5]
    }
}

/// What the result arena says about the oldest launched step.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Not published yet.
    Pending,
    /// The rows are in the caller's vector; the step took this long by the worker's clock.
    Rows { duration_ns: Option<u64> },
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
        desk: Arc<MaskDesk>,
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
            side: Arc::new(side),
            result,
            vocabulary,
            words: Vec::new(),
            desk,
            launched: VecDeque::new(),
            launches: 0,
            results: vec![0; copies],
            last_end: 0,
            gap_ns: None,
        };
        Ok((arenas, [plan_fd, side_fd, result_fd]))
    }

    /// Copies a plan into its image and publishes it, with the masks that are known. `at_once`: the step before has just retired.
    pub(crate) fn write_plan<'a>(
        &mut self,
        plan: &StepPlan,
        at_once: bool,
        known: impl Fn(Drawn) -> Option<&'a [u32]>,
    ) -> Result<(), Overflow> {
        let logits = LogitRows::of(plan);
        let counts = [
            plan.token_ids.len(),
            plan.rows.len(),
            plan.delta_rows.len(),
            plan.delta_blocks.len(),
            plan.block_copies.len(),
            logits.rows.len(),
            logits.side.len(),
            self.mask_words(&logits.rows),
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
        let image = self.layout.image(self.launches);
        self.launches += 1;
        self.write_token_rows(image, plan);
        self.write_sampling_rows(image, &logits.rows);
        self.side
            .write(image * self.layout.side_bytes, &logits.side);
        self.write_header(image, plan, counts);
        let masked = self.begin_masks(image, &logits.rows, known);
        self.launched.push_back(Launched {
            step: plan.step,
            image,
            counts,
            decodes_only: plan.num_decode_rows as usize == plan.rows.len(),
            follows: at_once || !self.launched.is_empty(),
            scoring: plan.scoring.iter().map(|row| row.id).collect(),
            scored: logits.scored(plan.sampling.len()),
            beams: logits.beams(),
            masked,
            shadow: cfg!(debug_assertions).then(|| self.checksum(image, &counts)),
        });
        let published = self
            .plan
            .word(image * self.layout.plan_bytes, plan_word::PUBLISHED);
        published.store(plan.step, Ordering::Release);
        Ok(())
    }

    /// Whether a launched step has not retired.
    pub(crate) fn in_flight(&self) -> bool {
        !self.launched.is_empty()
    }

    /// Whether one more step may be planned beside those in flight, as far as they are concerned.
    ///
    /// A step that computes prompts is long: planned over it, the next would save a moment, and what comes meanwhile would have to wait for
    /// one step more.
    pub(crate) fn may_plan_ahead(&self) -> bool {
        self.launched.iter().all(|step| step.decodes_only)
    }

    /// Forgets every step that was published on either side; only with nothing in flight.
    pub(crate) fn reset(&mut self) {
        for image in 0..self.layout.copies() {
            let plan = image * self.layout.plan_bytes;
            let result = image * self.layout.result_bytes;
            for word in [
                self.plan.word(plan, plan_word::PUBLISHED),
                self.result.word(result, result_word::PUBLISHED),
            ] {
                word.store(0, Ordering::Release);
            }
        }
        self.launches = 0;
        self.results.fill(0);
        self.last_end = 0;
    }

    fn write_header(&self, image: usize, plan: &StepPlan, counts: [usize; Count::ALL.len()]) {
        let set = |index, value| {
            let word = self.plan.word(image * self.layout.plan_bytes, index);
            word.store(value, Ordering::Relaxed);
        };
        set(plan_word::EPOCH, plan.epoch);
        set(plan_word::NUM_DECODE_ROWS, u64::from(plan.num_decode_rows));
        for (index, count) in counts.into_iter().enumerate() {
            set(plan_word::COUNTS + index, count as u64);
        }
    }

    fn write_token_rows(&self, image: usize, plan: &StepPlan) {
        self.write(image, "token_ids", &plan.token_ids);
        self.write(image, "positions", &plan.positions);
        self.write(image, "slots", &plan.slots);
        self.write(image, "rows", &plan.rows);
        self.write(image, "query_starts", &plan.query_starts);
        self.write(image, "sequence_lengths", &plan.sequence_lengths);
        self.write(image, "delta_rows", &plan.delta_rows);
        self.write(image, "delta_starts", &plan.delta_starts);
        self.write(image, "delta_counts", &plan.delta_counts);
        self.write(image, "delta_blocks", &plan.delta_blocks);
        self.write(image, "block_copies", plan.block_copies.as_flattened());
    }

    fn write_sampling_rows(&self, image: usize, rows: &[SamplingRow]) {
        let offset = |offset: Option<u32>| offset.map_or(-1, u32::cast_signed);
        self.each(image, rows, "sampling_tokens", |row| {
            row.token.cast_signed()
        });
        self.each(image, rows, "sampling_rows", |row| row.row.cast_signed());
        self.each(image, rows, "temperature", |row| row.temperature);
        self.each(image, rows, "top_k", |row| row.top_k.cast_signed());
        self.each(image, rows, "top_p", |row| row.top_p);
        self.each(image, rows, "min_p", |row| row.min_p);
        self.each(image, rows, "presence_penalty", |row| row.presence_penalty);
        self.each(image, rows, "frequency_penalty", |row| {
            row.frequency_penalty
        });
        self.each(image, rows, "repetition_penalty", |row| {
            row.repetition_penalty
        });
        self.each(image, rows, "seed", |row| row.seed.cast_signed());
        self.each(image, rows, "output_index", |row| {
            row.output_index.cast_signed()
        });
        self.each(image, rows, "choice_index", |row| {
            row.choice_index.cast_signed()
        });
        self.each(image, rows, "submission", |row| {
            row.submission.cast_signed()
        });
        self.each(image, rows, "penalty_offset", |row| {
            offset(row.penalty_offset)
        });
        self.each(image, rows, "bias_offset", |row| offset(row.bias_offset));
        self.each(image, rows, "logprobs", |row| match row.candidates {
            0 => i32::from(row.logprob) - 1,
            wanted => wanted as i32,
        });
        self.each(image, rows, "masked", |row| i32::from(row.masked));
    }

    fn write<T: Plain>(&self, image: usize, name: &str, values: &[T]) {
        self.plan
            .write(self.offset(image, name, size_of::<T>()), values);
    }

    fn each<T: Plain>(
        &self,
        image: usize,
        rows: &[SamplingRow],
        name: &str,
        value: impl Fn(&SamplingRow) -> T,
    ) {
        let offset = self.offset(image, name, size_of::<T>());
        self.plan.write_each(offset, rows.iter().map(value));
    }

    fn offset(&self, image: usize, name: &str, item: usize) -> usize {
        let Some(index) = field_index(name) else {
            unreachable!("no array is called {name}")
        };
        debug_assert_eq!(FIELDS[index].item.size(), item, "{name}");
        image * self.layout.plan_bytes + self.layout.offsets[index]
    }

    /// Looks for the result of the oldest launched step, whose number comes back; fills `into` with its rows' outcomes and adds to
    /// its scores.
    pub(crate) fn take_result(&mut self, epoch: u64, into: &mut Outcomes) -> (u64, Outcome) {
        let Some(oldest) = self.launched.front() else {
            return (0, Outcome::Pending);
        };
        let (step, image) = (oldest.step, oldest.image);
        let header = image * self.layout.result_bytes;
        let published = self.result.word(header, result_word::PUBLISHED);
        let published = published.load(Ordering::Acquire);
        if published == self.results[image] {
            return (step, Outcome::Pending);
        }
        let outcome = self.outcome(epoch, published, into);
        if matches!(outcome, Outcome::Rows { .. }) {
            self.results[image] = step;
            self.measure_gap(header);
            let retired = self.launched.pop_front();
            let masked = retired.map(|step| step.masked).unwrap_or_default();
            self.end_masks(&masked);
            into.masked.clear();
            into.masked.extend(masked.iter().map(Masked::place));
        }
        (step, outcome)
    }

    /// How long the worker did nothing before the step that retired last, if that was only because it had no plan: nanoseconds of its clock.
    pub(crate) fn gap_ns(&self) -> Option<u64> {
        self.gap_ns
    }

    fn measure_gap(&mut self, header: usize) {
        let time = |index| {
            let word = self.result.word(header, result_word::TIMES + index);
            word.load(Ordering::Relaxed)
        };
        let (start, end) = (time(0), time(3));
        let follows = self.launched[0].follows && self.last_end > 0;
        self.gap_ns = start.checked_sub(self.last_end).filter(|_| follows);
        self.last_end = end;
    }

    fn outcome(&mut self, epoch: u64, published: u64, into: &mut Outcomes) -> Outcome {
        let oldest = &self.launched[0];
        let (step, rows) = (oldest.step, oldest.rows());
        if published != step {
            return Outcome::Garbage(format!("it published step {published} instead of {step}"));
        }
        let header = oldest.image * self.layout.result_bytes;
        let word = |index| self.result.word(header, index).load(Ordering::Relaxed);
        let (result_epoch, error) = (word(result_word::EPOCH), word(result_word::ERROR));
        if result_epoch != epoch {
            return Outcome::Garbage(format!(
                "its result of step {step} is of epoch {result_epoch}, not {epoch}"
            ));
        }
        if let Some(shadow) = oldest.shadow
            && shadow != self.checksum(oldest.image, &oldest.counts)
        {
            return Outcome::Garbage(format!("the plan of step {step} was changed in flight"));
        }
        match error {
            0 => match self.rows(header, step, rows, &mut into.rows) {
                retired @ Outcome::Rows { .. } => match self.scores(header, step, into) {
                    Ok(()) => {
                        self.candidates(header, into);
                        let scoring = self.launched[0].scoring.len();
                        into.rows.truncate(into.rows.len() - scoring);
                        retired
                    }
                    Err(garbage) => Outcome::Garbage(garbage),
                },
                other => other,
            },
            1 => self.raised(header, step),
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
        let masked = &self.launched[0].masked;
        let may_miss = |row| masked.iter().any(|masked| masked.may_miss(row));
        into.clear();
        for (row, (status, id)) in statuses.iter().zip(ids).enumerate() {
            let status = match status {
                0 if *id >= self.vocabulary => RowStatus::BadId,
                0 => RowStatus::Ok,
                1 => RowStatus::Nan,
                2 => RowStatus::BadId,
                3 if may_miss(row) => RowStatus::NotSampled,
                3 => {
                    return Outcome::Garbage(format!(
                        "its result of step {step} left row {row} unsampled, which waits for no mask"
                    ));
                }
                other => {
                    return Outcome::Garbage(format!(
                        "its result of step {step} has status {} in row {row}",
                        other.cast_signed()
                    ));
                }
            };
            into.push((status, *id));
        }
        Outcome::Rows {
            duration_ns: self.duration_ns(image),
        }
    }

    /// From the start to the end of a step; `None` where the worker's times are in no order.
    fn duration_ns(&self, image: usize) -> Option<u64> {
        let time = |index| {
            let word = self.result.word(image, result_word::TIMES + index);
            word.load(Ordering::Relaxed)
        };
        let (start, end) = (time(0), time(3));
        end.checked_sub(start)
            .filter(|duration| start > 0 && *duration > 0)
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
}

#[cfg(test)]
mod tests;
