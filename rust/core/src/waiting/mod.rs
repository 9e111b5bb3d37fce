//! Requests that wait: which is next, which is too late, and which is not let in at all.
//!
//! ```text
//!   class (lower number first) ─▶ tenant (see `ledger`) ─▶ order within the tenant
//! ```
//!
//! What cannot be admitted now is in no lane and costs a step nothing: requests that are parked
//! while a trial lasts (see `suspects`) lie apart, and those on trial go before everybody. Apart lie
//! also those whose mask must be known first (see `mask`).

mod candidate;
mod check;
mod deadlines;
mod ledger;
mod order;
mod overload;
mod ticket;

use std::collections::BTreeMap;

use crate::active::{Active, State};
use crate::slab::Slab;
use crate::suspects::Standing;

pub(crate) use crate::waiting::candidate::Attempt;
pub(crate) use crate::waiting::check::queue as check;
pub(crate) use crate::waiting::deadlines::Deadlines;
use crate::waiting::ledger::Ledger;
pub(crate) use crate::waiting::ledger::Part;
pub(crate) use crate::waiting::overload::PromptRate;
pub(crate) use crate::waiting::ticket::Ticket;

/// What a prompt token that is computed is charged, in weighted tokens.
const PROMPT_WEIGHT: u32 = 1;

/// What an output token is charged: a step computes it apart, and reads the whole context for it.
pub(crate) const OUTPUT_WEIGHT: u32 = 2;

/// Where a waiting request waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Berth {
    /// In the lane of its account.
    #[default]
    Lane,
    /// Before everybody: a worker died of it, or of others in its steps.
    Trial,
    /// Apart, until the trial is over.
    Parked,
    /// Apart, until the mask of its next output is known.
    Unmasked,
}

impl Berth {
    fn of(request: &Active) -> Self {
        match request.suspicion.standing {
            Standing::OnTrial => Self::Trial,
            Standing::Parked => Self::Parked,
            Standing::Clear | Standing::Suspect if request.is_unmasked() => Self::Unmasked,
            Standing::Clear | Standing::Suspect => Self::Lane,
        }
    }
}

/// All waiting requests.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) ledger: Ledger,
    on_trial: BTreeMap<u64, u32>,
    parked: BTreeMap<u64, u32>,
    unmasked: BTreeMap<u64, u32>,
    len: u32,
    /// Uncached prompt tokens that wait.
    tokens: u64,
}

impl Waiting {
    /// `weights` in thousandths by tenant, `lead` as [`Ledger::new`] has it.
    pub(crate) fn new(weights: BTreeMap<u64, u32>, lead: u32) -> Self {
        Self {
            ledger: Ledger::new(weights, lead),
            on_trial: BTreeMap::new(),
            parked: BTreeMap::new(),
            unmasked: BTreeMap::new(),
            len: 0,
            tokens: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether somebody waits who could be admitted if there were room.
    pub(crate) fn has_candidates(&self) -> bool {
        self.len as usize > self.unmasked.len() + self.parked.len()
    }

    /// Uncached prompt tokens of all waiting requests, as far as was looked up.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Adds a request at its arrival key.
    pub(crate) fn insert(&mut self, request: &mut Active, slot: u32) {
        request.ticket.berth = Berth::of(request);
        match request.ticket.berth {
            Berth::Lane => self
                .ledger
                .seat(request.ticket.account, request.arrival, slot),
            Berth::Trial => drop(self.on_trial.insert(request.arrival, slot)),
            Berth::Parked => drop(self.parked.insert(request.arrival, slot)),
            Berth::Unmasked => drop(self.unmasked.insert(request.arrival, slot)),
        }
        let tokens = u64::from(request.ticket.backlog);
        self.ledger.add_backlog(request.ticket.account, 1, tokens);
        self.tokens += tokens;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, request: &Active) {
        match request.ticket.berth {
            Berth::Lane => self.ledger.unseat(request.ticket.account, request.arrival),
            Berth::Trial => drop(self.on_trial.remove(&request.arrival)),
            Berth::Parked => drop(self.parked.remove(&request.arrival)),
            Berth::Unmasked => drop(self.unmasked.remove(&request.arrival)),
        }
        let tokens = u64::from(request.ticket.backlog);
        self.ledger.take_backlog(request.ticket.account, 1, tokens);
        self.tokens -= tokens;
        self.len -= 1;
    }

    /// The request's uncached tokens are another number than was thought.
    pub(crate) fn recount(&mut self, request: &mut Active, backlog: u32) {
        let before = u64::from(std::mem::replace(&mut request.ticket.backlog, backlog));
        self.ledger.take_backlog(request.ticket.account, 0, before);
        self.ledger
            .add_backlog(request.ticket.account, 0, u64::from(backlog));
        self.tokens = self.tokens - before + u64::from(backlog);
    }

    /// The trial, this request's part in it, or what is known of its mask has changed.
    pub(crate) fn regroup(&mut self, request: &mut Active, slot: u32) {
        if request.state == State::Waiting {
            self.remove(request);
            self.insert(request, slot);
        }
    }

    /// The oldest request on trial.
    pub(crate) fn first_on_trial(&self) -> Option<u32> {
        self.on_trial.values().next().copied()
    }

    /// Every waiting request in order of arrival.
    pub(crate) fn in_order(&self, requests: &Slab) -> Vec<u32> {
        let mut slots: Vec<u32> = self.slots().collect();
        slots.sort_unstable_by_key(|&slot| requests[slot].arrival);
        slots
    }

    /// Every waiting request, in no order that matters.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let apart = self.on_trial.values().chain(self.parked.values());
        let apart = apart.chain(self.unmasked.values()).copied();
        self.ledger.waiting().chain(apart)
    }
}
