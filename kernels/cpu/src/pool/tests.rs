use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{MAX_THREADS, Team};

/// Phases in which every member claims items, and sees after the barrier all that the others did before.
fn phases(threads: usize, count: usize) {
    let mut team = Team::new(threads).unwrap();
    let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    for run in 1..=3 {
        team.run(&|member| {
            for (phase, items) in done.iter().enumerate() {
                while member.claim(phase + 5).is_some() {
                    items.fetch_add(1, Ordering::Relaxed);
                }
                member.wait();
                assert_eq!(items.load(Ordering::Relaxed), run * (phase + 5));
            }
        });
    }
}

#[test]
fn every_item_is_claimed_once_in_every_phase() {
    for threads in [1, 2, 3, 7] {
        phases(threads, 200);
    }
}

#[test]
fn many_more_threads_than_processors_finish() {
    let start = Instant::now();
    phases(64, 100);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn members_sleep_between_runs_and_wake() {
    let mut team = Team::new(3).unwrap();
    let runs = AtomicUsize::new(0);
    for _ in 0..5 {
        team.run(&|member| {
            runs.fetch_add(1 + member.index(), Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(runs.into_inner(), 5 * 6);
}

#[test]
fn runs_of_items_cover_all_and_keep_within_groups() {
    for (total, group, largest) in [(60, 60, 4), (36, 12, 4), (3, 1, 4), (1, 1, 1), (50, 25, 7)] {
        let mut team = Team::new(3).unwrap();
        let seen: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
        team.run(&|member| {
            while let Some(run) = member.claim_run(total, group, largest) {
                assert!(!run.is_empty() && run.len() <= largest);
                assert_eq!(run.start / group, (run.end - 1) / group);
                for item in run {
                    seen[item].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn impossible_numbers_of_threads_are_refused() {
    for threads in [0, MAX_THREADS + 1] {
        let error = Team::new(threads).err().unwrap();
        assert!(error.to_string().contains(&threads.to_string()), "{error}");
    }
}
