//! A request that the core has: its choices, until the last of them has ended.

use diptych_core::{Core, Handle};

use crate::engine::logged_core::LoggedCore;
use crate::now_ns;
use crate::shared::Open;

/// One request, by its handles.
#[derive(Debug)]
pub(super) struct Live {
    /// One for each choice.
    handles: Vec<Handle>,
    /// Choices that the core has not finished.
    open: u32,
}

impl Live {
    pub(super) fn new(core: &Core, first: Handle, open: &Open) -> Self {
        let choices = 0..open.params.n;
        Self {
            handles: choices
                .map(|index| {
                    core.choice(first, index)
                        .expect("the core has just taken it")
                })
                .collect(),
            open: open.params.n,
        }
    }

    pub(super) fn choices(&self) -> u32 {
        self.handles.len() as u32
    }

    pub(super) fn handle(&self, choice: u32) -> Handle {
        self.handles[choice as usize]
    }

    pub(super) fn abort(&self, core: &mut LoggedCore) {
        for handle in &self.handles {
            core.abort(*handle, now_ns());
        }
    }

    /// One more choice has ended; whether it was the last.
    pub(super) fn ends(&mut self) -> bool {
        self.open -= 1;
        self.open == 0
    }
}
