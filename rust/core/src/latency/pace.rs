//! When a stream's next token is due.
//!
//! Token k of a stream is due k targets after its first: a stream that runs ahead earns slack, and a
//! step may then last a little longer than one target. A stream that is behind (its worker was
//! restarted, a step was hit by the system) is not made to catch up, for that would only starve
//! prompts: the next token is due one target from now.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;

/// A step lasts longer than the strictest target by at most one part in so many, however large the
/// slack.
const STRETCH: u64 = 5;

/// The pace of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Target for the gap between two tokens; `None` is none.
    pub(crate) target_ns: Option<NonZeroU64>,
    /// When the first token was committed; meaningful once there is one.
    first: u64,
    /// When the latest token was committed.
    latest: u64,
}

impl Pace {
    pub(crate) fn new(target_ns: Option<u64>) -> Self {
        Self {
            target_ns: target_ns.and_then(NonZeroU64::new),
            ..Self::default()
        }
    }

    /// When output token `index` is due; `None` without a target.
    fn due(&self, index: u32) -> Option<u64> {
        let span = self.target_ns?.get().saturating_mul(u64::from(index));
        Some(self.first.saturating_add(span))
    }

    /// How long the step may last that computes output token `index`, if it starts at `start`.
    pub(crate) fn allowance(&self, index: u32, start: u64) -> Option<u64> {
        let target = self.target_ns?.get();
        let most = target.saturating_add(target / STRETCH);
        let left = self.due(index)?.saturating_sub(start);
        Some(left.clamp(target, most))
    }

    /// Hashes what decides later allowances.
    pub(crate) fn hash_behaviour(&self, state: &mut impl Hasher) {
        self.target_ns
            .map(|target| (target, self.first))
            .hash(state);
    }

    /// Output token `index` is committed: the gap to the one before, and whether it is late
    /// (`None` without a target or a gap).
    pub(crate) fn commit(&mut self, index: u32, now: u64) -> Option<(u64, Option<bool>)> {
        if index == 0 {
            (self.first, self.latest) = (now, now);
            return None;
        }
        let gap = now.saturating_sub(self.latest);
        self.latest = now;
        Some((gap, self.due(index).map(|due| now > due)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_stretches_a_step_a_little_and_delay_does_not_shrink_it() {
        let mut pace = Pace::new(Some(100));
        assert_eq!(pace.commit(0, 1_000), None);
        assert_eq!(pace.allowance(1, 1_000), Some(100));
        assert_eq!(pace.commit(1, 1_030), Some((30, Some(false))));
        assert_eq!(pace.allowance(2, 1_090), Some(110));
        assert_eq!(pace.allowance(2, 1_030), Some(120));
        assert_eq!(pace.commit(2, 9_000), Some((7_970, Some(true))));
        assert_eq!(pace.allowance(3, 9_000), Some(100));
        assert_eq!(Pace::new(None).allowance(3, 9_000), None);
    }

    #[test]
    fn the_largest_target_overflows_nothing() {
        let mut pace = Pace::new(Some(u64::MAX));
        pace.commit(0, u64::MAX);
        assert_eq!(pace.allowance(u32::MAX, 0), Some(u64::MAX));
    }
}
