//! The block pool: who holds each KV block, and in which order unheld blocks are handed out again.
//!
//! ```text
//!            allocate                    release, last owner
//!   cold ───────────────▶ used ──────────────┬──────────────▶ cold    no content worth finding
//!   cached ─(evicted)───▶  ▲ │               ├──────────────▶ cached  the prefix index knows it
//!                          │ └─ owners > 0   └─▶ fenced ────▶ either, once its fence has retired
//!                          └── acquired again by a prefix hit (from cached or fenced)
//! ```
//!
//! Every list is intrusive, so each transition is O(1) and allocates nothing.

/// Absent block, list end.
pub(crate) const NONE: u32 = u32::MAX;

/// Fence lists: a power of two above the most steps that can be launched and unretired (3).
const FENCES: usize = 4;
const COLD: usize = 0;
const CACHED: usize = 1;
const FIRST_FENCE: usize = 2;

/// Where a block is. Exactly one at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Block 0: never handed out, the target of padding.
    Null,
    /// Owned by at least one request.
    Used,
    /// Unowned without content; handed out first, last freed first.
    Cold,
    /// Unowned, findable by the prefix index; evicted oldest first.
    Cached,
    /// Unowned, but a launched step may still touch it.
    Fenced,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    owners: u32,
    previous: u32,
    next: u32,
    /// List that holds the block when `owners` is 0.
    list: u8,
    /// Whether the prefix index has a node for the block.
    indexed: bool,
    /// Last step that may touch the block on behalf of an owner who released it.
    fence: u64,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const EMPTY: List = List {
    head: NONE,
    tail: NONE,
    len: 0,
};

/// Owner counts and free lists of all blocks.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    blocks: Vec<Meta>,
    lists: [List; FIRST_FENCE + FENCES],
    coming: u32,
    retired: u64,
}

impl Pool {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let unowned = Meta {
            owners: 0,
            previous: NONE,
            next: NONE,
            list: COLD as u8,
            indexed: false,
            fence: 0,
        };
        let mut pool = Self {
            blocks: vec![unowned; num_blocks as usize],
            lists: [EMPTY; FIRST_FENCE + FENCES],
            coming: 0,
            retired: 0,
        };
        pool.reset();
        pool
    }

    /// Makes every block but the null block cold.
    pub(crate) fn reset(&mut self) {
        self.lists = [EMPTY; FIRST_FENCE + FENCES];
        self.coming = 0;
        for block in (0..self.blocks.len() as u32).rev() {
            let meta = &mut self.blocks[block as usize];
            meta.owners = u32::from(block == 0);
            meta.indexed = false;
            meta.fence = 0;
            if block != 0 {
                self.push(COLD, block);
            }
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that can be handed out now.
    pub(crate) fn allocatable(&self) -> u32 {
        self.lists[COLD].len + self.lists[CACHED].len
    }

    /// Blocks that can be handed out once the launched steps have retired.
    pub(crate) fn coming(&self) -> u32 {
        self.coming
    }

    pub(crate) fn cached(&self) -> u32 {
        self.lists[CACHED].len
    }

    pub(crate) fn owners(&self, block: u32) -> u32 {
        self.blocks[block as usize].owners
    }

    /// The unretired step that may still touch the block for a former owner.
    pub(crate) fn pending_fence(&self, block: u32) -> Option<u64> {
        Some(self.blocks[block as usize].fence).filter(|&fence| fence > self.retired)
    }

    pub(crate) fn indexed(&self, block: u32) -> bool {
        self.blocks[block as usize].indexed
    }

    pub(crate) fn place(&self, block: u32) -> Place {
        let meta = &self.blocks[block as usize];
        match meta.list as usize {
            _ if block == 0 => Place::Null,
            _ if meta.owners > 0 => Place::Used,
            COLD => Place::Cold,
            CACHED => Place::Cached,
            _ => Place::Fenced,
        }
    }

    /// The cold block to hand out next.
    pub(crate) fn next_cold(&self) -> Option<u32> {
        let tail = self.lists[COLD].tail;
        (tail != NONE).then_some(tail)
    }

    /// The cached block to evict next.
    pub(crate) fn next_cached(&self) -> Option<u32> {
        let head = self.lists[CACHED].head;
        (head != NONE).then_some(head)
    }

    /// Adds an owner.
    pub(crate) fn acquire(&mut self, block: u32) {
        if self.blocks[block as usize].owners == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].owners += 1;
    }

    /// Takes an owner away whose launched steps touch the block up to step `fence`.
    pub(crate) fn release(&mut self, block: u32, fence: u64) {
        let meta = &mut self.blocks[block as usize];
        assert!(meta.owners > 0, "block {block} is released twice");
        meta.owners -= 1;
        meta.fence = meta.fence.max(fence);
        if meta.owners == 0 {
            let list = if meta.fence > self.retired {
                FIRST_FENCE + (meta.fence as usize) % FENCES
            } else {
                Self::resting_list(meta.indexed)
            };
            self.push(list, block);
        }
    }

    /// Whether the prefix index can find the block; moves it between the lists accordingly.
    pub(crate) fn set_indexed(&mut self, block: u32, indexed: bool) {
        let meta = &mut self.blocks[block as usize];
        meta.indexed = indexed;
        let resting = meta.owners == 0 && (meta.list as usize) < FIRST_FENCE;
        if resting && meta.list as usize != Self::resting_list(indexed) {
            self.unlink(block);
            self.push(Self::resting_list(indexed), block);
        }
    }

    /// Step `step` has retired: what only it could touch may be handed out.
    pub(crate) fn retire(&mut self, step: u64) {
        self.retired = step;
        let list = FIRST_FENCE + (step as usize) % FENCES;
        while self.lists[list].head != NONE {
            let block = self.lists[list].head;
            self.unlink(block);
            self.push(Self::resting_list(self.indexed(block)), block);
        }
    }

    fn resting_list(indexed: bool) -> usize {
        if indexed { CACHED } else { COLD }
    }

    fn push(&mut self, list: usize, block: u32) {
        let tail = self.lists[list].tail;
        let meta = &mut self.blocks[block as usize];
        meta.list = list as u8;
        meta.previous = tail;
        meta.next = NONE;
        if tail == NONE {
            self.lists[list].head = block;
        } else {
            self.blocks[tail as usize].next = block;
        }
        self.lists[list].tail = block;
        self.lists[list].len += 1;
        self.coming += u32::from(list >= FIRST_FENCE);
    }

    fn unlink(&mut self, block: u32) {
        let Meta {
            previous,
            next,
            list,
            ..
        } = self.blocks[block as usize];
        let list = list as usize;
        if previous == NONE {
            self.lists[list].head = next;
        } else {
            self.blocks[previous as usize].next = next;
        }
        if next == NONE {
            self.lists[list].tail = previous;
        } else {
            self.blocks[next as usize].previous = previous;
        }
        self.lists[list].len -= 1;
        self.coming -= u32::from(list >= FIRST_FENCE);
    }

    /// The cached list, next to be evicted first.
    pub(crate) fn cached_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.walk(CACHED)
    }

    /// All unowned blocks with an ordinal of their list: cold, cached, then the fenced ones, those
    /// of step `newest` first.
    pub(crate) fn unowned_blocks(&self, newest: u64) -> impl Iterator<Item = (usize, u32)> + '_ {
        let fence = move |age: usize| FIRST_FENCE + (newest as usize).wrapping_sub(age) % FENCES;
        let lists = [COLD, CACHED].into_iter().chain((0..FENCES).map(fence));
        lists
            .enumerate()
            .flat_map(|(ordinal, list)| self.walk(list).map(move |block| (ordinal, block)))
    }

    fn walk(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        let start = Some(self.lists[list].head).filter(|&head| head != NONE);
        std::iter::successors(start, |&block| {
            Some(self.blocks[block as usize].next).filter(|&next| next != NONE)
        })
    }

    /// Recounts the lists: mutual links, lengths, one place per block, fences only on fence lists.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut listed = vec![0_u32; self.blocks.len()];
        for (number, list) in self.lists.iter().enumerate() {
            let mut previous = NONE;
            let mut len = 0;
            for block in self.walk(number).take(self.blocks.len() + 1) {
                let meta = &self.blocks[block as usize];
                if meta.previous != previous || meta.list as usize != number {
                    return Err(format!("block {block}: broken link in list {number}"));
                }
                if meta.owners > 0 {
                    return Err(format!("block {block} is owned and in list {number}"));
                }
                if (number >= FIRST_FENCE) != (meta.fence > self.retired) {
                    return Err(format!(
                        "block {block} in list {number} with fence {}",
                        meta.fence
                    ));
                }
                if number < FIRST_FENCE && Self::resting_list(meta.indexed) != number {
                    return Err(format!(
                        "block {block} rests in list {number}, indexed {}",
                        meta.indexed
                    ));
                }
                listed[block as usize] += 1;
                previous = block;
                len += 1;
            }
            if len != list.len || list.tail != previous {
                return Err(format!(
                    "list {number} has {len} blocks, counts {}",
                    list.len
                ));
            }
        }
        let unowned = self.blocks.iter().map(|meta| u32::from(meta.owners == 0));
        if !unowned.eq(listed.iter().copied()) {
            return Err("a block is in no list or in two".to_owned());
        }
        let coming: u32 = self.lists[FIRST_FENCE..].iter().map(|list| list.len).sum();
        if coming != self.coming {
            return Err(format!(
                "{coming} blocks are fenced, counted {}",
                self.coming
            ));
        }
        Ok(())
    }
}
