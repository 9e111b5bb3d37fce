//! The total order of candidates, made as far as it is asked for.
//!
//! The first candidates are found by a threshold. What follows them is distributed into ranges by logit, and a range is
//! sorted when it is reached: linear in the vocabulary however far one goes.

use std::ops::Range;

use crate::simd::{Isa, Kernel, LANES};

/// Logits of which one maximum is kept: the lanes of this many vectors.
const GROUP: usize = 16;
/// Candidates that are sorted at once.
const SORTED: usize = 256;
/// Candidates a range is meant to have after distribution.
const MEANT: usize = 64;

/// Smaller for an earlier candidate: logit descending, then id ascending.
#[inline(always)]
fn key_of(logit: f32, id: usize) -> u64 {
    // -0.0 becomes 0.0.
    let bits = (logit + 0.0).to_bits();
    let flipped = if bits >> 31 == 0 {
        !bits & 0x7fff_ffff
    } else {
        bits
    };
    (u64::from(flipped) << 32) | id as u64
}

/// The logit of a key.
#[inline(always)]
pub(super) fn logit_of(key: u64) -> f32 {
    let flipped = (key >> 32) as u32;
    let bits = if flipped >> 31 == 0 {
        !flipped & 0x7fff_ffff
    } else {
        flipped
    };
    f32::from_bits(bits)
}

/// The id of a key.
pub(super) fn id_of(key: u64) -> u32 {
    key as u32
}

/// Candidates of one row.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// In order up to `ready`, then the ranges of `pending`.
    keys: Vec<u64>,
    ready: usize,
    /// Ranges not in order within themselves; what comes first is on top.
    pending: Vec<Range<usize>>,
    /// Candidates below this logit are not among the keys yet; those of `floor` and below never are.
    below: Option<f32>,
    floor: f32,
    maxima: Vec<f32>,
    spare: Vec<u64>,
    buckets: Vec<u32>,
    ends: Vec<u32>,
}

impl Order {
    /// Begins with a row without NaN whose candidates at or below `floor` do not count; about the first `wanted` are
    /// needed.
    #[inline(always)]
    pub(super) fn begin<I: Isa>(&mut self, isa: I, logits: &[f32], floor: f32, wanted: usize) {
        self.keys.clear();
        self.pending.clear();
        (self.ready, self.floor, self.below) = (0, floor, Some(f32::INFINITY));
        let threshold = self.threshold(isa, logits, wanted);
        if threshold > floor {
            self.collect_from(isa, logits, threshold);
            self.below = Some(threshold);
        }
    }

    /// Keys in order.
    pub(super) fn keys(&self) -> &[u64] {
        &self.keys[..self.ready]
    }

    /// Puts more candidates in order. False if all are.
    pub(super) fn advance(&mut self, logits: &[f32]) -> bool {
        loop {
            if let Some(range) = self.pending.pop() {
                if self.settle(range.clone()) {
                    self.ready = range.end;
                    return true;
                }
            } else if let Some(threshold) = self.below.take() {
                self.collect_below(logits, threshold);
            } else {
                return false;
            }
        }
    }

    /// A logit that at least `wanted` candidates reach, or -inf: the `wanted`th largest of the groups' maxima.
    #[inline(always)]
    fn threshold<I: Isa>(&mut self, isa: I, logits: &[f32], wanted: usize) -> f32 {
        group_maxima(isa, logits, &mut self.maxima);
        if wanted == 0 || wanted > self.maxima.len() / 2 {
            return f32::NEG_INFINITY;
        }
        let (_, found, _) = self
            .maxima
            .select_nth_unstable_by(wanted - 1, |a, b| b.total_cmp(a));
        *found
    }

    /// Takes all candidates of at least `threshold`.
    #[inline(always)]
    fn collect_from<I: Isa>(&mut self, isa: I, logits: &[f32], threshold: f32) {
        let under = isa.splat(threshold.next_down());
        let (vectors, tail) = logits.as_chunks::<LANES>();
        for (index, vector) in vectors.iter().enumerate() {
            // SAFETY: a chunk has 16 values.
            let values = unsafe { isa.load(vector.as_ptr()) };
            if isa.any(isa.greater(values, under)) {
                self.push_from(vector, index * LANES, threshold);
            }
        }
        self.push_from(tail, vectors.len() * LANES, threshold);
        self.pending.push(0..self.keys.len());
    }

    #[inline(always)]
    fn push_from(&mut self, logits: &[f32], first: usize, threshold: f32) {
        for (lane, logit) in logits.iter().enumerate() {
            if *logit >= threshold {
                self.keys.push(key_of(*logit, first + lane));
            }
        }
    }

    /// Takes all candidates between the floor and `threshold`.
    fn collect_below(&mut self, logits: &[f32], threshold: f32) {
        let start = self.keys.len();
        self.keys.resize(start + logits.len(), 0);
        let (keys, floor, mut end) = (self.keys.as_mut_slice(), self.floor, start);
        for (id, logit) in logits.iter().enumerate() {
            // Written always, kept if it counts: no branch to mispredict.
            keys[end] = key_of(*logit, id);
            end += usize::from(*logit < threshold && *logit > floor);
        }
        self.keys.truncate(end);
        if end > start {
            self.pending.push(start..end);
        }
    }

    /// Puts a range in order, or distributes it into ranges that follow each other and gives false.
    fn settle(&mut self, range: Range<usize>) -> bool {
        let keys = &mut self.keys[range.clone()];
        if keys.len() <= SORTED {
            keys.sort_unstable();
            return true;
        }
        let (first, last) = keys.iter().fold((u64::MAX, 0), |(first, last), key| {
            (first.min(*key), last.max(*key))
        });
        let (high, low) = (logit_of(first), logit_of(last));
        if high <= low {
            // Distribution keeps the order of ids among equals.
            return true;
        }
        self.distribute(range, f64::from(high), f64::from(low));
        false
    }

    /// Distributes a range by logit. The highest and the lowest get different places, so it comes to an end.
    fn distribute(&mut self, range: Range<usize>, high: f64, low: f64) {
        let keys = &mut self.keys[range.clone()];
        let buckets = (keys.len() / MEANT).max(2);
        let scale = buckets as f64 / (high - low);
        self.spare.clear();
        self.spare.extend_from_slice(keys);
        self.buckets.resize(keys.len(), 0);
        self.ends.clear();
        self.ends.resize(buckets + 1, 0);
        let ends = self.ends.as_mut_slice();
        for (key, bucket) in keys.iter().zip(&mut self.buckets) {
            let place = ((high - f64::from(logit_of(*key))) * scale) as u32;
            *bucket = place.min(buckets as u32 - 1);
            ends[*bucket as usize + 1] += 1;
        }
        for bucket in 0..buckets {
            ends[bucket + 1] += ends[bucket];
        }
        for (key, bucket) in self.spare.iter().zip(&self.buckets) {
            let end = &mut ends[*bucket as usize];
            keys[*end as usize] = *key;
            *end += 1;
        }
        // Each bucket's entry is now its end, which is the start of the next.
        for bucket in (0..buckets).rev() {
            let start = if bucket == 0 { 0 } else { ends[bucket - 1] };
            if ends[bucket] > start {
                let (start, end) = (start as usize, ends[bucket] as usize);
                self.pending.push(range.start + start..range.start + end);
            }
        }
    }
}

/// The maxima of groups of up to [`GROUP`] logits of a row without NaN, in any order.
#[inline(always)]
fn group_maxima<I: Isa>(isa: I, logits: &[f32], maxima: &mut Vec<f32>) {
    maxima.clear();
    maxima.resize(
        logits.len().next_multiple_of(GROUP * LANES) / GROUP,
        f32::NEG_INFINITY,
    );
    for (block, out) in logits.chunks(GROUP * LANES).zip(maxima.chunks_mut(LANES)) {
        let (vectors, tail) = block.as_chunks::<LANES>();
        let mut best = isa.splat(f32::NEG_INFINITY);
        for vector in vectors {
            // SAFETY: a chunk has 16 values.
            best = isa.max(best, unsafe { isa.load(vector.as_ptr()) });
        }
        // SAFETY: the groups of a block are 16.
        unsafe { isa.store(out.as_mut_ptr(), best) };
        for (logit, out) in tail.iter().zip(out) {
            *out = if *logit > *out { *logit } else { *out };
        }
    }
}

/// [`Order::begin`] on any instruction set.
pub(super) struct Begin<'a> {
    pub(super) order: &'a mut Order,
    pub(super) logits: &'a [f32],
    pub(super) floor: f32,
    pub(super) wanted: usize,
}

impl Kernel for Begin<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.order.begin(isa, self.logits, self.floor, self.wanted);
    }
}
