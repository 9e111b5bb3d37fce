//! What a tenant with more than its share may take of a step, so that the others' next prompts find a
//! row, and no long step in flight.
//!
//! A device runs one step at a time: who comes while a step is full of a flood's prompts waits for its
//! end, whoever is next. While others of its class have requests open, a tenant that runs more than
//! its share of the requests by half, and has more waiting than its part therefore gets an eighth of a step's
//! prompt tokens, and leaves a sixteenth of the rows free. What others leave of their share is still
//! its own: it has the more and shorter steps.

use super::{Account, Class, Ledger};

/// Parts of a step's prompt tokens, of which one is a tenant's with more than its share.
const PARTS: u32 = 8;

/// Tiles that its part has at least: a smaller chunk would be computed badly.
const LEAST_TILES: u32 = 8;

/// Parts of all rows, of which such a tenant leaves one free.
const ROW_PARTS: u32 = 16;

/// What the part of a step and of the rows is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The step.
    pub(crate) step: u64,
    /// Prompt tokens.
    pub(crate) tokens: u32,
    /// Rows that stay free.
    pub(crate) rows: u32,
}

impl Part {
    /// `whole`: prompt tokens of a step.
    pub(crate) fn new(step: u64, whole: u32, tile: u32, max_running: u32) -> Self {
        Self {
            step,
            tokens: (whole / PARTS).max(LEAST_TILES * tile).min(whole),
            rows: max_running / ROW_PARTS,
        }
    }
}

/// What an account had of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    step: u64,
    tokens: u32,
    /// Whether it is held to its part.
    bounded: bool,
}

impl Account {
    /// Requests that run, or share the prompt of one that does.
    fn running(&self) -> u64 {
        u64::from(self.open) - self.lane.len() as u64
    }

    /// By half, so that equals are not bounded in turns.
    fn has_more_than_its_share(&self, class: &Class) -> bool {
        let running = u64::from(class.open - class.requests);
        class.open_weight > self.weight
            && 2 * self.running() * class.open_weight > 3 * running * self.weight
    }
}

impl Ledger {
    /// Prompt tokens that the account may still take of the step; none: as many as there are. Asked
    /// before anything of the account is admitted to the step, which decides for all of it.
    pub(crate) fn part_left(&mut self, account: u32, part: Part) -> Option<u32> {
        let entry = &mut self.accounts[account as usize];
        if entry.taken.step != part.step {
            let class = &self.classes[entry.class as usize];
            entry.taken = Taken {
                step: part.step,
                tokens: 0,
                bounded: entry.lane.len() > 1
                    && entry.tokens >= u64::from(part.tokens)
                    && entry.has_more_than_its_share(class),
            };
        }
        let left = part.tokens.saturating_sub(entry.taken.tokens);
        entry.taken.bounded.then_some(left)
    }

    /// The account has so many tokens of the step.
    pub(crate) fn take(&mut self, account: u32, tokens: u32) {
        self.accounts[account as usize].taken.tokens += tokens;
    }

    /// Whether the account had its part of the step, or would take a row that it leaves to others.
    pub(crate) fn had_its_part(&mut self, account: u32, part: Part, free_rows: u32) -> bool {
        self.part_left(account, part)
            .is_some_and(|left| left == 0 || free_rows <= part.rows)
    }
}
