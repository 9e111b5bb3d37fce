//! The newest plan, held against the requests that it names.

use std::collections::{HashMap, HashSet};

use crate::Core;
use crate::active::Active;
use crate::check::ensure;
use crate::latency::Work;
use crate::launches::{Entry, Launch};

type Outcome = Result<(), String>;

/// Checks the plan as long as its step has not retired.
pub(crate) fn newest(core: &Core) -> Outcome {
    match core.launches.newest() {
        Some(launch) if core.plan.step == launch.step => {
            shape(core, launch)?;
            time(core, launch)?;
            content(core, launch)
        }
        _ => Ok(()),
    }
}

/// Entries with tokens: a choice that is forked has only a sampling row.
fn named(launch: &Launch) -> impl Iterator<Item = &Entry> {
    launch.entries.iter().filter(|entry| !entry.fork)
}

/// Budgets, prefix sums, each state row once, no KV slot twice.
fn shape(core: &Core, launch: &Launch) -> Outcome {
    let plan = &core.plan;
    let tokens = plan.token_ids.len();
    ensure(
        plan.rows.len() == named(launch).count() && plan.sampling.len() == launch.samples,
        || format!("step {} is not what was planned", launch.step),
    )?;
    ensure(tokens <= core.config.max_batched_tokens as usize, || {
        format!("{tokens} tokens in a plan")
    })?;
    ensure(plan.side.len() <= core.config.side_words as usize, || {
        format!("{} words of side data", plan.side.len())
    })?;
    let prefill = tokens - plan.num_decode_rows as usize;
    let most = core.config.max_prefill_tokens.unwrap_or(u32::MAX);
    ensure(prefill <= most as usize, || {
        format!("{prefill} prefill tokens")
    })?;
    let starts = &plan.query_starts;
    ensure(
        starts.len() == plan.rows.len() + 1
            && starts[0] == 0
            && starts.is_sorted_by(|left, right| left < right)
            && starts[plan.rows.len()] as usize == tokens,
        || format!("query starts {starts:?} over {tokens} tokens"),
    )?;
    let rows: HashSet<i32> = plan.rows.iter().copied().collect();
    ensure(rows.len() == plan.rows.len(), || {
        format!("a state row twice in {:?}", plan.rows)
    })?;
    let free = core.rows.free_rows();
    ensure(
        free.iter().all(|&row| !rows.contains(&(row as i32))),
        || "a launched step names a free state row".to_owned(),
    )?;
    let slots: HashSet<i64> = plan.slots.iter().copied().collect();
    ensure(slots.len() == tokens, || {
        "a KV slot is written twice".to_owned()
    })
}

/// The recorded work is the plan's, and its prefill keeps the target as far as the model can tell
/// (invariant 37): only the documented floor may overrun it.
fn time(core: &Core, launch: &Launch) -> Outcome {
    let work = Work::of(&core.plan);
    ensure(launch.work == work, || {
        format!("recorded {:?}, the plan is {work:?}", launch.work)
    })?;
    let Some(limit) = launch.limit else {
        return Ok(());
    };
    let tokens = work.prefill_tokens;
    ensure(
        tokens <= limit.floor || launch.predicted <= limit.most + 1,
        || {
            format!(
                "{tokens} prefill tokens: {} ns, {limit:?}",
                launch.predicted
            )
        },
    )
}

/// Slots lie in the owner's blocks, deltas end where its table does, samples are the known ends.
fn content(core: &Core, launch: &Launch) -> Outcome {
    let plan = &core.plan;
    // The first row of a token is that of the row that computes it.
    let sampled: HashMap<u32, u32> = plan
        .sampling
        .iter()
        .rev()
        .map(|row| (row.token, row.row))
        .collect();
    for (index, entry) in named(launch).enumerate() {
        let start = plan.query_starts[index] as usize;
        let end = plan.query_starts[index + 1] as usize;
        let last = end as u32 - 1;
        ensure(sampled.contains_key(&last) == entry.sampled, || {
            format!("token {last}: sampled is {}", !entry.sampled)
        })?;
        let Some(slot) = core.requests.resolve(entry.handle) else {
            continue;
        };
        let request = &core.requests[slot];
        if request.residency != entry.residency || request.lineage != entry.lineage {
            continue;
        }
        slots(core, request, start..end)?;
        deltas(core, request)?;
        ensure(
            plan.sequence_lengths[index] as u32 == entry.end && request.computed == entry.end,
            || format!("request {}: wrong sequence length", request.submission()),
        )?;
        ensure(
            !entry.sampled || sampled.get(&last) == Some(&request.row),
            || format!("request {}: wrong sampling row", request.submission()),
        )?;
    }
    Ok(())
}

fn slots(core: &Core, request: &Active, range: std::ops::Range<usize>) -> Outcome {
    let block_size = core.config.block_size as usize;
    for token in range {
        let position = core.plan.positions[token] as usize;
        let block = request.blocks[position / block_size];
        let expected = block as usize * block_size + position % block_size;
        ensure(core.plan.slots[token] as usize == expected, || {
            format!(
                "request {}: position {position} in slot {}",
                request.submission(),
                core.plan.slots[token]
            )
        })?;
    }
    Ok(())
}

fn deltas(core: &Core, request: &Active) -> Outcome {
    let plan = &core.plan;
    let mut read = 0;
    for (index, &row) in plan.delta_rows.iter().enumerate() {
        let count = plan.delta_counts[index] as usize;
        let start = plan.delta_starts[index] as usize;
        let told = &plan.delta_blocks[read..read + count];
        read += count;
        if row == request.row as i32 {
            let owned = request.blocks.get(start..start + count).unwrap_or(&[]);
            let same = told
                .iter()
                .map(|&block| block as u32)
                .eq(owned.iter().copied());
            ensure(same && start + count == request.table_sent as usize, || {
                format!("request {}: table delta {told:?}", request.submission())
            })?;
        }
    }
    ensure(request.table_sent as usize == request.blocks.len(), || {
        format!(
            "request {}: blocks that the worker does not know",
            request.submission()
        )
    })
}
