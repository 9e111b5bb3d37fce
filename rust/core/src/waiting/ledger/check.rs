//! The ledger's invariants, recomputed from scratch.

use std::collections::BTreeMap;

use crate::active::State;
use crate::check::ensure;
use crate::pool::NONE;
use crate::slab::Slab;
use crate::waiting::Berth;
use crate::waiting::ledger::Ledger;

type Outcome = Result<(), String>;

/// What an account and a class count, recounted.
#[derive(Default)]
struct Count {
    open: u32,
    waiting: u32,
    seated: u32,
    tokens: u64,
}

impl Ledger {
    pub(crate) fn check(&self, requests: &Slab) -> Outcome {
        let mut accounts: BTreeMap<u32, Count> = BTreeMap::new();
        for (_, request) in requests.iter() {
            let count = accounts.entry(request.ticket.account).or_default();
            count.open += 1;
            if request.state == State::Waiting {
                count.waiting += 1;
                count.tokens += u64::from(request.ticket.backlog);
                count.seated += u32::from(request.ticket.berth == Berth::Lane);
            }
        }
        for &class in self.classes() {
            self.check_class(class, &accounts)?;
        }
        ensure(
            accounts
                .keys()
                .all(|&account| self.names.values().any(|&known| known == account)),
            || "an open request names an account that is forgotten".to_owned(),
        )
    }

    fn check_class(&self, index: u32, counts: &BTreeMap<u32, Count>) -> Outcome {
        let class = self.class(index);
        let priority = class.priority;
        let range = (priority, 0)..=(priority, u64::MAX);
        let members: Vec<u32> = self
            .names
            .range(range)
            .map(|(_, &account)| account)
            .collect();
        let mut sums = Count::default();
        let (mut weight, mut open_weight) = (0, 0);
        for &account in &members {
            let entry = self.account(account);
            let none = Count::default();
            let count = counts.get(&account).unwrap_or(&none);
            let idle = class.idle.contains(&(entry.counter, account));
            ensure(
                entry.class == index
                    && entry.open == count.open
                    && entry.tokens == count.tokens
                    && entry.lane.len() == count.seated as usize
                    && idle == (count.open == 0),
                || format!("class {priority}: {entry:?} is not what its requests say"),
            )?;
            ensure((entry.seat != NONE) == (count.seated > 0), || {
                format!("class {priority}: seat {} of {entry:?}", entry.seat)
            })?;
            weight += if entry.seat == NONE { 0 } else { entry.weight };
            open_weight += if count.open == 0 { 0 } else { entry.weight };
            sums.open += count.open;
            sums.waiting += count.waiting;
            sums.tokens += count.tokens;
        }
        ensure(
            class.accounts as usize == members.len()
                && class.open == sums.open
                && class.requests == sums.waiting
                && class.tokens == sums.tokens
                && class.weight == weight
                && class.open_weight == open_weight,
            || format!("{class:?} is not what its accounts say"),
        )?;
        self.check_heap(index)
    }

    fn check_heap(&self, index: u32) -> Outcome {
        let heap = &self.class(index).heap;
        for (seat, &account) in heap.iter().enumerate() {
            let above = heap[seat.saturating_sub(1) / 2];
            ensure(
                self.account(account).seat == seat as u32
                    && (seat == 0 || !self.precedes(account, above)),
                || {
                    format!(
                        "class {}: seat {seat} is out of order",
                        self.class(index).priority
                    )
                },
            )?;
        }
        Ok(())
    }
}
