//! Log probabilities of prompts.

use diptych_core::scoring::MOST_SCORING_ROWS;
use diptych_core::{CoreConfig, Error, Request, Sampling, StepPlan};

use crate::engine::{Engine, prompt, request, small};

fn long() -> CoreConfig {
    CoreConfig {
        num_blocks: 513,
        max_model_len: 2_000,
        max_batched_tokens: 1_000,
        ..small()
    }
}

fn scored(prompt: &[u32], candidates: u32) -> Request {
    Request {
        sampling: Sampling {
            prompt_logprobs: Some(candidates),
            ..Sampling::default()
        },
        ..request(prompt, 3)
    }
}

fn plans(engine: &mut Engine) -> Vec<StepPlan> {
    engine.world.journal = Some(crate::world::Journal::default());
    engine.finish();
    engine.world.journal.take().expect("a journal").plans
}

/// Positions and ids that were asked for, each after the token before it.
fn asked(plans: &[StepPlan], submission: u64) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for plan in plans {
        assert!(plan.scoring.len() <= MOST_SCORING_ROWS as usize);
        for row in plan
            .scoring
            .iter()
            .filter(|row| row.submission == submission)
        {
            assert_eq!(plan.positions[row.token as usize] as u32 + 1, row.position);
            assert_eq!(row.candidates, 2);
            found.push((row.position, row.id));
        }
    }
    found
}

#[test]
fn every_token_of_a_scored_prompt_but_the_first_is_asked_for_once() {
    for length in [1, 2, 256, 257, 258, 700] {
        let mut engine = Engine::new(&long());
        let ids = prompt(1, length);
        engine.submit(scored(&ids, 2));
        engine.submit(scored(&ids, 2));
        let plans = plans(&mut engine);
        for submission in 0..2 {
            let expected: Vec<(u32, u32)> = (1..).zip(ids[1..].iter().copied()).collect();
            assert_eq!(asked(&plans, submission), expected, "{length}");
        }
        let tokens: usize = plans.iter().map(|plan| plan.token_ids.len()).sum();
        assert_eq!(tokens, 2 * (length + 2), "nothing is taken from the cache");
    }
}

#[test]
fn who_does_not_ask_still_finds_what_a_scored_prompt_has_cached() {
    let mut engine = Engine::new(&long());
    let ids = prompt(1, 400);
    engine.submit(scored(&ids, 2));
    engine.finish();
    engine.submit(request(&ids, 3));
    engine.submit(scored(&ids, 2));
    let plans = plans(&mut engine);
    let first = &plans[0];
    let own = first.query_starts.windows(2).map(|ends| ends[1] - ends[0]);
    let own: Vec<i32> = own.collect();
    assert_eq!(
        own,
        [4, 256],
        "one block is computed, and what a step scores"
    );
    assert_eq!(asked(&plans, 2).len(), 399);
}

#[test]
fn more_likeliest_ids_than_a_step_names_are_refused() {
    let mut engine = Engine::new(&long());
    let refused = engine.try_submit(scored(&prompt(1, 5), 129), None);
    assert!(
        matches!(refused, Err(Error::TopLogprobs { wanted: 129, .. })),
        "{refused:?}"
    );
}
