//! Who is offered a place next, and what follows from the answer.
//!
//! A request that does not fit may be bypassed, but by no more than [`MOST_BYPASSES`] later ones.
//! One that must run is not: until it fits, nobody of its class or a less urgent one is admitted.

use crate::Core;
use crate::active::Active;
use crate::config::PrefillOrder;
use crate::reason::WaitReason;
use crate::schedule::Budget;
use crate::waiting::order::MOST_BYPASSES;
use crate::waiting::{Berth, PROMPT_WEIGHT, Part};

/// Requests of a lane among which the order of prefills chooses.
const WINDOW: usize = 64;

/// Requests that do not fit and are stepped over in one plan.
const MOST_TRIES: usize = 4;

/// Requests of more urgent classes after which a class that waits has one turn.
const PATIENCE: u32 = 64;

/// Tenants that have had their part of a step and are stepped over in one plan.
const MOST_BOUNDED: usize = 24;

/// A handful of numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Few {
    numbers: [u32; MOST_BOUNDED + 2 * MOST_TRIES],
    len: usize,
}

impl Few {
    fn as_slice(&self) -> &[u32] {
        &self.numbers[..self.len]
    }

    fn push(&mut self, number: u32) {
        self.numbers[self.len] = number;
        self.len += 1;
    }
}

/// The turn of a class that was passed over too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Given if there is such a class.
    Due,
    /// The candidate has it.
    Given,
    /// What had it did not fit.
    InVain,
}

/// What one plan has tried to admit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) now: u64,
    /// Nobody else is admitted in this plan.
    over: bool,
    /// Requests that did not fit.
    tried: Few,
    /// Accounts that had their turn since all had one.
    aside: Few,
    /// Whether somebody was offered a place since all accounts had their turn.
    offered: bool,
    /// The class in which somebody did not fit: no less urgent one is looked at.
    class: Option<u32>,
    turn: Turn,
    limit: WaitReason,
}

impl Attempt {
    /// `over`: nobody is admitted.
    pub(crate) fn new(now: u64, over: bool) -> Self {
        Self {
            now,
            over,
            tried: Few::default(),
            aside: Few::default(),
            offered: false,
            class: None,
            turn: Turn::Due,
            limit: WaitReason::Step,
        }
    }

    /// Whether somebody may be admitted.
    pub(crate) fn is_open(&self) -> bool {
        !self.over
    }

    /// What those who still wait, wait for.
    pub(crate) fn limit(&self) -> WaitReason {
        self.limit
    }

    /// The plan would be empty otherwise: admit after all.
    pub(crate) fn reopen(&mut self) {
        *self = Self::new(self.now, false);
    }
}

impl Core {
    /// The waiting request that is offered a place next.
    pub(crate) fn next_candidate(&mut self, attempt: &mut Attempt) -> Option<u32> {
        if attempt.over || !self.rows.has_free() {
            return None;
        }
        if attempt.turn == Turn::Given {
            attempt.turn = Turn::Due;
        }
        if let Some(slot) = self.waiting.first_on_trial() {
            return Some(slot);
        }
        if !self.suspects.admits_others() {
            attempt.limit = WaitReason::Trial;
            return None;
        }
        let class = match attempt.class {
            Some(class) => class,
            None => self.next_class(attempt)?,
        };
        self.next_in_class(class, attempt)
    }

    /// The most urgent class with somebody to admit; but one that was passed over too often first.
    fn next_class(&self, attempt: &mut Attempt) -> Option<u32> {
        let ledger = &self.waiting.ledger;
        let classes = ledger.classes().iter().copied();
        let mut seated = classes.filter(|&class| ledger.class(class).is_seated());
        let first = seated.next()?;
        let mut passed = seated.filter(|&class| ledger.class(class).passed >= PATIENCE);
        match passed.next() {
            Some(class) if attempt.turn == Turn::Due => {
                attempt.turn = Turn::Given;
                Some(class)
            }
            _ => Some(first),
        }
    }

    fn next_in_class(&mut self, class: u32, attempt: &mut Attempt) -> Option<u32> {
        loop {
            let aside = attempt.aside.as_slice();
            let Some(account) = self.waiting.ledger.next(class, aside) else {
                if !std::mem::take(&mut attempt.offered) {
                    return None;
                }
                attempt.aside = Few::default();
                continue;
            };
            if self.had_its_part(account) {
                attempt.limit = WaitReason::TenantShare;
                if attempt.aside.len >= MOST_BOUNDED {
                    return None;
                }
                attempt.aside.push(account);
                continue;
            }
            let tried = attempt.tried.as_slice();
            if let Some(slot) = self.best_in_lane(account, tried, attempt.now) {
                return Some(slot);
            }
            attempt.aside.push(account);
        }
    }

    /// Whether a tenant leaves the rest of the step, or of the rows, to others. A step is never empty
    /// for that.
    fn had_its_part(&mut self, account: u32) -> bool {
        let (part, free) = (self.part(), self.rows.num_free());
        !self.plan.rows.is_empty() && self.waiting.ledger.had_its_part(account, part, free)
    }

    /// What a tenant with more than its share has of the step that is planned.
    pub(crate) fn part(&self) -> Part {
        let config = &self.config;
        let prefill = config.max_prefill_tokens.unwrap_or(u32::MAX);
        let whole = config.max_batched_tokens.min(prefill);
        Part::new(
            self.step + 1,
            whole,
            config.prefill_tile,
            config.max_running,
        )
    }

    /// The request of a lane that goes first; what `tried` names is left out.
    fn best_in_lane(&mut self, account: u32, tried: &[u32], now: u64) -> Option<u32> {
        let order = self.config.prefill_order;
        let lane = self.waiting.ledger.lane(account);
        let mut untried = lane.filter(|slot| !tried.contains(slot));
        if order == PrefillOrder::Fcfs {
            self.counters.considered += 1;
            return untried.next();
        }
        let mut window = std::mem::take(&mut self.scratch.window);
        window.clear();
        window.extend(untried.take(WINDOW));
        self.counters.considered += window.len() as u64;
        for &slot in &window {
            self.look_up(slot);
        }
        let block_size = self.config.block_size;
        let best = window.iter().copied().min_by_key(|&slot| {
            let request = &self.requests[slot];
            let may_wait = !request.goes_first(now);
            let measure = may_wait.then(|| request.measure(order, block_size));
            (measure, request.arrival)
        });
        self.scratch.window = window;
        best
    }

    /// Finds the cached prefix of a waiting request, if the index has changed since it was found.
    pub(crate) fn look_up(&mut self, slot: u32) {
        let epoch = self.cache.index.epoch();
        let request = &mut self.requests[slot];
        if request.ticket.looked_up == epoch {
            return;
        }
        request.ticket.looked_up = epoch;
        let known = request.known();
        if self.config.prefix_cache && request.wants_scores().is_none() {
            // At least one token is computed: somebody has to produce logits.
            let reusable = &request.tokens[..known as usize - 1];
            self.cache
                .extend_path(request.namespace, reusable, &mut request.path);
        }
        let backlog = known - request.path.len() as u32 * self.config.block_size;
        if backlog != request.ticket.backlog {
            self.waiting.recount(request, backlog);
        }
    }

    /// Admits a candidate, or notes that it did not fit.
    pub(crate) fn offer(&mut self, slot: u32, budget: &mut Budget, attempt: &mut Attempt) {
        let Err(limit) = self.try_admit(slot) else {
            self.note_admission(slot, attempt);
            self.grant_admitted(slot, budget);
            self.place_chunk(slot, budget);
            return;
        };
        if limit == WaitReason::SharedPrefix {
            // It has left the queue.
            return;
        }
        attempt.limit = limit;
        let request = &self.requests[slot];
        if attempt.turn == Turn::Given {
            attempt.turn = Turn::InVain;
            return;
        }
        attempt.over = request.inflight > 0
            || request.ticket.berth == Berth::Trial
            || request.goes_first(attempt.now)
            || attempt.tried.len + 1 >= MOST_TRIES;
        if !attempt.over {
            attempt.tried.push(slot);
            attempt.aside.push(request.ticket.account);
            attempt.offered = true;
            attempt.class = Some(self.waiting.ledger.account(request.ticket.account).class);
        }
    }

    /// Charges an admission, and counts it against those who were bypassed or passed over.
    fn note_admission(&mut self, slot: u32, attempt: &mut Attempt) {
        let request = &mut self.requests[slot];
        let (account, arrival) = (request.ticket.account, request.arrival);
        request.ticket.kept |= attempt.turn == Turn::Given;
        if !request.ticket.charged {
            request.ticket.charged = true;
            request.ticket.served = request.computed;
            let uncached = request.prompt.saturating_sub(request.computed);
            let ledger = &mut self.waiting.ledger;
            request.ticket.start = ledger.counter(account);
            ledger.note_turn(account, uncached);
            request.ticket.advance = ledger.charge(account, uncached * PROMPT_WEIGHT);
        }
        self.waiting.ledger.pass_over(account);
        let mut bypassed = std::mem::take(&mut self.scratch.window);
        bypassed.clear();
        bypassed.extend(self.waiting.ledger.older(account, arrival));
        let elsewhere = attempt.tried.as_slice().iter().copied().filter(|&tried| {
            let request = &self.requests[tried];
            request.ticket.account != account && request.arrival < arrival
        });
        bypassed.extend(elsewhere);
        for &waiting in &bypassed {
            self.requests[waiting].ticket.bypassed += 1;
        }
        self.scratch.window = bypassed;
        attempt.over |= attempt
            .tried
            .as_slice()
            .iter()
            .any(|&tried| self.requests[tried].ticket.bypassed >= MOST_BYPASSES);
    }

    /// Gives back what was charged for prompt tokens that were never computed.
    pub(crate) fn settle_account(&mut self, request: &Active) {
        let ticket = &request.ticket;
        let unserved = request.prompt.saturating_sub(ticket.served) * PROMPT_WEIGHT;
        if ticket.advance > 0 && unserved > 0 {
            let refund = unserved.min(ticket.advance);
            self.waiting.ledger.refund(ticket.account, refund);
        }
        self.waiting.ledger.leave(request.ticket.account);
    }

    /// The waiting request that goes first among classes more urgent than `priority`.
    pub(crate) fn most_urgent(&mut self, priority: u8, now: u64) -> Option<u32> {
        let ledger = &self.waiting.ledger;
        let first = ledger
            .classes()
            .iter()
            .copied()
            .take_while(|&class| ledger.class(class).priority < priority)
            .find(|&class| ledger.class(class).is_seated())?;
        if self.suspects.is_trial() {
            return None;
        }
        let slot = self.next_in_class(first, &mut Attempt::new(now, false))?;
        self.look_up(slot);
        (self.requests[slot].inflight == 0).then_some(slot)
    }
}
