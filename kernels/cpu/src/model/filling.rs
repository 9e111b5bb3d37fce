//! The cache's pages: those of the longest request before the first step, the others while steps run.
//!
//! Four gibibytes take from a third of a second to several, by what the machine has at hand: nobody need wait for that.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::kv::KvPool;
use crate::pool::Team;

/// Blocks brought in at once by the idle thread: it looks between them whether to stop.
const SLICE: usize = 64;

/// Brings the rest of a pool into memory; stops when dropped.
pub(super) struct Filling {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filling {
    /// Brings the first `now` blocks in with all of `team`, and starts a thread of idle priority for the others.
    ///
    /// # Errors
    /// No memory, or no thread.
    pub(super) fn start(pool: &Arc<KvPool>, team: &mut Team, now: usize) -> io::Result<Self> {
        let blocks = pool.shape().blocks;
        let now = now.min(blocks);
        let failure = Mutex::new(None);
        team.run(&|member| {
            if let Err(error) = populate(pool, 0..now, (member.index(), member.threads())) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (pool, told) = (Arc::clone(pool), Arc::clone(&stop));
        let fill = move || {
            lower_priority();
            for start in (now..blocks).step_by(SLICE) {
                // Out of memory here is out of memory in a step: the system decides who ends.
                let slice = start..(start + SLICE).min(blocks);
                if told.load(Ordering::Relaxed) || populate(&pool, slice, (0, 1)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("diptych-pages".to_owned())
            .spawn(fill)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            debug_assert!(ended.is_ok());
        }
    }
}

/// As [`KvPool::populate`]; a kernel that cannot do it brings each page in when it is first written.
fn populate(pool: &KvPool, blocks: Range<usize>, (part, parts): (usize, usize)) -> io::Result<()> {
    match pool.populate(blocks, part, parts) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}

/// This thread runs only where nobody else wants to.
fn lower_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // A system that refuses leaves the thread as it is.
    // SAFETY: asks about the calling thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}
