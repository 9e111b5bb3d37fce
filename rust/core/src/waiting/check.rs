//! The queue's invariants, recomputed from scratch.

use std::collections::HashSet;

use crate::Core;
use crate::active::State;
use crate::check::ensure;
use crate::suspects::Standing;
use crate::waiting::Berth;
use crate::waiting::order::MOST_BYPASSES;

type Outcome = Result<(), String>;

pub(crate) fn queue(core: &Core) -> Outcome {
    berths(core)?;
    core.waiting.ledger.check(&core.requests)?;
    deadlines(core)
}

/// A request waits in exactly one place, and no longer than it must be bypassed (invariants 34, 38).
fn berths(core: &Core) -> Outcome {
    let waiting: Vec<u32> = core.waiting.slots().collect();
    let distinct: HashSet<u32> = waiting.iter().copied().collect();
    ensure(
        distinct.len() == waiting.len() && waiting.len() == core.waiting.len() as usize,
        || format!("{waiting:?} wait, {} are counted", core.waiting.len()),
    )?;
    let mut tokens = 0;
    for slot in waiting {
        let request = &core.requests[slot];
        let name = request.submission();
        let berth = match request.suspicion.standing {
            Standing::OnTrial => Berth::Trial,
            Standing::Parked => Berth::Parked,
            Standing::Clear | Standing::Suspect if request.is_unmasked() => Berth::Unmasked,
            Standing::Clear | Standing::Suspect => Berth::Lane,
        };
        ensure(
            request.state == State::Waiting && request.ticket.berth == berth,
            || {
                format!(
                    "request {name} waits as {:?} in {:?}",
                    request.suspicion.standing, request.ticket.berth
                )
            },
        )?;
        ensure(request.ticket.bypassed <= MOST_BYPASSES, || {
            format!(
                "request {name} was bypassed {} times",
                request.ticket.bypassed
            )
        })?;
        ensure(
            (1..=request.known()).contains(&request.ticket.backlog),
            || format!("request {name} has a backlog of {}", request.ticket.backlog),
        )?;
        tokens += u64::from(request.ticket.backlog);
    }
    ensure(tokens == core.waiting.tokens(), || {
        format!(
            "{tokens} tokens wait, {} are counted",
            core.waiting.tokens()
        )
    })
}

/// Each deadline of an open request is watched once, and nothing else is.
fn deadlines(core: &Core) -> Outcome {
    let mut expected: Vec<(u64, u64, u32)> = Vec::new();
    for (slot, request) in core.requests.iter() {
        let moments = request.ticket.moments();
        expected.extend(moments.map(|moment| (moment, request.arrival, slot)));
    }
    expected.sort_unstable();
    expected.dedup();
    ensure(core.deadlines.iter().eq(expected.iter().copied()), || {
        format!(
            "deadlines {:?} are watched, not {expected:?}",
            core.deadlines
        )
    })
}
