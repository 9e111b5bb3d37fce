//! Requests in order of arrival: those that wait, and those that run.

use std::collections::VecDeque;

/// Slots sorted by arrival key. Both ends are cheap: new requests join at the back, preempted ones
/// return near the front.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrivalQueue {
    entries: VecDeque<(u64, u32)>,
}

impl ArrivalQueue {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn insert(&mut self, arrival: u64, slot: u32) {
        match self.entries.back() {
            Some(&(last, _)) if last > arrival => {
                let position = self.position(arrival);
                self.entries.insert(position, (arrival, slot));
            }
            _ => self.entries.push_back((arrival, slot)),
        }
    }

    pub(crate) fn remove(&mut self, arrival: u64) {
        let position = self.position(arrival);
        let removed = self.entries.remove(position);
        debug_assert!(removed.is_some_and(|(key, _)| key == arrival));
    }

    pub(crate) fn get(&self, position: usize) -> Option<u32> {
        self.entries.get(position).map(|&(_, slot)| slot)
    }

    /// The newest.
    pub(crate) fn last(&self) -> Option<u32> {
        self.entries.back().map(|&(_, slot)| slot)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|&(_, slot)| slot)
    }

    fn position(&self, arrival: u64) -> usize {
        self.entries.partition_point(|&(key, _)| key < arrival)
    }
}
