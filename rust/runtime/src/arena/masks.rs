//! Masks on their way to the worker.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use diptych_core::SamplingRow;

use crate::arena::{Drawn, HostArenas};
use crate::layout::MASKS;
use crate::os::SharedMemory;

/// A sampling row that is drawn under a mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masked {
    row: usize,
    drawn: Drawn,
    /// Whether the mask was there when the step was launched.
    from_start: bool,
}

impl Masked {
    /// Whether the worker may have found no mask for sampling row `row`.
    pub(super) fn may_miss(&self, row: usize) -> bool {
        self.row == row && !self.from_start
    }

    pub(super) fn place(&self) -> (usize, Drawn) {
        (self.row, self.drawn)
    }
}

/// Where the mask of a launched step's sampling row belongs. Any thread may write it, once, until the step has retired.
#[derive(Debug)]
pub(crate) struct MaskPlace {
    side: Arc<SharedMemory>,
    offset: usize,
    /// Words that a mask may have.
    words: usize,
}

impl MaskPlace {
    /// Writes the mask and says that it is there.
    pub(crate) fn write(&self, bits: &[u32]) {
        assert!(bits.len() <= self.words, "a mask of {} words", bits.len());
        self.side.write(self.offset + 4, bits);
        self.ready_word().store(1, Ordering::Release);
    }

    fn clear(&self) {
        self.ready_word().store(0, Ordering::Relaxed);
    }

    fn ready_word(&self) -> &std::sync::atomic::AtomicU32 {
        self.side.half_word(self.offset)
    }
}

impl Drawn {
    pub(crate) fn of(row: &SamplingRow) -> Self {
        Self {
            request: row.submission,
            choice: row.choice_index,
            index: row.output_index,
        }
    }
}

impl HostArenas {
    /// Words of all masks of a plan: none where no row has one.
    pub(super) fn mask_words(&self, rows: &[SamplingRow]) -> usize {
        if rows.iter().any(|row| row.masked) {
            rows.len() * self.layout.capacities.mask_words as usize
        } else {
            0
        }
    }

    /// Writes the masks that are known, and asks for the others. Before the plan is published.
    pub(super) fn begin_masks<'a>(
        &self,
        image: usize,
        rows: &[SamplingRow],
        known: impl Fn(Drawn) -> Option<&'a [u32]>,
    ) -> Vec<Masked> {
        let mut wanted = Vec::new();
        let rows = rows.iter().enumerate().filter(|(_, row)| row.masked);
        let masked = rows.map(|(row, sampling)| {
            let drawn = Drawn::of(sampling);
            let bits = known(drawn);
            let place = self.mask_place(image, row);
            place.clear();
            match bits {
                Some(bits) => place.write(bits),
                None => wanted.push((drawn, place)),
            }
            Masked {
                row,
                drawn,
                from_start: bits.is_some(),
            }
        });
        let masked = masked.collect();
        self.desk.want(wanted);
        masked
    }

    /// The step with these rows has retired, or never will.
    pub(super) fn end_masks(&self, masked: &[Masked]) {
        let waited = masked.iter().filter(|masked| !masked.from_start);
        self.desk.withdraw(waited.map(|masked| masked.drawn));
    }

    fn mask_place(&self, image: usize, row: usize) -> MaskPlace {
        let words = self.layout.capacities.mask_words as usize;
        MaskPlace {
            side: Arc::clone(&self.side),
            offset: image * self.layout.side_bytes + self.layout.offsets[MASKS] + row * words * 4,
            words: words - 1,
        }
    }
}

impl Drop for HostArenas {
    fn drop(&mut self) {
        for step in &self.launched {
            self.end_masks(&step.masked);
        }
    }
}
