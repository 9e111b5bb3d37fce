//! Why a prefix match ended where it did.

use crate::cache::Cache;
use crate::prefix::NodeRef;
use crate::reason::MatchEnd;

/// Blocks stored beside the missing one that are compared with it, the newest first.
const MOST_COMPARED: usize = 8;

impl Cache {
    /// Why `path` holds no more of the `reusable` tokens. Only the request's own namespace is
    /// looked at: another's content is never told from content that nobody has stored.
    pub(crate) fn match_end(&self, namespace: u64, reusable: &[u32], path: &[NodeRef]) -> MatchEnd {
        let matched = path.len() * self.block_size;
        let Some(missing) = reusable.get(matched..matched + self.block_size) else {
            return if reusable.len() < self.block_size {
                MatchEnd::UnderOneBlock
            } else {
                MatchEnd::Complete
            };
        };
        let parent = path.last().copied();
        let hash = self.index.child_chain(parent, namespace, missing);
        if let Some(lost) = self.evicted.explain(hash, self.now) {
            return lost;
        }
        let common = self
            .index
            .children(parent)
            .take(MOST_COMPARED)
            .filter(|&block| self.index.namespace(block) == namespace)
            .map(|block| common_prefix(self.index.tokens(block), missing))
            .max();
        match common {
            None => MatchEnd::NeverStored,
            // Prompts of one namespace that do not even begin alike have nothing to do with each other.
            Some(0) if path.is_empty() => MatchEnd::NeverStored,
            Some(common) => MatchEnd::DifferentToken {
                position: (matched + common) as u32,
            },
        }
    }
}

fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}
