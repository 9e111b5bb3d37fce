//! What `bench/instructions.py` runs under valgrind: decode steps, a cache that is full, requests that run.
//!
//! `figures steps RUNNING STEPS`, `figures blocks BLOCKS`, `figures requests RUNNING PROMPT_TOKENS`. The last
//! two leave the core alone at their end, so that its memory can be counted.

use diptych_core::{Core, CoreConfig, Event, RowStatus, StepResult};

#[path = "../benches/made_up/mod.rs"]
mod made_up;

use made_up::{BLOCK, config, prompt, request, token};

fn submit(core: &mut Core, index: u32, tokens: u32, max_tokens: u32) {
    let prompt = prompt(index as usize, tokens as usize);
    core.submit(request(u64::from(index), prompt, max_tokens), 0)
        .expect("room for the request");
}

/// A step with buffers that are kept, as the engine does it. False: nothing was left to do.
fn step(core: &mut Core, rows: &mut Vec<(RowStatus, u32)>, events: &mut Vec<Event>) -> bool {
    let Some(plan) = core.plan(0) else {
        return false;
    };
    rows.clear();
    rows.extend(
        plan.sampling
            .iter()
            .map(|row| (RowStatus::Ok, token(row.row as usize, plan.step as usize))),
    );
    let result = StepResult {
        epoch: 0,
        step: plan.step,
        duration_ns: Some(1_000_000),
        rows,
        candidates: &[],
    };
    core.complete(&result, 0).expect("the step is the oldest");
    events.clear();
    core.take_events(events);
    true
}

/// All requests are admitted and decode when the counted steps begin.
fn steps(running: u32, steps: u32) {
    let blocks = running * (3 + steps / BLOCK) + 1;
    let mut core = Core::new(config(running, running * BLOCK, blocks), 0).expect("a valid config");
    for index in 0..running {
        submit(&mut core, index, 10 + index % 6, steps + 8);
    }
    let (mut rows, mut events) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        step(&mut core, &mut rows, &mut events);
    }
}

/// One prompt after another fills the cache; none is open at the end.
fn blocks(blocks: u32) {
    let tokens = 64 * BLOCK;
    let mut core = Core::new(config(1, tokens, blocks + 2), 0).expect("a valid config");
    let (mut rows, mut events) = (Vec::new(), Vec::new());
    for index in 0..blocks / 64 {
        submit(&mut core, index, tokens, 1);
        while step(&mut core, &mut rows, &mut events) {}
    }
    std::mem::forget(core);
}

/// Outputs of each request whose memory is counted, as `bench/instructions.py` has them.
const OUTPUTS: u32 = 64;

/// Requests that decode, without a prefix cache: what is counted is theirs.
fn requests(running: u32, tokens: u32) {
    const MOST: u32 = 1_024;
    let config = CoreConfig {
        prefix_cache: false,
        ..config(MOST, 1 << 16, MOST * (1_024 / BLOCK + 2))
    };
    let mut core = Core::new(config, 0).expect("a valid config");
    let (mut rows, mut events) = (Vec::new(), Vec::new());
    for index in 0..running {
        submit(&mut core, index, tokens, OUTPUTS);
    }
    for _ in 0..4 + running * tokens / (1 << 16) {
        step(&mut core, &mut rows, &mut events);
    }
    std::mem::forget(core);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| words[place].parse().expect("a number");
    match words[0].as_str() {
        "steps" => steps(number(1), number(2)),
        "blocks" => blocks(number(1)),
        "requests" => requests(number(1), number(2)),
        other => panic!("{other} is none of steps, blocks and requests"),
    }
}
