//! A reason for everything: named cases, and books that balance in every history.

use diptych_core::explanation::{Decided, Explanation, Wait};
use diptych_core::reason::{ChunkLimit, MatchEnd, PreemptCause, WaitReason};
use diptych_core::{Core, CoreConfig};

use crate::engine::{Engine, pool_of, prompt, request, small};
use crate::entry::Entry;
use crate::operation::Operation;

/// What holds for the explanation of any open request, at any time.
pub(crate) fn balances(core: &Core, entry: &Entry, now: u64) -> Result<(), String> {
    let told = core
        .explain(entry.handle, now)
        .ok_or_else(|| format!("{} is open and not explained", entry.submission()))?;
    let waited: u64 = told.waits.iter().map(|wait| wait.ns).sum();
    let open_for = now - told.submitted;
    let right = match (entry.cached, told.cache) {
        (None, None) => waited == open_for && told.waiting_for.is_some(),
        (Some(cached), Some(lookup)) => waited <= open_for && lookup.cached == cached,
        _ => false,
    };
    let chunks_fit = told.decisions.iter().all(|decision| match decision.what {
        Decided::Chunk { tokens, budget, .. } => 0 < tokens && tokens <= budget,
        Decided::Admitted { .. } | Decided::Preempted { .. } => true,
    });
    let in_order = told
        .decisions
        .is_sorted_by_key(|decision| (decision.at, decision.step));
    if right && chunks_fit && in_order {
        Ok(())
    } else {
        Err(format!("after {open_for} ns: {told:?}"))
    }
}

fn waited(told: &Explanation, reason: WaitReason) -> Wait {
    let none = Wait {
        reason,
        ns: 0,
        steps: 0,
    };
    let mut waits = told.waits.iter();
    waits
        .find(|wait| wait.reason == reason)
        .copied()
        .unwrap_or(none)
}

fn match_end(engine: &mut Engine, prompt: &[u32]) -> MatchEnd {
    let number = engine.submit(request(prompt, 1));
    engine.finish();
    engine.explain(number).cache.expect("it was admitted").end
}

#[test]
fn a_match_says_where_and_why_it_ended() {
    let mut engine = Engine::new(&pool_of(8));
    let first = prompt(1, 13);
    assert_eq!(match_end(&mut engine, &first[..4]), MatchEnd::UnderOneBlock);
    assert_eq!(match_end(&mut engine, &first), MatchEnd::NeverStored);
    assert_eq!(match_end(&mut engine, &first), MatchEnd::Complete);

    let mut other = first.clone();
    other[6] = 999;
    let position = 6;
    assert_eq!(
        match_end(&mut engine, &other),
        MatchEnd::DifferentToken { position }
    );
    let mut longer = first[..12].to_vec();
    longer.extend(prompt(7, 9));
    assert_eq!(match_end(&mut engine, &longer), MatchEnd::NeverStored);
    assert_eq!(match_end(&mut engine, &prompt(5, 9)), MatchEnd::NeverStored);
}

#[test]
fn a_match_says_that_the_rest_was_lost() {
    let mut engine = Engine::new(&pool_of(8));
    let first = prompt(1, 13);
    match_end(&mut engine, &first);
    let before = engine.world.now();
    // Takes all blocks, and with them the first prompt's.
    engine.run(request(&prompt(2, 31), 1));
    let after = engine.world.now();
    let end = match_end(&mut engine, &first);
    let MatchEnd::Evicted { ago_ns } = end else {
        panic!("{end:?}");
    };
    let submitted = engine.world.now();
    assert!(
        ago_ns <= submitted - before && ago_ns + after >= before,
        "{ago_ns}"
    );

    engine.apply(&Operation::ResetPrefixCache);
    let end = match_end(&mut engine, &first);
    assert!(matches!(end, MatchEnd::Cleared { .. }), "{end:?}");

    let mut engine = Engine::new(&CoreConfig {
        prefix_cache: false,
        ..small()
    });
    assert_eq!(match_end(&mut engine, &first), MatchEnd::Off);
}

/// Another namespace's prefix is never told from one that nobody has stored.
#[test]
fn a_match_reveals_nothing_of_other_namespaces() {
    let mut engine = Engine::new(&pool_of(8));
    let first = prompt(1, 13);
    match_end(&mut engine, &first);
    let number = engine.submit(diptych_core::Request {
        namespace: 1,
        ..request(&first, 1)
    });
    engine.finish();
    let told = engine.explain(number).cache.expect("it was admitted");
    assert_eq!((told.cached, told.end), (0, MatchEnd::NeverStored));
}

#[test]
fn waiting_is_booked_on_the_limit_that_causes_it() {
    let mut engine = Engine::new(&CoreConfig {
        max_running: 1,
        ..pool_of(40)
    });
    engine.submit(request(&prompt(1, 5), 4));
    engine.plan();
    let second = engine.submit(request(&prompt(2, 5), 2));
    let third = engine.submit(request(&prompt(3, 5), 2));
    engine.complete();
    for _ in 0..2 {
        engine.step();
    }
    assert_eq!(engine.explain(second).waiting_for, Some(WaitReason::Rows));
    engine.finish();
    let (second, third) = (engine.explain(second), engine.explain(third));
    assert!(second.ended.is_some());
    // Three plans of the first request went by without the second.
    assert_eq!(waited(&second, WaitReason::Rows).steps, 3);
    assert_eq!(waited(&third, WaitReason::Rows).steps, 5);
    // From the submission to the next plan nothing but the launched step was in its way.
    assert_eq!(waited(&second, WaitReason::Step).ns, 2_000);
    assert_eq!(second.waits.len(), 2, "{second:?}");
    assert!(waited(&second, WaitReason::Rows).ns > 4_000);
}

#[test]
fn a_chunk_says_its_budget_and_its_limit() {
    let mut engine = Engine::new(&CoreConfig {
        max_prefill_tokens: Some(7),
        ..small()
    });
    let number = engine.submit(request(&prompt(1, 17), 1));
    engine.finish();
    let told = engine.explain(number);
    let chunks: Vec<(u32, u32, ChunkLimit)> = told
        .decisions
        .iter()
        .filter_map(|decision| match decision.what {
            Decided::Chunk {
                tokens,
                budget,
                limit,
                ..
            } => Some((tokens, budget, limit)),
            Decided::Admitted { .. } | Decided::Preempted { .. } => None,
        })
        .collect();
    assert_eq!(
        chunks,
        [
            (7, 7, ChunkLimit::PrefillTokens),
            (7, 7, ChunkLimit::PrefillTokens),
            (3, 7, ChunkLimit::Prompt)
        ]
    );
    assert_eq!(told.chunks.len(), 2);
    assert_eq!((told.chunks[1].chunks, told.chunks[1].tokens), (2, 14));
}

#[test]
fn a_lost_request_says_what_took_its_blocks() {
    let mut engine = Engine::new(&pool_of(8));
    let numbers = [1, 2].map(|seed| engine.submit(request(&prompt(seed, 11), 18)));
    while engine.stats().preemptions == 0 {
        engine.step();
    }
    let told = engine.explain(numbers[1]);
    assert_eq!(told.preemptions[0].cause, PreemptCause::Blocks);
    let lost = told.decisions.iter().any(|decision| {
        matches!(decision.what, Decided::Preempted { cause: PreemptCause::Blocks, computed } if computed > 11)
    });
    assert!(lost, "{told:?}");
    engine.plan();
    engine.apply(&Operation::WorkerLost);
    let told = engine.explain(numbers[0]);
    assert_eq!(told.preemptions[0].cause, PreemptCause::WorkerLost);
    assert_eq!(told.waiting_for, Some(WaitReason::Worker));
    engine.finish();
}

/// Books are bounded: only the newest decisions are kept, all are counted.
#[test]
fn old_decisions_are_counted_only() {
    let mut engine = Engine::new(&CoreConfig {
        max_prefill_tokens: Some(1),
        ..small()
    });
    let number = engine.submit(request(&prompt(1, 40), 1));
    engine.finish();
    let told = engine.explain(number);
    assert_eq!(told.forgotten + told.decisions.len() as u64, 41);
    assert!(told.decisions.len() < 20);
    let chunks: u32 = told.chunks.iter().map(|chunks| chunks.chunks).sum();
    assert_eq!(chunks, 40);
}
