//! Many durations, kept as a histogram whose values are within a thousandth.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Durations in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Distribution {
    histogram: Histogram<u64>,
    /// The last duration and how often it came in a row: the rows of a step mostly have the same gap.
    last: (u64, u64),
}

/// What reports say of a distribution, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// `digits` decimal digits are kept: 2 for the many, 3 for the few.
    pub(crate) fn new(digits: u8) -> Self {
        let mut histogram = Histogram::new(digits).expect("0 to 5 digits are allowed");
        histogram.auto(true);
        Self {
            histogram,
            last: (0, 0),
        }
    }

    pub(crate) fn record(&mut self, nanoseconds: u64) {
        if self.last.0 == nanoseconds {
            self.last.1 += 1;
        } else {
            self.settle();
            self.last = (nanoseconds, 1);
        }
    }

    fn settle(&mut self) {
        let (nanoseconds, count) = self.last;
        if count > 0 {
            let recorded = self.histogram.record_n(nanoseconds, count);
            recorded.expect("the histogram grows");
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut whole = self.clone();
        whole.settle();
        let histogram = whole.histogram;
        let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let quantile = |share: f64| milliseconds(histogram.value_at_quantile(share));
        Summary {
            count: histogram.len(),
            mean: histogram.mean() / 1e6,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: milliseconds(histogram.max()),
        }
    }
}
