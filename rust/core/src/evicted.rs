//! What was stored a while ago: chain hashes of blocks that the prefix index has dropped, so that a
//! miss can be told from a first encounter.
//!
//! A hash has one place; a later one takes it over. So the memory is bounded, both operations are
//! O(1), and what is forgotten reads as never stored.

use crate::reason::MatchEnd;

/// Most hashes kept: 1 MiB.
const MOST: u32 = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    /// When, shifted by one, and whether it was dropped with everything else. [`VACANT`]: nothing
    /// stands here.
    moment: u64,
}

/// No moment: 292 years of nanoseconds are before it.
const VACANT: u64 = u64::MAX;

const _: () = assert!(size_of::<Entry>() == 16);

/// Why a block was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// For another block's content, or because what it follows was.
    Evicted,
    /// With everything else.
    Cleared,
}

#[derive(Clone, Debug)]
pub(crate) struct EvictedHashes {
    entries: Vec<Entry>,
}

impl EvictedHashes {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let vacant = Entry {
            hash: 0,
            moment: VACANT,
        };
        let places = num_blocks.saturating_mul(2).min(MOST);
        Self {
            entries: vec![vacant; places as usize],
        }
    }

    pub(crate) fn note(&mut self, hash: u64, at: u64, cause: Dropped) {
        let place = self.place(hash);
        let moment = at.min(VACANT / 2 - 1) << 1 | u64::from(cause == Dropped::Cleared);
        self.entries[place] = Entry { hash, moment };
    }

    /// How a block that is not stored was lost, if that is remembered.
    pub(crate) fn explain(&self, hash: u64, now: u64) -> Option<MatchEnd> {
        let entry = &self.entries[self.place(hash)];
        if entry.hash != hash || entry.moment == VACANT {
            return None;
        }
        let ago_ns = now.saturating_sub(entry.moment >> 1);
        Some(if entry.moment & 1 == 1 {
            MatchEnd::Cleared { ago_ns }
        } else {
            MatchEnd::Evicted { ago_ns }
        })
    }

    fn place(&self, hash: u64) -> usize {
        let places = self.entries.len() as u128;
        ((u128::from(hash) * places) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_hash_is_explained_until_another_takes_its_place() {
        let mut hashes = EvictedHashes::new(4);
        assert_eq!(hashes.explain(0, 5), None);
        hashes.note(3, 10, Dropped::Evicted);
        assert_eq!(hashes.explain(3, 15), Some(MatchEnd::Evicted { ago_ns: 5 }));
        // One of eight places further on.
        hashes.note(1 << 61, 11, Dropped::Evicted);
        assert_eq!(hashes.explain(3, 15), Some(MatchEnd::Evicted { ago_ns: 5 }));
        hashes.note(11, 12, Dropped::Cleared);
        assert_eq!(hashes.explain(3, 15), None);
        assert_eq!(
            hashes.explain(11, 15),
            Some(MatchEnd::Cleared { ago_ns: 3 })
        );
    }
}
