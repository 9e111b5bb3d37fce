//! Several outputs from one prompt.
//!
//! ```text
//!   submit       one choice waits for all; the others are listed with it, unforked
//!   admission    it gets the prompt's blocks, each of the others a state row and a block for its tail
//!   last chunk   one logit row, a sampling row for each choice
//!   retirement   each choice shares the prompt's full blocks and is a request like any other
//!   first token  the prompt's partial last block is copied into the choice's own, before anything
//!                is computed; the shared one stays owned until then and is written by the first
//!                choice alone, behind the prompt
//! ```
//!
//! Whatever happens to the first choice while its last chunk is in flight, the sampled tokens stay:
//! where there are no blocks to share any more, the others queue and are computed like preempted
//! requests.

mod check;

use crate::active::{Active, State};
use crate::forecast::Stay;
use crate::launches::Entry;
use crate::pool::NONE;
use crate::reason::WaitReason;
use crate::{Core, Event, RowStatus, SamplingRow};

pub(crate) use crate::fork::check::{pins, tail, unforked};

/// Numbers of unforked choices, by the state of the one that computes for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unforked {
    pub(crate) waiting: u32,
    pub(crate) running: u32,
}

/// Blocks into which the partial last block of a prompt is copied.
pub(crate) fn tails(prompt: u32, block_size: u32, choices: u32) -> u32 {
    (choices - 1) * u32::from(!prompt.is_multiple_of(block_size))
}

impl Active {
    /// Choice `index` of a request whose first choice is in slot `first`. Its prompt comes later.
    fn unforked(&mut self, index: u32, first: u32) -> Self {
        let tokens = std::mem::take(&mut self.tokens);
        let path = std::mem::take(&mut self.path);
        let others = std::mem::take(&mut self.unforked);
        let mut choice = self.clone();
        self.tokens = tokens;
        self.path = path;
        self.unforked = others;
        choice.arrival += u64::from(index);
        choice.state = State::Unforked;
        choice.first_choice = first;
        choice.template.choice_index = index;
        choice
    }
}

impl Core {
    /// Lists the further choices of a request that has just arrived.
    pub(crate) fn add_choices(&mut self, first: u32, choices: u32) {
        let now = self.cache.now;
        for index in 1..choices {
            let request = &mut self.requests[first];
            let mut choice = request.unforked(index, first);
            choice.account = self.accounts.open((request.submission(), index), now);
            choice.hold(WaitReason::SharedPrefill, &self.accounts.clock, now);
            self.waiting.ledger.join_again(choice.ticket.account);
            let handle = self.requests.insert(choice);
            self.deadlines
                .watch(&self.requests[handle.slot], handle.slot);
            self.requests[first].unforked.push(handle.slot);
        }
        self.unforked.waiting += choices - 1;
    }

    /// The first choice is admitted: a state row for each of the others, and a block where the
    /// prompt's last one cannot be shared.
    pub(crate) fn equip(&mut self, first: u32) {
        let choices = std::mem::take(&mut self.requests[first].unforked);
        let block_size = self.config.block_size;
        let prompt = self.requests[first].prompt;
        for &slot in &choices {
            let choice = &mut self.requests[slot];
            choice.row = self.rows.take().expect("free rows were counted before");
            let tail = tails(prompt, block_size, 2);
            let allocated = self.cache.allocate(tail, &mut choice.blocks);
            debug_assert!(allocated, "the blocks were counted before");
            choice.matched = prompt / block_size;
            self.forecast.enter(choice, tail);
        }
        self.unforked.waiting -= choices.len() as u32;
        self.unforked.running += choices.len() as u32;
        self.requests[first].unforked = choices;
    }

    /// The first choice gives its blocks back: so do those that depend on it.
    pub(crate) fn unequip(&mut self, first: u32) {
        let choices = std::mem::take(&mut self.requests[first].unforked);
        for &slot in &choices {
            self.give_back_tail(slot);
        }
        self.unforked.running -= choices.len() as u32;
        self.unforked.waiting += choices.len() as u32;
        self.requests[first].unforked = choices;
    }

    fn give_back_tail(&mut self, slot: u32) {
        let choice = &mut self.requests[slot];
        if choice.row == NONE {
            return;
        }
        self.forecast.leave(choice);
        choice.matched = 0;
        self.rows.give_back(choice.row, choice.last_step);
        choice.row = NONE;
        for block in choice.blocks.drain(..) {
            self.cache.release(block, choice.last_step, choice.terms);
        }
    }

    /// Takes a choice off the list of the one that computes for it.
    pub(crate) fn detach(&mut self, slot: u32) {
        self.give_back_tail(slot);
        self.unlist(slot);
    }

    fn unlist(&mut self, slot: u32) {
        let first = std::mem::replace(&mut self.requests[slot].first_choice, NONE);
        let request = &mut self.requests[first];
        request.unforked.retain(|&listed| listed != slot);
        match request.state {
            State::Running => self.unforked.running -= 1,
            State::Waiting | State::Deferred | State::Unforked => self.unforked.waiting -= 1,
        }
    }

    /// The chunk that was just placed may be the prompt's last: then its logits are sampled for all.
    pub(crate) fn sample_unforked(&mut self, first: u32) {
        let request = &self.requests[first];
        let samples_first = self.draft.entries.last().is_some_and(|entry| entry.sampled)
            && request.outputs() + request.pending == 1;
        // Beams are not sampled: their search chooses from what the first one has.
        if !samples_first || request.unforked.is_empty() || request.group != NONE {
            return;
        }
        let end = request.computed;
        let choices = std::mem::take(&mut self.requests[first].unforked);
        for &slot in &choices {
            let (handle, choice) = self.requests.get_mut(slot);
            let shared = self.plan.sampling.last().expect("the first choice's draw");
            let row = SamplingRow {
                row: choice.row,
                choice_index: choice.choice(),
                ..*shared
            };
            self.plan.sampling.push(row);
            choice.pending = 1;
            choice.inflight = 1;
            choice.last_step = self.draft.step;
            choice.side_step = self.draft.step;
            self.draft.entries.push(Entry {
                handle,
                // That of the time in which it will have the blocks.
                residency: choice.residency.wrapping_add(1),
                lineage: choice.lineage,
                end,
                sampled: true,
                candidates: 0,
                fork: true,
            });
        }
        self.draft.work.logit_rows += choices.len() as u32;
        self.requests[first].unforked = choices;
    }

    /// The step that samples all choices has retired: those that were sampled go their own way.
    pub(crate) fn fork(&mut self, first: &Entry, choices: &[Entry], outcomes: &[(RowStatus, u32)]) {
        let Some((&(first_status, _), statuses)) = outcomes.split_first() else {
            return;
        };
        let Some(first_slot) = self.requests.resolve(first.handle) else {
            return;
        };
        // What has to compute its last token again writes where the others would read.
        let again = first_status == RowStatus::NotSampled;
        let resident = self.requests[first_slot].residency == first.residency && !again;
        for (entry, &(status, _)) in choices.iter().zip(statuses) {
            let Some(slot) = self.requests.resolve(entry.handle) else {
                continue;
            };
            match status {
                RowStatus::NotSampled if again => {}
                RowStatus::NotSampled => self.queue_choice(first_slot, slot),
                _ if resident => self.share(first_slot, slot),
                _ => self.queue_choice(first_slot, slot),
            }
        }
    }

    /// The choice is computed by itself from here on.
    fn queue_choice(&mut self, first: u32, slot: u32) {
        self.detach(slot);
        self.take_prompt(first, slot);
        let choice = &mut self.requests[slot];
        choice.release(&self.accounts.clock, self.cache.now);
        choice.state = State::Waiting;
        choice.ticket.backlog = choice.known();
        choice.ticket.look_up_again();
        self.waiting.insert(choice, slot);
    }

    fn take_prompt(&mut self, first: u32, slot: u32) {
        let request = &self.requests[first];
        let prompt = request.tokens[..request.prompt as usize].to_vec();
        let kept = request.ticket.kept;
        let choice = &mut self.requests[slot];
        choice.tokens = prompt;
        choice.admitted = true;
        // The prompt was charged once, to the first.
        choice.ticket.charged = true;
        choice.ticket.kept = kept;
    }

    /// The choice runs on the prompt's blocks.
    pub(crate) fn share(&mut self, first: u32, slot: u32) {
        self.unlist(slot);
        self.take_prompt(first, slot);
        let mut choice = std::mem::take(&mut self.requests[slot].blocks);
        let tail = choice.pop();
        let request = &self.requests[first];
        let full = (request.prompt >> self.block_shift) as usize;
        let source = tail.map(|_| request.blocks[full]);
        choice.extend_from_slice(&request.blocks[..full]);
        for &block in choice.iter().chain(&source) {
            self.cache.acquire(block);
        }
        choice.extend(tail);
        let nodes = request.path.len().min(full);
        let path = request.path[..nodes].to_vec();
        let (cacheable, prompt) = (request.cacheable, request.prompt);
        let request = &mut self.requests[slot];
        request.blocks = choice;
        request.path = path;
        request.reserve_memory(&self.config);
        request.tail_source = source.unwrap_or(NONE);
        request.cacheable = cacheable;
        request.computed = prompt;
        request.residency = request.residency.wrapping_add(1);
        request.state = State::Running;
        let (clock, now) = (&self.accounts.clock, self.cache.now);
        request.release(clock, now);
        request.account.admitted(clock, now, self.step, prompt);
        self.side_users += u32::from(request.uses_side_arena());
        self.running.insert(request.rank(), slot);
        if cacheable {
            self.move_frontier(slot);
        }
    }

    /// The worker is gone, and with it what the unforked choices had of it.
    pub(crate) fn lose_unforked(&mut self) {
        self.unforked.waiting += std::mem::take(&mut self.unforked.running);
        if self.unforked.waiting == 0 {
            return;
        }
        for (_, choice) in self.requests.iter_mut() {
            if choice.state != State::Unforked {
                continue;
            }
            choice.row = NONE;
            choice.blocks.clear();
            choice.matched = 0;
            choice.stay = Stay::default();
            if choice.inflight > 0 {
                choice.lineage = choice.lineage.wrapping_add(1);
                choice.pending = 0;
                choice.inflight = 0;
                self.events.push(Event::Requeued {
                    submission: choice.submission(),
                    choice: choice.choice(),
                });
            }
        }
    }
}
