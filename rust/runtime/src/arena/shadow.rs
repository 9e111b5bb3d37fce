//! A checksum of what is launched: nothing may change a plan before its step has retired.

use std::sync::atomic::Ordering;

use crate::arena::HostArenas;
use crate::layout::{Count, FIELDS, MASKS, SIDE, plan_word};

impl HostArenas {
    /// Over every used byte of a plan image and its side data.
    pub(super) fn checksum(&self, image: usize, counts: &[usize; Count::ALL.len()]) -> u64 {
        let layout = &self.layout;
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for (index, field) in FIELDS.iter().enumerate() {
            let bytes = field.items(counts[field.count as usize]) * field.item.size();
            let part = if index == MASKS {
                // They come while the step runs.
                continue;
            } else if index == SIDE {
                self.side.read_bytes(image * layout.side_bytes, bytes)
            } else {
                let offset = image * layout.plan_bytes + layout.offsets[index];
                self.plan.read_bytes(offset, bytes)
            };
            hasher.update(&part);
        }
        let header = (plan_word::EPOCH..plan_word::COUNTS + counts.len())
            .map(|index| self.plan.word(image * layout.plan_bytes, index));
        for word in header {
            hasher.update(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        hasher.digest()
    }
}
