//! KV blocks and the prefix index over them, kept consistent in one place.

use crate::CoreConfig;
use crate::evicted::{Dropped, EvictedHashes};
use crate::kv_events::{KvEvents, KvSnapshot, StoredBlock};
use crate::pool::{Place, Pool};
use crate::prefix::{NodeRef, PrefixIndex, ROOT};
use crate::retention::Keeping;

/// The pool and its index. A block's node vanishes in the same operation that evicts the block.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) pool: Pool,
    pub(crate) index: PrefixIndex,
    pub(crate) events: KvEvents,
    pub(crate) evicted: EvictedHashes,
    pub(crate) keeping: Keeping,
    /// When the core was called last that said the time.
    pub(crate) now: u64,
    pub(crate) block_size: usize,
    dropped: Vec<u32>,
}

impl Cache {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let (num_blocks, block_size) = (config.num_blocks, config.block_size);
        Self {
            pool: Pool::new(num_blocks),
            index: PrefixIndex::new(num_blocks, block_size, config.hash),
            events: KvEvents::new(config.kv_events, block_size),
            evicted: EvictedHashes::new(num_blocks),
            keeping: Keeping::new(config),
            now: 0,
            block_size: block_size as usize,
            dropped: Vec::with_capacity(num_blocks as usize),
        }
    }

    /// Makes `path` the longest indexed prefix of `tokens` that consists of whole blocks. What the
    /// path holds already may be stale, but belongs to these tokens.
    pub(crate) fn extend_path(&self, namespace: u64, tokens: &[u32], path: &mut Vec<NodeRef>) {
        // A live node has live ancestors.
        while path.last().is_some_and(|&node| !self.index.is_live(node)) {
            path.pop();
        }
        let known = path.len() * self.block_size;
        for block in tokens[known..].chunks_exact(self.block_size) {
            let parent = path.last().copied().unwrap_or(ROOT);
            let Some(node) = self.index.find(parent, namespace, block) else {
                return;
            };
            path.push(node);
        }
    }

    /// How many of these blocks count as allocatable although the caller means to keep them.
    pub(crate) fn evictable_among(&self, nodes: &[NodeRef]) -> u32 {
        let cached = |node: &&NodeRef| self.pool.place(node.block) == Place::Cached;
        nodes.iter().filter(cached).count() as u32
    }

    /// How many of these blocks nobody owns, those that a launched step may still touch included.
    pub(crate) fn unowned_among(&self, nodes: &[NodeRef]) -> u32 {
        let unowned = |node: &&NodeRef| self.pool.owners(node.block) == 0;
        nodes.iter().filter(unowned).count() as u32
    }

    /// Appends `count` blocks to `into`, or changes nothing and returns false.
    pub(crate) fn allocate(&mut self, count: u32, into: &mut Vec<u32>) -> bool {
        if self.pool.allocatable() < count {
            return false;
        }
        for _ in 0..count {
            if self.pool.next_cold().is_none()
                && let Some(oldest) = self.pool.next_cached()
            {
                self.forget(oldest);
            }
            let block = self.pool.next_cold().expect("allocatable blocks are left");
            self.pool.acquire(block);
            into.push(block);
        }
        true
    }

    /// Interns a full block whose step has retired. An equal block that is indexed already wins;
    /// the caller's is then a duplicate without a node.
    pub(crate) fn intern(
        &mut self,
        parent: NodeRef,
        namespace: u64,
        tokens: &[u32],
        block: u32,
    ) -> NodeRef {
        if let Some(node) = self.index.find(parent, namespace, tokens) {
            return node;
        }
        let node = self.index.insert(parent, namespace, tokens, block);
        self.pool.set_indexed(block, true);
        let above = (parent != ROOT).then(|| self.index.chain(parent.block));
        let chain = self.index.chain(block);
        self.events
            .stored(chain, above, (namespace, tokens), self.now);
        node
    }

    /// Drops the node of `block` and every node below it.
    pub(crate) fn forget(&mut self, block: u32) {
        self.index.drop_subtree(block, &mut self.dropped);
        for &block in &self.dropped {
            let chain = self.index.chain(block);
            self.events.removed(chain, self.now);
            self.evicted.note(chain, self.now, Dropped::Evicted);
        }
        self.settle_dropped();
    }

    /// Drops every node.
    pub(crate) fn forget_all(&mut self) {
        self.clear_index();
        self.settle_dropped();
    }

    fn clear_index(&mut self) {
        self.index.clear(&mut self.dropped);
        for &block in &self.dropped {
            let chain = self.index.chain(block);
            self.evicted.note(chain, self.now, Dropped::Cleared);
        }
        self.events.cleared(self.now);
    }

    /// All blocks that can be found, each after its parent.
    pub(crate) fn snapshot(&self) -> KvSnapshot {
        let mut blocks: Vec<StoredBlock> = Vec::new();
        let mut open: Vec<(u32, Option<u64>)> = self
            .index
            .children(None)
            .map(|block| (block, None))
            .collect();
        while let Some((block, parent)) = open.pop() {
            let node = self.index.node(block);
            blocks.push(StoredBlock {
                hash: self.index.chain(block),
                parent,
                namespace: self.index.namespace(block),
                tokens: self.index.tokens(block).to_vec(),
            });
            let children = self.index.children(Some(node));
            open.extend(children.map(|child| (child, Some(self.index.chain(block)))));
        }
        KvSnapshot {
            next: self.events.next(),
            blocks,
        }
    }

    fn settle_dropped(&mut self) {
        let mut dropped = std::mem::take(&mut self.dropped);
        for block in dropped.drain(..) {
            self.stop_timer(block);
            self.pool.set_indexed(block, false);
        }
        self.dropped = dropped;
    }

    /// The worker's memory is gone: every block is cold, no node is left.
    pub(crate) fn reset(&mut self) {
        self.clear_index();
        self.dropped.clear();
        self.keeping.forget_timers();
        self.pool.reset();
    }
}
