//! The engine thread's part in grammars: it lends each choice's matcher out with every token, and hands the masks on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use diptych_core::{Event, RowStatus};
use diptych_text::{Matcher, Stopper, avoid};

use crate::arena::{Drawn, Outcomes};
use crate::engine::thread::EngineThread;
use crate::frame::FailureKind;
use crate::grammar::{Compiled, MASK_LIMIT, MaskDone, MaskJob, field};
use crate::messages::Problem;
use crate::now_ns;
use crate::shared::Open;

/// One choice that follows a grammar.
#[derive(Debug)]
struct Follower {
    /// `None`: lent out, to the thread that computes the next mask.
    matcher: Option<Box<Matcher>>,
    stopper: Stopper,
    /// The output whose mask was asked for last.
    asked: u32,
    /// Output tokens before which an end is avoided, and the ids that end.
    min_tokens: u32,
    stop_ids: Vec<u32>,
    /// The field of the request that asks for the grammar.
    field: String,
    /// The output whose mask is known, and the mask.
    known: Option<(u32, Vec<u32>)>,
}

impl Follower {
    /// The mask of output `index`, if it is known.
    fn mask(&self, index: u32) -> Option<&[u32]> {
        let (known, bits) = self.known.as_ref()?;
        (*known == index).then_some(bits.as_slice())
    }

    /// Whether output `index` may be this id, as far as is known.
    fn allows(&self, index: u32, id: u32) -> bool {
        let word = self.mask(index).and_then(|bits| bits.get(id as usize / 32));
        word.is_some_and(|word| word >> (id % 32) & 1 == 1)
    }
}

/// All choices that follow grammars.
#[derive(Debug, Default)]
pub(super) struct Followers {
    open: HashMap<(u64, u32), Follower>,
    /// Events that were looked at already.
    seen: usize,
    /// Masks that are being computed, in the order in which they were asked for.
    asked: VecDeque<(Instant, Drawn)>,
    /// Room for those that have come.
    collected: Vec<MaskDone>,
}

impl Followers {
    pub(super) fn add(&mut self, open: &Open, stop_ids: &[u32], compiled: Compiled) {
        let mask = compiled.mask;
        for (choice, matcher) in (0..).zip(compiled.matchers) {
            let mut mask = mask.clone();
            if open.params.min_tokens > 0 {
                avoid(stop_ids, &mut mask);
            }
            let follower = Follower {
                stopper: matcher.stopper(),
                matcher: Some(Box::new(matcher)),
                asked: 0,
                min_tokens: open.params.min_tokens,
                stop_ids: stop_ids.to_vec(),
                field: field(&open.params, None).to_owned(),
                known: Some((0, mask)),
            };
            self.open.insert((open.number, choice), follower);
        }
    }

    /// The mask of an output, if it is known.
    pub(super) fn mask(&self, drawn: Drawn) -> Option<&[u32]> {
        let follower = self.open.get(&(drawn.request, drawn.choice))?;
        follower.mask(drawn.index)
    }

    /// Those of ended requests stop what they do.
    pub(super) fn drop_request(&mut self, request: u64, choices: u32) {
        for choice in 0..choices {
            self.drop_choice((request, choice));
        }
    }

    fn drop_choice(&mut self, key: (u64, u32)) {
        if let Some(follower) = self.open.remove(&key) {
            follower.stopper.stop();
        }
    }

    pub(super) fn clear(&mut self) {
        for (_, follower) in self.open.drain() {
            follower.stopper.stop();
        }
        self.asked.clear();
        self.seen = 0;
    }

    /// The events that were looked at are gone.
    pub(super) fn told(&mut self) {
        self.seen = 0;
    }

    /// A sampled id that its mask does not allow, or that was sampled without one, is none.
    pub(super) fn judge(&self, outcomes: &mut Outcomes) {
        for &(row, drawn) in &outcomes.masked {
            let outcome = &mut outcomes.rows[row];
            // A choice that has ended has no mask, and nobody reads its token.
            let Some(follower) = self.open.get(&(drawn.request, drawn.choice)) else {
                continue;
            };
            if outcome.0 == RowStatus::Ok && !follower.allows(drawn.index, outcome.1) {
                outcome.0 = RowStatus::BadId;
            }
        }
    }

    /// Takes the tokens of new events; the jobs that follow.
    fn follow(&mut self, events: &[Event]) -> Vec<MaskJob> {
        let new = &events[self.seen.min(events.len())..];
        self.seen = events.len();
        let ended = |event: &Event| match event {
            Event::Finished {
                submission, choice, ..
            } => Some((*submission, *choice)),
            _ => None,
        };
        let ended: HashSet<(u64, u32)> = new.iter().filter_map(ended).collect();
        for &key in &ended {
            self.drop_choice(key);
        }
        let mut jobs = Vec::new();
        for event in new {
            let Event::Token {
                submission,
                choice,
                index,
                token,
            } = *event
            else {
                continue;
            };
            let Some(follower) = self.open.get_mut(&(submission, choice)) else {
                continue;
            };
            let bits = follower.known.take().map(|(_, bits)| bits);
            let drawn = Drawn {
                request: submission,
                choice,
                index: index + 1,
            };
            if let Some(matcher) = follower.matcher.take() {
                follower.asked = drawn.index;
                let avoids = drawn.index < follower.min_tokens;
                jobs.push(MaskJob {
                    drawn,
                    matcher,
                    token,
                    avoided: if avoids {
                        follower.stop_ids.clone()
                    } else {
                        Vec::new()
                    },
                    bits: bits.unwrap_or_default(),
                });
                self.asked.push_back((Instant::now(), drawn));
            }
        }
        jobs
    }

    fn waits_for(&self, drawn: Drawn) -> bool {
        let follower = self.open.get(&(drawn.request, drawn.choice));
        follower.is_some_and(|it| it.matcher.is_none() && it.asked == drawn.index)
    }

    /// The first mask that was asked for and has not come.
    fn first_missing(&mut self) -> Option<(Instant, Drawn)> {
        while let Some(&(asked, drawn)) = self.asked.front() {
            if self.waits_for(drawn) {
                return Some((asked, drawn));
            }
            self.asked.pop_front();
        }
        None
    }
}

impl EngineThread {
    /// Has the masks computed that follow from what has happened since.
    pub(super) fn follow_grammars(&mut self) {
        if self.followers.open.is_empty() {
            return;
        }
        let Some(core) = &mut self.core else {
            return;
        };
        core.take_events(&mut self.events);
        let jobs = self.followers.follow(&self.events);
        if !jobs.is_empty() {
            self.shared.grammars.ask(jobs);
        }
    }

    /// Takes the masks that have come, and learns of those that never will.
    pub(super) fn collect_masks(&mut self) {
        let mut done = std::mem::take(&mut self.followers.collected);
        self.shared.grammars.desk.take(&mut done);
        for mask in done.drain(..) {
            self.mask_done(mask);
        }
        self.followers.collected = done;
    }

    fn mask_done(&mut self, done: MaskDone) {
        let MaskDone {
            drawn,
            matcher,
            bits,
        } = done;
        let key = (drawn.request, drawn.choice);
        let Some(follower) = self.followers.open.get_mut(&key) else {
            return;
        };
        follower.matcher = Some(matcher);
        match bits {
            Ok(bits) => {
                follower.known = Some((drawn.index, bits));
                if let (Some(core), Some(live)) = (&mut self.core, self.live.get(&drawn.request)) {
                    let handle = live.handle(drawn.choice);
                    let taken = core.mask_ready(handle, drawn.index, now_ns());
                    assert!(taken.is_ok(), "{drawn:?}: {taken:?}");
                }
            }
            Err(why) => self.end_for_grammar(drawn.request, why),
        }
    }

    fn end_for_grammar(&mut self, request: u64, why: String) {
        let mut problem = Problem::new(FailureKind::GrammarFailed, why);
        if let Some(follower) = self.followers.open.get(&(request, 0)) {
            problem = problem.with("param", follower.field.as_str());
        }
        if let (Some(core), Some(live)) = (&mut self.core, self.live.remove(&request)) {
            live.abort(core);
            self.followers.drop_request(request, live.choices());
        }
        self.explained.remove(&request);
        self.fail(request, problem);
    }

    /// Ends requests whose masks are overdue.
    pub(super) fn expire_masks(&mut self) {
        while let Some((asked, drawn)) = self.followers.first_missing()
            && asked.elapsed() >= MASK_LIMIT
        {
            let why = format!(
                "the grammar took more than {} seconds to say which tokens may be output {}",
                MASK_LIMIT.as_secs(),
                drawn.index
            );
            self.end_for_grammar(drawn.request, why);
        }
    }

    /// Until a mask is overdue.
    pub(super) fn until_overdue(&self) -> Option<Duration> {
        let mut asked = self.followers.asked.iter();
        let first = asked.find(|(_, drawn)| self.followers.waits_for(*drawn));
        first.map(|(asked, _)| MASK_LIMIT.saturating_sub(asked.elapsed()))
    }
}
