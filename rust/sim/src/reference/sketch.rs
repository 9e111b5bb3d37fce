//! How often content was used, in constant memory: four rows of counters of which the smallest counts,
//! all halved now and then (`TinyLFU`, Einziger, Friedman and Manes 2017).

use crate::random::mix;

const ROWS: usize = 4;
const LARGEST: u8 = 15;
/// Uses per block after which every count is halved.
const PERIOD: u64 = 10;

#[derive(Debug)]
pub(super) struct Sketch {
    counts: Vec<u8>,
    mask: u64,
    uses: u64,
    period: u64,
}

impl Sketch {
    pub(super) fn new(blocks: u32) -> Self {
        let width = u64::from(blocks.max(16)).next_power_of_two();
        Self {
            counts: vec![0; width as usize * ROWS],
            mask: width - 1,
            uses: 0,
            period: PERIOD * u64::from(blocks),
        }
    }

    pub(super) fn add(&mut self, hash: u64) {
        for row in 0..ROWS {
            let count = &mut self.counts[place(hash, row, self.mask)];
            *count = (*count + 1).min(LARGEST);
        }
        self.uses += 1;
        if self.uses >= self.period {
            self.uses = 0;
            for count in &mut self.counts {
                *count /= 2;
            }
        }
    }

    /// 0 for content used once, up to 3 for content used eight times and more.
    pub(super) fn level(&self, hash: u64) -> u8 {
        let smallest = (0..ROWS)
            .map(|row| self.counts[place(hash, row, self.mask)])
            .min()
            .unwrap_or(0);
        match smallest {
            0..=1 => 0,
            2..=3 => 1,
            4..=7 => 2,
            _ => 3,
        }
    }
}

fn place(hash: u64, row: usize, mask: u64) -> usize {
    let spread = mix(hash.wrapping_add(row as u64));
    (spread & mask) as usize * ROWS + row
}
