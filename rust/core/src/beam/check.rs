//! What must hold of beams, recomputed from scratch.

use crate::Core;
use crate::active::State;
use crate::check::ensure;
use crate::pool::NONE;

type Outcome = Result<(), String>;

/// A group's beams are the open choices of one request. Those that run have a place each; who has
/// named its continuations holds its blocks, and waits for somebody who has not.
pub(crate) fn groups(core: &Core) -> Outcome {
    let mut members = 0;
    for (number, group) in core.groups.iter() {
        members += group.members.len();
        let mut running: Vec<u32> = group.order.clone();
        running.sort_unstable();
        running.dedup();
        ensure(
            running.len() == group.search.running()
                && running.len() == group.order.len()
                && running.iter().all(|slot| group.members.contains(slot)),
            || {
                format!(
                    "group {number}: {:?} run in {:?}",
                    group.order, group.members
                )
            },
        )?;
        let lengths = group.order.iter().map(|&slot| core.requests[slot].known());
        ensure(lengths.clone().min() == lengths.clone().max(), || {
            format!(
                "group {number}: beams of lengths {:?}",
                lengths.collect::<Vec<_>>()
            )
        })?;
        for (choice, &slot) in group.members.iter().enumerate() {
            let beam = &core.requests[slot];
            let reported = group.reports[choice].is_some();
            ensure(
                beam.group == number
                    && beam.choice() as usize == choice
                    && (beam.state == State::Unforked) != group.order.contains(&slot)
                    && beam.reported == reported
                    && (!reported || (beam.state == State::Running && beam.inflight == 0)),
                || format!("group {number}: {beam:?}, reported {reported}"),
            )?;
        }
        let resident = group.order.iter();
        let resident = resident.filter(|&&slot| core.requests[slot].state == State::Running);
        let resident = resident.count();
        ensure(resident == 0 || resident == group.order.len(), || {
            format!(
                "group {number}: {resident} of {:?} have blocks",
                group.order
            )
        })?;
        let waiting = group
            .order
            .iter()
            .filter(|&&slot| !core.requests[slot].reported);
        ensure(waiting.count() > 0, || {
            format!("group {number}: everything is there and nothing follows")
        })?;
    }
    let beams = core.requests.iter();
    let beams = beams.filter(|(_, request)| request.group != NONE);
    ensure(beams.count() == members, || {
        "a beam belongs to no group".to_owned()
    })
}
