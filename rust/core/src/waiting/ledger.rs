//! Who was served how much: one account for each tenant in each class.
//!
//! Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024):
//! an account is charged what its requests really cost, divided by its weight, and of the tenants
//! who wait one that was charged least, or little more (see `turn`), is next. Who starts to wait is
//! lifted to the least counter of those who wait already, so that time spent idle earns nothing.
//! Between two tenants who wait all the time, service thus differs by no more than a lead and one
//! request or one pool of KV. What one of them may take of a single step, `share` says.
//!
//! ```text
//!   seated: requests wait ──(the last is admitted)──▶ open: requests run ──(the last ends)──▶ idle
//!      ▲           ▲                                      │                  │ charged more than
//!      │           └──(preempted, or another comes)───────┘                  │ those who wait: kept
//!      └───────────────────────────(another comes)──────────────────────────┘ otherwise forgotten
//! ```

mod check;
mod share;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use crate::pool::NONE;
pub(crate) use crate::waiting::ledger::share::Part;
use crate::waiting::ledger::share::Taken;

/// Units of a counter per weighted token of a tenant whose weight is 1.
const UNIT: u64 = 1 << 14;

/// Weight of a tenant for whom none is configured, in thousandths.
pub(crate) const COMMON_WEIGHT: u32 = 1_000;

/// Idle tenants whose debts are remembered in a class: names may come from anybody.
const REMEMBERED: usize = 4_096;

/// One tenant in one class.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) tenant: u64,
    /// Index of its class.
    pub(crate) class: u32,
    /// Thousandths.
    weight: u64,
    /// Units per weighted token.
    price: u64,
    /// Units charged, lifts included.
    counter: u64,
    /// Requests that name the account: waiting and running.
    open: u32,
    /// Waiting requests by arrival, those on trial and parked left out.
    lane: BTreeMap<u64, u32>,
    /// Uncached prompt tokens that wait.
    pub(crate) tokens: u64,
    /// Place in the heap of its class.
    seat: u32,
    /// What it had of the step that is planned.
    taken: Taken,
}

impl Account {
    pub(crate) fn is_seated(&self) -> bool {
        self.seat != NONE
    }
}

/// One priority.
#[derive(Clone, Debug, Default)]
pub(crate) struct Class {
    pub(crate) priority: u8,
    /// Accounts with a lane, least charged first.
    heap: Vec<u32>,
    /// Nobody who waits has a counter below.
    floor: u64,
    /// Accounts of the class, the idle ones included.
    accounts: u32,
    /// Requests of the class: waiting and running.
    open: u32,
    /// Waiting requests, those on trial and parked included.
    pub(crate) requests: u32,
    /// Their uncached prompt tokens.
    pub(crate) tokens: u64,
    /// Sum of the seated accounts' weights, in thousandths.
    pub(crate) weight: u64,
    /// Sum of the weights of accounts with open requests, in thousandths.
    open_weight: u64,
    /// Prompt tokens admitted since the least charged account was next.
    overtaken: u64,
    /// Requests of more urgent classes admitted since this class, which waited, had its turn.
    pub(crate) passed: u32,
    /// Accounts without open requests that were charged more than those who wait.
    idle: BTreeSet<(u64, u32)>,
}

impl Class {
    /// Whether some request of it may be admitted, as far as trials go.
    pub(crate) fn is_seated(&self) -> bool {
        !self.heap.is_empty()
    }
}

/// All classes and accounts.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    weights: BTreeMap<u64, u32>,
    classes: Vec<Class>,
    /// Indexes of the classes, most urgent first.
    by_priority: Vec<u32>,
    accounts: Vec<Account>,
    vacant: Vec<u32>,
    names: BTreeMap<(u8, u64), u32>,
    /// Weighted tokens of a tenant of common weight.
    lead: u64,
}

impl Ledger {
    /// `lead`: weighted tokens that a tenant may have been charged above the least charged and still be
    /// its equal.
    pub(crate) fn new(weights: BTreeMap<u64, u32>, lead: u32) -> Self {
        Self {
            lead: u64::from(lead),
            weights,
            classes: Vec::new(),
            by_priority: Vec::new(),
            accounts: Vec::new(),
            vacant: Vec::new(),
            names: BTreeMap::new(),
        }
    }

    /// Whether all requests, past ones that are remembered included, are of one tenant and class.
    pub(crate) fn is_plain(&self) -> bool {
        self.names.len() <= 1
    }

    /// Indexes of the classes, most urgent first.
    pub(crate) fn classes(&self) -> &[u32] {
        &self.by_priority
    }

    pub(crate) fn class(&self, class: u32) -> &Class {
        &self.classes[class as usize]
    }

    pub(crate) fn account(&self, account: u32) -> &Account {
        &self.accounts[account as usize]
    }

    /// The account of a tenant, if it has one.
    pub(crate) fn find(&self, priority: u8, tenant: u64) -> Option<&Account> {
        let account = *self.names.get(&(priority, tenant))?;
        Some(self.account(account))
    }

    pub(crate) fn weight_of(&self, tenant: u64) -> u64 {
        let weight = self.weights.get(&tenant).copied();
        u64::from(weight.unwrap_or(COMMON_WEIGHT))
    }

    /// The account that a new request names; it counts as open.
    pub(crate) fn join(&mut self, priority: u8, tenant: u64) -> u32 {
        let account = match self.names.get(&(priority, tenant)) {
            Some(&account) => account,
            None => self.open_account(priority, tenant),
        };
        let entry = &mut self.accounts[account as usize];
        let class = &mut self.classes[entry.class as usize];
        if entry.open == 0 {
            class.idle.remove(&(entry.counter, account));
            class.open_weight += entry.weight;
        }
        entry.open += 1;
        class.open += 1;
        account
    }

    /// One more request names an account that has open ones.
    pub(crate) fn join_again(&mut self, account: u32) {
        let entry = &mut self.accounts[account as usize];
        entry.open += 1;
        self.classes[entry.class as usize].open += 1;
    }

    fn open_account(&mut self, priority: u8, tenant: u64) -> u32 {
        let class = self.open_class(priority);
        let weight = self.weight_of(tenant);
        let entry = Account {
            tenant,
            class,
            weight,
            price: (UNIT * u64::from(COMMON_WEIGHT) / weight).max(1),
            counter: self.classes[class as usize].floor,
            open: 0,
            lane: BTreeMap::new(),
            tokens: 0,
            seat: NONE,
            taken: Taken::default(),
        };
        self.classes[class as usize].accounts += 1;
        let account = if let Some(account) = self.vacant.pop() {
            self.accounts[account as usize] = entry;
            account
        } else {
            self.accounts.push(entry);
            self.accounts.len() as u32 - 1
        };
        self.names.insert((priority, tenant), account);
        account
    }

    fn open_class(&mut self, priority: u8) -> u32 {
        let found = self
            .by_priority
            .binary_search_by_key(&priority, |&class| self.classes[class as usize].priority);
        match found {
            Ok(position) => self.by_priority[position],
            Err(position) => {
                let class = self.classes.len() as u32;
                self.classes.push(Class {
                    priority,
                    ..Class::default()
                });
                self.by_priority.insert(position, class);
                class
            }
        }
    }

    /// A request that named the account has ended.
    pub(crate) fn leave(&mut self, account: u32) {
        let entry = &mut self.accounts[account as usize];
        let class = &mut self.classes[entry.class as usize];
        entry.open -= 1;
        class.open -= 1;
        let index = entry.class;
        if entry.open == 0 {
            class.idle.insert((entry.counter, account));
            class.open_weight -= entry.weight;
            self.forget_paid(index);
        }
    }

    /// Forgets idle accounts that would be lifted anyway, and all once the class is idle.
    fn forget_paid(&mut self, index: u32) {
        let class = &mut self.classes[index as usize];
        while let Some(&(counter, account)) = class.idle.first()
            && (counter <= class.floor || class.open == 0 || class.idle.len() > REMEMBERED)
        {
            class.idle.pop_first();
            class.accounts -= 1;
            self.vacant.push(account);
            let tenant = self.accounts[account as usize].tenant;
            self.names.remove(&(class.priority, tenant));
        }
        if class.open == 0 {
            class.floor = 0;
            class.passed = 0;
            class.overtaken = 0;
        } else if class.accounts == 1 {
            // Nobody is left to be compared with.
            class.floor = 0;
            class.overtaken = 0;
            let range = (class.priority, 0)..=(class.priority, u64::MAX);
            if let Some((_, &alone)) = self.names.range(range).next() {
                self.accounts[alone as usize].counter = 0;
            }
        }
    }

    /// Charges `tokens` weighted tokens; returns what was charged. Who is alone in its class owes
    /// nobody.
    pub(crate) fn charge(&mut self, account: u32, tokens: u32) -> u32 {
        let entry = &mut self.accounts[account as usize];
        if self.classes[entry.class as usize].accounts == 1 {
            return 0;
        }
        let units = u64::from(tokens) * entry.price;
        entry.counter = entry.counter.saturating_add(units);
        if entry.seat != NONE {
            let (class, seat) = (entry.class, entry.seat);
            self.sift_down(class, seat as usize);
        }
        tokens
    }

    /// Gives back what was charged for `tokens` weighted tokens that were not computed, but puts
    /// nobody before those who wait.
    pub(crate) fn refund(&mut self, account: u32, tokens: u32) {
        let entry = &mut self.accounts[account as usize];
        let floor = self.classes[entry.class as usize].floor;
        let units = u64::from(tokens) * entry.price;
        let counter = entry.counter.saturating_sub(units).max(floor);
        entry.counter = counter.min(entry.counter);
        if entry.seat != NONE {
            let (class, seat) = (entry.class, entry.seat);
            self.sift_up(class, seat as usize);
        }
    }

    pub(crate) fn counter(&self, account: u32) -> u64 {
        self.accounts[account as usize].counter
    }

    /// A request waits.
    pub(crate) fn seat(&mut self, account: u32, arrival: u64, slot: u32) {
        let entry = &mut self.accounts[account as usize];
        let index = entry.class;
        entry.lane.insert(arrival, slot);
        if entry.seat != NONE {
            let seat = entry.seat as usize;
            return self.sift_up(index, seat);
        }
        self.raise_floor(index);
        let class = &mut self.classes[index as usize];
        let entry = &mut self.accounts[account as usize];
        entry.counter = entry.counter.max(class.floor);
        entry.seat = class.heap.len() as u32;
        class.weight += entry.weight;
        class.heap.push(account);
        let seat = entry.seat as usize;
        self.sift_up(index, seat);
    }

    /// A request waits no more.
    pub(crate) fn unseat(&mut self, account: u32, arrival: u64) {
        let entry = &mut self.accounts[account as usize];
        let index = entry.class;
        let removed = entry.lane.remove(&arrival);
        debug_assert!(removed.is_some(), "it waited in this lane");
        let seat = entry.seat as usize;
        if !entry.lane.is_empty() {
            return self.sift_down(index, seat);
        }
        self.raise_floor(index);
        let class = &mut self.classes[index as usize];
        let entry = &mut self.accounts[account as usize];
        entry.seat = NONE;
        class.weight -= entry.weight;
        let last = class.heap.pop().expect("the account has a seat");
        if last != account {
            class.heap[seat] = last;
            self.accounts[last as usize].seat = seat as u32;
            self.sift_down(index, seat);
            self.sift_up(index, seat);
        }
    }

    /// The least counter of those who wait only grows, also when nobody is left.
    fn raise_floor(&mut self, index: u32) {
        let class = &mut self.classes[index as usize];
        if let Some(&least) = class.heap.first() {
            let counter = self.accounts[least as usize].counter;
            if counter > class.floor {
                class.floor = counter;
                self.forget_paid(index);
            }
        }
    }

    /// Waiting requests of an account, oldest first.
    pub(crate) fn lane(&self, account: u32) -> impl Iterator<Item = u32> + '_ {
        self.accounts[account as usize].lane.values().copied()
    }

    /// Waiting requests of all accounts.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        let accounts = self.names.values();
        accounts.flat_map(|&account| self.lane(account))
    }

    /// Waiting requests of an account that came before `arrival`, oldest first.
    pub(crate) fn older(&self, account: u32, arrival: u64) -> impl Iterator<Item = u32> + '_ {
        let lane = &self.accounts[account as usize].lane;
        lane.range(..arrival).map(|(_, &slot)| slot)
    }

    /// The seated account of a class that was charged least, of those that `aside` does not name.
    ///
    /// The accounts in `aside` were each the least charged once: they and what hangs below them
    /// are all that is looked at.
    fn least_charged(&self, class: u32, aside: &[u32]) -> Option<u32> {
        let heap = &self.classes[class as usize].heap;
        let mut best: Option<usize> = None;
        let mut consider = |seat: usize| {
            if let Some(account) = heap.get(seat)
                && !aside.contains(account)
                && best.is_none_or(|best| self.precedes(heap[seat], heap[best]))
            {
                best = Some(seat);
            }
        };
        consider(0);
        for &account in aside {
            let entry = &self.accounts[account as usize];
            if entry.class == class && entry.seat != NONE {
                consider(2 * entry.seat as usize + 1);
                consider(2 * entry.seat as usize + 2);
            }
        }
        best.map(|seat| heap[seat])
    }

    /// Equal counters: whose oldest request came first.
    fn precedes(&self, left: u32, right: u32) -> bool {
        let key = |account: u32| {
            let entry = &self.accounts[account as usize];
            (entry.counter, entry.lane.keys().next().copied())
        };
        key(left) < key(right)
    }

    fn sift_up(&mut self, index: u32, mut seat: usize) {
        while seat > 0 {
            let above = (seat - 1) / 2;
            let heap = &self.classes[index as usize].heap;
            if !self.precedes(heap[seat], heap[above]) {
                return;
            }
            self.swap(index, seat, above);
            seat = above;
        }
    }

    fn sift_down(&mut self, index: u32, mut seat: usize) {
        loop {
            let heap = &self.classes[index as usize].heap;
            let mut least = seat;
            for below in [2 * seat + 1, 2 * seat + 2] {
                if below < heap.len() && self.precedes(heap[below], heap[least]) {
                    least = below;
                }
            }
            if least == seat {
                return;
            }
            self.swap(index, seat, least);
            seat = least;
        }
    }

    fn swap(&mut self, index: u32, left: usize, right: usize) {
        let heap = &mut self.classes[index as usize].heap;
        heap.swap(left, right);
        self.accounts[heap[left] as usize].seat = left as u32;
        self.accounts[heap[right] as usize].seat = right as u32;
    }

    /// A request of the account was admitted: less urgent classes that wait were passed over.
    pub(crate) fn pass_over(&mut self, account: u32) {
        let index = self.accounts[account as usize].class;
        let priority = self.classes[index as usize].priority;
        self.classes[index as usize].passed = 0;
        for &class in self.by_priority.iter().rev() {
            let class = &mut self.classes[class as usize];
            if class.priority <= priority {
                return;
            }
            if class.is_seated() {
                class.passed += 1;
            }
        }
    }

    /// Adds to the backlog of an account and its class.
    pub(crate) fn add_backlog(&mut self, account: u32, requests: u32, tokens: u64) {
        let entry = &mut self.accounts[account as usize];
        entry.tokens += tokens;
        let class = &mut self.classes[entry.class as usize];
        class.requests += requests;
        class.tokens += tokens;
    }

    /// Takes from the backlog of an account and its class.
    pub(crate) fn take_backlog(&mut self, account: u32, requests: u32, tokens: u64) {
        let entry = &mut self.accounts[account as usize];
        entry.tokens -= tokens;
        let class = &mut self.classes[entry.class as usize];
        class.requests -= requests;
        class.tokens -= tokens;
    }

    /// Waiting requests and their uncached prompt tokens by priority, most urgent first.
    pub(crate) fn backlog(&self) -> impl Iterator<Item = (u8, u32, u64)> + '_ {
        let classes = self.by_priority.iter();
        classes
            .map(|&class| self.class(class))
            .map(|class| (class.priority, class.requests, class.tokens))
    }

    /// Hashes counters relative to those of the class that wait, and who sits where.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        for &index in &self.by_priority {
            let class = self.class(index);
            if class.accounts == 0 {
                continue;
            }
            (
                class.priority,
                class.passed,
                class.accounts,
                class.overtaken,
            )
                .hash(state);
            let range = (class.priority, 0)..=(class.priority, u64::MAX);
            for (_, &account) in self.names.range(range) {
                let entry = self.account(account);
                let charged = entry.counter.wrapping_sub(class.floor);
                (entry.tenant, charged, entry.open).hash(state);
            }
        }
    }
}
