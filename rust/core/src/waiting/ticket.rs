//! What the queue knows of one request, from its submission to its end.

use crate::Request;
use crate::pool::NONE;
use crate::waiting::Berth;

/// No state of the prefix index.
const NEVER: u64 = 0;

#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) priority: u8,
    /// Whether it was admitted, and its account charged for its prompt.
    pub(crate) charged: bool,
    /// Whether more urgent classes leave it its row and blocks.
    pub(crate) kept: bool,
    /// While waiting: where.
    pub(crate) berth: Berth,
    /// Its tenant and class.
    pub(crate) account: u32,
    /// Later requests that were admitted before it although it was next.
    pub(crate) bypassed: u32,
    /// While waiting: tokens that the prefix cache did not have when it was last asked.
    pub(crate) backlog: u32,
    /// Weighted tokens of its prompt that its account was charged in advance.
    pub(crate) advance: u32,
    /// What its account had been charged when it was admitted, before its own prompt.
    pub(crate) start: u64,
    /// Positions that were cached or computed, at most, in any residency.
    pub(crate) served: u32,
    /// State of the prefix index when it was last asked.
    pub(crate) looked_up: u64,
    /// When it was submitted.
    pub(crate) submitted: u64,
    pub(crate) deadline: Option<u64>,
    /// Until its first token is there.
    pub(crate) first_token_deadline: Option<u64>,
}

impl Ticket {
    pub(crate) fn new(request: &Request, now: u64) -> Self {
        Self {
            priority: request.priority,
            charged: false,
            kept: false,
            berth: Berth::Lane,
            account: NONE,
            bypassed: 0,
            backlog: request.prompt.len() as u32,
            advance: 0,
            start: u64::MAX,
            served: 0,
            looked_up: NEVER,
            submitted: now,
            deadline: request.deadline,
            first_token_deadline: request.first_token_deadline,
        }
    }

    /// What was found in the prefix cache says nothing any more.
    pub(crate) fn look_up_again(&mut self) {
        self.looked_up = NEVER;
    }

    /// The moments at which it may end by itself.
    pub(crate) fn moments(&self) -> impl Iterator<Item = u64> {
        let both = [self.deadline, self.first_token_deadline];
        both.into_iter().flatten()
    }
}
