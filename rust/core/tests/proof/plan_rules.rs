//! What every plan must look like by itself, whoever made it.

use std::collections::HashSet;

use diptych_core::{CoreConfig, PLACEHOLDER, SamplingRow, StepPlan};

type Checked = Result<(), String>;

/// Checks one plan against the configuration alone.
pub(crate) fn check(plan: &StepPlan, config: &CoreConfig) -> Checked {
    check_shape(plan)?;
    check_budget(plan, config)?;
    check_ids(plan, config)?;
    check_deltas(plan, config)?;
    check_copies(plan, config)?;
    check_sampling(plan)
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(message()) }
}

/// Invariants 24 and 49: prefix sums, and each row at most once.
fn check_shape(plan: &StepPlan) -> Checked {
    let tokens = plan.token_ids.len();
    let rows = plan.rows.len();
    ensure(tokens > 0, || "an empty plan was launched".into())?;
    ensure(
        plan.positions.len() == tokens && plan.slots.len() == tokens,
        || "token arrays differ in length".into(),
    )?;
    ensure(
        plan.query_starts.len() == rows + 1 && plan.sequence_lengths.len() == rows,
        || "row arrays differ in length".into(),
    )?;
    ensure(
        plan.query_starts[0] == 0
            && plan.query_starts[rows] as usize == tokens
            && plan.query_starts.is_sorted_by(|left, right| left < right),
        || format!("invariant 24: query_starts {:?}", plan.query_starts),
    )?;
    let distinct: HashSet<i32> = plan.rows.iter().copied().collect();
    ensure(distinct.len() == rows, || {
        format!("invariants 24, 49: a row twice among {:?}", plan.rows)
    })?;
    for row in 0..rows {
        let last = plan.query_starts[row + 1] as usize - 1;
        ensure(
            plan.sequence_lengths[row] == plan.positions[last] + 1,
            || format!("row {row}: sequence length is not its last position + 1"),
        )?;
    }
    Ok(())
}

/// Copies go within the pool, from the beginning of one block into another that nothing else is
/// copied into.
fn check_copies(plan: &StepPlan, config: &CoreConfig) -> Checked {
    let blocks = 1..config.num_blocks as i32;
    let mut destinations = HashSet::new();
    for &[source, destination, count, kind] in &plan.block_copies {
        let partial = 1..config.block_size as i32;
        ensure(
            blocks.contains(&source)
                && blocks.contains(&destination)
                && source != destination
                && partial.contains(&count)
                && kind == 0
                && destinations.insert(destination),
            || format!("block copies {:?}", plan.block_copies),
        )?;
    }
    ensure(
        plan.block_copies.len() <= config.max_running as usize,
        || "invariant 49: more block copies than rows".into(),
    )
}

/// Invariants 24 and 49: tokens, prefill tokens, rows and side words within their limits.
fn check_budget(plan: &StepPlan, config: &CoreConfig) -> Checked {
    let tokens = plan.token_ids.len() as u32;
    let decode = plan.num_decode_rows;
    ensure(tokens <= config.max_batched_tokens, || {
        format!("invariant 24: {tokens} tokens in one step")
    })?;
    ensure(decode as usize <= plan.rows.len(), || {
        "too many decode rows".into()
    })?;
    ensure(plan.query_starts[decode as usize] as u32 == decode, || {
        "a decode row has not exactly one token".into()
    })?;
    let prefill = tokens - decode;
    ensure(
        config.max_prefill_tokens.is_none_or(|cap| prefill <= cap),
        || format!("{prefill} prefill tokens in one step"),
    )?;
    ensure(plan.side.len() <= config.side_words as usize, || {
        format!("invariant 49: {} side words", plan.side.len())
    })
}

/// Ids within their ranges, no slot twice, placeholders only where steps overlap.
fn check_ids(plan: &StepPlan, config: &CoreConfig) -> Checked {
    let vocabulary = config.vocabulary as i32;
    for (index, &id) in plan.token_ids.iter().enumerate() {
        let placeholder =
            id == PLACEHOLDER && config.overlap_depth > 0 && index < plan.num_decode_rows as usize;
        ensure(placeholder || (0..vocabulary).contains(&id), || {
            format!("token {index} of the step has id {id}")
        })?;
    }
    let distinct: HashSet<i64> = plan.slots.iter().copied().collect();
    ensure(distinct.len() == plan.slots.len(), || {
        format!("invariant 25: a slot twice in {:?}", plan.slots)
    })?;
    let rows = config.max_running as i32;
    ensure(plan.rows.iter().all(|row| (0..rows).contains(row)), || {
        format!("rows {:?} of {rows}", plan.rows)
    })
}

fn check_deltas(plan: &StepPlan, config: &CoreConfig) -> Checked {
    let count = plan.delta_rows.len();
    let total: i32 = plan.delta_counts.iter().sum();
    ensure(
        plan.delta_starts.len() == count
            && plan.delta_counts.len() == count
            && plan.delta_blocks.len() == total as usize,
        || "delta arrays differ in length".into(),
    )?;
    let blocks = 1..config.num_blocks as i32;
    ensure(
        plan.delta_blocks.iter().all(|block| blocks.contains(block)),
        || format!("a table entry outside the pool: {:?}", plan.delta_blocks),
    )?;
    let rows = 0..config.max_running as i32;
    ensure(
        plan.delta_rows.iter().all(|row| rows.contains(row))
            && plan.delta_starts.iter().all(|&start| start >= 0)
            && plan.delta_counts.iter().all(|&count| count > 0),
        || "a delta names no row, a negative start or nothing".into(),
    )
}

/// A sampling row names the last token of its row, or of the row of its request's first choice,
/// which is sampled before it; decode rows are all sampled, each row once.
fn check_sampling(plan: &StepPlan) -> Checked {
    let mut sampled = HashSet::new();
    let mut first: Option<&SamplingRow> = None;
    for sampling in &plan.sampling {
        let index = plan.rows.iter().position(|&row| row as u32 == sampling.row);
        let shared = first.filter(|first| {
            first.submission == sampling.submission
                && (first.output_index, sampling.output_index) == (0, 0)
                && (first.penalty_offset, first.bias_offset)
                    == (sampling.penalty_offset, sampling.bias_offset)
        });
        let expected = match index {
            Some(index) => Some(plan.query_starts[index + 1] as u32 - 1),
            None => shared.map(|first| first.token),
        };
        ensure(expected == Some(sampling.token), || {
            format!(
                "row {} samples token {}, its last is {expected:?}",
                sampling.row, sampling.token
            )
        })?;
        ensure(sampled.insert(sampling.row), || {
            format!("row {} is sampled twice", sampling.row)
        })?;
        if index.is_some() {
            first = Some(sampling);
        }
    }
    let decode = &plan.rows[..plan.num_decode_rows as usize];
    ensure(
        decode.iter().all(|&row| sampled.contains(&(row as u32))),
        || "invariant 27: a decode row is not sampled".into(),
    )
}
