//! A canonical digest of behaviour-relevant state, for searches over interleavings.
//!
//! Counters, epochs, slot numbers and generations are left out; steps are counted from the last
//! launched one, requests from the oldest open one. So states that only differ in how long ago
//! they began are equal, and a search over a closed system ends.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::Core;
use crate::active::{Active, State};
use crate::config::Admission;
use crate::dedupe::PATIENCE;
use crate::mask::PATIENCE as MASK_PATIENCE;
use crate::pool::{NEVER, NONE};
use crate::prefix::ROOT;

pub(crate) fn write(core: &Core, state: &mut impl Hasher) {
    let mut open: Vec<(u64, u32)> = core
        .requests
        .iter()
        .map(|(slot, request)| (request.arrival, slot))
        .collect();
    open.sort_unstable();
    let rank: HashMap<u32, usize> = open
        .iter()
        .enumerate()
        .map(|(rank, &(_, slot))| (slot, rank))
        .collect();
    open.len().hash(state);
    for &(_, slot) in &open {
        write_request(core, &core.requests[slot], state);
        write_deferral(core, &rank, slot, state);
    }
    core.suspects.hash(state);
    core.waiting.ledger.fingerprint(state);
    core.prompt_rate.hash(state);
    if matches!(core.config.admission, Admission::PredictedPeak { .. }) {
        core.forecast.fingerprint(state);
    }
    core.reserve_until.saturating_sub(core.step).hash(state);
    core.cache.keeping.frequency.hash(state);
    core.latency.hash_behaviour(state);
    write_launches(core, &rank, state);
    write_blocks(core, state);
    core.rows.hash_order(core.step, state);
}

fn write_request(core: &Core, request: &Active, state: &mut impl Hasher) {
    let since = |step: u64| core.step - step;
    request.tokens.hash(state);
    (request.prompt, request.max_tokens).hash(state);
    request.hash_stop_ids(state);
    (request.has_stop_strings, request.namespace, request.terms).hash(state);
    (request.has_side_data, request.has_penalties).hash(state);
    let (masks, outputs) = (request.masks, request.outputs());
    let wary = masks.trusted_from.saturating_sub(outputs);
    (masks.wanted, masks.known > outputs, wary).hash(state);
    (request.state, request.admitted, request.row).hash(state);
    request.blocks.hash(state);
    (
        request.choice(),
        request.tail_source,
        request.unforked.len(),
    )
        .hash(state);
    if request.group != NONE {
        core.groups
            .fingerprint(request.group, request.choice(), state);
    }
    let path = match request.state {
        State::Waiting | State::Deferred | State::Unforked => &[][..],
        State::Running => &request.path,
    };
    for node in path {
        (core.cache.index.is_live(*node), node.block).hash(state);
    }
    (request.matched, request.cacheable, request.table_sent).hash(state);
    (request.computed, request.retired, request.pending).hash(state);
    (request.inflight, request.acked, request.suspicion).hash(state);
    request.pace.hash_behaviour(state);
    write_ticket(core, request, state);
    request.preemptions.hash(state);
    if matches!(core.config.admission, Admission::PredictedPeak { .. }) {
        core.forecast.hash_stay(&request.stay, state);
    }
    // A step that has retired is as good as any older one.
    let oldest = core
        .launches
        .oldest()
        .map_or(core.step + 1, |launch| launch.step);
    let fence = (request.last_step >= oldest).then(|| since(request.last_step));
    fence.hash(state);
    if request.has_side_data {
        since(request.side_step).hash(state);
    }
    if request.state == State::Running && request.is_unmasked() {
        since(request.last_step).min(MASK_PATIENCE).hash(state);
    }
}

/// What decides when a request is admitted, and when it is too late. Moments are as they are: only
/// cores at equal times are equal.
fn write_ticket(core: &Core, request: &Active, state: &mut impl Hasher) {
    let ticket = &request.ticket;
    (ticket.priority, ticket.submitted).hash(state);
    (ticket.deadline, ticket.first_token_deadline).hash(state);
    (ticket.charged, ticket.advance, ticket.kept, ticket.bypassed).hash(state);
    core.waiting
        .ledger
        .account(ticket.account)
        .tenant
        .hash(state);
    if ticket.advance > 0 {
        // What is given back if it ends now.
        let served = ticket.served.max(request.computed);
        served.min(request.prompt).hash(state);
    }
    // What was found in the cache when it was last asked is found again when it matters, but for
    // refusals.
    if core.may_refuse() && request.state == State::Waiting {
        ticket.backlog.hash(state);
    }
}

/// For whom a request waits, and how long that one has been left out.
fn write_deferral(core: &Core, rank: &HashMap<u32, usize>, slot: u32, state: &mut impl Hasher) {
    let request = &core.requests[slot];
    request.deferrals.hash(state);
    if let Some((owner, ready)) = request.awaits {
        let idle = core.step - core.requests[owner].last_step;
        (rank[&owner], ready, idle.min(PATIENCE + 1)).hash(state);
    }
}

fn write_launches(core: &Core, rank: &HashMap<u32, usize>, state: &mut impl Hasher) {
    core.launches.len().hash(state);
    for launch in core.launches.iter() {
        launch.entries.len().hash(state);
        (launch.limit, launch.predicted).hash(state);
        for entry in &launch.entries {
            let slot = core.requests.resolve(entry.handle);
            slot.map(|slot| {
                let request = &core.requests[slot];
                let resident = request.residency == entry.residency;
                (rank[&slot], resident, request.lineage == entry.lineage)
            })
            .hash(state);
            (entry.end, entry.sampled, entry.fork, entry.candidates).hash(state);
        }
    }
}

fn write_blocks(core: &Core, state: &mut impl Hasher) {
    let pool = &core.cache.pool;
    let index = &core.cache.index;
    for place in pool.unowned_blocks(core.step) {
        place.hash(state);
    }
    for block in 1..pool.len() {
        let fence = pool.pending_fence(block).map(|fence| core.step - fence);
        (pool.owners(block), fence).hash(state);
        if index.is_present(block) {
            let parent = index.parent(block);
            let above = if parent == ROOT { NONE } else { parent.block };
            (above, index.namespace(block), index.tokens(block)).hash(state);
            (pool.retention(block), pool.level(block)).hash(state);
            let left = pool.expires(block).saturating_sub(core.cache.now);
            (pool.expires(block) != NEVER).then_some(left).hash(state);
        }
    }
}
