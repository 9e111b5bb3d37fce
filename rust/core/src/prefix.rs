//! The prefix index: an interned trie of full blocks, found by hash and verified exactly.
//!
//! A node is named by the block that holds its KV, so a node without KV cannot exist. A lookup
//! accepts a candidate only if its parent (block and generation), namespace and tokens are equal;
//! by induction the whole prefix is, whatever the hash. Dropping a node drops its subtree: a node
//! whose parent is gone is never found.

use crate::config::HashMode;
use crate::kv_events::chain_hash;
use crate::pool::NONE;

/// A node, valid as long as the generation of its block's content is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    pub(crate) block: u32,
    pub(crate) generation: u32,
}

/// Parent of every first block.
pub(crate) const ROOT: NodeRef = NodeRef {
    block: NONE,
    generation: 0,
};

#[derive(Clone, Debug)]
struct Node {
    hash: u64,
    /// The public name of the content; stays until the block's next content.
    chain: u64,
    namespace: u64,
    parent: NodeRef,
    generation: u32,
    present: bool,
    first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tag: u32,
    block: u32,
}

const VACANT: Bucket = Bucket {
    tag: 0,
    block: NONE,
};

const _: () = assert!(size_of::<Node>() == 56 && size_of::<Bucket>() == 8);

/// Buckets of the table for each block.
const BUCKETS: usize = 2;

/// Nodes of all blocks and the open-addressing table over them.
#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex {
    block_size: usize,
    mode: HashMode,
    nodes: Vec<Node>,
    tokens: Vec<u32>,
    table: Vec<Bucket>,
    /// The newest of the first blocks.
    first_root: u32,
    /// Counts the changes.
    epoch: u64,
}

impl PrefixIndex {
    pub(crate) fn new(num_blocks: u32, block_size: u32, mode: HashMode) -> Self {
        let vacant = Node {
            hash: 0,
            chain: 0,
            namespace: 0,
            parent: ROOT,
            generation: 0,
            present: false,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
        };
        Self {
            block_size: block_size as usize,
            mode,
            nodes: vec![vacant; num_blocks as usize],
            tokens: vec![0; num_blocks as usize * block_size as usize],
            table: vec![VACANT; BUCKETS * num_blocks as usize],
            first_root: NONE,
            epoch: 1,
        }
    }

    pub(crate) fn is_live(&self, node: NodeRef) -> bool {
        let found = &self.nodes[node.block as usize];
        found.present && found.generation == node.generation
    }

    /// Another number after every change; never 0.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn is_present(&self, block: u32) -> bool {
        self.nodes[block as usize].present
    }

    /// The node of a block that has one.
    pub(crate) fn node(&self, block: u32) -> NodeRef {
        let generation = self.nodes[block as usize].generation;
        NodeRef { block, generation }
    }

    pub(crate) fn parent(&self, block: u32) -> NodeRef {
        self.nodes[block as usize].parent
    }

    /// The chain hash of the content that the block has or had last.
    pub(crate) fn chain(&self, block: u32) -> u64 {
        self.nodes[block as usize].chain
    }

    /// The chain hash of what follows `parent`.
    pub(crate) fn child_chain(
        &self,
        parent: Option<NodeRef>,
        namespace: u64,
        tokens: &[u32],
    ) -> u64 {
        let above = parent.map(|parent| self.chain(parent.block));
        chain_hash(above, namespace, tokens)
    }

    /// The blocks that follow `parent`, or all first blocks, the newest first.
    pub(crate) fn children(&self, parent: Option<NodeRef>) -> impl Iterator<Item = u32> + '_ {
        let first = match parent {
            Some(parent) => self.nodes[parent.block as usize].first_child,
            None => self.first_root,
        };
        let present = |block: u32| Some(block).filter(|&block| block != NONE);
        std::iter::successors(present(first), move |&block| {
            present(self.nodes[block as usize].next_sibling)
        })
    }

    pub(crate) fn namespace(&self, block: u32) -> u64 {
        self.nodes[block as usize].namespace
    }

    pub(crate) fn tokens(&self, block: u32) -> &[u32] {
        let start = block as usize * self.block_size;
        &self.tokens[start..start + self.block_size]
    }

    /// The child of `parent` with exactly these tokens.
    pub(crate) fn find(&self, parent: NodeRef, namespace: u64, tokens: &[u32]) -> Option<NodeRef> {
        let hash = self.hash(parent, namespace, tokens);
        let tag = (hash >> 32) as u32;
        let mut position = self.ideal(hash);
        loop {
            let bucket = self.table[position];
            if bucket.block == NONE {
                return None;
            }
            if bucket.tag == tag {
                let node = &self.nodes[bucket.block as usize];
                if node.parent == parent
                    && node.namespace == namespace
                    && self.tokens(bucket.block) == tokens
                {
                    return Some(NodeRef {
                        block: bucket.block,
                        generation: node.generation,
                    });
                }
            }
            position = self.following(position);
        }
    }

    /// Makes `block` the child of `parent` with these tokens; there must be none yet.
    pub(crate) fn insert(
        &mut self,
        parent: NodeRef,
        namespace: u64,
        tokens: &[u32],
        block: u32,
    ) -> NodeRef {
        self.epoch += 1;
        let hash = self.hash(parent, namespace, tokens);
        let start = block as usize * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        let above = Some(parent).filter(|&parent| parent != ROOT);
        let chain = self.child_chain(above, namespace, tokens);
        let first_sibling = match above {
            None => &mut self.first_root,
            Some(above) => &mut self.nodes[above.block as usize].first_child,
        };
        let next_sibling = std::mem::replace(first_sibling, block);
        if next_sibling != NONE {
            self.nodes[next_sibling as usize].previous_sibling = block;
        }
        let node = &mut self.nodes[block as usize];
        assert!(!node.present, "block {block} is interned twice");
        node.hash = hash;
        node.chain = chain;
        node.namespace = namespace;
        node.parent = parent;
        node.present = true;
        node.first_child = NONE;
        node.next_sibling = next_sibling;
        node.previous_sibling = NONE;
        let generation = node.generation;
        self.fill_bucket(hash, block);
        NodeRef { block, generation }
    }

    /// Drops the node of `block` and everything below it; the blocks are appended to `dropped`.
    pub(crate) fn drop_subtree(&mut self, block: u32, dropped: &mut Vec<u32>) {
        self.epoch += 1;
        let mut visited = dropped.len();
        self.detach(block);
        dropped.push(block);
        while visited < dropped.len() {
            let block = dropped[visited];
            let mut child = self.nodes[block as usize].first_child;
            while child != NONE {
                dropped.push(child);
                child = self.nodes[child as usize].next_sibling;
            }
            self.vacate_bucket(block);
            let node = &mut self.nodes[block as usize];
            node.present = false;
            node.generation = node.generation.wrapping_add(1);
            visited += 1;
        }
    }

    fn detach(&mut self, block: u32) {
        let node = &self.nodes[block as usize];
        let (parent, previous, next) = (node.parent, node.previous_sibling, node.next_sibling);
        if previous != NONE {
            self.nodes[previous as usize].next_sibling = next;
        } else if parent == ROOT {
            self.first_root = next;
        } else {
            self.nodes[parent.block as usize].first_child = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous_sibling = previous;
        }
    }

    /// Drops every node; the blocks are appended to `dropped`.
    pub(crate) fn clear(&mut self, dropped: &mut Vec<u32>) {
        self.epoch += 1;
        for (block, node) in self.nodes.iter_mut().enumerate() {
            if node.present {
                node.present = false;
                node.generation = node.generation.wrapping_add(1);
                dropped.push(block as u32);
            }
        }
        self.table.fill(VACANT);
        self.first_root = NONE;
    }

    fn fill_bucket(&mut self, hash: u64, block: u32) {
        let mut position = self.ideal(hash);
        while self.table[position].block != NONE {
            position = self.following(position);
        }
        self.table[position] = Bucket {
            tag: (hash >> 32) as u32,
            block,
        };
    }

    /// Removes a bucket and shifts later ones of its cluster back, so that no tombstone remains.
    fn vacate_bucket(&mut self, block: u32) {
        let mut hole = self.ideal(self.nodes[block as usize].hash);
        while self.table[hole].block != block {
            hole = self.following(hole);
        }
        let mut probe = self.following(hole);
        while self.table[probe].block != NONE {
            let hash = self.nodes[self.table[probe].block as usize].hash;
            if self.distance(self.ideal(hash), probe) >= self.distance(hole, probe) {
                self.table[hole] = self.table[probe];
                hole = probe;
            }
            probe = self.following(probe);
        }
        self.table[hole] = VACANT;
    }

    /// The bucket of a hash, by its lower half: any number of buckets is equally good, so that a
    /// power of two need not be one too large.
    fn ideal(&self, hash: u64) -> usize {
        ((u64::from(hash as u32) * self.table.len() as u64) >> 32) as usize
    }

    fn following(&self, position: usize) -> usize {
        let next = position + 1;
        if next == self.table.len() { 0 } else { next }
    }

    /// Buckets from one to another, around the end of the table.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.table.len() - from
        }
    }

    pub(crate) fn hash(&self, parent: NodeRef, namespace: u64, tokens: &[u32]) -> u64 {
        match self.mode {
            HashMode::Keyed(key) => {
                let above = match parent.block {
                    NONE => 0,
                    block => self.nodes[block as usize].hash,
                };
                keyed_hash(key ^ above, namespace, tokens)
            }
            HashMode::Constant => 0,
            // Spread over the buckets; the tag is the same for all.
            HashMode::FirstToken => u64::from(tokens[0].wrapping_mul(0x9e37_79b9)),
        }
    }

    /// Recounts nodes, links, generations and the table.
    pub(crate) fn check(&self) -> Result<(), String> {
        let buckets = self.table.iter().filter(|bucket| bucket.block != NONE);
        let present = self.nodes.iter().filter(|node| node.present);
        if buckets.count() != present.count() {
            return Err("the prefix table and the nodes differ in number".to_owned());
        }
        for block in (0..self.nodes.len() as u32).filter(|&block| self.is_present(block)) {
            let node = &self.nodes[block as usize];
            if node.parent != ROOT && !self.is_live(node.parent) {
                return Err(format!("node {block} hangs below a dropped parent"));
            }
            let above = Some(node.parent).filter(|&parent| parent != ROOT);
            if node.chain != self.child_chain(above, node.namespace, self.tokens(block)) {
                return Err(format!("node {block} bears another chain hash"));
            }
            if !self.children(above).any(|child| child == block) {
                return Err(format!("node {block} is not among its parent's children"));
            }
            let found = self.find(node.parent, node.namespace, self.tokens(block));
            if found.map(|node| node.block) != Some(block) {
                return Err(format!("node {block} cannot be found by its own content"));
            }
        }
        Ok(())
    }
}

const SECRETS: [u64; 3] = [
    0x2d35_8dcc_aa6c_78a5,
    0x8bb8_4b93_962e_acc9,
    0x4b33_a62e_d433_d4a3,
];

/// Multiply-fold over 16 bytes at a time.
fn keyed_hash(key: u64, namespace: u64, tokens: &[u32]) -> u64 {
    let mut state = fold(key ^ SECRETS[0], namespace ^ SECRETS[1]);
    let mut quads = tokens.chunks_exact(4);
    for quad in &mut quads {
        let low = u64::from(quad[0]) | u64::from(quad[1]) << 32;
        let high = u64::from(quad[2]) | u64::from(quad[3]) << 32;
        state = fold(low ^ SECRETS[2] ^ key, high ^ state);
    }
    for &token in quads.remainder() {
        state = fold(u64::from(token) ^ SECRETS[2], state ^ SECRETS[0]);
    }
    fold(state, SECRETS[1])
}

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters run around the end of a table whose size is no power of two; whatever goes, the rest is found.
    #[test]
    fn dropping_any_of_many_leaves_the_others_findable() {
        for key in 0..40 {
            let blocks = 11;
            let mut index = PrefixIndex::new(blocks, 1, HashMode::Keyed(key));
            for block in 0..blocks {
                index.insert(ROOT, 0, &[block], block);
            }
            for block in 0..blocks {
                let dropped = (block * 7 + key as u32) % blocks;
                index.drop_subtree(dropped, &mut Vec::new());
                assert_eq!(index.check(), Ok(()));
                assert_eq!(index.find(ROOT, 0, &[dropped]), None);
            }
        }
    }
}
