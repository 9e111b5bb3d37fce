//! A team of threads that run one program together, and the barrier between its phases.
//!
//! Whoever waits spins for a moment, then offers its processor to others, and then sleeps. A long spin beside a competing
//! process costs whole time slices, and whoever sleeps within a step is woken late where processors halt when they have
//! nothing to do. Where there are more threads than processors nobody spins.

mod gate;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use gate::{Gate, Patience};

/// Pauses before a waiting thread offers its processor to others, some 25 µs.
const SPIN: u32 = 1_500;
/// Offers within a step, some milliseconds: a phase of a step takes less.
const STEP_TURNS: u32 = 2_000;
/// What a share says before its first claim.
const NO_PHASE: u64 = u64::MAX;
/// Threads of a team at most.
pub const MAX_THREADS: usize = 1_024;

/// A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

type Work = dyn Fn(&Member) + Sync;

/// What the members share.
struct Shared {
    threads: usize,
    patience: Patience,
    arrived: Line<AtomicUsize>,
    claims: Line<AtomicUsize>,
    /// What is claimed of each member's own share of the runs: the phase, and the next item (low half).
    shares: Box<[Line<AtomicU64>]>,
    passed: Line<Gate>,
    started: Line<Gate>,
    stop: AtomicBool,
    /// Written by the caller while the members wait at `started`; valid until all have arrived at the run's end.
    work: UnsafeCell<Option<*const Work>>,
}

// SAFETY: `work` is written only while no member reads it, which `started` and the last barrier of a run order.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// One thread's part in a run.
pub struct Member<'a> {
    shared: &'a Shared,
    index: usize,
}

impl Member<'_> {
    /// From 0, the caller's.
    #[must_use]
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Members of the team.
    #[must_use]
    #[inline]
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Waits until all members wait. All that they wrote before is seen after, and the claims begin at 0 again.
    #[inline]
    pub fn wait(&self) {
        let shared = self.shared;
        let seen = shared.passed.0.seen();
        if shared.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == shared.threads {
            shared.arrived.0.store(0, Ordering::Relaxed);
            shared.claims.0.store(0, Ordering::Relaxed);
            shared.passed.0.open();
        } else {
            shared.passed.0.pass(seen, shared.patience);
        }
    }

    /// Counter of the work that was claimed since the last barrier.
    #[must_use]
    #[inline]
    pub fn claims(&self) -> &AtomicUsize {
        &self.shared.claims.0
    }

    /// Claims the next item of `total`.
    #[must_use]
    #[inline]
    pub fn claim(&self, total: usize) -> Option<usize> {
        // Beyond the end nothing is added: the counter cannot overflow.
        if self.claims().load(Ordering::Relaxed) >= total {
            return None;
        }
        let item = self.claims().fetch_add(1, Ordering::Relaxed);
        (item < total).then_some(item)
    }

    /// Claims a run of the `total` items that lies within one group of `group`: at most `largest`, less towards the
    /// end, so that the members finish together.
    ///
    /// A member begins with its own share of the items, whole groups if there are enough, and helps others when that is
    /// done: what it wrote in one phase it mostly finds in its own cache in the next. Between two barriers all ask with
    /// the same numbers.
    #[must_use]
    #[inline]
    pub fn claim_run(&self, total: usize, group: usize, largest: usize) -> Option<Range<usize>> {
        debug_assert!(u32::try_from(total).is_ok(), "{total} items");
        let threads = self.shared.threads;
        let phase = u64::from(self.shared.passed.0.seen()) << 32;
        let unit = if total / group >= threads { group } else { 1 };
        let units = total.div_ceil(unit);
        let bound = |member: usize| (units * member / threads * unit).min(total);
        (0..threads).find_map(|turn| {
            let owner = (self.index + turn) % threads;
            let (start, end) = (bound(owner), bound(owner + 1));
            self.claim_share(owner, phase, start..end, |next| {
                let half = (end - next) / 2;
                next + half.clamp(1, largest).min(group - next % group)
            })
        })
    }

    /// Claims the next items of a member's share, up to what `end_of` gives.
    #[inline]
    fn claim_share(
        &self,
        owner: usize,
        phase: u64,
        share: Range<usize>,
        end_of: impl Fn(usize) -> usize,
    ) -> Option<Range<usize>> {
        let claimed = &self.shared.shares[owner].0;
        let mut seen = claimed.load(Ordering::Relaxed);
        loop {
            // What an earlier phase left counts for nothing.
            let next = if seen >> 32 == phase >> 32 {
                (seen & u64::from(u32::MAX)) as usize
            } else {
                share.start
            };
            if next >= share.end {
                return None;
            }
            let end = end_of(next);
            let (now, order) = (phase | end as u64, Ordering::Relaxed);
            match claimed.compare_exchange_weak(seen, now, order, order) {
                Ok(_) => return Some(next..end),
                Err(other) => seen = other,
            }
        }
    }
}

/// Threads that wait for work. A panic in the work ends the process: its other members could never be freed.
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts `threads` − 1 threads; the caller of [`Team::run`] is one more. The system places them: keeping each to one
    /// processor gained nothing that could be measured.
    ///
    /// # Errors
    /// A number of threads outside 1 to [`MAX_THREADS`], or what the system says.
    pub fn new(threads: usize) -> io::Result<Self> {
        if !(1..=MAX_THREADS).contains(&threads) {
            let message = format!("a team of {threads} threads: 1 to {MAX_THREADS} will do");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            threads,
            patience: if threads <= processors {
                Patience {
                    spin: SPIN,
                    turns: STEP_TURNS,
                }
            } else {
                Patience { spin: 0, turns: 0 }
            },
            arrived: Line::default(),
            claims: Line::default(),
            shares: (0..threads)
                .map(|_| Line(AtomicU64::new(NO_PHASE)))
                .collect(),
            passed: Line::default(),
            started: Line::default(),
            stop: AtomicBool::new(false),
            work: UnsafeCell::new(None),
        });
        let mut team = Self {
            shared,
            helpers: Vec::with_capacity(threads - 1),
        };
        for index in 1..threads {
            let shared = Arc::clone(&team.shared);
            let helper = std::thread::Builder::new().name(format!("diptych-cpu-{index}"));
            team.helpers
                .push(helper.spawn(move || serve(&shared, index))?);
        }
        Ok(team)
    }

    /// Members, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `work` once on every member, the caller being member 0, and waits for all.
    pub fn run(&mut self, work: &(dyn Fn(&Member) + Sync)) {
        // SAFETY: only the lifetime is forgotten: every member has arrived at the barrier below before `work` ends.
        let forgotten =
            unsafe { std::mem::transmute::<&(dyn Fn(&Member) + Sync), &'static Work>(work) };
        // SAFETY: all helpers wait at `started`: this is the only access.
        unsafe { *self.shared.work.get() = Some(std::ptr::from_ref(forgotten)) };
        self.shared.claims.0.store(0, Ordering::Relaxed);
        self.shared.started.0.open();
        let _guard = EndOnPanic;
        let member = Member {
            shared: &self.shared,
            index: 0,
        };
        work(&member);
        member.wait();
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.started.0.open();
        for helper in self.helpers.drain(..) {
            // A helper that panicked has ended the process.
            let _ = helper.join();
        }
    }
}

struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn serve(shared: &Shared, index: usize) {
    let _guard = EndOnPanic;
    let member = Member { shared, index };
    // The first run may have begun before this thread did: gates count from 0.
    let mut seen = 0;
    loop {
        seen = shared.started.0.pass(
            seen,
            Patience {
                turns: 0,
                ..shared.patience
            },
        );
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: written before `started` was opened, and valid until this member arrives at the run's last barrier.
        let work = unsafe { (*shared.work.get()).map(|work| &*work) };
        if let Some(work) = work {
            work(&member);
        }
        member.wait();
    }
}
