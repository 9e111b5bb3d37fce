//! What must hold of choices before and at their fork, recomputed from scratch.

use std::collections::HashMap;

use crate::Core;
use crate::active::{Active, State};
use crate::check::ensure;
use crate::fork::Unforked;
use crate::pool::NONE;

type Outcome = Result<(), String>;

/// An unforked choice is listed with one that computes its prompt, has no tokens of its own, and
/// holds a row and a tail exactly as long as that one runs.
pub(crate) fn unforked(core: &Core) -> Result<usize, String> {
    let mut counts = Unforked::default();
    let block_size = core.config.block_size;
    for (first, request) in core.requests.iter() {
        let runs = request.state == State::Running;
        ensure(
            request.unforked.is_empty() || request.outputs() == 0,
            || format!("request {}: output before the fork", request.submission()),
        )?;
        for &slot in &request.unforked {
            let choice = &core.requests[slot];
            let tails = crate::fork::tails(request.prompt, block_size, 2) * u32::from(runs);
            ensure(
                choice.state == State::Unforked
                    && choice.first_choice == first
                    && choice.submission() == request.submission()
                    && choice.tokens.is_empty()
                    && choice.path.is_empty()
                    && (choice.row != NONE) == runs
                    && choice.blocks.len() == tails as usize
                    && (choice.computed, choice.retired) == (0, 0),
                || format!("request {}: {choice:?} is listed", request.submission()),
            )?;
        }
        let listed = request.unforked.len() as u32;
        counts.running += listed * u32::from(runs);
        counts.waiting += listed * u32::from(!runs);
    }
    ensure(counts == core.unforked, || {
        format!("unforked {:?}, recounted {counts:?}", core.unforked)
    })?;
    let all = core.requests.iter();
    let unforked = all.filter(|(_, request)| request.state == State::Unforked);
    let unforked = unforked.count();
    ensure(unforked as u32 == counts.waiting + counts.running, || {
        format!("{unforked} choices are unforked, {counts:?} are listed")
    })?;
    Ok(unforked)
}

/// Owners of each block beside the tables: tails to be copied, and blocks for unforked choices.
pub(crate) fn pins(core: &Core) -> HashMap<u32, usize> {
    let mut pins: HashMap<u32, usize> = HashMap::new();
    for (_, request) in core.requests.iter() {
        let tail = Some(request.tail_source).filter(|&block| block != NONE);
        let spare = request.blocks.iter().copied();
        let spare = spare.filter(|_| request.state == State::Unforked);
        for block in tail.into_iter().chain(spare) {
            *pins.entry(block).or_default() += 1;
        }
    }
    pins
}

/// Invariant 22: a tail that is still to be copied ends where the request's own tokens begin, and
/// nothing was written behind it.
pub(crate) fn tail(core: &Core, request: &Active) -> Outcome {
    let computed = request.computed;
    let position = (computed / core.config.block_size) as usize;
    let untouched = request.tail_source == NONE
        || (!computed.is_multiple_of(core.config.block_size)
            && (request.group != NONE || computed == request.prompt)
            && request.retired == computed
            && request.blocks.len() == position + 1
            && request.blocks[position] != request.tail_source);
    ensure(untouched, || {
        format!("request {}: its tail is not copied", request.submission())
    })
}
