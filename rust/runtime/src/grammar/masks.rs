//! The threads that compute masks, and what they are given and give back.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use diptych_text::Matcher;

use crate::arena::Drawn;
use crate::grammar::{MASK_THREADS, delay};
use crate::messages::Command;
use crate::os;
use crate::shared::{Shared, lock};

/// A mask that is not there after this time ends its request. The library's own limits end one much earlier.
pub(crate) const MASK_LIMIT: Duration = Duration::from_secs(10);

/// Time for which a mask waits for a thread that is not to be busy while others can do it.
const PATIENCE: Duration = Duration::from_millis(3);

/// A thread that waits for work looks up this often.
const IDLE: Duration = Duration::from_secs(3600);

/// The next mask of one choice.
#[derive(Debug)]
pub(crate) struct MaskJob {
    /// The output that is drawn under it.
    pub(crate) drawn: Drawn,
    pub(crate) matcher: Box<Matcher>,
    /// The output before, which the matcher does not know yet.
    pub(crate) token: u32,
    /// Tokens to leave out if possible.
    pub(crate) avoided: Vec<u32>,
    /// Room for the mask.
    pub(crate) bits: Vec<u32>,
}

/// What became of a [`MaskJob`].
#[derive(Debug)]
pub(crate) struct MaskDone {
    pub(crate) drawn: Drawn,
    pub(crate) matcher: Box<Matcher>,
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
    /// With the moment from which on every thread may take it.
    jobs: VecDeque<(Instant, MaskJob)>,
    closed: bool,
}

/// Threads that take a mask at once: a quarter of the processors, so that the worker and whoever else wakes finds one free. The
/// others take what has waited for [`PATIENCE`].
fn eager_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    (processors / 4).clamp(1, MASK_THREADS)
}

impl MaskJobs {
    pub(super) fn push(&self, jobs: Vec<MaskJob>) {
        let soon = Instant::now() + PATIENCE;
        let jobs = jobs.into_iter().map(|job| (soon, job));
        lock(&self.waiting).jobs.extend(jobs);
        self.changed.notify_all();
    }

    /// The threads leave.
    pub(crate) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.jobs.clear();
        self.changed.notify_all();
    }

    /// The job that has waited longest; `None` once closed. Who is not `eager` leaves it to the others for a moment.
    fn next(&self, eager: bool) -> Option<MaskJob> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.closed {
                return None;
            }
            let now = Instant::now();
            let first = waiting.jobs.front().map(|(soon, _)| *soon);
            let patience = match first {
                Some(soon) if eager || soon <= now => {
                    return waiting.jobs.pop_front().map(|(_, job)| job);
                }
                Some(soon) => soon - now,
                None => IDLE,
            };
            (waiting, _) = self
                .changed
                .wait_timeout(waiting, patience)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The life of one of the threads.
pub(crate) fn run_masks(shared: &Shared, number: usize) {
    // Nobody waits for a mask, but everybody for the worker and the engine thread.
    os::yield_to_others();
    let eager = number < eager_threads();
    while let Some(job) = shared.grammars.masks.next(eager) {
        let MaskJob {
            drawn,
            mut matcher,
            token,
            avoided,
            mut bits,
        } = job;
        let faults = shared.options.test_faults;
        delay(faults.slow_masks, drawn.request);
        let computed = catch_unwind(AssertUnwindSafe(|| {
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
        // A kernel may leave whoever woke meanwhile waiting until this thread next enters it, priority or not.
        std::thread::yield_now();
    }
}
