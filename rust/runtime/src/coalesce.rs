//! Per-key accumulators that one reader empties: what happened to a key since the last drain is one entry, however slowly the reader comes.
//!
//! The signal is up if and only if there is something to drain, as in [`crate::mailbox`].

use std::collections::HashMap;

use crate::sync::{Mutex, MutexGuard, Signal};

#[derive(Debug)]
pub(crate) struct Coalescer<T> {
    state: Mutex<State<T>>,
    signal: Signal,
}

#[derive(Debug)]
struct State<T> {
    ready: Vec<T>,
    position: HashMap<u64, usize>,
    closed: bool,
}

impl<T> Coalescer<T> {
    pub(crate) fn new(signal: Signal) -> Self {
        let state = State {
            ready: Vec::new(),
            position: HashMap::new(),
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            signal,
        }
    }

    /// Adds `entry` under `key`, by `merge` into what waits there already. Nothing happens once closed.
    pub(crate) fn add(&self, key: u64, entry: T, merge: impl FnOnce(&mut T, T)) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        if let Some(position) = state.position.get(&key).copied() {
            merge(&mut state.ready[position], entry);
            return;
        }
        let position = state.ready.len();
        state.position.insert(key, position);
        state.ready.push(entry);
        if position == 0 {
            self.signal.raise();
        }
    }

    /// Moves everything to the end of `into`, keys in the order in which they became ready.
    pub(crate) fn drain(&self, into: &mut Vec<T>) {
        let mut state = self.lock();
        if !state.ready.is_empty() {
            self.signal.clear();
            state.position.clear();
            into.append(&mut state.ready);
        }
    }

    /// Drops everything and takes nothing any more; says whether it was open.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        if !state.ready.is_empty() {
            self.signal.clear();
        }
        state.ready = Vec::new();
        state.position = HashMap::new();
        !std::mem::replace(&mut state.closed, true)
    }

    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Merging appends to strings and vectors: nothing under this lock can panic.
        self.state.lock().expect("coalescer lock")
    }
}
