//! Which outputs of a request may be drawn: each under a mask that somebody else computes.
//!
//! A row is planned before its mask is known, so that the mask can be computed while the step runs.
//! Where it comes too late the worker samples nothing ([`crate::RowStatus::NotSampled`]), the row sits out
//! until the mask is there, and its next outputs are planned only once their masks are: computing
//! them in vain would cost the others' time. Nobody else waits.

use crate::{Core, Error, Handle};

/// Outputs after a late mask that are not planned before their masks are known.
const WARY: u32 = 8;

/// The masks of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// Whether every output is drawn under one.
    pub(crate) wanted: bool,
    /// Outputs whose masks are known: those before this index.
    pub(crate) known: u32,
    /// First output that is planned whether or not its mask is known.
    pub(crate) trusted_from: u32,
}

impl Masks {
    pub(crate) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Whether the output of this index may be planned.
    pub(crate) fn allow(self, index: u32) -> bool {
        !self.wanted || index < self.known || index >= self.trusted_from
    }

    /// The mask of this output came too late.
    pub(crate) fn missed(&mut self, index: u32) {
        if self.wanted {
            self.trusted_from = index + WARY;
        }
    }
}

impl Core {
    pub(crate) fn know_mask(&mut self, handle: Handle, index: u32) -> Result<(), Error> {
        let Some(slot) = self.requests.resolve(handle) else {
            return Ok(());
        };
        let request = &mut self.requests[slot];
        let committed = request.outputs();
        if !request.masks.wanted || index > committed {
            return Err(Error::Mask {
                index,
                committed,
                wanted: request.masks.wanted,
            });
        }
        request.masks.known = request.masks.known.max(index + 1);
        // Choices that have no output yet all begin alike.
        let others = std::mem::take(&mut request.unforked);
        for &other in &others {
            self.requests[other].masks.known = 1;
        }
        self.requests[slot].unforked = others;
        Ok(())
    }
}
