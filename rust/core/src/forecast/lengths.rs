//! How long outputs get: histograms over log-spaced buckets in which old requests fade.

use std::hash::{Hash, Hasher};

/// Four buckets per power of two: 0, 1, 2, 3, 4, 5, 6, 7, 8–9, 10–11, … up to 131,071 tokens.
const BUCKETS: usize = 64;
/// Requests grouped by the power of two of their `max_tokens`: whoever asks for 16 tokens says
/// nothing about those who ask for 4,096, and what `max_tokens` cuts off stays among its like.
const CLASSES: usize = 18;
/// Requests before a histogram is asked.
const ENOUGH: u32 = 16;
/// Outputs expected of requests while nothing is known.
const UNKNOWN: u32 = 512;
/// Each new request weighs 2^-9 more than the last: the window is about 512 requests.
const FADING: u32 = 9;
const FIRST_UNIT: u64 = 1 << 16;
const LAST_UNIT: u64 = 1 << 32;

#[derive(Clone, Debug)]
struct Histogram {
    weights: [u64; BUCKETS],
    /// Weight of the next request.
    unit: u64,
    /// Requests so far, up to [`ENOUGH`].
    requests: u32,
}

/// Lengths of outputs, by class and over all.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    classes: Vec<Histogram>,
    all: Histogram,
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            classes: vec![Histogram::EMPTY; CLASSES],
            all: Histogram::EMPTY,
        }
    }
}

impl Hash for Lengths {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (number, histogram) in self.classes.iter().chain([&self.all]).enumerate() {
            if histogram.requests > 0 {
                number.hash(state);
                (histogram.weights, histogram.unit, histogram.requests).hash(state);
            }
        }
    }
}

impl Lengths {
    pub(crate) fn record(&mut self, max_tokens: u32, outputs: u32) {
        self.classes[class(max_tokens)].record(outputs);
        self.all.record(outputs);
    }

    /// Total outputs that a request which has `outputs` will not exceed, but with probability
    /// `risk` ÷ 2^16. More than `outputs`, at most `max_tokens`, which at risk 0 it is.
    pub(crate) fn predict(&self, max_tokens: u32, outputs: u32, risk: u32) -> u32 {
        let least = (outputs + 1).min(max_tokens);
        if risk == 0 {
            return max_tokens;
        }
        let own = self.classes[class(max_tokens)].quantile(outputs, risk);
        let length = own
            .or_else(|| self.all.quantile(outputs, risk))
            .unwrap_or_else(|| UNKNOWN.max(outputs.saturating_mul(2)));
        length.clamp(least, max_tokens)
    }
}

fn class(max_tokens: u32) -> usize {
    (max_tokens.max(1).ilog2() as usize).min(CLASSES - 1)
}

fn bucket(length: u32) -> usize {
    if length < 4 {
        return length as usize;
    }
    let octave = length.ilog2();
    let quarter = length >> (octave - 2) & 3;
    ((octave as usize - 1) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// Least length of a bucket.
fn start(bucket: usize) -> u32 {
    if bucket < 4 {
        return bucket as u32;
    }
    (4 + bucket as u32 % 4) << (bucket / 4 - 1)
}

impl Histogram {
    const EMPTY: Self = Self {
        weights: [0; BUCKETS],
        unit: FIRST_UNIT,
        requests: 0,
    };

    fn record(&mut self, length: u32) {
        self.weights[bucket(length)] += self.unit;
        self.unit += self.unit >> FADING;
        self.requests = (self.requests + 1).min(ENOUGH);
        if self.unit >= LAST_UNIT {
            let shift = (LAST_UNIT / FIRST_UNIT).ilog2();
            self.unit >>= shift;
            for weight in &mut self.weights {
                *weight >>= shift;
            }
        }
    }

    /// The length that only `risk` ÷ 2^16 of those above `beyond` exceed, rounded up to its
    /// bucket's end. `None`: too little is known.
    fn quantile(&self, beyond: u32, risk: u32) -> Option<u32> {
        if self.requests < ENOUGH {
            return None;
        }
        let first = bucket(beyond);
        let (from, to) = (start(first), start(first + 1));
        let above =
            self.weights[first] * u64::from(to.max(beyond + 1) - 1 - beyond) / u64::from(to - from);
        let tail: u64 = self.weights[first + 1..].iter().sum::<u64>() + above;
        if tail == 0 {
            return None;
        }
        let exceeding = (tail >> 16) * u64::from(risk);
        let mut sum = 0;
        for bucket in (first + 1..BUCKETS).rev() {
            sum += self.weights[bucket];
            if sum > exceeding {
                return Some(start(bucket + 1) - 1);
            }
        }
        Some(to - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_lengths() {
        for number in 0..BUCKETS {
            assert_eq!(bucket(start(number)), number);
            assert_eq!(bucket(start(number + 1) - 1), number);
        }
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
    }

    #[test]
    fn predictions_follow_what_ended_and_forget_it() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.predict(4_096, 0, 1 << 15), UNKNOWN);
        assert_eq!(lengths.predict(4_096, 2_000, 1 << 15), 4_000);
        for length in 1..=1_000 {
            lengths.record(4_096, length);
        }
        let median = lengths.predict(4_096, 0, 1 << 15);
        assert!(
            (640..=1_000).contains(&median),
            "the later half weighs more: {median}"
        );
        let high = lengths.predict(4_096, 0, 1 << 10);
        assert!((900..=1_023).contains(&high), "{high}");
        let later = lengths.predict(4_096, 900, 1 << 15);
        assert!((901..=1_023).contains(&later), "{later}");
        assert_eq!(lengths.predict(4_096, 0, 0), 4_096);
        // Another class asks all while it knows too little itself.
        assert_eq!(lengths.predict(500, 0, 1 << 10), 500);
        for _ in 0..20_000 {
            lengths.record(4_096, 20);
        }
        assert!(lengths.predict(4_096, 0, 1 << 10) <= 23);
        assert!(lengths.predict(4_096, 30, 1 << 10) > 30);
    }
}
