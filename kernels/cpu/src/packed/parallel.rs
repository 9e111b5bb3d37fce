//! Work items shared by a few threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Runs `work` for every item below `items` on `threads` threads, each with a state of its own; stops at the first error
/// and gives it back.
pub(super) fn for_each<S, E: Send>(
    threads: usize,
    items: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let run = || {
        let mut own = state();
        while !failed.load(Ordering::Relaxed) {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= items {
                break;
            }
            work(&mut own, item).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items)).map(|_| scope.spawn(run)).collect();
        let mut result = run();
        for other in others {
            let joined = other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(joined);
        }
        result
    })
}
