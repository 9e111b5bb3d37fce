//! The gaps between tokens that users really saw.

/// Gaps below 16 µs share the first bucket.
const LEAST_BITS: u32 = 14;
/// Each doubling is cut into this many buckets: a quantile is off by at most 3 %.
const SPLIT_BITS: u32 = 4;
const DOUBLINGS: u32 = 24;
const BUCKETS: usize = (DOUBLINGS << SPLIT_BITS) as usize;
/// The last 4,096 to 8,192 gaps count.
const WINDOW: u16 = 4096;

/// Quantiles over the latest gaps between two tokens of a request.
#[derive(Clone, Debug)]
pub(crate) struct Achieved {
    recent: Vec<u16>,
    before: Vec<u16>,
    in_recent: u16,
    in_before: u16,
    /// Tokens of requests with a target, and those of them that came later than their deadline.
    pub(crate) paced: u64,
    pub(crate) late: u64,
}

impl Default for Achieved {
    fn default() -> Self {
        Self {
            recent: vec![0; BUCKETS],
            before: vec![0; BUCKETS],
            in_recent: 0,
            in_before: 0,
            paced: 0,
            late: 0,
        }
    }
}

impl Achieved {
    /// A token came this long after the one before, if it had a deadline in time or late.
    pub(crate) fn token(&mut self, (gap_ns, late): (u64, Option<bool>)) {
        self.record(gap_ns);
        self.paced += u64::from(late.is_some());
        self.late += u64::from(late == Some(true));
    }

    fn record(&mut self, gap_ns: u64) {
        if self.in_recent == WINDOW {
            std::mem::swap(&mut self.recent, &mut self.before);
            self.in_before = self.in_recent;
            self.recent.fill(0);
            self.in_recent = 0;
        }
        self.recent[bucket(gap_ns)] += 1;
        self.in_recent += 1;
    }

    /// The gaps that `per_mille` of a thousand do not exceed, in nanoseconds, for each entry of an
    /// ascending list; 0 before there was a gap.
    pub(crate) fn quantiles<const N: usize>(&self, per_mille: [u32; N]) -> [u64; N] {
        let total = u64::from(self.in_recent) + u64::from(self.in_before);
        let mut found = [0; N];
        if total == 0 {
            return found;
        }
        let mut seen = 0;
        let mut next = 0;
        for (index, (recent, before)) in self.recent.iter().zip(&self.before).enumerate() {
            seen += u64::from(*recent) + u64::from(*before);
            while next < N && seen * 1000 >= total * u64::from(per_mille[next]) {
                found[next] = middle(index);
                next += 1;
            }
        }
        found
    }
}

fn bucket(gap_ns: u64) -> usize {
    let bits = u64::BITS - gap_ns.leading_zeros();
    let Some(doubling) = bits.checked_sub(LEAST_BITS + 1) else {
        return 0;
    };
    let split = (gap_ns >> (bits - 1 - SPLIT_BITS)) & ((1 << SPLIT_BITS) - 1);
    let index = (u64::from(doubling) << SPLIT_BITS) | split;
    (index as usize).min(BUCKETS - 1)
}

fn middle(bucket: usize) -> u64 {
    let (doubling, split) = (bucket >> SPLIT_BITS, bucket & ((1 << SPLIT_BITS) - 1));
    let width = 1_u64 << (LEAST_BITS - SPLIT_BITS) << doubling;
    ((1 << SPLIT_BITS) + split as u64) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_lies_around_its_middle() {
        for index in 1..BUCKETS {
            assert_eq!(bucket(middle(index)), index);
            assert!(middle(index) > middle(index - 1));
        }
        for gap in [
            20_000_u64,
            999_999,
            50_000_000,
            3_141_592_653,
            200_000_000_000,
        ] {
            let shown = middle(bucket(gap)) as f64 / gap as f64;
            assert!((0.969..1.031).contains(&shown), "{gap}: {shown}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_follow_the_latest_gaps() {
        let mut achieved = Achieved::default();
        assert_eq!(achieved.quantiles([500, 990]), [0, 0]);
        for gap in 1..=1000_u64 {
            achieved.record(gap * 1_000_000);
        }
        let [median, tail] = achieved.quantiles([500, 990]);
        assert!((480_000_000..520_000_000).contains(&median), "{median}");
        assert!((960_000_000..1_020_000_000).contains(&tail), "{tail}");
        for _ in 0..2 * WINDOW {
            achieved.record(5_000_000);
        }
        let [median, tail] = achieved.quantiles([500, 990]);
        assert!(median == tail && (4_800_000..5_200_000).contains(&tail));
    }
}
