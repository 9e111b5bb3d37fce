//! The moments of arrival: a rate that may change with time, and gaps around it.

use super::{Arrivals, Listed};
use crate::Error;
use crate::random::{Purpose, Stream};

/// Draws the moments at which ordinary requests arrive, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Process {
    stream: Stream,
    rate: Rate,
    cv: f64,
    now: f64,
}

/// Requests a second as a function of time.
#[derive(Clone, Copy, Debug)]
enum Rate {
    Constant(f64),
    Swinging {
        mean: f64,
        period: f64,
        depth: f64,
    },
    Raised {
        base: f64,
        from: f64,
        to: f64,
        factor: f64,
    },
}

impl Rate {
    fn at(self, time: f64) -> f64 {
        match self {
            Self::Constant(rate) => rate,
            Self::Swinging {
                mean,
                period,
                depth,
            } => mean * (1.0 + depth * (std::f64::consts::TAU * time / period).sin()),
            Self::Raised {
                base,
                from,
                to,
                factor,
            } => {
                base * if (from..to).contains(&time) {
                    factor
                } else {
                    1.0
                }
            }
        }
    }

    fn most(self) -> f64 {
        match self {
            Self::Constant(rate) => rate,
            Self::Swinging { mean, depth, .. } => mean * (1.0 + depth),
            Self::Raised { base, factor, .. } => base * factor.max(1.0),
        }
    }
}

impl Process {
    pub(super) fn new(arrivals: &Arrivals, tenants: u64, seed: u64) -> Self {
        let others = tenants.saturating_sub(1) as f64;
        let (rate, cv) = match *arrivals {
            Arrivals::Gamma { rate, cv } => (Rate::Constant(rate), cv),
            Arrivals::Diurnal {
                rate,
                period,
                depth,
            } => {
                let swinging = Rate::Swinging {
                    mean: rate,
                    period,
                    depth,
                };
                (swinging, 1.0)
            }
            Arrivals::FlashCrowd {
                rate,
                at,
                lasting,
                factor,
            } => {
                let raised = Rate::Raised {
                    base: rate,
                    from: at,
                    to: at + lasting,
                    factor,
                };
                (raised, 1.0)
            }
            Arrivals::TenantFlood { rate, factor } => {
                (Rate::Constant(rate * (factor + others)), 1.0)
            }
            Arrivals::Poisson { rate }
            | Arrivals::LongPromptAttack { rate, .. }
            | Arrivals::SamePrefixHerd { rate, .. }
            | Arrivals::AbortStorm { rate, .. } => (Rate::Constant(rate), 1.0),
            Arrivals::Azure { .. } | Arrivals::Mooncake { .. } | Arrivals::List { .. } => {
                unreachable!("traces and lists bring their own times")
            }
        };
        Self {
            stream: Stream::new(seed, Purpose::Arrivals),
            rate,
            cv,
            now: 0.0,
        }
    }

    /// The next moment. A changing rate is thinned from its maximum (Lewis and Shedler 1979).
    pub(super) fn next(&mut self) -> f64 {
        let most = self.rate.most();
        loop {
            let gap = if self.cv.to_bits() == 1.0_f64.to_bits() {
                self.stream.exponential()
            } else {
                self.stream.gamma(self.cv)
            };
            self.now += gap / most;
            if matches!(self.rate, Rate::Constant(_))
                || self.stream.unit() * most < self.rate.at(self.now)
            {
                return self.now;
            }
        }
    }
}

pub(super) fn check(arrivals: &Arrivals) -> Result<(), Error> {
    let positive: &[(&'static str, f64)] = match arrivals {
        Arrivals::Poisson { rate } => &[("rate", *rate)],
        Arrivals::Gamma { rate, cv } => &[("rate", *rate), ("cv", *cv)],
        Arrivals::Diurnal { rate, period, .. } => &[("rate", *rate), ("period", *period)],
        Arrivals::FlashCrowd {
            rate,
            lasting,
            factor,
            ..
        } => &[("rate", *rate), ("lasting", *lasting), ("factor", *factor)],
        Arrivals::TenantFlood { rate, factor } => &[("rate", *rate), ("factor", *factor)],
        Arrivals::LongPromptAttack {
            rate,
            every,
            tokens,
        } => &[
            ("rate", *rate),
            ("every", *every),
            ("tokens", f64::from(*tokens)),
        ],
        Arrivals::SamePrefixHerd {
            rate,
            every,
            size,
            tokens,
        } => &[
            ("rate", *rate),
            ("every", *every),
            ("size", f64::from(*size)),
            ("tokens", f64::from(*tokens)),
        ],
        Arrivals::AbortStorm { rate, lasting, .. } => &[("rate", *rate), ("lasting", *lasting)],
        Arrivals::Azure { speed, .. } | Arrivals::Mooncake { speed, .. } => &[("speed", *speed)],
        Arrivals::List { list } => return check_list(list),
    };
    for &(name, value) in positive {
        if !(value > 0.0 && value.is_finite()) {
            return Err(Error::option(name, value, "above 0"));
        }
    }
    let shares: &[(&'static str, f64, f64)] = match arrivals {
        Arrivals::Diurnal { depth, .. } => &[("depth", *depth, 1.0)],
        Arrivals::AbortStorm { share, at, .. } => &[("share", *share, 1.0), ("at", *at, 1e12)],
        Arrivals::FlashCrowd { at, .. } => &[("at", *at, 1e12)],
        _ => &[],
    };
    for &(name, value, most) in shares {
        if !(0.0..=most).contains(&value) {
            return Err(Error::option(name, value, "0 to 1, times from 0"));
        }
    }
    Ok(())
}

fn check_list(list: &[Listed]) -> Result<(), Error> {
    let mut before = 0.0;
    for listed in list {
        if listed.prompt == 0 || listed.output == 0 {
            return Err(Error::option(
                "list",
                "0 tokens",
                "at least 1 prompt and 1 output token",
            ));
        }
        if !(listed.at_ms >= before && listed.at_ms.is_finite()) {
            return Err(Error::option(
                "list.at_ms",
                listed.at_ms,
                "in order, from 0",
            ));
        }
        if listed
            .abort_after_ms
            .is_some_and(|after| !(0.0..1e15).contains(&after))
        {
            return Err(Error::option("list.abort_after_ms", "", "not negative"));
        }
        before = listed.at_ms;
    }
    Ok(())
}
