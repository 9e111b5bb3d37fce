//! Beam search: the likeliest whole outputs of a prompt, rather than drawn ones.
//!
//! ```text
//!   submit      the beams are the choices of one request (see `fork`), and end together
//!   a step      each running beam has a sampling row that asks for its likeliest continuations;
//!               a beam whose continuations are there waits for the others
//!   all there   the search says which beams go on. One that has a child goes on as that; a further
//!               child takes the place of a beam that has none:
//!
//!                 parent  │ full │ full │ tail ▒▒│      goes on in its own tail
//!                 place   │ full │ full │ copy ▒▒│      shares the full blocks; its own last block,
//!                                                       which nobody else reads, takes a copy of
//!                                                       the parent's tail before the next token
//!   the end     the outputs are told all at once, the best as the first choice
//! ```
//!
//! So a step of the search allocates nothing and never fails. A beam is planned only with nothing of
//! it in flight. Those that wait for others hold blocks and make no progress, so that two searches
//! with some beams each could wait for each other's blocks: therefore beams lose their blocks
//! together, and are admitted again together. What they had named is named again.

mod check;
mod search;

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::active::State;
use crate::forecast::Forecast;
use crate::pool::NONE;
use crate::{Core, Event, FinishReason};

pub(crate) use crate::beam::check::groups as check;
pub use crate::beam::search::MOST_CANDIDATES;
use crate::beam::search::{Beam, Child, Ends, Search};
pub(crate) use crate::beam::search::{Candidate, candidates};

/// How a request's outputs are searched; [`crate::Request::choices`] is the width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beams {
    /// An output's score is its log probability divided by its length in tokens to this power:
    /// above 0 favours long outputs, below 0 short ones.
    pub length_penalty: f64,
    /// When the search ends before `max_tokens`.
    pub early_stopping: EarlyStopping,
}

/// When a search ends whose finished outputs are as many as it is wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStopping {
    /// At once.
    Yes,
    /// When the best running beam, as if it ended now, is no better than the worst finished output.
    No,
    /// When no running beam can become better, however long it gets.
    Never,
}

/// The beams of one request.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    search: Search,
    /// Slots of all beams, by choice.
    members: Vec<u32>,
    /// Slots of the running beams, as the search counts them.
    order: Vec<u32>,
    /// The continuations that each choice has named since the last step of the search.
    reports: Vec<Option<Vec<Candidate>>>,
}

/// All groups. Their numbers are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: Vec<Option<Group>>,
    vacant: Vec<u32>,
}

impl Groups {
    fn insert(&mut self, group: Group) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self.groups[number as usize] = Some(group);
            return number;
        }
        self.groups.push(Some(group));
        self.groups.len() as u32 - 1
    }

    fn remove(&mut self, number: u32) -> Option<Group> {
        let group = self.groups.get_mut(number as usize)?.take()?;
        self.vacant.push(number);
        Some(group)
    }

    fn get(&self, number: u32) -> &Group {
        self.groups[number as usize].as_ref().expect(OPEN)
    }

    fn get_mut(&mut self, number: u32) -> &mut Group {
        self.groups[number as usize].as_mut().expect(OPEN)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        let numbered = (0..).zip(&self.groups);
        numbered.filter_map(|(number, group)| Some((number, group.as_ref()?)))
    }

    /// The worker is gone: whatever was named is named again.
    pub(crate) fn forget_reports(&mut self) {
        for group in self.groups.iter_mut().flatten() {
            group.reports.fill(None);
        }
    }

    /// Feeds what decides how the search of a group goes on.
    pub(crate) fn fingerprint(&self, number: u32, choice: u32, state: &mut impl Hasher) {
        let group = self.get(number);
        if choice == 0 {
            group.search.hash_behaviour(state);
        }
        let place = group.order.iter();
        let own = group.members[choice as usize];
        place.take_while(|&&slot| slot != own).count().hash(state);
        for (token, log) in group.reports[choice as usize].iter().flatten() {
            (token, log.to_bits()).hash(state);
        }
    }
}

const OPEN: &str = "a beam names the group that it belongs to";

impl Core {
    /// Makes the choices of a request that has just arrived beams.
    pub(crate) fn open_group(&mut self, first: u32, beams: Beams) {
        let mut members = vec![first];
        members.extend_from_slice(&self.requests[first].unforked);
        let width = members.len() as u32;
        let stop_ids = self.requests[first].num_stop_ids();
        let number = self.groups.insert(Group {
            search: Search::new(beams, width, stop_ids),
            order: vec![first],
            reports: vec![None; members.len()],
            members: members.clone(),
        });
        for slot in members {
            let request = &mut self.requests[slot];
            request.group = number;
            request.template.candidates = candidates(width, stop_ids);
        }
    }

    /// All beams of the search that a request belongs to, once the first has been forked.
    pub(crate) fn beams_of(&self, slot: u32) -> Option<&[u32]> {
        let number = self.requests[slot].group;
        if number == NONE {
            return None;
        }
        let group = self.groups.get(number);
        (group.order.len() == group.members.len()).then_some(&group.members)
    }

    /// Who stands for all beams of a search where one is suspected of killing workers.
    pub(crate) fn suspect_of(&self, slot: u32) -> u32 {
        match self.requests[slot].group {
            NONE => slot,
            number => self.groups.get(number).members[0],
        }
    }

    /// A step has given the likeliest continuations of a beam that still has its blocks.
    pub(crate) fn report(&mut self, slot: u32, candidates: &[Candidate], now: u64) {
        self.intern(slot);
        let request = &mut self.requests[slot];
        // Its token is still being chosen: it stays pending.
        request.reported = true;
        let (number, choice) = (request.group, request.choice() as usize);
        let group = self.groups.get_mut(number);
        group.reports[choice] = Some(candidates.to_vec());
        let reported = group.reports.iter().flatten().count();
        if reported == group.search.running() {
            self.advance(number, now);
        }
    }

    /// A beam gives its blocks back: it will name its continuations again.
    pub(crate) fn withdraw(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        if std::mem::take(&mut request.reported) {
            request.pending = 0;
            let (number, choice) = (request.group, request.choice() as usize);
            self.groups.get_mut(number).reports[choice] = None;
        }
    }

    /// All running beams have named their continuations.
    fn advance(&mut self, number: u32, now: u64) {
        let group = self.groups.get_mut(number);
        let beams: Vec<Beam<'_>> = group
            .order
            .iter()
            .map(|&slot| {
                let request = &self.requests[slot];
                let choice = request.choice() as usize;
                Beam {
                    outputs: &request.tokens[request.prompt as usize..],
                    candidates: group.reports[choice].as_deref().unwrap_or_default(),
                }
            })
            .collect();
        let first = &self.requests[group.members[0]];
        let ends = Ends {
            // Beside `min_tokens` there is no search: a stop id ends at any place.
            stops: |token| first.stops_at(0, token),
            max_tokens: first.max_tokens,
        };
        let children = group.search.step(&beams, &ends);
        group.reports.fill(None);
        match children {
            Some(children) => self.replace(number, &children, now),
            None => self.conclude(number),
        }
    }

    /// Puts the children in the places of the beams.
    fn replace(&mut self, number: u32, children: &[Child], now: u64) {
        let group = self.groups.get_mut(number);
        let parents = std::mem::take(&mut group.order);
        let has_child = |slot: &u32| {
            let mut own = children.iter();
            own.any(|child| parents[child.parent] == *slot)
        };
        let mut free: Vec<u32> = group.members.clone();
        free.retain(|slot| !has_child(slot));
        let mut free = free.into_iter();
        let mut taken = vec![false; parents.len()];
        let mut order = Vec::with_capacity(children.len());
        for child in children {
            let parent = parents[child.parent];
            if !std::mem::replace(&mut taken[child.parent], true) {
                order.push(parent);
                continue;
            }
            let slot = free.next().expect("there are as many places as children");
            if self.requests[slot].state == State::Unforked {
                self.share(parent, slot);
                // No step of its own brought it here.
                let beam = &mut self.requests[slot];
                beam.retired = beam.computed;
            } else {
                self.adopt(parent, slot);
            }
            order.push(slot);
        }
        for (&slot, child) in order.iter().zip(children) {
            self.extend(slot, child.token, now);
        }
        self.groups.get_mut(number).order = order;
    }

    /// The beam goes on as another's continuation: with its tokens and full blocks, and a copy of
    /// its tail in the last block of its own.
    fn adopt(&mut self, parent: u32, slot: u32) {
        self.drop_frontier(slot);
        let own = std::mem::take(&mut self.requests[slot].blocks);
        let request = &self.requests[parent];
        let full = (request.computed >> self.block_shift) as usize;
        let (before, tail) = own.split_at(full);
        let source = tail.first().map(|_| request.blocks[full]);
        let mut blocks = request.blocks[..full].to_vec();
        // Before others are released: what both have stays in use.
        for &block in blocks.iter().chain(&source) {
            self.cache.acquire(block);
        }
        let terms = self.requests[slot].terms;
        let path = std::mem::take(&mut self.requests[slot].path);
        self.cache
            .release_path(before, &path, self.requests[slot].last_step, terms);
        let same = before.iter().zip(&blocks);
        let same = same.take_while(|(own, other)| own == other).count() as u32;
        blocks.extend_from_slice(tail);
        let request = &self.requests[parent];
        let (tokens, path) = (request.tokens.clone(), request.path.clone());
        let (computed, cacheable) = (request.computed, request.cacheable);
        let request = &mut self.requests[slot];
        request.tokens = tokens;
        request.path = path;
        request.blocks = blocks;
        request.tail_source = source.unwrap_or(NONE);
        request.table_sent = request.table_sent.min(same);
        (request.computed, request.retired) = (computed, computed);
        request.cacheable = cacheable;
        request.reserve_memory(&self.config);
        if cacheable {
            self.move_frontier(slot);
        }
    }

    /// The search has chosen a beam's next token.
    fn extend(&mut self, slot: u32, token: u32, now: u64) {
        let request = &mut self.requests[slot];
        request.pending = 0;
        request.reported = false;
        self.append(slot, token, now);
        self.intern(slot);
        if Forecast::is_outdated(&self.requests[slot]) {
            self.forecast.renew(&mut self.requests[slot]);
        }
    }

    /// The search is over.
    fn conclude(&mut self, number: u32) {
        let Some(group) = self.groups.remove(number) else {
            return;
        };
        let first = group.members[0];
        for &slot in &group.members[1..] {
            if self.requests[slot].state == State::Unforked {
                self.share(first, slot);
            }
        }
        let found = group.search.into_finished();
        debug_assert_eq!(
            found.len(),
            group.members.len(),
            "one output for each choice"
        );
        for (&slot, output) in group.members.iter().zip(found) {
            let request = &mut self.requests[slot];
            request.group = NONE;
            request.pending = 0;
            request.reported = false;
            let (submission, choice) = (request.submission(), request.choice());
            let reason = match output.tokens.last() {
                Some(&id) if output.stopped => FinishReason::StopToken(id),
                _ => FinishReason::Length,
            };
            self.counters.generated += output.tokens.len() as u64;
            for (index, token) in (0..).zip(output.tokens) {
                self.events.push(Event::Token {
                    submission,
                    choice,
                    index,
                    token,
                });
            }
            self.finish(slot, reason);
        }
    }

    /// The other beams of a request, one of which ends before the search is over: they end with it.
    pub(crate) fn dissolve(&mut self, slot: u32) -> Vec<u32> {
        let number = std::mem::replace(&mut self.requests[slot].group, NONE);
        let Some(group) = self.groups.remove(number) else {
            return Vec::new();
        };
        for &member in &group.members {
            let request = &mut self.requests[member];
            request.group = NONE;
            if std::mem::take(&mut request.reported) {
                request.pending = 0;
            }
        }
        group.members
    }
}
