//! KV events: which prefix blocks can be found, told so that a router outside can follow.
//!
//! An event is a change of presence, not of a physical copy: a block is stored when the prefix
//! index begins to find its content and removed when it no longer does. Events are numbered from 0
//! without a gap; the newest are kept in a ring, so that a reader who fell behind a little reads
//! again from its number, and one who fell behind further begins with a snapshot.
//!
//! A block is named by its chain hash, which anybody can compute and which says nothing about the
//! key of the private lookup table.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

/// Largest block in tokens.
const MAX_BLOCK: usize = 256;

/// XXH3-64 over the parent's chain hash and the block's token ids, all little-endian: 8 bytes,
/// then 4 a token. A first block has its namespace in place of the parent's hash.
#[must_use]
pub fn chain_hash(parent: Option<u64>, namespace: u64, tokens: &[u32]) -> u64 {
    let mut bytes = [0; 8 + 4 * MAX_BLOCK];
    bytes[..8].copy_from_slice(&parent.unwrap_or(namespace).to_le_bytes());
    let mut words = bytes[8..].chunks_exact_mut(4);
    for (word, token) in words.by_ref().zip(tokens) {
        word.copy_from_slice(&token.to_le_bytes());
    }
    xxh3_64(&bytes[..8 + 4 * tokens.len()])
}

/// A block that the prefix index finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredBlock {
    /// Chain hash of the block.
    pub hash: u64,
    /// Chain hash of the block before it; `None` for a first block.
    pub parent: Option<u64>,
    /// See [`crate::Request::namespace`].
    pub namespace: u64,
    /// The block's token ids, `block_size` of them.
    pub tokens: Vec<u32>,
}

/// A change of what the prefix index finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum KvChange {
    /// The block is found from now on. Its parent was stored before.
    Stored(StoredBlock),
    /// The block with this chain hash is no longer found.
    Removed { hash: u64 },
    /// No block is found any more.
    Cleared,
}

/// A numbered change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvEvent {
    /// Counts from 0, without a gap.
    pub sequence: u64,
    /// When it happened, in the core's nanoseconds.
    pub at: u64,
    /// What happened.
    #[serde(flatten)]
    pub change: KvChange,
}

/// All that is found before the event with number `next`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvSnapshot {
    /// Number of the first event that the snapshot does not include.
    pub next: u64,
    /// Parents stand before their children.
    pub blocks: Vec<StoredBlock>,
}

/// Events that are asked for and no longer or not yet there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvEventsError {
    /// The core was built without a ring.
    #[error("KV events are off: set kv_events to the number of events to keep")]
    Off,
    /// The reader fell behind.
    #[error("KV event {from} is gone, the oldest kept is {oldest}: begin with a snapshot")]
    Gone { from: u64, oldest: u64 },
    /// The reader comes from another core.
    #[error("KV event {from} has not happened, the next is {next}: begin with a snapshot")]
    Ahead { from: u64, next: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    hash: u64,
    parent: Option<u64>,
    namespace: u64,
    at: u64,
}

/// The ring. Entry `number` stands at `number % capacity`, its tokens beside it.
#[derive(Clone, Debug)]
pub(crate) struct KvEvents {
    block_size: usize,
    capacity: usize,
    entries: Vec<Entry>,
    tokens: Vec<u32>,
    next: u64,
}

impl KvEvents {
    pub(crate) fn new(capacity: u32, block_size: u32) -> Self {
        let capacity = capacity as usize;
        Self {
            block_size: block_size as usize,
            capacity,
            entries: Vec::with_capacity(capacity),
            tokens: vec![0; capacity * block_size as usize],
            next: 0,
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn stored(
        &mut self,
        hash: u64,
        parent: Option<u64>,
        (namespace, tokens): (u64, &[u32]),
        at: u64,
    ) {
        if self.capacity == 0 {
            return;
        }
        let start = (self.next % self.capacity as u64) as usize * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.push(Entry {
            kind: Kind::Stored,
            hash,
            parent,
            namespace,
            at,
        });
    }

    pub(crate) fn removed(&mut self, hash: u64, at: u64) {
        self.push_bare(Kind::Removed, hash, at);
    }

    pub(crate) fn cleared(&mut self, at: u64) {
        self.push_bare(Kind::Cleared, 0, at);
    }

    fn push_bare(&mut self, kind: Kind, hash: u64, at: u64) {
        if self.capacity > 0 {
            self.push(Entry {
                kind,
                hash,
                parent: None,
                namespace: 0,
                at,
            });
        }
    }

    fn push(&mut self, entry: Entry) {
        let position = (self.next % self.capacity as u64) as usize;
        match self.entries.get_mut(position) {
            Some(oldest) => *oldest = entry,
            None => self.entries.push(entry),
        }
        self.next += 1;
    }

    /// Appends at most `limit` events from number `from` on; the number to go on from.
    pub(crate) fn read(
        &self,
        from: u64,
        limit: usize,
        into: &mut Vec<KvEvent>,
    ) -> Result<u64, KvEventsError> {
        if self.capacity == 0 {
            return Err(KvEventsError::Off);
        }
        let oldest = self.next - self.entries.len() as u64;
        if from < oldest {
            return Err(KvEventsError::Gone { from, oldest });
        }
        if from > self.next {
            let next = self.next;
            return Err(KvEventsError::Ahead { from, next });
        }
        let end = self.next.min(from.saturating_add(limit as u64));
        into.extend((from..end).map(|sequence| self.event(sequence)));
        Ok(end)
    }

    fn event(&self, sequence: u64) -> KvEvent {
        let position = (sequence % self.capacity as u64) as usize;
        let entry = &self.entries[position];
        let start = position * self.block_size;
        let change = match entry.kind {
            Kind::Stored => KvChange::Stored(StoredBlock {
                hash: entry.hash,
                parent: entry.parent,
                namespace: entry.namespace,
                tokens: self.tokens[start..start + self.block_size].to_vec(),
            }),
            Kind::Removed => KvChange::Removed { hash: entry.hash },
            Kind::Cleared => KvChange::Cleared,
        };
        KvEvent {
            sequence,
            at: entry.at,
            change,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &KvEvents, from: u64) -> Result<(u64, Vec<KvEvent>), KvEventsError> {
        let mut read = Vec::new();
        let next = events.read(from, usize::MAX, &mut read)?;
        Ok((next, read))
    }

    #[test]
    fn a_chain_hash_is_that_of_its_description() {
        let mut bytes = 7_u64.to_le_bytes().to_vec();
        bytes.extend([1_u32, 2, 3, 4].iter().flat_map(|id| id.to_le_bytes()));
        let first = chain_hash(None, 7, &[1, 2, 3, 4]);
        assert_eq!(first, xxh3_64(&bytes));
        // Known to whoever follows from outside: it must not change with a version.
        assert_eq!(first, 0xa882_bba3_f61e_435a);
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        assert_eq!(chain_hash(Some(first), 7, &[1, 2, 3, 4]), xxh3_64(&bytes));
    }

    #[test]
    fn a_ring_keeps_the_newest_and_says_what_is_gone() {
        let mut events = KvEvents::new(3, 2);
        for hash in 0..5 {
            events.stored(hash, None, (9, &[hash as u32, 1]), 100 + hash);
        }
        let oldest = 2;
        assert_eq!(
            read(&events, 1),
            Err(KvEventsError::Gone { from: 1, oldest })
        );
        assert_eq!(
            read(&events, 6),
            Err(KvEventsError::Ahead { from: 6, next: 5 })
        );
        let (next, kept) = read(&events, 2).expect("the ring has these");
        assert_eq!(next, 5);
        let sequences: Vec<u64> = kept.iter().map(|event| event.sequence).collect();
        assert_eq!(sequences, [2, 3, 4]);
        assert_eq!(
            kept[0].change,
            KvChange::Stored(StoredBlock {
                hash: 2,
                parent: None,
                namespace: 9,
                tokens: vec![2, 1],
            })
        );
        let mut one = Vec::new();
        assert_eq!(events.read(3, 1, &mut one), Ok(4));
        assert_eq!(one.len(), 1);
        assert_eq!(read(&events, 5), Ok((5, Vec::new())));
    }

    #[test]
    fn without_a_ring_nothing_is_kept() {
        let mut events = KvEvents::new(0, 2);
        events.stored(1, None, (0, &[1, 2]), 0);
        events.cleared(0);
        assert_eq!(read(&events, 0), Err(KvEventsError::Off));
        assert_eq!(events.next(), 0);
    }
}
