//! Seeded randomness: one stream for each purpose, so that drawing more for one changes no other.

use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1, Gamma, LogNormal};
use rand_pcg::Pcg64Mcg;

/// What a stream of random numbers is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Arrivals,
    Lengths,
    Content,
    Tenants,
    Aborts,
    Router,
    Priorities,
    /// Step times of the replica with this number.
    Steps(u32),
}

/// A stream of random numbers; equal seeds and purposes give equal numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Stream(Pcg64Mcg);

impl Stream {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        let number = match purpose {
            Purpose::Arrivals => 1,
            Purpose::Lengths => 2,
            Purpose::Content => 3,
            Purpose::Tenants => 4,
            Purpose::Aborts => 5,
            Purpose::Router => 6,
            Purpose::Priorities => 7,
            Purpose::Steps(replica) => 16 + u64::from(replica),
        };
        Self(Pcg64Mcg::seed_from_u64(mix(seed ^ mix(number))))
    }

    /// Uniform from 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.random()
    }

    /// Uniform below `limit`, which is at least 1.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit)
    }

    /// Exponential with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        Exp1.sample(&mut self.0)
    }

    /// Gamma distributed with mean 1 and the coefficient of variation `cv` above 0.
    pub(crate) fn gamma(&mut self, cv: f64) -> f64 {
        let shape = 1.0 / (cv * cv);
        Gamma::new(shape, 1.0 / shape).map_or(1.0, |gamma| gamma.sample(&mut self.0))
    }

    /// Lognormal with mean 1; `sigma` is the standard deviation of its logarithm.
    pub(crate) fn lognormal(&mut self, sigma: f64) -> f64 {
        if sigma <= 0.0 {
            return 1.0;
        }
        LogNormal::new(-sigma * sigma / 2.0, sigma).map_or(1.0, |noise| noise.sample(&mut self.0))
    }
}

/// A bijection of 64 bits without visible structure (the finaliser of `MurmurHash3`).
pub(crate) fn mix(value: u64) -> u64 {
    let mut bits = value ^ 0x9e37_79b9_7f4a_7c15;
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ (bits >> 33)
}
