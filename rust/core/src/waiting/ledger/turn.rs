//! Whose turn it is among the tenants of a class.
//!
//! Counters alone serve two tenants alike over every interval, and that is too strict for one who asks
//! for little: its only prompt, once charged, takes turns with the thousands of a flood. Max-min
//! fairness says instead that who asks for less than its share is served at once, and only the rest is
//! shared. So a tenant that was charged no more than a *lead* above the least charged is its equal, and
//! of equals the one with the least waiting, by its weight, goes first. Between two tenants who wait all the time,
//! service differs by the lead more.
//!
//! The least charged, which has most waiting, is overtaken by no more than [`MOST_LEADS`] leads of prompt
//! tokens in all: then it is next, so that no number of tenants with little to ask starves it.

use super::{Ledger, UNIT};

/// Leads of prompt tokens that others are admitted with before the least charged tenant, in sum.
const MOST_LEADS: u64 = 4;

/// Tenants among which one with little waiting is looked for. They lie at the head of the heap: the
/// least charged is among them, and of each further one all that were charged less.
const CONSIDERED: usize = 64;

impl Ledger {
    /// The seated account of a class that is next, of those that `aside` does not name.
    pub(crate) fn next(&self, class: u32, aside: &[u32]) -> Option<u32> {
        let least = self.least_charged(class, aside)?;
        let state = self.class(class);
        if state.overtaken >= MOST_LEADS * self.lead {
            return Some(least);
        }
        let limit = self.now(class).saturating_add(self.lead * UNIT);
        let heap = state.heap.iter().copied().take(CONSIDERED);
        let equals =
            heap.filter(|&account| self.counter(account) <= limit && !aside.contains(&account));
        let smallest = equals.min_by_key(|&account| {
            let entry = self.account(account);
            (
                entry.tokens.saturating_mul(entry.price),
                entry.counter,
                entry.lane.keys().next().copied(),
            )
        });
        smallest.or(Some(least))
    }

    /// Units that a counter is above those of the account's equals: 0 for one of them.
    pub(crate) fn ahead(&self, account: u32, counter: u64) -> u64 {
        let now = self.now(self.account(account).class);
        let ahead = counter.saturating_sub(now);
        if ahead > self.lead * UNIT { ahead } else { 0 }
    }

    /// What the least charged account of those who wait was charged.
    fn now(&self, class: u32) -> u64 {
        let state = self.class(class);
        let least = state.heap.first().map(|&account| self.counter(account));
        least.unwrap_or(0).max(state.floor)
    }

    /// A request of the account is admitted, with as many prompt tokens to compute.
    pub(crate) fn note_turn(&mut self, account: u32, tokens: u32) {
        let index = self.account(account).class as usize;
        let is_least = self.classes[index].heap.first() == Some(&account);
        let class = &mut self.classes[index];
        class.overtaken = if is_least || class.accounts == 1 {
            0
        } else {
            class.overtaken + u64::from(tokens)
        };
    }
}
