//! Every invariant of the state, recomputed from scratch. For tests; nothing here is fast.

use std::collections::{HashMap, HashSet};

use crate::Core;
use crate::active::{Active, State};
use crate::config::Admission;
use crate::dedupe::{DEFERRALS, PATIENCE};
use crate::fork::{pins, tail, unforked};
use crate::pool::{NONE, Place};
use crate::prefix::ROOT;
use crate::suspects::{Standing, Suspects};

type Outcome = Result<(), String>;

pub(crate) fn all(core: &Core) -> Outcome {
    core.cache.pool.check()?;
    core.cache.index.check()?;
    core.cache.check_keeping()?;
    containers(core)?;
    owners(core)?;
    eviction_order(core)?;
    for slot in core.running.slots() {
        resident(core, &core.requests[slot])?;
        tail(core, &core.requests[slot])?;
    }
    for (slot, request) in core.requests.iter() {
        progress(core, slot, request)?;
    }
    let holders = core.requests.iter().map(|(_, request)| request);
    core.forecast
        .check(holders.filter(|request| request.row != NONE))?;
    no_eviction(core)?;
    deferrals(core)?;
    rows(core)?;
    side_users(core)?;
    trial(core)?;
    crate::beam::check(core)?;
    crate::check_plan::newest(core)
}

pub(crate) fn ensure(holds: bool, violation: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(violation()) }
}

/// A request is in exactly one of queue and running set, the latter in order.
fn containers(core: &Core) -> Outcome {
    crate::waiting::check(core)?;
    let waiting: Vec<u32> = core.waiting.slots().collect();
    let running: Vec<u32> = core.running.slots().collect();
    ensure(
        running
            .iter()
            .all(|&slot| core.requests[slot].state == State::Running),
        || "a request listed as running is not".to_owned(),
    )?;
    let ranks = running.iter().map(|&slot| core.requests[slot].rank());
    ensure(ranks.is_sorted_by(|left, right| left < right), || {
        "running requests are not in order".to_owned()
    })?;
    let open = core.requests.iter().count();
    let apart = core.dedupe.len() + unforked(core)?;
    ensure(waiting.len() + running.len() + apart == open, || {
        format!(
            "{open} requests are open, {waiting:?} wait, {running:?} run, {apart} are deferred or unforked"
        )
    })
}

/// Invariants 38 and 39: who is deferred waits for a running request that computes what both share.
fn deferrals(core: &Core) -> Outcome {
    let deferrals = core.dedupe.deferrals();
    ensure(deferrals.is_sorted(), || {
        "deferrals are out of order".to_owned()
    })?;
    for deferral in deferrals {
        let (request, owner) = (
            &core.requests[deferral.slot],
            &core.requests[deferral.owner],
        );
        let name = request.submission();
        ensure(
            request.state == State::Deferred
                && request.awaits == Some((deferral.owner, deferral.ready))
                && (1..=DEFERRALS).contains(&request.deferrals)
                && !request.must_run(),
            || format!("request {name} is deferred wrongly"),
        )?;
        let end = (deferral.ready * core.config.block_size) as usize;
        ensure(
            owner.state == State::Running
                && owner.frontier.is_some()
                && (owner.path.len() as u32) < deferral.ready
                && owner.namespace == request.namespace
                && owner.promised() as usize >= end
                && owner.tokens.get(..end) == request.tokens.get(..end),
            || format!("request {name} waits for nothing"),
        )?;
        ensure(core.step <= owner.last_step + PATIENCE + 1, || {
            format!("request {name} waits for a stalled request")
        })?;
    }
    for (slot, request) in core.requests.iter() {
        let owns = core.dedupe.has_frontier(slot, request);
        let computes = request.state == State::Running
            && request.cacheable
            && (request.path.len() as u32 + 1) * core.config.block_size <= request.promised();
        ensure(
            owns == computes && request.frontier.is_some() == owns,
            || format!("request {}: wrong frontier", request.submission()),
        )?;
    }
    let frontiers = core.requests.iter();
    let frontiers = frontiers.filter(|(_, request)| request.frontier.is_some());
    ensure(frontiers.count() == core.dedupe.frontiers(), || {
        "a frontier is nobody's".to_owned()
    })
}

/// Owner counts are the table entries and pins, places partition the pool, shared blocks have equal content.
fn owners(core: &Core) -> Outcome {
    let block_size = core.config.block_size as usize;
    let pool = &core.cache.pool;
    let mut holders: HashMap<u32, Vec<(usize, &Active)>> = HashMap::new();
    for slot in core.running.slots() {
        let request = &core.requests[slot];
        for (position, &block) in request.blocks.iter().enumerate() {
            holders.entry(block).or_default().push((position, request));
        }
    }
    let mut pins = pins(core);
    ensure(!holders.contains_key(&0), || {
        "the null block is in a table".to_owned()
    })?;
    for block in 1..pool.len() {
        let held = holders.get(&block).map_or(&[][..], Vec::as_slice);
        let pinned = pins.get(&block).copied().unwrap_or(0);
        ensure(pool.owners(block) as usize == held.len() + pinned, || {
            format!(
                "block {block} counts {} owners, {} tables name it and {pinned} copies",
                pool.owners(block),
                held.len()
            )
        })?;
        ensure(
            (pool.place(block) == Place::Used) == (held.len() + pinned > 0),
            || format!("block {block} is {:?}", pool.place(block)),
        )?;
        ensure(
            pool.indexed(block) == core.cache.index.is_present(block),
            || format!("block {block}: pool and prefix index disagree"),
        )?;
        let content = |&(position, request): &(usize, &Active)| {
            let end = (position + 1) * block_size;
            let tokens = request.tokens.get(..end).map(<[u32]>::to_vec);
            (position, request.namespace, tokens)
        };
        if held.len() > 1 {
            let first = content(&held[0]);
            ensure(first.2.is_some(), || {
                format!("block {block} is shared before it is full")
            })?;
            ensure(held.iter().all(|holder| content(holder) == first), || {
                format!("block {block} is shared by different prefixes")
            })?;
        }
    }
    let unowned = pool.unowned_blocks(core.step).count();
    pins.retain(|block, _| !holders.contains_key(block));
    ensure(
        unowned + holders.len() + pins.len() + 1 == pool.len() as usize,
        || format!("{unowned} unowned and {} owned blocks", holders.len()),
    )
}

/// No cached block stands nearer to eviction than a cached child of it.
fn eviction_order(core: &Core) -> Outcome {
    let mut passed = HashSet::new();
    for block in core.cache.pool.cached_blocks() {
        let parent = core.cache.index.parent(block);
        ensure(parent == ROOT || !passed.contains(&parent.block), || {
            format!("block {} would be evicted before its child", parent.block)
        })?;
        passed.insert(block);
    }
    Ok(())
}

/// Tables, path and writable blocks of a running request.
fn resident(core: &Core, request: &Active) -> Outcome {
    let block_size = core.config.block_size;
    let name = request.submission();
    let capacity = request.blocks.len() as u32 * block_size;
    ensure(
        request.computed <= capacity && request.known() - 1 <= capacity,
        || format!("request {name}: {capacity} slots are too few"),
    )?;
    ensure(request.matched * block_size < request.known(), || {
        format!("request {name}: the prefix hit leaves no token to compute")
    })?;
    let final_blocks = (request.internable() / block_size).max(request.matched);
    ensure(request.path.len() as u32 <= final_blocks, || {
        format!(
            "request {name}: {} nodes, {final_blocks} blocks are final",
            request.path.len()
        )
    })?;
    let writable = request
        .blocks
        .iter()
        .skip((request.retired / block_size) as usize);
    // Invariants 5 and 22: copies may still read the beginning of a block that is written behind it.
    let copies = |block: u32| {
        let running = core.running.slots();
        running
            .filter(|&slot| core.requests[slot].tail_source == block)
            .count() as u32
    };
    for &block in writable {
        ensure(
            core.cache.pool.owners(block) == 1 + copies(block) && !core.cache.pool.indexed(block),
            || format!("request {name} writes block {block}, which is shared or indexed"),
        )?;
    }
    for (position, node) in request.path.iter().enumerate() {
        let start = position * block_size as usize;
        let tokens = &request.tokens[start..start + block_size as usize];
        let index = &core.cache.index;
        let same = !index.is_live(*node)
            || (index.tokens(node.block) == tokens
                && index.namespace(node.block) == request.namespace);
        ensure(same, || {
            format!("request {name}: block {position} is indexed as other tokens")
        })?;
    }
    Ok(())
}

/// Token counts and what is in flight.
fn progress(core: &Core, slot: u32, request: &Active) -> Outcome {
    let name = request.submission();
    let entries = || {
        let all = core.launches.iter().flat_map(|launch| &launch.entries);
        all.filter(|entry| core.requests.resolve(entry.handle) == Some(slot))
    };
    let inflight = entries().count() as u32;
    ensure(
        inflight == request.inflight && inflight <= u32::from(core.config.overlap_depth) + 1,
        || {
            format!(
                "request {name}: {inflight} steps in flight, counts {}",
                request.inflight
            )
        },
    )?;
    let sampled = entries().filter(|entry| entry.sampled && entry.lineage == request.lineage);
    // A beam's token is chosen when those of the others are there.
    let pending = sampled.count() as u32 + u32::from(request.reported);
    ensure(pending == request.pending, || {
        format!(
            "request {name}: {pending} samples in flight, counts {}",
            request.pending
        )
    })?;
    if request.state == State::Unforked {
        return Ok(());
    }
    ensure(
        request.retired <= request.computed && request.computed < request.target(),
        || {
            format!(
                "request {name}: retired {} computed {} of {}",
                request.retired,
                request.computed,
                request.target()
            )
        },
    )?;
    ensure(
        request.outputs() + request.pending <= request.max_tokens
            && request.acked <= request.outputs(),
        || format!("request {name}: too many outputs or acknowledgements"),
    )?;
    let holds_nothing = request.blocks.is_empty() && request.row == NONE;
    ensure(request.state == State::Running || holds_nothing, || {
        format!("request {name} waits and holds blocks")
    })
}

/// Every state row is free, fenced, or one request's.
fn rows(core: &Core) -> Outcome {
    let requests = core.requests.iter().map(|(_, request)| request.row);
    let assigned = requests.filter(|&row| row != NONE);
    let mut all: Vec<u32> = core.rows.unassigned().chain(assigned).collect();
    all.sort_unstable();
    ensure(all.into_iter().eq(0..core.config.max_running), || {
        "a state row is lost or assigned twice".to_owned()
    })
}

fn side_users(core: &Core) -> Outcome {
    let running = core.running.slots();
    let users = running.filter(|&slot| core.requests[slot].uses_side_arena());
    ensure(users.count() == core.side_users as usize, || {
        format!("{} users of the side arena are counted", core.side_users)
    })
}

fn trial(core: &Core) -> Outcome {
    let count = |standing| {
        let all = core.requests.iter();
        all.filter(|(_, request)| request.suspicion.standing == standing)
            .count() as u32
    };
    let expected = Suspects {
        on_trial: count(Standing::OnTrial),
        parked: count(Standing::Parked),
    };
    ensure(core.suspects == expected, || {
        format!("suspects {:?}, recounted {expected:?}", core.suspects)
    })?;
    ensure(expected.on_trial > 0 || expected.parked == 0, || {
        "requests are parked and nobody is on trial".to_owned()
    })
}

/// Invariant 36: where nobody may be evicted, all that may still be taken is there or coming.
fn no_eviction(core: &Core) -> Outcome {
    let pool = &core.cache.pool;
    let unused = u64::from(pool.allocatable() + pool.coming());
    let promised = core.config.admission == Admission::NoEviction;
    ensure(!promised || core.forecast.claims() <= unused, || {
        format!(
            "{} blocks are promised, {unused} are left",
            core.forecast.claims()
        )
    })?;
    ensure(!promised || core.counters.preemptions == 0, || {
        "somebody was preempted although nobody may be".to_owned()
    })
}
