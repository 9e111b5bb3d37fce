//! The cache's pages: those of the longest request before the first step, the others while nobody asks for steps.
//!
//! Four gibibytes take from a third of a second to several, by what the machine has at hand: nobody need wait for that. A
//! block that is needed before its turn comes into memory when it is written: all its layers lie together, so that this
//! costs a step one huge page for some blocks, instead of one for each layer at once.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::kv::KvPool;
use crate::pool::Team;

/// Blocks brought in at once by the idle thread: it looks between them whether to stop.
const SLICE: usize = 32;
/// How long no step may have run before the idle thread works.
const IDLE: Duration = Duration::from_millis(50);

/// Brings the rest of a pool into memory; stops when dropped.
pub(super) struct Filling {
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

/// What the idle thread looks at.
#[derive(Default)]
struct Told {
    stop: AtomicBool,
    /// Steps begun and steps ended: odd while one runs.
    steps: AtomicU64,
}

impl Told {
    /// Waits until no step has run for a while. False: stop.
    fn wait_for_rest(&self) -> bool {
        loop {
            let seen = self.steps.load(Ordering::Relaxed);
            if seen == 0 {
                return !self.stop.load(Ordering::Relaxed);
            }
            std::thread::park_timeout(IDLE);
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if seen.is_multiple_of(2) && self.steps.load(Ordering::Relaxed) == seen {
                return true;
            }
        }
    }
}

impl Filling {
    /// Brings the first `now` blocks in with all of `team`, and starts a thread of idle priority for the others.
    ///
    /// # Errors
    /// No memory, or no thread.
    pub(super) fn start(pool: &Arc<KvPool>, team: &mut Team, now: usize) -> io::Result<Self> {
        let blocks = pool.shape().blocks;
        let now = now.min(blocks);
        let (failure, members) = (Mutex::new(None), team.threads());
        team.run(&|member| {
            let bound = |member: usize| now * member / members;
            let share = bound(member.index())..bound(member.index() + 1);
            if let Err(error) = populate(pool, share) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let told = Arc::new(Told::default());
        let (pool, looks) = (Arc::clone(pool), Arc::clone(&told));
        let fill = move || {
            lower_priority();
            for start in (now..blocks).step_by(SLICE) {
                let slice = start..(start + SLICE).min(blocks);
                // Out of memory here is out of memory in a step: the system decides who ends.
                if !looks.wait_for_rest() || populate(&pool, slice).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("diptych-pages".to_owned())
            .spawn(fill)?;
        Ok(Self {
            told,
            thread: Some(thread),
        })
    }

    /// A step begins, or ends.
    pub(super) fn step(&self) {
        self.told.steps.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.told.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let ended = thread.join();
            debug_assert!(ended.is_ok());
        }
    }
}

/// As [`KvPool::populate`]; a kernel that cannot do it brings each page in when it is first written.
fn populate(pool: &KvPool, blocks: Range<usize>) -> io::Result<()> {
    match pool.populate(blocks) {
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
