//! The risk that each prediction may take, steered by the preemptions that follow.

/// Unit of [`Risk`]: a share of 1.
const ONE: u32 = 1 << 24;
/// Bounds of the risk and where it starts: 1/128, 1/2, 1/8.
const LEAST: u32 = ONE >> 7;
const MOST: u32 = ONE >> 1;
const FIRST: u32 = ONE >> 3;
/// 1,000 ÷ ln 2: growth by `target` ÷ 1,443 per request undoes one halving per 1,000 ÷ `target`.
const PER_HALVING: u64 = 1_443;

/// Probability with which a request may outgrow what is reserved for it.
///
/// A preemption halves it, every request that ends raises it a little. Both are factors, so that
/// the share of preempted requests at which they balance is the target wherever the risk stands.
/// (Additive increase would balance at a share that depends on the risk itself.)
#[derive(Clone, Debug, Hash)]
pub(crate) struct Risk {
    share: u32,
    /// Preempted requests aimed at, in parts per thousand.
    target: u32,
}

impl Risk {
    pub(crate) fn new(target: u32) -> Self {
        Self {
            share: FIRST,
            target,
        }
    }

    /// In 2^16 parts.
    pub(crate) fn share(&self) -> u32 {
        self.share >> 8
    }

    pub(crate) fn preempted(&mut self) {
        self.share = (self.share / 2).max(LEAST);
    }

    pub(crate) fn ended(&mut self) {
        let growth = u64::from(self.share) * u64::from(self.target) / PER_HALVING;
        self.share = (self.share + growth as u32).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_at_the_target_share_of_preemptions() {
        let mut risk = Risk::new(5);
        for _ in 0..20 {
            risk.preempted();
            (0..200).for_each(|_| risk.ended());
        }
        let before = risk.share();
        risk.preempted();
        (0..200).for_each(|_| risk.ended());
        assert!(
            risk.share().abs_diff(before) * 50 < before.max(50),
            "{before} {}",
            risk.share()
        );
        (0..2_000).for_each(|_| risk.ended());
        assert_eq!(risk.share, MOST);
        (0..20).for_each(|_| risk.preempted());
        assert_eq!(risk.share, LEAST);
    }
}
