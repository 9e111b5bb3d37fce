//! The running requests: most urgent class first, each in order of arrival.

use std::collections::VecDeque;

/// Priority, lower first, and arrival.
pub(crate) type Rank = (u8, u64);

/// Slots sorted by rank. Both ends are cheap: new requests join near the back.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningQueue {
    entries: VecDeque<(Rank, u32)>,
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
            Some(&(last, _)) if last > rank => {
                let position = self.position(rank);
                self.entries.insert(position, (rank, slot));
            }
            _ => self.entries.push_back((rank, slot)),
        }
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        let position = self.position(rank);
        let removed = self.entries.remove(position);
        debug_assert!(removed.is_some_and(|(key, _)| key == rank));
    }

    /// The newest of the least urgent class.
    pub(crate) fn last(&self) -> Option<u32> {
        self.entries.back().map(|&(_, slot)| slot)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|&(_, slot)| slot)
    }

    /// The least urgent class first, each newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().rev().map(|&(_, slot)| slot)
    }

    fn position(&self, rank: Rank) -> usize {
        self.entries.partition_point(|&(key, _)| key < rank)
    }
}
