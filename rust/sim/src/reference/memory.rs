//! The KV blocks of a reference scheduler: counted, and found again by the hash of their prefix.
//!
//! Content is a full block under the hash of everything up to its end. Blocks of requests that are not
//! full are only counted. 64-bit hashes are taken for the content itself: good enough to compare
//! policies, and not to serve.

use std::collections::{BTreeSet, HashMap};

use super::policy::Eviction;
use super::sketch::Sketch;

/// Counts of blocks, and the content that can be found.
#[derive(Debug)]
pub(crate) struct Memory {
    blocks: u32,
    /// Without content and owner.
    free: u32,
    content: HashMap<u64, Content>,
    /// Content without owners, next to be evicted first.
    idle: BTreeSet<(u8, u64, u64)>,
    eviction: Eviction,
    sketch: Sketch,
    /// Rises with each release: the order of last use.
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    owners: u32,
    /// Level and time of its place in `idle`, if it has no owner.
    rank: (u8, u64),
    released_at: u64,
}

impl Memory {
    pub(crate) fn new(blocks: u32, eviction: Eviction) -> Self {
        Self {
            blocks,
            free: blocks,
            content: HashMap::new(),
            idle: BTreeSet::new(),
            eviction,
            sketch: Sketch::new(blocks),
            clock: 0,
        }
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks that can be taken.
    pub(crate) fn available(&self) -> u32 {
        self.free + self.idle.len() as u32
    }

    /// How many leading hashes are found, and how many of these count as available.
    pub(crate) fn find(&self, hashes: &[u64], now: u64) -> (u32, u32) {
        let mut found = 0;
        let mut idle = 0;
        for hash in hashes {
            match self.content.get(hash) {
                Some(content) if content.owners > 0 => {}
                Some(content) if !self.is_stale(content, now) => idle += 1,
                _ => break,
            }
            found += 1;
        }
        (found, idle)
    }

    fn is_stale(&self, content: &Content, now: u64) -> bool {
        match self.eviction {
            Eviction::LruTtl(seconds) => {
                now.saturating_sub(content.released_at) as f64 > seconds * 1e9
            }
            Eviction::Lru | Eviction::FrequencyGuarded => false,
        }
    }

    /// Adds an owner to content that was found.
    pub(crate) fn acquire(&mut self, hash: u64) {
        self.sketch.add(hash);
        let content = self.content.get_mut(&hash).expect("it was found before");
        if content.owners == 0 {
            let (level, time) = content.rank;
            self.idle.remove(&(level, time, hash));
        }
        content.owners += 1;
    }

    /// Takes `count` blocks without content, evicting if need be; or changes nothing.
    pub(crate) fn take(&mut self, count: u32) -> bool {
        if self.available() < count {
            return false;
        }
        while self.free < count {
            let (_, _, hash) = self.idle.pop_first().expect("idle content is available");
            self.content.remove(&hash);
            self.free += 1;
        }
        self.free -= count;
        true
    }

    /// Gives back `count` blocks that had no content.
    pub(crate) fn give(&mut self, count: u32) {
        self.free += count;
    }

    /// A taken block became full; where equal content exists, that is owned instead and the block is free.
    pub(crate) fn fill(&mut self, hash: u64) {
        if self.content.contains_key(&hash) {
            self.acquire(hash);
            self.free += 1;
            return;
        }
        self.sketch.add(hash);
        let content = Content {
            owners: 1,
            rank: (0, 0),
            released_at: 0,
        };
        self.content.insert(hash, content);
    }

    /// Takes an owner away. Deepest content first, so that tails are evicted before heads.
    pub(crate) fn release(&mut self, hash: u64, now: u64) {
        self.clock += 1;
        let level = match self.eviction {
            Eviction::FrequencyGuarded => self.sketch.level(hash),
            Eviction::Lru | Eviction::LruTtl(_) => 0,
        };
        let content = self.content.get_mut(&hash).expect("owned content exists");
        content.owners -= 1;
        content.released_at = now;
        if content.owners == 0 {
            content.rank = (level, self.clock);
            self.idle.insert((level, self.clock, hash));
        }
    }

    /// Every block is free, idle, owned content, or one of `private` blocks that requests own.
    pub(crate) fn check(&self, private: u32) -> Result<(), String> {
        let idle = self
            .content
            .values()
            .filter(|content| content.owners == 0)
            .count();
        let counted = self.free as usize + self.content.len() + private as usize;
        if idle != self.idle.len() || counted != self.blocks as usize {
            return Err(format!(
                "{} blocks: {} free, {} with content of which {idle} idle ({} listed), {private} private",
                self.blocks,
                self.free,
                self.content.len(),
                self.idle.len()
            ));
        }
        Ok(())
    }
}
