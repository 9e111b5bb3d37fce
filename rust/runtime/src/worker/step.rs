//! One step as the worker sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::layout::{
    CANDIDATES, Count, ERROR_TEXT, FIELDS, Item, Layout, SIDE, field_index, plan_word, result_word,
};
use crate::memory::Plain;
use crate::os::{EventFd, SharedMemory, now_ns};
use crate::worker::PortError;

/// The three arenas and the eventfd that announces results.
#[derive(Debug)]
pub(crate) struct WorkerArenas {
    pub(crate) layout: Layout,
    pub(crate) plan: SharedMemory,
    pub(crate) side: SharedMemory,
    pub(crate) result: SharedMemory,
    pub(crate) results: EventFd,
}

impl WorkerArenas {
    /// The number of the `launch`-th launched step if the host has published it; the step before was `last`.
    pub(crate) fn published(&self, launch: u64, last: u64) -> Option<u64> {
        let image = self.layout.image(launch) * self.layout.plan_bytes;
        let published = self.plan.word(image, plan_word::PUBLISHED);
        // Numbers ascend, so whatever the image held before is not above the step before.
        Some(published.load(Ordering::Acquire)).filter(|step| *step > last)
    }
}

/// A moment within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Work begins; set to the moment in which the step was taken otherwise.
    Start,
    /// The prefill rows are through the model.
    PrefillDone,
    /// The decode rows are through the model.
    DecodeDone,
}

/// A planned step. Its arrays are valid until it is published.
#[derive(Debug)]
pub struct Step {
    arenas: Arc<WorkerArenas>,
    epoch: u64,
    number: u64,
    image: usize,
    num_decode_rows: usize,
    counts: [usize; Count::ALL.len()],
    published: AtomicBool,
}

/// Which ids a sampling row may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowMask<'a> {
    /// Any.
    None,
    /// Not known: the row is not sampled.
    Late,
    /// Bit `id % 32` of word `id / 32`.
    Ready(&'a [u32]),
}

/// One array of a step: a view into shared memory that keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Array {
    arenas: Arc<WorkerArenas>,
    in_side: bool,
    offset: usize,
    items: usize,
    item: Item,
}

impl Array {
    /// Address of the first item; valid as long as this value, meaningful until its step is published.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        let arena = if self.in_side {
            &self.arenas.side
        } else {
            &self.arenas.plan
        };
        arena.at::<u8>(self.offset, self.items * self.item.size())
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items
    }

    /// Whether there is no item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Type of the items.
    #[must_use]
    pub fn item(&self) -> Item {
        self.item
    }
}

impl Step {
    /// Takes a published step after checking its header.
    pub(crate) fn take(
        arenas: &Arc<WorkerArenas>,
        epoch: u64,
        launch: u64,
        step: u64,
    ) -> Result<Self, PortError> {
        let layout = &arenas.layout;
        let image = layout.image(launch);
        let header = image * layout.plan_bytes;
        let word = |index| arenas.plan.word(header, index).load(Ordering::Relaxed);
        let planned = word(plan_word::EPOCH);
        if planned != epoch {
            return Err(PortError::Protocol(format!(
                "step {step} is of epoch {planned}, this worker is epoch {epoch}"
            )));
        }
        let mut counts = [0; Count::ALL.len()];
        for (index, count) in Count::ALL.into_iter().enumerate() {
            counts[index] = word(plan_word::COUNTS + index) as usize;
            let capacity = layout.capacities.of(count);
            if counts[index] > capacity {
                return Err(PortError::Protocol(format!(
                    "step {step} has {} {count:?}, at most {capacity} fit",
                    counts[index]
                )));
            }
        }
        let taken = Self {
            arenas: Arc::clone(arenas),
            epoch,
            number: step,
            image,
            num_decode_rows: word(plan_word::NUM_DECODE_ROWS) as usize,
            counts,
            published: AtomicBool::new(false),
        };
        taken.mark(Mark::Start);
        for mark in [Mark::PrefillDone, Mark::DecodeDone] {
            taken.result_word(mark_word(mark), 0);
        }
        Ok(taken)
    }

    /// Incarnation of the worker.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the step, from 1.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.number
    }

    /// `T`: tokens to compute.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.counts[0]
    }

    /// `R`: token rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.counts[1]
    }

    /// Leading token rows that decode one token.
    #[must_use]
    pub fn num_decode_rows(&self) -> usize {
        self.num_decode_rows
    }

    /// `S`: sampling rows.
    #[must_use]
    pub fn num_sampling_rows(&self) -> usize {
        self.counts[5]
    }

    /// The array called `name`, or `None` if no array is called so.
    #[must_use]
    pub fn array(&self, name: &str) -> Option<Array> {
        let index = field_index(name)?;
        let layout = &self.arenas.layout;
        let field = &FIELDS[index];
        let image = self.image;
        let in_side = index >= SIDE;
        let image_bytes = if in_side {
            layout.side_bytes
        } else {
            layout.plan_bytes
        };
        let offset = image * image_bytes + layout.offsets[index];
        Some(Array {
            arenas: Arc::clone(&self.arenas),
            in_side,
            offset,
            items: field.items(self.counts[field.count as usize]),
            item: field.item,
        })
    }

    /// The mask of sampling row `row`, as far as it is there. To be asked for when the row's logits are.
    ///
    /// # Panics
    /// If the step has no such row.
    #[must_use]
    pub fn mask(&self, row: usize) -> RowMask<'_> {
        if self.slice::<i32>("masked")[row] == 0 {
            return RowMask::None;
        }
        let words = self.arenas.layout.capacities.mask_words as usize;
        let masks = self.array("masks").expect("every plan has it");
        assert_eq!(masks.items, self.num_sampling_rows() * words, "masks");
        let offset = masks.offset + row * words * 4;
        let ready = self.arenas.side.half_word(offset);
        if ready.load(Ordering::Acquire) == 0 {
            return RowMask::Late;
        }
        let bits = self.arenas.side.at::<u32>(offset + 4, words - 1);
        // SAFETY: inside the mapping, which `self` keeps alive; whoever sees the ready word sees all of the mask, which the host
        // leaves alone from then on until the step is published.
        RowMask::Ready(unsafe { std::slice::from_raw_parts(bits, words - 1) })
    }

    /// The array called `name` as a slice of its item type. Not for masks, which change.
    pub(crate) fn slice<T: Plain>(&self, name: &str) -> &[T] {
        let Some(array) = self.array(name) else {
            panic!("no array is called {name}");
        };
        assert_eq!(array.item.size(), size_of::<T>(), "{name}");
        // SAFETY: inside the mapping, which `self` keeps alive; the host leaves the image alone until the step is published, and the borrow
        // of `self` ends before that matters: images are reused only for steps that are taken later.
        unsafe { std::slice::from_raw_parts(array.address().cast::<T>(), array.items) }
    }

    /// Records the present time for `mark`.
    pub fn mark(&self, mark: Mark) {
        self.result_word(mark_word(mark), now_ns());
    }

    /// Gives the result to the host: `[S]` status (0 ok, 1 NaN, 2 bad id, 3 not sampled), `[S]` sampled ids, and `[S]` their log
    /// probabilities, which may be missing where no row asks for them.
    ///
    /// # Errors
    /// [`PortError::Usage`] if a length is not `S`, what was asked for is missing, or the step was published before.
    pub fn publish(
        &self,
        status: &[i32],
        ids: &[i32],
        logprobs: Option<&[f32]>,
    ) -> Result<(), PortError> {
        self.publish_all(status, ids, logprobs, (&[], &[]))
    }

    /// As [`Self::publish`], with ids and log probabilities of likeliest continuations: for each row whose `logprobs` is above 0 so many,
    /// best first, one row's after the other's.
    ///
    /// # Errors
    /// Those of [`Self::publish`].
    pub fn publish_all(
        &self,
        status: &[i32],
        ids: &[i32],
        logprobs: Option<&[f32]>,
        candidates: (&[i32], &[f32]),
    ) -> Result<(), PortError> {
        let rows = self.num_sampling_rows();
        let given = logprobs.map_or(rows, <[f32]>::len);
        if status.len() != rows || ids.len() != rows || given != rows {
            return Err(PortError::Usage(format!(
                "step {} samples {rows} rows, published are {} status values, {} ids and {given} log probabilities",
                self.number,
                status.len(),
                ids.len()
            )));
        }
        let wanted = self.slice::<i32>("logprobs");
        self.check_candidates(wanted, candidates)?;
        if logprobs.is_none() && wanted.contains(&0) {
            return Err(PortError::Usage(format!(
                "step {} asks for log probabilities, none are published",
                self.number
            )));
        }
        let layout = &self.arenas.layout;
        let image = self.image * layout.result_bytes;
        self.begin_publication()?;
        self.arenas.result.write(image + layout.status, status);
        self.arenas.result.write(image + layout.ids, ids);
        if let Some(logprobs) = logprobs {
            self.arenas.result.write(image + layout.logprobs, logprobs);
        }
        let (mut ids, mut logprobs) = candidates;
        for (row, &count) in wanted.iter().enumerate().filter(|(_, count)| **count > 0) {
            let place = row * CANDIDATES * 4;
            let (own_ids, own_logprobs);
            (own_ids, ids) = ids.split_at(count as usize);
            (own_logprobs, logprobs) = logprobs.split_at(count as usize);
            let result = &self.arenas.result;
            result.write(image + layout.candidate_ids + place, own_ids);
            result.write(image + layout.candidate_logprobs + place, own_logprobs);
        }
        self.result_word(result_word::ERROR, 0);
        self.end_publication();
        Ok(())
    }

    fn check_candidates(&self, wanted: &[i32], given: (&[i32], &[f32])) -> Result<(), PortError> {
        let of_rows = wanted.iter().map(|&count| count.max(0) as usize);
        let (most, all) = (of_rows.clone().max().unwrap_or(0), of_rows.sum::<usize>());
        if most <= CANDIDATES && given.0.len() == all && given.1.len() == all {
            return Ok(());
        }
        Err(PortError::Usage(format!(
            "step {} asks for {all} continuations, at most {CANDIDATES} a row, published are {} ids and {} log probabilities",
            self.number,
            given.0.len(),
            given.1.len()
        )))
    }

    /// Tells the host that the step raised. The host ends this worker and starts another.
    ///
    /// # Errors
    /// [`PortError::Usage`] if the step was published before.
    pub fn publish_error(&self, error_class: &str, message: &str) -> Result<(), PortError> {
        let layout = &self.arenas.layout;
        let image = self.image * layout.result_bytes;
        self.begin_publication()?;
        let class = truncated(error_class, ERROR_TEXT / 4);
        let message = truncated(message, ERROR_TEXT - class.len());
        let text = image + layout.error_text;
        self.arenas.result.write(text, class.as_bytes());
        self.arenas
            .result
            .write(text + class.len(), message.as_bytes());
        self.result_word(result_word::CLASS_BYTES, class.len() as u64);
        self.result_word(result_word::MESSAGE_BYTES, message.len() as u64);
        self.result_word(result_word::ERROR, 1);
        self.end_publication();
        Ok(())
    }

    fn begin_publication(&self) -> Result<(), PortError> {
        if self.published.swap(true, Ordering::Relaxed) {
            return Err(PortError::Usage(format!(
                "step {} was published before",
                self.number
            )));
        }
        Ok(())
    }

    fn end_publication(&self) {
        self.result_word(result_word::EPOCH, self.epoch);
        self.result_word(result_word::TIMES + 3, now_ns());
        let layout = &self.arenas.layout;
        let image = self.image * layout.result_bytes;
        let published = self.arenas.result.word(image, result_word::PUBLISHED);
        published.store(self.number, Ordering::Release);
        self.arenas.results.raise();
    }

    fn result_word(&self, index: usize, value: u64) {
        let layout = &self.arenas.layout;
        let image = self.image * layout.result_bytes;
        let word = self.arenas.result.word(image, index);
        word.store(value, Ordering::Relaxed);
    }
}

fn mark_word(mark: Mark) -> usize {
    match mark {
        Mark::Start => result_word::TIMES,
        Mark::PrefillDone => result_word::TIMES + 1,
        Mark::DecodeDone => result_word::TIMES + 2,
    }
}

/// The longest prefix of `text` of at most `limit` bytes that is whole characters.
fn truncated(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
