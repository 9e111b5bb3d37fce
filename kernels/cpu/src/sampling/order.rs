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
    /// Logits from which on candidates are not among the keys; those of `floor` and below never are.
    below: Option<f32>,
    floor: f64,
    maxima: Vec<f32>,
    spare: Vec<u64>,
    ends: Vec<usize>,
}

impl Order {
    /// Begins with a row without NaN whose candidates at or below `floor` do not count; about the first `wanted` are
    /// needed.
    pub(super) fn begin<I: Isa>(&mut self, isa: I, logits: &[f32], floor: f64, wanted: usize) {
        self.keys.clear();
        self.pending.clear();
        (self.ready, self.floor, self.below) = (0, floor, Some(f32::INFINITY));
        let threshold = self.threshold(isa, logits, wanted);
        if f64::from(threshold) > floor {
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
        let mut end = start;
        for (id, logit) in logits.iter().enumerate() {
            // Written always, kept if it counts: no branch to mispredict.
            self.keys[end] = key_of(*logit, id);
            end += usize::from(*logit < threshold && f64::from(*logit) > self.floor);
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
        let (mut high, mut low) = (f32::NEG_INFINITY, f32::INFINITY);
        for key in &*keys {
            let logit = logit_of(*key);
            high = if logit > high { logit } else { high };
            low = if logit < low { logit } else { low };
        }
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
        let place = |key: u64| {
            let place = ((high - f64::from(logit_of(key))) * scale) as usize;
            place.min(buckets - 1)
        };
        self.spare.clear();
        self.spare.extend_from_slice(keys);
        self.ends.clear();
        self.ends.resize(buckets + 1, 0);
        for key in &self.spare {
            self.ends[place(*key) + 1] += 1;
        }
        for bucket in 0..buckets {
            self.ends[bucket + 1] += self.ends[bucket];
        }
        for key in &self.spare {
            let end = &mut self.ends[place(*key)];
            keys[*end] = *key;
            *end += 1;
        }
        // Each bucket's entry is now its end, which is the start of the next.
        for bucket in (0..buckets).rev() {
            let start = if bucket == 0 {
                0
            } else {
                self.ends[bucket - 1]
            };
            if self.ends[bucket] > start {
                let end = range.start + self.ends[bucket];
                self.pending.push(range.start + start..end);
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
    pub(super) floor: f64,
    pub(super) wanted: usize,
}

impl Kernel for Begin<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.order.begin(isa, self.logits, self.floor, self.wanted);
    }
}
