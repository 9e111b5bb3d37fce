//! The course of a run: samples at even intervals, of which every other one is dropped when there are many.

use serde::Serialize;

/// Samples kept at most.
const MOST: usize = 512;

/// The state at one moment; counts are since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When, seconds.
    pub at_s: f64,
    /// Admitted requests of all replicas.
    pub running: u64,
    /// Waiting requests of all replicas.
    pub waiting: u64,
    /// Share of all blocks that requests own.
    pub used_share: f64,
    /// Requests that had arrived.
    pub arrived: u64,
    /// Output tokens.
    pub generated: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    samples: Vec<Sample>,
    stride: u64,
    seen: u64,
}

impl Series {
    pub(crate) fn new() -> Self {
        Self {
            samples: Vec::new(),
            stride: 1,
            seen: 0,
        }
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        if self.seen.is_multiple_of(self.stride) {
            self.samples.push(sample);
        }
        self.seen += 1;
        if self.samples.len() > MOST {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
    }

    pub(crate) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_few_samples_at_even_intervals() {
        let mut series = Series::new();
        for second in 0..10_000 {
            series.push(Sample {
                at_s: f64::from(second),
                ..Sample::default()
            });
        }
        let samples = series.into_samples();
        assert!((256..=512).contains(&samples.len()), "{}", samples.len());
        let gap = samples[1].at_s - samples[0].at_s;
        assert!(
            samples
                .windows(2)
                .all(|pair| (pair[1].at_s - pair[0].at_s - gap).abs() < 1e-9)
        );
    }
}
