//! Masks on their way to the worker.

use std::sync::atomic::Ordering;

use diptych_core::SamplingRow;

use crate::arena::{Drawn, HostArenas};
use crate::layout::MASKS;

/// A sampling row that waits for its mask, or has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masked {
    row: usize,
    drawn: Drawn,
    /// Whether the mask was there when the step was launched.
    from_start: bool,
    delivered: bool,
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

    /// Writes the masks that are known, and marks the others as missing. Before the plan is published.
    pub(super) fn begin_masks<'a>(
        &self,
        image: usize,
        rows: &[SamplingRow],
        known: impl Fn(Drawn) -> Option<&'a [u32]>,
    ) -> Vec<Masked> {
        let rows = rows.iter().enumerate().filter(|(_, row)| row.masked);
        rows.map(|(row, sampling)| {
            let drawn = Drawn::of(sampling);
            let bits = known(drawn);
            let offset = self.mask_offset(image, row);
            self.side.half_word(offset).store(0, Ordering::Relaxed);
            if let Some(bits) = bits {
                self.write_mask(offset, bits);
            }
            Masked {
                row,
                drawn,
                from_start: bits.is_some(),
                delivered: bits.is_some(),
            }
        })
        .collect()
    }

    /// Hands a mask to a step that is in flight, if one draws under it.
    pub(crate) fn deliver_mask(&mut self, drawn: Drawn, bits: &[u32]) {
        let mut launched = std::mem::take(&mut self.launched);
        for step in &mut launched {
            let image = step.image;
            let masked = step.masked.iter_mut();
            for masked in masked.filter(|masked| masked.drawn == drawn && !masked.delivered) {
                masked.delivered = true;
                self.write_mask(self.mask_offset(image, masked.row), bits);
            }
        }
        self.launched = launched;
    }

    fn mask_offset(&self, image: usize, row: usize) -> usize {
        let words = self.layout.capacities.mask_words as usize;
        image * self.layout.side_bytes + self.layout.offsets[MASKS] + row * words * 4
    }

    fn write_mask(&self, offset: usize, bits: &[u32]) {
        let most = self.layout.capacities.mask_words as usize - 1;
        assert!(bits.len() <= most, "a mask of {} words", bits.len());
        self.side.write(offset + 4, bits);
        self.side.half_word(offset).store(1, Ordering::Release);
    }
}
