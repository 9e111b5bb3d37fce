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
//! Every list is intrusive, so each transition is O(1) and allocates nothing. Cached blocks rest in
//! sixteen lists, evicted in order of retention class and, within a class, of level (how often the
//! content was used lately, where the policy asks); within a list oldest first.

mod check;

/// Absent block, list end.
pub(crate) const NONE: u32 = u32::MAX;

/// Fence lists: a power of two above the most steps that can be launched and unretired (3).
const FENCES: usize = 4;
const COLD: usize = 0;
const FIRST_CACHED: usize = 1;
const FIRST_FENCE: usize = FIRST_CACHED + RETENTIONS * LEVELS;
const LISTS: usize = FIRST_FENCE + FENCES;
/// Retention classes: a higher one is evicted later.
pub(crate) const RETENTIONS: usize = 4;
/// Levels of frequency within a class.
pub(crate) const LEVELS: usize = 4;
/// Expiry of what does not expire.
pub(crate) const NEVER: u64 = u64::MAX;

/// Where a block is. Exactly one at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Block 0: never handed out, the target of padding.
    Null,
    /// Owned by at least one request.
    Used,
    /// Unowned without content; handed out first, last freed first.
    Cold,
    /// Unowned, findable by the prefix index; evicted by class, level and age.
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
    /// Cached list in which it rests: retention class × [`LEVELS`] + level. 0 without content.
    rest: u8,
    /// Whether the prefix index has a node for the block.
    indexed: bool,
    /// When its content expires, unless it is used again; 0 without content.
    expires: u64,
    /// Last step that may touch the block on behalf of an owner who released it.
    fence: u64,
}

const _: () = assert!(size_of::<Meta>() == 32);

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
    lists: [List; LISTS],
    /// Cached lists that are not empty, bit by bit.
    occupied: u32,
    /// Blocks in the cached lists.
    cached: u32,
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
            rest: 0,
            indexed: false,
            expires: 0,
            fence: 0,
        };
        let mut pool = Self {
            blocks: vec![unowned; num_blocks as usize],
            lists: [EMPTY; LISTS],
            occupied: 0,
            cached: 0,
            coming: 0,
            retired: 0,
        };
        pool.reset();
        pool
    }

    /// Makes every block but the null block cold.
    pub(crate) fn reset(&mut self) {
        self.lists = [EMPTY; LISTS];
        self.occupied = 0;
        self.cached = 0;
        self.coming = 0;
        for block in (0..self.blocks.len() as u32).rev() {
            let meta = &mut self.blocks[block as usize];
            meta.owners = u32::from(block == 0);
            meta.indexed = false;
            meta.rest = 0;
            meta.expires = 0;
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
        self.lists[COLD].len + self.cached
    }

    /// Blocks that can be handed out once the launched steps have retired.
    pub(crate) fn coming(&self) -> u32 {
        self.coming
    }

    pub(crate) fn cached(&self) -> u32 {
        self.cached
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
            FIRST_FENCE.. => Place::Fenced,
            _ => Place::Cached,
        }
    }

    /// The cold block to hand out next.
    pub(crate) fn next_cold(&self) -> Option<u32> {
        let tail = self.lists[COLD].tail;
        (tail != NONE).then_some(tail)
    }

    /// The cached block to evict next.
    pub(crate) fn next_cached(&self) -> Option<u32> {
        let lowest = self.occupied.trailing_zeros() as usize;
        (self.occupied != 0).then(|| self.lists[FIRST_CACHED + lowest].head)
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
                resting_list(meta)
            };
            self.push(list, block);
        }
    }

    /// Whether the prefix index can find the block; moves it between the lists accordingly.
    pub(crate) fn set_indexed(&mut self, block: u32, indexed: bool) {
        let meta = &mut self.blocks[block as usize];
        meta.indexed = indexed;
        if !indexed {
            meta.rest = 0;
            meta.expires = 0;
        }
        self.settle(block);
    }

    /// Keeps an indexed block at least so long and in at least this class and level.
    pub(crate) fn keep(&mut self, block: u32, retention: u8, level: u8, expires: u64) {
        let levels = LEVELS as u8;
        let meta = &mut self.blocks[block as usize];
        let retention = retention.max(meta.rest / levels);
        let level = level.max(meta.rest % levels);
        meta.rest = retention * levels + level;
        meta.expires = meta.expires.max(expires);
        self.settle(block);
    }

    /// Level of an indexed block.
    pub(crate) fn level(&self, block: u32) -> u8 {
        self.blocks[block as usize].rest % LEVELS as u8
    }

    pub(crate) fn retention(&self, block: u32) -> u8 {
        self.blocks[block as usize].rest / LEVELS as u8
    }

    pub(crate) fn expires(&self, block: u32) -> u64 {
        self.blocks[block as usize].expires
    }

    /// When the block's content expires if it stays unowned; `None`: it is owned, has no content, or
    /// never does.
    pub(crate) fn expiry(&self, block: u32) -> Option<u64> {
        let meta = &self.blocks[block as usize];
        (meta.owners == 0 && meta.indexed && meta.expires != NEVER).then_some(meta.expires)
    }

    /// Every block sinks one level; those of the lowest two meet there, the lower ones first.
    pub(crate) fn sink(&mut self) {
        for block in 1..self.blocks.len() as u32 {
            let meta = &mut self.blocks[block as usize];
            meta.rest -= u8::from(!meta.rest.is_multiple_of(LEVELS as u8));
        }
        for class in 0..RETENTIONS {
            for level in 1..LEVELS {
                let list = FIRST_CACHED + class * LEVELS + level;
                while self.lists[list].head != NONE {
                    let block = self.lists[list].head;
                    self.unlink(block);
                    self.push(list - 1, block);
                }
            }
        }
    }

    /// Moves a block that rests in another list than its own to the end of that.
    fn settle(&mut self, block: u32) {
        let meta = &self.blocks[block as usize];
        let resting = meta.owners == 0 && (meta.list as usize) < FIRST_FENCE;
        let list = resting_list(meta);
        if resting && meta.list as usize != list {
            self.unlink(block);
            self.push(list, block);
        }
    }

    /// Step `step` has retired: what only it could touch may be handed out.
    pub(crate) fn retire(&mut self, step: u64) {
        self.retired = step;
        let list = FIRST_FENCE + (step as usize) % FENCES;
        while self.lists[list].head != NONE {
            let block = self.lists[list].head;
            self.unlink(block);
            self.push(resting_list(&self.blocks[block as usize]), block);
        }
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
        match list {
            COLD => {}
            FIRST_FENCE.. => self.coming += 1,
            _ => {
                self.cached += 1;
                self.occupied |= 1 << (list - FIRST_CACHED);
            }
        }
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
        match list {
            COLD => {}
            FIRST_FENCE.. => self.coming -= 1,
            _ => {
                self.cached -= 1;
                let emptied = u32::from(self.lists[list].len == 0);
                self.occupied &= !(emptied << (list - FIRST_CACHED));
            }
        }
    }

    /// The cached blocks, next to be evicted first.
    pub(crate) fn cached_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        (FIRST_CACHED..FIRST_FENCE).flat_map(|list| self.walk(list))
    }

    /// All unowned blocks with an ordinal of their list: cold, cached, then the fenced ones, those
    /// of step `newest` first.
    pub(crate) fn unowned_blocks(&self, newest: u64) -> impl Iterator<Item = (usize, u32)> + '_ {
        let fence = move |age: usize| FIRST_FENCE + (newest as usize).wrapping_sub(age) % FENCES;
        let lists = (COLD..FIRST_FENCE).chain((0..FENCES).map(fence));
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
}

fn resting_list(meta: &Meta) -> usize {
    if meta.indexed {
        FIRST_CACHED + usize::from(meta.rest)
    } else {
        COLD
    }
}
