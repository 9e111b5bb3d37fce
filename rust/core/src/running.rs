//! The running requests: most urgent class first, each in order of arrival.

use std::collections::VecDeque;

/// Priority, lower first, and arrival.
pub(crate) type Rank = (u8, u64);

/// Slots sorted by rank. Both ends are cheap: new requests join near the back.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningQueue {
    entries: VecDeque<Entry>,
}

/// A rank and its slot, without the padding of a pair.
#[derive(Clone, Copy, Debug)]
struct Entry {
    arrival: u64,
    slot: u32,
    priority: u8,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Entry {
    fn new((priority, arrival): Rank, slot: u32) -> Self {
        Self {
            arrival,
            slot,
            priority,
        }
    }

    fn rank(self) -> Rank {
        (self.priority, self.arrival)
    }
}

impl RunningQueue {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn insert(&mut self, rank: Rank, slot: u32) {
        match self.entries.back() {
            Some(last) if last.rank() > rank => {
                let position = self.position(rank);
                self.entries.insert(position, Entry::new(rank, slot));
            }
            _ => self.entries.push_back(Entry::new(rank, slot)),
        }
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        let position = self.position(rank);
        let removed = self.entries.remove(position);
        debug_assert!(removed.is_some_and(|entry| entry.rank() == rank));
    }

    /// The newest of the least urgent class.
    pub(crate) fn last(&self) -> Option<u32> {
        self.entries.back().map(|entry| entry.slot)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|entry| entry.slot)
    }

    /// The least urgent class first, each newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().rev().map(|entry| entry.slot)
    }

    fn position(&self, rank: Rank) -> usize {
        self.entries.partition_point(|entry| entry.rank() < rank)
    }
}
