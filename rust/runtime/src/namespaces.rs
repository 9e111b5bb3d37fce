//! Namespaces of the prefix cache: blocks are shared only within one.
//!
//! A number stands for exactly one salt and is never given to another, so that no collision can let
//! one see what another has cached. An engine serves one revision of one model, without adapters;
//! its cache ends with it, so that neither needs a part in the key.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::shared::lock;

/// Salts that are remembered. One that is forgotten gets a new number the next time, and so finds
/// nothing of what it had stored.
const REMEMBERED: usize = 16_384;

/// The namespace of requests without a salt.
const COMMON: u64 = 0;

/// Numbers of salts, given in order of their first use.
#[derive(Debug, Default)]
pub(crate) struct Namespaces(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    /// Number and last use of each salt.
    salts: HashMap<String, (u64, u64)>,
    last: u64,
    uses: u64,
}

impl Namespaces {
    /// The namespace of a salt.
    pub(crate) fn of(&self, salt: &str) -> u64 {
        if salt.is_empty() {
            return COMMON;
        }
        lock(&self.0).of(salt)
    }
}

impl Numbers {
    fn of(&mut self, salt: &str) -> u64 {
        self.uses += 1;
        let uses = self.uses;
        if let Some((number, used)) = self.salts.get_mut(salt) {
            *used = uses;
            return *number;
        }
        if self.salts.len() >= REMEMBERED {
            self.forget_half();
        }
        self.last += 1;
        self.salts.insert(salt.to_owned(), (self.last, uses));
        self.last
    }

    /// Forgets the salts that were used longest ago.
    fn forget_half(&mut self) {
        let mut uses: Vec<u64> = self.salts.values().map(|&(_, used)| used).collect();
        let middle = uses.len() / 2;
        let (_, &mut oldest, _) = uses.select_nth_unstable(middle);
        self.salts.retain(|_, &mut (_, used)| used >= oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_salt_for_ever() {
        let namespaces = Namespaces::default();
        assert_eq!(namespaces.of(""), COMMON);
        let kept = namespaces.of("kept");
        let first = namespaces.of("first");
        let mut seen = std::collections::HashSet::from([COMMON, kept, first]);
        for number in 0..3 * REMEMBERED {
            assert!(seen.insert(namespaces.of(&number.to_string())), "{number}");
            assert_eq!(namespaces.of("kept"), kept);
        }
        assert!(seen.insert(namespaces.of("first")), "forgotten, not reused");
        assert!(lock(&namespaces.0).salts.len() <= REMEMBERED);
    }
}
