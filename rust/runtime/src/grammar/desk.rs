//! Where masks are handed over: at once to the launched step that draws under them, and to the engine thread when it next looks.
//!
//! A mask that a launched step waits for is of no use to the engine thread before that step has retired, so nobody wakes it; its steps
//! are planned while the masks of the step before are still being computed.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::arena::{Drawn, MaskPlace};
use crate::grammar::MaskDone;
use crate::shared::lock;

#[derive(Debug, Default)]
pub(crate) struct MaskDesk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where launched steps wait for their masks.
    wanted: HashMap<Drawn, MaskPlace>,
    /// What the engine thread has not taken.
    done: Vec<MaskDone>,
    /// Whether it was called since it took the last.
    called: bool,
}

impl MaskDesk {
    /// A step that is about to be launched draws under these masks. Those that are done are written now, the others as soon as they are.
    pub(crate) fn want(&self, wanted: Vec<(Drawn, MaskPlace)>) {
        if wanted.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        for (drawn, place) in wanted {
            let mut done = state.done.iter();
            let done = done.find(|done| done.drawn == drawn);
            match done.map(|done| &done.bits) {
                Some(Ok(bits)) => place.write(bits),
                Some(Err(_)) | None => {
                    state.wanted.insert(drawn, place);
                }
            }
        }
    }

    /// The step that waited for these masks reads them no more.
    pub(crate) fn withdraw(&self, unwanted: impl Iterator<Item = Drawn>) {
        let mut unwanted = unwanted.peekable();
        if unwanted.peek().is_some() {
            let mut state = lock(&self.state);
            for drawn in unwanted {
                state.wanted.remove(&drawn);
            }
        }
    }

    /// Hands a mask over; whether the engine thread has to be called for it.
    pub(super) fn hand_over(&self, done: MaskDone) -> bool {
        let mut state = lock(&self.state);
        let place = match &done.bits {
            Ok(bits) => state.wanted.remove(&done.drawn).map(|place| (place, bits)),
            Err(_) => None,
        };
        if let Some((place, bits)) = &place {
            place.write(bits);
        }
        let calls = place.is_none() && !state.called;
        state.called |= calls;
        // Under the lock under which it was written: whoever has seen what was drawn under it finds it here.
        state.done.push(done);
        calls
    }

    /// Moves everything that was handed over to the end of `into`.
    pub(crate) fn take(&self, into: &mut Vec<MaskDone>) {
        let mut state = lock(&self.state);
        state.called = false;
        into.append(&mut state.done);
    }
}
