//! Every interleaving of the queues' users: the same source files as in the library, compiled against loom.

mod sync {
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// An eventfd: up after `raise`, down after `clear`, and `wait` sleeps while it is down.
    #[derive(Debug)]
    pub(crate) struct Signal {
        up: Mutex<bool>,
        changed: loom::sync::Condvar,
    }

    impl Signal {
        pub(crate) fn new() -> Self {
            Self {
                up: Mutex::new(false),
                changed: loom::sync::Condvar::new(),
            }
        }

        pub(crate) fn raise(&self) {
            *self.up.lock().unwrap() = true;
            self.changed.notify_one();
        }

        pub(crate) fn clear(&self) {
            *self.up.lock().unwrap() = false;
        }

        pub(crate) fn wait(&self) {
            let mut up = self.up.lock().unwrap();
            while !*up {
                up = self.changed.wait(up).unwrap();
            }
        }

        pub(crate) fn is_up(&self) -> bool {
            *self.up.lock().unwrap()
        }
    }
}

#[path = "../src/coalesce.rs"]
mod coalesce;
#[path = "../src/mailbox.rs"]
mod mailbox;

use coalesce::Coalescer;
use loom::sync::Arc;
use loom::thread;
use mailbox::Mailbox;
use sync::Signal;

/// All interleavings with at most three preemptions, which is where such bugs show; unbounded, the searches take hours.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A consumer that sleeps on the signal takes every item once, in each producer's order, whatever the interleaving; a lost wake-up would be a
/// deadlock, which loom reports.
#[test]
fn a_mailbox_loses_nothing_doubles_nothing_and_wakes_its_reader() {
    model(|| {
        let mailbox = Arc::new(Mailbox::new(Signal::new()));
        let producers: Vec<_> = (0..2_u32)
            .map(|producer| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || {
                    for item in 0..2 {
                        mailbox.push(producer * 10 + item).unwrap();
                    }
                })
            })
            .collect();
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while all.len() < 4 {
            mailbox.signal().wait();
            mailbox.take(&mut batch);
            assert!(!batch.is_empty(), "the signal was up without an item");
            all.append(&mut batch);
        }
        for producer in producers {
            producer.join().unwrap();
        }
        mailbox.take(&mut batch);
        assert!(batch.is_empty() && !mailbox.signal().is_up());
        for producer in 0..2 {
            let of: Vec<u32> = all
                .iter()
                .copied()
                .filter(|item| item / 10 == producer)
                .collect();
            assert_eq!(of, [producer * 10, producer * 10 + 1]);
        }
    });
}

#[test]
fn a_closing_mailbox_gives_back_or_keeps_every_item() {
    model(|| {
        let mailbox = Arc::new(Mailbox::new(Signal::new()));
        let producer = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                (0..2_u32)
                    .filter(|item| mailbox.push(*item).is_err())
                    .count()
            })
        };
        mailbox.close();
        let refused = producer.join().unwrap();
        let mut kept = Vec::new();
        mailbox.take(&mut kept);
        assert_eq!(kept.len() + refused, 2);
        assert!(mailbox.push(9).is_err());
    });
}

/// Two writers of two keys and a reader that comes whenever it likes: nothing is lost, each key is in order, an entry is merged rather than
/// added while it waits, and the reader is woken.
#[test]
fn a_coalescer_merges_loses_nothing_and_wakes_its_reader() {
    model(|| {
        let frames = Arc::new(Coalescer::new(Signal::new()));
        let writers: Vec<_> = (0..2_u64)
            .map(|key| {
                let frames = Arc::clone(&frames);
                thread::spawn(move || {
                    for value in 0..2 {
                        let entry = (key, vec![value]);
                        frames.add(key, entry, |waiting, next| waiting.1.extend(next.1));
                    }
                })
            })
            .collect();
        let mut values = [Vec::new(), Vec::new()];
        while values.iter().map(Vec::len).sum::<usize>() < 4 {
            frames.signal().wait();
            let mut drained = Vec::new();
            frames.drain(&mut drained);
            assert!((1..=2).contains(&drained.len()), "at most one entry a key");
            for (key, entry) in drained {
                values[key as usize].extend(entry);
            }
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(values, [[0, 1], [0, 1]]);
        assert!(!frames.signal().is_up());
    });
}

#[test]
fn a_closed_coalescer_is_empty_whatever_was_added_meanwhile() {
    model(|| {
        let frames = Arc::new(Coalescer::new(Signal::new()));
        let writer = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || {
                for value in 0..2_u32 {
                    frames.add(7, value, |waiting, next| *waiting += next);
                }
            })
        };
        assert!(frames.close());
        writer.join().unwrap();
        let mut drained = Vec::new();
        frames.drain(&mut drained);
        assert!(drained.is_empty() && !frames.signal().is_up());
        assert!(!frames.close());
    });
}

/// A writer never waits for the reader: with nobody draining, any number of additions is one entry.
#[test]
fn a_reader_that_never_comes_stops_no_writer() {
    model(|| {
        let frames = Coalescer::new(Signal::new());
        for value in 0..100_u32 {
            frames.add(1, value, |waiting, next| *waiting += next);
        }
        let mut drained = Vec::new();
        frames.drain(&mut drained);
        assert_eq!(drained, [4950]);
    });
}
