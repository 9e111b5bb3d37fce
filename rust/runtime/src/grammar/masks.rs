//! The threads that compute masks, and what they are given and give back.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use diptych_text::Matcher;

use crate::arena::Drawn;
use crate::grammar::{MASK_THREADS, delay};
use crate::messages::Command;
use crate::os;
use crate::shared::{Shared, lock};

/// A mask that is not there after this time ends its request. The library's own limits end one much earlier.
pub(crate) const MASK_LIMIT: Duration = Duration::from_secs(10);

/// The next mask of one choice.
#[derive(Debug)]
pub(crate) struct MaskJob {
    /// The output that is drawn under it.
    pub(crate) drawn: Drawn,
    pub(crate) matcher: Matcher,
    /// The output before, which the matcher does not know yet.
    pub(crate) token: u32,
    /// Tokens to leave out if possible.
    pub(crate) avoided: Vec<u32>,
}

/// What became of a [`MaskJob`].
#[derive(Debug)]
pub(crate) struct MaskDone {
    pub(crate) drawn: Drawn,
    pub(crate) matcher: Matcher,
    /// The mask, or why there is none.
    pub(crate) bits: Result<Vec<u32>, String>,
}

/// Jobs that wait for a thread, first come first served: each is short.
#[derive(Debug, Default)]
pub(crate) struct MaskJobs {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<MaskJob>,
    closed: bool,
}

impl MaskJobs {
    pub(super) fn push(&self, jobs: Vec<MaskJob>) {
        let wanted = jobs.len().min(MASK_THREADS);
        lock(&self.waiting).jobs.extend(jobs);
        for _ in 0..wanted {
            self.changed.notify_one();
        }
    }

    /// The threads leave.
    pub(crate) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.jobs.clear();
        self.changed.notify_all();
    }

    fn next(&self) -> Option<MaskJob> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The life of one of the threads.
pub(crate) fn run_masks(shared: &Shared) {
    // Nobody waits for a mask, but everybody for the worker and the engine thread.
    os::yield_to_others();
    while let Some(job) = shared.grammars.masks.next() {
        let MaskJob {
            drawn,
            mut matcher,
            token,
            avoided,
        } = job;
        let faults = shared.options.test_faults;
        delay(faults.slow_masks, drawn.request);
        let computed = catch_unwind(AssertUnwindSafe(|| {
            let mut bits = Vec::new();
            matcher.push(token)?;
            matcher.mask(&avoided, &mut bits)?;
            Ok::<_, diptych_text::TextError>(bits)
        }));
        let bits = match computed {
            Ok(bits) => bits.map_err(|error| error.to_string()),
            Err(_) => Err("a bug in the engine made the mask of an output fail".to_owned()),
        };
        if faults.withhold_masks_of == Some(drawn.request) {
            continue;
        }
        let done = MaskDone {
            drawn,
            matcher,
            bits,
        };
        if shared.grammars.desk.hand_over(done) {
            // A closed engine wants no masks.
            let _ = shared.commands.push(Command::Masks);
        }
    }
}
