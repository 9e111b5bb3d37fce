//! A queue that many threads fill and one empties, which sleeps on a signal meanwhile.
//!
//! The signal is raised exactly when the queue becomes non-empty and cleared exactly when it is emptied, both under the lock: it is up if and only
//! if there is something to take, so no wake-up is lost and a full queue costs no system call.

use crate::sync::{Mutex, MutexGuard, Signal};

#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    items: Mutex<Items<T>>,
    signal: Signal,
}

#[derive(Debug)]
struct Items<T> {
    waiting: Vec<T>,
    closed: bool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(signal: Signal) -> Self {
        let items = Items {
            waiting: Vec::new(),
            closed: false,
        };
        Self {
            items: Mutex::new(items),
            signal,
        }
    }

    /// Adds an item; a closed mailbox gives it back.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.lock();
        if items.closed {
            return Err(item);
        }
        items.waiting.push(item);
        if items.waiting.len() == 1 {
            self.signal.raise();
        }
        Ok(())
    }

    /// Takes everything, in the order of the pushes; `into` must be empty and its room is used for what comes next.
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        debug_assert!(into.is_empty(), "a mailbox is emptied into an empty vector");
        let mut items = self.lock();
        if !items.waiting.is_empty() {
            self.signal.clear();
            std::mem::swap(&mut items.waiting, into);
        }
    }

    /// Refuses every later push. What is there can still be taken.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }

    fn lock(&self) -> MutexGuard<'_, Items<T>> {
        // Nothing under this lock can panic.
        self.items.lock().expect("mailbox lock")
    }
}
