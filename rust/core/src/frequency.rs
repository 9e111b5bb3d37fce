//! How often a content was used lately: a count-min sketch of 4-bit counters.
//!
//! Four counters a key, of which the least is the estimate; all are halved when as many uses were
//! counted as would fill them (the aging of `TinyLFU`: Einziger, Friedman, Manes, 2017). It remembers
//! contents that were evicted meanwhile, for about ten uses of the whole cache.

/// Counters in a word.
const LANES: u64 = 16;
const MOST: u64 = 15;
/// Uses per block of the cache after which the counters are halved.
const PERIOD: u64 = 10;

#[derive(Clone, Debug, Hash)]
pub(crate) struct Frequency {
    words: Vec<u64>,
    uses: u64,
    period: u64,
}

impl Frequency {
    /// For a cache of `blocks` blocks: sixteen counters each, so that contents which are used once
    /// rarely share all four of theirs.
    pub(crate) fn new(blocks: u32) -> Self {
        let words = (blocks as usize).next_power_of_two();
        Self {
            words: vec![0; words],
            uses: 0,
            period: PERIOD * u64::from(blocks),
        }
    }

    /// Counts one use. True: the counters were halved.
    pub(crate) fn count(&mut self, key: u64) -> bool {
        for (word, shift) in self.places(key) {
            if self.words[word] >> shift & MOST < MOST {
                self.words[word] += 1 << shift;
            }
        }
        self.uses += 1;
        let full = self.uses >= self.period;
        if full {
            self.uses /= 2;
            for word in &mut self.words {
                *word = *word >> 1 & 0x7777_7777_7777_7777;
            }
        }
        full
    }

    /// Uses lately, up to 15.
    pub(crate) fn estimate(&self, key: u64) -> u32 {
        let counters = self.places(key);
        let least = counters.map(|(word, shift)| self.words[word] >> shift & MOST);
        least.into_iter().min().unwrap_or(0) as u32
    }

    /// Word and bit of each of the key's counters.
    fn places(&self, key: u64) -> [(usize, u64); 4] {
        let mask = self.words.len() - 1;
        let mut mixed = key;
        [0; 4].map(|_: u8| {
            mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let word = (mixed >> 20) as usize & mask;
            (word, (mixed >> 58) % LANES * 4)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_contents_are_told_from_rare_ones_and_fade() {
        let mut frequency = Frequency::new(256);
        for round in 0..200_u64 {
            frequency.count(1);
            frequency.count(1_000 + round);
        }
        assert!(frequency.estimate(1) >= 8);
        let rare = (0..200).filter(|round| frequency.estimate(1_000 + round) > 2);
        assert!(rare.count() < 10);
        let mut halvings = 0;
        for other in 0..10_000_u64 {
            halvings += u32::from(frequency.count(5_000 + other % 2_000));
        }
        assert!(halvings >= 4, "{halvings}");
        assert!(frequency.estimate(1) < 8);
    }
}
