//! Random histories: any order of events, at every overlap depth, keeps every promise.
//!
//! `PROPTEST_CASES` (256) and `DIPTYCH_OPERATIONS` (200) set the size of a run. A failing history is
//! cut down to the operations that matter before it is printed.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

use diptych_core::config::HashMode;
use diptych_core::{CoreConfig, FinishReason};

use crate::operation::{Operation, configs, operations};
use crate::world::{Journal, World};

type History = Vec<Operation>;

/// Plays a history and lets the rest finish; the error names the operation.
fn play(config: &CoreConfig, history: &[Operation]) -> Result<World, String> {
    let mut world = World::new(config);
    continue_with(&mut world, history)?;
    Ok(world)
}

fn continue_with(world: &mut World, history: &[Operation]) -> Result<(), String> {
    for (index, operation) in history.iter().enumerate() {
        world
            .apply(operation)
            .map_err(|error| format!("operation {index} {operation:?}: {error}"))?;
    }
    world.drain().map(|_| ())
}

/// Drops operations while the history still fails.
fn minimise(config: &CoreConfig, history: &[Operation]) -> (History, String) {
    let fails = |history: &[Operation]| {
        std::panic::catch_unwind(|| play(config, history).err())
            .unwrap_or_else(|_| Some("the core panicked".into()))
    };
    let mut kept = history.to_vec();
    let mut message = fails(&kept).unwrap_or_default();
    let mut width = kept.len().div_ceil(2);
    while width > 0 {
        let mut start = 0;
        while start < kept.len() {
            let end = (start + width).min(kept.len());
            let shorter = [&kept[..start], &kept[end..]].concat();
            if let Some(error) = fails(&shorter) {
                kept = shorter;
                message = error;
            } else {
                start = end;
            }
        }
        width /= 2;
    }
    (kept, message)
}

/// How often something that matters really happened, so that no run is right for want of trouble.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    preemptions: u64,
    hits: u64,
    stop_strings: usize,
    stop_ids: usize,
    failures: usize,
    losses: usize,
    /// Tokens of requests with a target for the gap between tokens.
    paced: u64,
    forks: usize,
    /// Requests of which a mask came too late.
    late_masks: usize,
}

impl Trouble {
    fn of(world: &World, history: &[Operation]) -> Self {
        let ended = |wanted: fn(FinishReason) -> bool| {
            let reasons = world
                .model
                .entries
                .iter()
                .filter_map(|entry| entry.finished);
            reasons.filter(|&reason| wanted(reason)).count()
        };
        let entries = world.model.entries.iter();
        let forked = entries.filter(|entry| entry.choice > 0 && entry.committed > 1);
        let entries = world.model.entries.iter();
        let late = entries.filter(|entry| entry.request.masked && entry.trusted_from > 0);
        let lost = |operation: &&Operation| **operation == Operation::WorkerLost;
        Self {
            preemptions: world.core.stats().preemptions,
            hits: world.core.stats().prefix_hits,
            stop_strings: ended(|reason| reason == FinishReason::StopString),
            stop_ids: ended(|reason| matches!(reason, FinishReason::StopToken(_))),
            failures: ended(|reason| {
                matches!(reason, FinishReason::NanLogits | FinishReason::BadToken)
            }),
            losses: history.iter().filter(lost).count(),
            paced: world.core.stats().paced_tokens,
            forks: forked.count(),
            late_masks: late.count(),
        }
    }

    fn add(&mut self, other: Self) {
        self.preemptions += other.preemptions;
        self.hits += other.hits;
        self.stop_strings += other.stop_strings;
        self.stop_ids += other.stop_ids;
        self.failures += other.failures;
        self.losses += other.losses;
        self.paced += other.paced;
        self.forks += other.forks;
        self.late_masks += other.late_masks;
    }

    /// Each happened at least once in four histories on average.
    fn suffices(&self, histories: u64) -> bool {
        let least = histories / 4;
        let counts = [
            self.stop_strings,
            self.stop_ids,
            self.failures,
            self.losses,
            self.forks,
            self.late_masks,
        ];
        let rarest = counts.into_iter().min().unwrap_or(0) as u64;
        rarest.min(self.preemptions).min(self.hits).min(self.paced) >= least
    }
}

fn judge(config: &CoreConfig, history: &[Operation]) -> Result<Trouble, TestCaseError> {
    let outcome = std::panic::catch_unwind(|| {
        play(config, history).map(|world| Trouble::of(&world, history))
    });
    match outcome {
        Ok(Ok(trouble)) => Ok(trouble),
        _ => Err(minimised(config, history)),
    }
}

/// A failure with the operations that matter.
fn minimised(config: &CoreConfig, history: &[Operation]) -> TestCaseError {
    let (kept, message) = minimise(config, history);
    let lines: Vec<String> = kept
        .iter()
        .map(|operation| format!("  {operation:?}"))
        .collect();
    TestCaseError::fail(format!("{message}\n{config:?}\n{}", lines.join("\n")))
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number"))
    })
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases: setting("PROPTEST_CASES", 256) as u32 * cases / 256,
        max_shrink_iters: 0,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/proof/proptest-regressions.txt",
        ))),
        ..Config::default()
    })
}

fn histories() -> impl Strategy<Value = History> {
    vec(operations(), setting("DIPTYCH_OPERATIONS", 200))
}

fn every_history_is_right(overlap_depth: u8) {
    let strategy = (configs(overlap_depth), histories());
    let mut runner = runner(256);
    let cases = u64::from(runner.config().cases);
    let trouble = Cell::new(Trouble::default());
    let outcome = runner.run(&strategy, |(config, history)| {
        let mut sum = trouble.get();
        sum.add(judge(&config, &history)?);
        trouble.set(sum);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("depth {overlap_depth}: {failure}");
    }
    let trouble = trouble.get();
    assert!(trouble.suffices(cases), "{cases} histories: {trouble:?}");
}

#[test]
fn every_history_is_right_without_overlap() {
    every_history_is_right(0);
}

#[test]
fn every_history_is_right_with_one_step_ahead() {
    every_history_is_right(1);
}

#[test]
fn every_history_is_right_with_two_steps_ahead() {
    every_history_is_right(2);
}

fn journal(config: &CoreConfig, history: &[Operation]) -> Result<Journal, TestCaseError> {
    let mut world = World::new(config);
    world.journal = Some(Journal::default());
    continue_with(&mut world, history).map_err(TestCaseError::fail)?;
    Ok(world.journal.take().unwrap_or_default())
}

/// Invariant 29: equal inputs give byte-identical plans, whatever the lookup hash.
#[test]
fn plans_do_not_depend_on_the_hash() {
    let strategy = (0u8..3).prop_flat_map(|depth| (configs(depth), histories()));
    let outcome = runner(64).run(&strategy, |(config, history)| {
        let with = |hash| CoreConfig {
            hash,
            ..config.clone()
        };
        let first = journal(&with(HashMode::Keyed(1)), &history)?;
        let others = [
            HashMode::Keyed(1),
            HashMode::Keyed(u64::MAX),
            HashMode::Constant,
            HashMode::FirstToken,
        ];
        for hash in others {
            let other = journal(&with(hash), &history)?;
            prop_assert!(first == other, "plans differ under {hash:?}");
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// What a request's user sees in the end.
fn fates(world: &World) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    let entries = world.model.entries.iter();
    entries
        .map(|entry| (entry.tokens(entry.committed), entry.finished))
        .collect()
}

/// Invariant 15: the prefix cache changes no token.
#[test]
fn outputs_are_equal_with_the_cache_on_and_off() {
    let strategy = (0u8..3).prop_flat_map(|depth| (configs(depth), histories()));
    let outcome = runner(64).run(&strategy, |(mut config, history)| {
        // A second loss could convict somebody, and who was alone in a step depends on the cache.
        let mut losses = 0;
        let undisturbed: History = history
            .into_iter()
            .filter_map(|operation| match operation {
                Operation::WorkerLost => {
                    losses += 1;
                    (losses == 1).then_some(Operation::WorkerLost)
                }
                Operation::Submit(mut draft) => {
                    draft.stop_string = None;
                    // How soon a request is served depends on the cache.
                    draft.timeout = None;
                    draft.first_token_timeout = None;
                    Some(Operation::Submit(draft))
                }
                Operation::Plan(_) => Some(Operation::Plan(None)),
                Operation::Abort(_) => None,
                other => Some(other),
            })
            .collect();
        config.max_queued_requests = 1_000;
        config.max_queued_tokens = None;
        config.max_ttft_ns = None;
        let with = |prefix_cache| CoreConfig {
            prefix_cache,
            ..config.clone()
        };
        let played = |prefix_cache| {
            let config = with(prefix_cache);
            play(&config, &undisturbed).map_err(|_| minimised(&config, &undisturbed))
        };
        let (on, off) = (played(true)?, played(false)?);
        prop_assert_eq!(off.core.stats().prefix_hits, 0);
        prop_assert_eq!(fates(&on), fates(&off));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
