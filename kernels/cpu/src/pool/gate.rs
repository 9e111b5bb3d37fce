//! A word that threads wait on until it changes.

use std::sync::atomic::{AtomicU32, Ordering};

/// Pauses between two offers of the processor.
const PAUSES: u32 = 64;

/// How long to wait before sleeping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Pauses that keep the processor.
    pub(super) spin: u32,
    /// Offers of the processor to others.
    pub(super) turns: u32,
}

/// Opened again and again; counts how often.
#[derive(Debug, Default)]
pub(super) struct Gate {
    opened: AtomicU32,
    sleepers: AtomicU32,
}

impl Gate {
    /// How often it was opened: what [`Gate::pass`] wants to know.
    #[inline]
    pub(super) fn seen(&self) -> u32 {
        self.opened.load(Ordering::Acquire)
    }

    /// Lets all pass that wait.
    #[inline]
    pub(super) fn open(&self) {
        // Sequentially consistent, as in `sleep`: either the sleeper is seen here, or it sees the gate open.
        self.opened.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    /// Waits until it was opened more often than `seen`: `patience.spin` pauses, then giving way to whoever wants the
    /// processor `patience.turns` times, then asleep. Gives how often now.
    #[inline]
    pub(super) fn pass(&self, seen: u32, patience: Patience) -> u32 {
        for _ in 0..patience.spin {
            let now = self.opened.load(Ordering::Acquire);
            if now != seen {
                return now;
            }
            std::hint::spin_loop();
        }
        for _ in 0..patience.turns {
            std::thread::yield_now();
            for _ in 0..PAUSES {
                let now = self.opened.load(Ordering::Acquire);
                if now != seen {
                    return now;
                }
                std::hint::spin_loop();
            }
        }
        self.sleep(seen)
    }

    #[cold]
    fn sleep(&self, seen: u32) -> u32 {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let now = loop {
            let now = self.opened.load(Ordering::SeqCst);
            if now != seen {
                break now;
            }
            // SAFETY: the word outlives the call, which sleeps only while it still equals `seen`.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.opened.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    seen,
                    std::ptr::null::<libc::timespec>(),
                );
            }
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        now
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: wakes whoever sleeps on this word; touches no memory.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.opened.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            );
        }
    }
}
