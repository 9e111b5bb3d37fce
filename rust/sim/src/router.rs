//! Which replica a request goes to, decided from what a router can know: what it sent where, and what has ended.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::random::{Purpose, Stream, mix};

/// How a replica is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// Any, equally likely.
    Random,
    /// That with the fewest prompt tokens of open requests.
    LeastLoaded,
    /// That with the fewest such tokens and uncached tokens of the new prompt together, where prefixes are believed
    /// to be cached on the replica that saw them last.
    PrefixAware,
}

/// Tokens after which a prefix is remembered.
const STRIDE: usize = 64;
/// Prefixes remembered; older ones are forgotten.
const REMEMBERED: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Router {
    routing: Routing,
    stream: Stream,
    /// Prompt tokens of open requests of each replica.
    loads: Vec<u64>,
    seen: HashMap<u64, u32>,
    order: VecDeque<u64>,
}

impl Router {
    pub(crate) fn new(routing: Routing, replicas: u32, seed: u64) -> Self {
        Self {
            routing,
            stream: Stream::new(seed, Purpose::Router),
            loads: vec![0; replicas as usize],
            seen: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// The replica for a prompt, which counts as open there from now on.
    pub(crate) fn route(&mut self, prompt: &[u32]) -> u32 {
        let replica = match self.routing {
            Routing::Random => self.stream.below(self.loads.len() as u64) as u32,
            Routing::LeastLoaded => self.least_loaded(),
            Routing::PrefixAware => self.by_prefix(prompt),
        };
        self.loads[replica as usize] += prompt.len() as u64;
        replica
    }

    /// A request with this many prompt tokens has ended there.
    pub(crate) fn ended(&mut self, replica: u32, prompt: u32) {
        self.loads[replica as usize] -= u64::from(prompt);
    }

    fn least_loaded(&self) -> u32 {
        let least = self.loads.iter().enumerate().min_by_key(|&(_, load)| load);
        least.map_or(0, |(replica, _)| replica as u32)
    }

    fn by_prefix(&mut self, prompt: &[u32]) -> u32 {
        let chains = chains(prompt);
        let known = chains
            .iter()
            .rposition(|chain| self.seen.contains_key(chain));
        let mut chosen = self.least_loaded();
        if let Some(position) = known {
            let holder = self.seen[&chains[position]];
            let cached = ((position + 1) * STRIDE) as u64;
            // Where it is not cached, the whole prompt is to be computed.
            if self.loads[holder as usize] <= self.loads[chosen as usize] + cached {
                chosen = holder;
            }
        }
        for chain in chains {
            if self.seen.insert(chain, chosen).is_none() {
                self.order.push_back(chain);
            }
        }
        while self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        chosen
    }
}

/// Hashes of the prefixes that are multiples of the stride.
fn chains(prompt: &[u32]) -> Vec<u64> {
    let mut chain = 0;
    let hashed = prompt.chunks_exact(STRIDE).map(|tokens| {
        for &token in tokens {
            chain = mix(chain ^ u64::from(token));
        }
        chain
    });
    hashed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(name: u32, length: u32) -> Vec<u32> {
        (0..length)
            .map(|position| name * 10_000 + position)
            .collect()
    }

    #[test]
    fn least_loaded_spreads_and_forgets_what_has_ended() {
        let mut router = Router::new(Routing::LeastLoaded, 3, 0);
        let chosen: Vec<u32> = (1..=3)
            .map(|name| router.route(&prompt(name, 100)))
            .collect();
        assert_eq!(chosen, [0, 1, 2]);
        router.ended(1, 100);
        assert_eq!(router.route(&prompt(4, 100)), 1);
    }

    #[test]
    fn a_known_prefix_goes_where_it_is_cached_until_the_load_outweighs_it() {
        let mut router = Router::new(Routing::PrefixAware, 2, 0);
        let first = router.route(&prompt(1, 640));
        assert_eq!(router.route(&prompt(1, 640)), first);
        assert_ne!(router.route(&prompt(1, 640)), first);
    }

    #[test]
    fn random_is_the_same_for_the_same_seed_and_uses_every_replica() {
        let draw = |seed| {
            let mut router = Router::new(Routing::Random, 4, seed);
            (0..64).map(|_| router.route(&[1])).collect::<Vec<u32>>()
        };
        assert_eq!(draw(7), draw(7));
        assert!((0..4).all(|replica| draw(7).contains(&replica)));
    }
}
