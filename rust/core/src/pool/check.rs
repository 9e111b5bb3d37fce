//! The pool's own invariants, recounted.

use super::{FIRST_CACHED, FIRST_FENCE, NONE, Pool, resting_list};

impl Pool {
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
                if number < FIRST_FENCE && resting_list(meta) != number {
                    return Err(format!("block {block} rests in list {number}: {meta:?}"));
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
        self.check_counts()
    }

    /// Sums over the lists, and which cached ones hold anything.
    fn check_counts(&self) -> Result<(), String> {
        for (number, list) in self.lists[FIRST_CACHED..FIRST_FENCE].iter().enumerate() {
            if (self.occupied >> number & 1 == 1) != (list.len > 0) {
                return Err(format!(
                    "cached list {number} of {list:?} is marked wrongly"
                ));
            }
        }
        let cached: u32 = self.lists[FIRST_CACHED..FIRST_FENCE]
            .iter()
            .map(|list| list.len)
            .sum();
        if cached != self.cached {
            return Err(format!(
                "{cached} blocks are cached, counted {}",
                self.cached
            ));
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
