//! How long cached content is kept: retention classes, times to live, frequency.
//!
//! Whoever used a block keeps it, and everything before it, at least as long and in at least the
//! class that its own terms say, from the moment on at which it gives them back. So a parent is never
//! evicted before, or in a lower class than, what follows it, and a dropped parent takes nothing with
//! it that should have stayed.

use std::collections::BTreeSet;

use crate::cache::Cache;
use crate::config::Eviction;
use crate::frequency::Frequency;
use crate::pool::{LEVELS, NEVER};
use crate::prefix::{NodeRef, ROOT};
use crate::{CoreConfig, Request};

/// On which terms a request keeps what it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) retention: u8,
    /// Nanoseconds after its last use, or never.
    pub(crate) ttl_ns: Option<u64>,
}

impl Terms {
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            retention: request.retention,
            ttl_ns: request.cache_ttl_ns,
        }
    }
}

/// What the eviction policy remembers.
#[derive(Clone, Debug)]
pub(crate) struct Keeping {
    /// Time to live of requests that name none.
    ttl_ns: Option<u64>,
    pub(crate) frequency: Option<Frequency>,
    /// Unowned blocks that will expire, by when.
    timers: BTreeSet<(u64, u32)>,
}

impl Keeping {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let (ttl_ns, guarded) = match config.eviction {
            Eviction::Lru => (None, false),
            Eviction::LruWithTtl { ttl_ns } => (Some(ttl_ns), false),
            Eviction::FrequencyGuarded => (None, true),
        };
        Self {
            ttl_ns,
            frequency: guarded.then(|| Frequency::new(config.num_blocks)),
            timers: BTreeSet::new(),
        }
    }

    pub(crate) fn forget_timers(&mut self) {
        self.timers.clear();
    }
}

impl Cache {
    /// Adds an owner.
    pub(crate) fn acquire(&mut self, block: u32) {
        self.stop_timer(block);
        self.pool.acquire(block);
    }

    /// Takes an owner away, whose launched steps touch the block up to step `fence`.
    pub(crate) fn release(&mut self, block: u32, fence: u64, terms: Terms) {
        if self.pool.indexed(block) {
            let expires = self.expiry(terms);
            self.pool.keep(block, terms.retention, 0, expires);
        }
        self.pool.release(block, fence);
        self.start_timer(block);
    }

    /// Releases the blocks of a prefix whose nodes are `path`, deepest first.
    pub(crate) fn release_path(
        &mut self,
        blocks: &[u32],
        path: &[NodeRef],
        fence: u64,
        terms: Terms,
    ) {
        for (position, &block) in blocks.iter().enumerate().rev() {
            self.release(block, fence, terms);
            // Where an equal block is indexed instead of ours, the prefix runs through that one:
            // it must outlive the deeper nodes, so it becomes younger than they are.
            if let Some(&node) = path.get(position)
                && node.block != block
                && self.index.is_live(node)
            {
                self.touch(node.block, fence, terms);
            }
        }
    }

    /// Makes an unowned block that somebody's prefix runs through the most recently used one.
    pub(crate) fn touch(&mut self, block: u32, fence: u64, terms: Terms) {
        self.acquire(block);
        self.release(block, fence, terms);
    }

    /// A request uses these nodes, each of which follows the one before.
    pub(crate) fn use_path(&mut self, path: &[NodeRef]) {
        let mut parent = ROOT;
        for &node in path {
            self.use_node(parent, node);
            parent = node;
        }
    }

    /// A request uses a node: where uses are counted, its level rises with them, up to that of its
    /// parent. An equal block that nobody owns stays where it rests.
    pub(crate) fn use_node(&mut self, parent: NodeRef, node: NodeRef) {
        let Some(frequency) = &mut self.keeping.frequency else {
            return;
        };
        let content = self.index.chain(node.block);
        let halved = frequency.count(content);
        let uses = frequency.estimate(content);
        if halved {
            self.pool.sink();
        }
        let most = LEVELS as u8 - 1;
        let ceiling = if parent == ROOT {
            most
        } else {
            self.pool.level(parent.block)
        };
        if self.pool.owners(node.block) > 0 {
            let level = uses.max(1).ilog2().min(u32::from(ceiling)) as u8;
            self.pool.keep(node.block, 0, level, 0);
        }
    }

    fn expiry(&self, terms: Terms) -> u64 {
        let ttl = terms.ttl_ns.or(self.keeping.ttl_ns);
        ttl.map_or(NEVER, |ttl| self.now.saturating_add(ttl))
    }

    /// Forgets what has expired. What a request owns has not.
    pub(crate) fn expire(&mut self) {
        while let Some(&(expires, block)) = self.keeping.timers.first()
            && expires <= self.now
        {
            self.forget(block);
        }
    }

    fn start_timer(&mut self, block: u32) {
        if let Some(expires) = self.pool.expiry(block) {
            self.keeping.timers.insert((expires, block));
        }
    }

    /// To be called before a block gets an owner, another expiry or no content.
    pub(crate) fn stop_timer(&mut self, block: u32) {
        if let Some(expires) = self.pool.expiry(block) {
            self.keeping.timers.remove(&(expires, block));
        }
    }

    /// Recounts timers, and the order of classes, levels and expiries along every path.
    pub(crate) fn check_keeping(&self) -> Result<(), String> {
        let timed = (1..self.pool.len())
            .filter_map(|block| Some((self.pool.expiry(block)?, block)))
            .collect::<BTreeSet<_>>();
        if timed != self.keeping.timers {
            return Err("the timers are not those of the blocks that expire".to_owned());
        }
        for block in (1..self.pool.len()).filter(|&block| self.index.is_present(block)) {
            let parent = self.index.parent(block);
            if parent == ROOT {
                continue;
            }
            let above = parent.block;
            let unowned = |block| self.pool.owners(block) == 0;
            // Whoever owns a block keeps what is before it at the latest when giving it back.
            let ranks = self.pool.retention(above) >= self.pool.retention(block) || !unowned(block);
            let lasts = self.pool.expires(above) >= self.pool.expires(block)
                || !(unowned(above) && unowned(block));
            if !ranks || !lasts || self.pool.level(above) < self.pool.level(block) {
                return Err(format!(
                    "block {above} is kept for less than what follows it"
                ));
            }
        }
        Ok(())
    }
}
