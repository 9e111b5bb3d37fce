//! Generated arrivals: an ordinary stream, and special requests among it.

use super::process::Process;
use super::{Arrival, Arrivals, Content, Lengths, Listed, Source, Workload};
use crate::random::{Purpose, Stream};

/// Tokens of its own that each request of a herd has after what all share.
const HERD_SUFFIX: u32 = 16;

/// Draws lengths.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    stream: Stream,
    lengths: Lengths,
}

impl Drawn {
    pub(super) fn new(lengths: Lengths, seed: u64) -> Self {
        Self {
            stream: Stream::new(seed, Purpose::Lengths),
            lengths,
        }
    }

    /// Tokens of a prompt and of its output.
    fn next(&mut self) -> (u32, u32) {
        let lengths = self.lengths;
        let is_long = lengths.long_share > 0.0 && self.stream.unit() < lengths.long_share;
        let factor = if is_long { lengths.long_factor } else { 1.0 };
        let prompt = self.draw(factor * f64::from(lengths.prompt));
        (prompt, self.draw(f64::from(lengths.output)))
    }

    fn draw(&mut self, mean: f64) -> u32 {
        let drawn = mean * self.stream.lognormal(self.lengths.spread);
        (drawn.round() as u32).clamp(1, self.lengths.longest)
    }
}

/// What a client asks for, given the output that it will get.
pub(super) fn allowed(workload: &Workload, output: u32) -> u32 {
    let usual = workload.max_tokens.unwrap_or(4 * workload.lengths.output);
    usual.max(output)
}

/// The arrivals of a generator, in order of time.
#[derive(Clone, Debug)]
pub(super) struct Generator {
    workload: Workload,
    process: Process,
    drawn: Drawn,
    content: Content,
    tenants: Stream,
    aborts: Stream,
    /// The next ordinary moment, seconds.
    ordinary: f64,
    /// The next special moment, seconds.
    special: f64,
    /// What one special moment still brings, and the text that it shares.
    herd: Vec<u32>,
    herd_left: u32,
    left: u64,
}

impl Generator {
    pub(super) fn new(workload: &Workload, seed: u64) -> Self {
        let mut process = Process::new(&workload.arrivals, workload.tenants, seed);
        let special = match workload.arrivals {
            Arrivals::LongPromptAttack { every, .. } | Arrivals::SamePrefixHerd { every, .. } => {
                every
            }
            _ => f64::INFINITY,
        };
        Self {
            ordinary: process.next(),
            process,
            drawn: Drawn::new(workload.lengths, seed),
            content: Content::new(workload.sharing, &workload.lengths, seed),
            tenants: Stream::new(seed, Purpose::Tenants),
            aborts: Stream::new(seed, Purpose::Aborts),
            special,
            herd: Vec::new(),
            herd_left: 0,
            left: workload.requests,
            workload: workload.clone(),
        }
    }

    fn ordinary(&mut self) -> Arrival {
        let seconds = self.ordinary;
        self.ordinary = self.process.next();
        let (length, output) = self.drawn.next();
        let prompt = self.content.turn(length, output);
        Arrival {
            at: nanoseconds(seconds),
            prompt,
            output,
            max_tokens: allowed(&self.workload, output),
            tenant: self.tenant(),
            abort_after: self.leaves_after(seconds),
            ..Arrival::default()
        }
    }

    fn tenant(&mut self) -> u64 {
        let tenants = self.workload.tenants;
        match self.workload.arrivals {
            Arrivals::TenantFlood { factor, .. } => {
                let others = tenants.saturating_sub(1);
                let drawn = self.tenants.unit() * (factor + others as f64);
                if drawn < factor || others == 0 {
                    1
                } else {
                    2 + ((drawn - factor) as u64).min(others - 1)
                }
            }
            // Tenant 1 is who attacks.
            Arrivals::LongPromptAttack { .. } => 2 + self.tenants.below(tenants),
            _ => 1 + self.tenants.below(tenants),
        }
    }

    fn leaves_after(&mut self, seconds: f64) -> Option<u64> {
        if let Arrivals::AbortStorm {
            at, lasting, share, ..
        } = self.workload.arrivals
            && (at..at + lasting).contains(&seconds)
            && self.aborts.unit() < share
        {
            return Some(nanoseconds(at + lasting - seconds));
        }
        let leaves =
            self.workload.abort_share > 0.0 && self.aborts.unit() < self.workload.abort_share;
        leaves.then(|| nanoseconds(self.aborts.unit() * self.workload.patience_s))
    }

    fn special(&mut self) -> Arrival {
        let seconds = self.special;
        let (tenant, prompt) = match self.workload.arrivals {
            Arrivals::LongPromptAttack { every, tokens, .. } => {
                self.special += every;
                let mut prompt = Vec::new();
                self.content.append_text(&mut prompt, tokens);
                (1, prompt)
            }
            Arrivals::SamePrefixHerd {
                every,
                size,
                tokens,
                ..
            } => {
                if self.herd_left == 0 {
                    self.herd_left = size;
                    self.herd.clear();
                    let mut shared = std::mem::take(&mut self.herd);
                    self.content.append_text(&mut shared, tokens);
                    self.herd = shared;
                }
                self.herd_left -= 1;
                if self.herd_left == 0 {
                    self.special += every;
                }
                let mut prompt = self.herd.clone();
                self.content.append_text(&mut prompt, HERD_SUFFIX);
                (1 + self.tenants.below(self.workload.tenants), prompt)
            }
            _ => unreachable!("only these have special moments"),
        };
        let output = self.workload.lengths.output;
        Arrival {
            at: nanoseconds(seconds),
            prompt,
            output,
            max_tokens: allowed(&self.workload, output),
            tenant,
            ..Arrival::default()
        }
    }
}

impl Iterator for Generator {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.left = self.left.checked_sub(1)?;
        Some(if self.special <= self.ordinary {
            self.special()
        } else {
            self.ordinary()
        })
    }
}

pub(super) fn list(list: Vec<Listed>) -> Source {
    let lengths = Lengths::default();
    let mut content = Content::new(super::Sharing::default(), &lengths, 0);
    Box::new(list.into_iter().map(move |listed| {
        let mut prompt = Vec::new();
        content.append_text(&mut prompt, listed.prompt);
        Ok(Arrival {
            at: (listed.at_ms * 1e6) as u64,
            prompt,
            output: listed.output,
            max_tokens: listed.max_tokens.unwrap_or(0).max(listed.output),
            tenant: listed.tenant,
            abort_after: listed.abort_after_ms.map(|after| (after * 1e6) as u64),
            ..Arrival::default()
        })
    }))
}

pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}
