//! Breadth-first search over every interleaving of what can happen to a few requests.

use std::collections::{HashMap, HashSet, VecDeque};

use diptych_core::CoreConfig;

use crate::operation::{Draft, Operation};
use crate::worker::Misbehaviour;
use crate::world::World;

/// What may happen, and how often on one path.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) config: CoreConfig,
    pub(crate) requests: Vec<Draft>,
    pub(crate) aborts: u8,
    pub(crate) losses: u8,
    /// Launches with a misbehaving sampling row.
    pub(crate) misbehaviours: u8,
    /// Whether the core's own `check_all` takes part.
    pub(crate) inspect: bool,
    /// Whether some states are also drained: from there everything must end.
    pub(crate) drain: bool,
    /// States after which the search stops.
    pub(crate) limit: usize,
}

/// A complete or stopped search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    pub(crate) complete: bool,
    /// Transitions in which a request was preempted while its tokens were in flight.
    pub(crate) preemptions_in_flight: usize,
    pub(crate) preemptions: usize,
    pub(crate) cache_hits: usize,
    pub(crate) losses: usize,
    /// Transitions in which a choice got blocks of its own.
    pub(crate) forks: usize,
}

/// A broken promise with the shortest way to it.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) message: String,
    pub(crate) trace: Vec<Operation>,
}

#[derive(Clone)]
struct State {
    world: World,
    submitted: usize,
    aborts: u8,
    losses: u8,
    misbehaviours: u8,
}

impl State {
    fn moves(&self, scenario: &Scenario) -> Vec<Operation> {
        let mut moves = vec![Operation::Plan(None)];
        let draft = scenario.requests.get(self.submitted);
        moves.extend(draft.cloned().map(Operation::Submit));
        if !self.world.worker.launched.is_empty() {
            moves.push(Operation::Complete);
        }
        let entries = &self.world.model.entries;
        for (index, entry) in entries.iter().enumerate() {
            if entry.open() && self.aborts > 0 {
                moves.push(Operation::Abort(index as u8));
            }
        }
        let searched = entries.iter().filter(|entry| entry.stop_token.is_some());
        for (index, entry) in searched.enumerate() {
            if entry.open() && entry.acknowledged < entry.committed {
                let tokens = (entry.committed - entry.acknowledged) as u8;
                moves.push(Operation::Acknowledge {
                    request: index as u8,
                    tokens,
                });
            }
        }
        let unmasked = entries
            .iter()
            .filter(|entry| entry.open() && entry.request.masked && entry.masks <= entry.committed);
        moves.extend((0..unmasked.count()).map(|index| Operation::Mask(index as u8)));
        if self.misbehaviours > 0 {
            let kinds = [Misbehaviour::Nan, Misbehaviour::NotSampled];
            let choices = scenario.requests.iter().any(|request| request.choices > 1);
            for row in 0..=u8::from(choices) {
                moves.extend(kinds.map(|kind| Operation::Plan(Some((row, kind)))));
            }
        }
        if self.losses > 0 {
            moves.push(Operation::WorkerLost);
        }
        moves
    }

    fn after(&self, operation: &Operation) -> Result<Self, String> {
        let mut next = self.clone();
        match operation {
            Operation::Submit(_) => next.submitted += 1,
            Operation::Abort(_) => next.aborts -= 1,
            Operation::WorkerLost => next.losses -= 1,
            Operation::Plan(Some(_)) => next.misbehaviours -= 1,
            _ => {}
        }
        next.world.apply(operation)?;
        Ok(next)
    }

    fn fingerprint(&self) -> u64 {
        let budgets = [
            self.aborts,
            self.losses,
            self.misbehaviours,
            self.submitted as u8,
        ];
        self.world.fingerprint()
            ^ u64::from(u32::from_le_bytes(budgets)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Every request is in and ended: nothing may be left to do.
    fn settled(&self, scenario: &Scenario) -> bool {
        self.submitted == scenario.requests.len() && self.world.model.open().next().is_none()
    }
}

const DRAIN_EVERY: usize = 61;

struct Search<'a> {
    scenario: &'a Scenario,
    seen: Seen,
    known: HashSet<u64>,
    parents: HashMap<usize, (usize, Operation)>,
    queue: VecDeque<(usize, State)>,
}

/// Looks for a history that breaks a promise.
pub(crate) fn search(scenario: &Scenario) -> Result<Seen, Broken> {
    let mut world = World::new(&scenario.config);
    world.inspect = scenario.inspect;
    // Time that passed by itself would make every state another one.
    world.tick = 0;
    let start = State {
        world,
        submitted: 0,
        aborts: scenario.aborts,
        losses: scenario.losses,
        misbehaviours: scenario.misbehaviours,
    };
    let mut search = Search {
        scenario,
        seen: Seen {
            states: 1,
            ..Seen::default()
        },
        known: HashSet::from([start.fingerprint()]),
        parents: HashMap::new(),
        queue: VecDeque::from([(0, start)]),
    };
    while let Some((number, state)) = search.queue.pop_front() {
        search.expand(number, &state)?;
        if search.seen.states >= scenario.limit {
            return Ok(search.seen);
        }
    }
    search.seen.complete = true;
    Ok(search.seen)
}

impl Search<'_> {
    fn expand(&mut self, number: usize, state: &State) -> Result<(), Broken> {
        let own = state.fingerprint();
        let mut progress = false;
        for operation in state.moves(self.scenario) {
            let next = match state.after(&operation) {
                Ok(next) => next,
                Err(message) => return Err(self.broken(number, Some(operation), message)),
            };
            self.seen.transitions += 1;
            self.count(state, &next, &operation);
            let print = next.fingerprint();
            let pushes = matches!(
                operation,
                Operation::Plan(None)
                    | Operation::Complete
                    | Operation::Submit(_)
                    | Operation::Acknowledge { .. }
                    | Operation::Mask(_)
            );
            progress |= pushes && print != own;
            if self.known.insert(print) {
                let child = self.seen.states;
                self.seen.states += 1;
                self.parents.insert(child, (number, operation));
                self.queue.push_back((child, next));
            }
        }
        if !progress && !state.settled(self.scenario) {
            return Err(self.broken(
                number,
                None,
                "invariant 32: deadlock with open requests".into(),
            ));
        }
        if self.scenario.drain && number.is_multiple_of(DRAIN_EVERY) {
            let mut world = state.world.clone();
            if let Err(message) = world.drain() {
                return Err(self.broken(number, None, format!("while draining: {message}")));
            }
        }
        Ok(())
    }

    fn count(&mut self, state: &State, next: &State, operation: &Operation) {
        let (before, after) = (&state.world.model, &next.world.model);
        if after.preemptions > before.preemptions {
            self.seen.preemptions += 1;
            let in_flight = before
                .entries
                .iter()
                .zip(&after.entries)
                .any(|(old, new)| old.decoding && !new.decoding && new.in_flight > 0);
            self.seen.preemptions_in_flight += usize::from(in_flight);
        }
        let on_their_own = |world: &World| {
            let entries = world.model.entries.iter();
            entries.filter(|entry| entry.moves).count()
        };
        self.seen.forks += usize::from(on_their_own(&next.world) > on_their_own(&state.world));
        let hits = next.world.core.stats().prefix_hits > state.world.core.stats().prefix_hits;
        self.seen.cache_hits += usize::from(hits);
        self.seen.losses += usize::from(*operation == Operation::WorkerLost);
    }

    fn broken(&self, number: usize, last: Option<Operation>, message: String) -> Broken {
        let mut trace: Vec<Operation> = last.into_iter().collect();
        let mut at = number;
        while let Some((parent, operation)) = self.parents.get(&at) {
            trace.push(operation.clone());
            at = *parent;
        }
        trace.reverse();
        Broken { message, trace }
    }
}
