//! The books of one request: why it waited and what it was given, in bounded memory.
//!
//! Nobody looks at each waiting request in each step. A clock adds up, for the whole queue, how
//! long which limit has been ending the admissions; a request that joins the queue subtracts the
//! clock's reading from its books, and one that leaves it adds the reading then. Limits that hold
//! one request alone are booked by that request.

use std::collections::VecDeque;

use crate::explanation::{CacheLookup, Chunks, Decided, Decision, Explanation, Preemptions, Wait};
use crate::reason::{ChunkLimit, MatchEnd, PreemptCause, WaitReason};

/// Decisions that are kept of each request.
const KEPT: usize = 12;
/// Fewest and most ended requests that can still be explained.
const REMEMBERED: (u32, u32) = (64, 1_024);

#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    ns: u64,
    steps: u64,
}

type Waits = [Waited; WaitReason::ALL.len()];

/// Adds up what every request in the queue waits for.
#[derive(Clone, Debug)]
pub(crate) struct WaitClock {
    totals: Waits,
    limit: WaitReason,
    since: u64,
    plans: u64,
}

impl WaitClock {
    fn new() -> Self {
        Self {
            totals: Waits::default(),
            limit: WaitReason::Worker,
            since: 0,
            plans: 0,
        }
    }

    /// A plan was made, and `limit` ended its admissions.
    pub(crate) fn plan_made(&mut self, limit: WaitReason, now: u64) {
        self.turn(limit, now);
        self.totals[limit as usize].steps += 1;
        self.plans += 1;
    }

    /// From now on it is `limit` that the queue waits for.
    pub(crate) fn turn(&mut self, limit: WaitReason, now: u64) {
        self.totals[self.limit as usize].ns += now.saturating_sub(self.since);
        self.limit = limit;
        self.since = now;
    }

    fn read(&self, reason: WaitReason, now: u64) -> Waited {
        let mut waited = self.totals[reason as usize];
        if reason == self.limit {
            waited.ns += now.saturating_sub(self.since);
        }
        waited
    }
}

/// Why one request is held back, where it is not the queue as a whole.
#[derive(Clone, Copy, Debug)]
struct Hold {
    reason: WaitReason,
    since: u64,
    plans: u64,
}

/// Where a request's time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Queued,
    Running,
    Ended(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// Submission and choice.
    name: (u64, u32),
    submitted: u64,
    standing: Standing,
    hold: Option<Hold>,
    /// While the request waits for what the queue waits for, less the clock's readings when that
    /// began: such entries wrap.
    waits: Waits,
    cache: Option<CacheLookup>,
    chunks: [(u32, u64); ChunkLimit::ALL.len()],
    preemptions: [u32; PreemptCause::ALL.len()],
    decisions: [Option<Decision>; KEPT],
    decided: u64,
}

impl Account {
    fn new(name: (u64, u32), now: u64, clock: &WaitClock) -> Self {
        let mut account = Self {
            name,
            submitted: now,
            standing: Standing::Queued,
            hold: None,
            waits: Waits::default(),
            cache: None,
            chunks: Default::default(),
            preemptions: Default::default(),
            decisions: [None; KEPT],
            decided: 0,
        };
        account.join(clock, now);
        account
    }

    /// From now on it waits for what the queue waits for.
    fn join(&mut self, clock: &WaitClock, now: u64) {
        for (reason, waited) in WaitReason::ALL.into_iter().zip(&mut self.waits) {
            let read = clock.read(reason, now);
            waited.ns = waited.ns.wrapping_sub(read.ns);
            waited.steps = waited.steps.wrapping_sub(read.steps);
        }
    }

    /// Ends what [`Self::join`] began.
    fn leave(&mut self, clock: &WaitClock, now: u64) {
        for (reason, waited) in WaitReason::ALL.into_iter().zip(&mut self.waits) {
            let read = clock.read(reason, now);
            waited.ns = waited.ns.wrapping_add(read.ns);
            waited.steps = waited.steps.wrapping_add(read.steps);
        }
    }

    /// Books everything up to now. Afterwards the request waits for nothing.
    fn settle(&mut self, clock: &WaitClock, now: u64) {
        if let Some(hold) = self.hold.take() {
            let waited = &mut self.waits[hold.reason as usize];
            waited.ns += now.saturating_sub(hold.since);
            waited.steps += clock.plans - hold.plans;
        } else if self.standing == Standing::Queued {
            self.leave(clock, now);
        }
    }

    /// The plan being made leaves this request out for a reason of its own.
    pub(crate) fn hold(&mut self, reason: WaitReason, clock: &WaitClock, now: u64) {
        if self.hold.is_some_and(|hold| hold.reason == reason) {
            return;
        }
        self.settle(clock, now);
        self.hold = Some(Hold {
            reason,
            since: now,
            plans: clock.plans,
        });
    }

    /// Nothing of its own holds it back any more.
    pub(crate) fn release(&mut self, clock: &WaitClock, now: u64) {
        if self.hold.is_some() {
            self.settle(clock, now);
            if self.standing == Standing::Queued {
                self.join(clock, now);
            }
        }
    }

    /// It got a row, and `cached` of `queried` tokens from the prefix cache.
    pub(crate) fn admitted(&mut self, clock: &WaitClock, now: u64, step: u64, cached: u32) {
        self.settle(clock, now);
        self.standing = Standing::Running;
        self.decide(step, now, Decided::Admitted { cached });
    }

    /// What the first lookup gave.
    pub(crate) fn looked_up(&mut self, queried: u32, cached: u32, end: MatchEnd) {
        self.cache = Some(CacheLookup {
            queried,
            cached,
            end,
        });
    }

    /// A step computes `tokens` from `start` on; `budget` were left for them.
    pub(crate) fn chunk(
        &mut self,
        (step, now): (u64, u64),
        (start, tokens, budget): (u32, u32, u32),
        limit: ChunkLimit,
    ) {
        let (chunks, total) = &mut self.chunks[limit as usize];
        *chunks += 1;
        *total += u64::from(tokens);
        let what = Decided::Chunk {
            start,
            tokens,
            budget,
            limit,
        };
        self.decide(step, now, what);
    }

    /// It lost its blocks and is in the queue again.
    pub(crate) fn preempted(
        &mut self,
        clock: &WaitClock,
        (step, now): (u64, u64),
        cause: PreemptCause,
        computed: u32,
    ) {
        self.settle(clock, now);
        self.standing = Standing::Queued;
        self.join(clock, now);
        self.preemptions[cause as usize] += 1;
        self.decide(step, now, Decided::Preempted { cause, computed });
    }

    fn decide(&mut self, step: u64, at: u64, what: Decided) {
        let place = self.decided as usize % KEPT;
        self.decisions[place] = Some(Decision { step, at, what });
        self.decided += 1;
    }

    fn explain(&self, clock: &WaitClock, now: u64) -> Explanation {
        let waiting_for = match (self.standing, self.hold) {
            (Standing::Queued | Standing::Running, Some(hold)) => Some(hold.reason),
            (Standing::Queued, None) => Some(clock.limit),
            (Standing::Running, None) | (Standing::Ended(_), _) => None,
        };
        let mut settled = self.clone();
        settled.settle(clock, now);
        let waits = WaitReason::ALL.into_iter().zip(settled.waits);
        let chunks = ChunkLimit::ALL.into_iter().zip(self.chunks);
        let preemptions = PreemptCause::ALL.into_iter().zip(self.preemptions);
        let forgotten = self.decided.saturating_sub(KEPT as u64);
        let kept = forgotten..self.decided;
        Explanation {
            submission: self.name.0,
            choice: self.name.1,
            submitted: self.submitted,
            ended: match self.standing {
                Standing::Ended(at) => Some(at),
                Standing::Queued | Standing::Running => None,
            },
            waiting_for,
            waits: waits
                .filter(|(_, waited)| waited.ns > 0 || waited.steps > 0)
                .map(|(reason, Waited { ns, steps })| Wait { reason, ns, steps })
                .collect(),
            cache: self.cache,
            chunks: chunks
                .filter(|(_, (chunks, _))| *chunks > 0)
                .map(|(limit, (chunks, tokens))| Chunks {
                    limit,
                    chunks,
                    tokens,
                })
                .collect(),
            preemptions: preemptions
                .filter(|(_, count)| *count > 0)
                .map(|(cause, count)| Preemptions { cause, count })
                .collect(),
            decisions: kept
                .filter_map(|number| self.decisions[number as usize % KEPT])
                .collect(),
            forgotten,
        }
    }
}

/// The queue's clock, and the books of requests that have ended lately.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    pub(crate) clock: WaitClock,
    ended: VecDeque<Box<Account>>,
    remembered: usize,
}

impl Accounts {
    pub(crate) fn new(max_running: u32) -> Self {
        let (fewest, most) = REMEMBERED;
        let remembered = max_running.clamp(fewest, most) as usize;
        Self {
            clock: WaitClock::new(),
            ended: VecDeque::with_capacity(remembered),
            remembered,
        }
    }

    /// Opens the books of a choice of a request that joins the queue.
    pub(crate) fn open(&mut self, name: (u64, u32), now: u64) -> Box<Account> {
        let account = Account::new(name, now, &self.clock);
        if self.ended.len() < self.remembered {
            return Box::new(account);
        }
        // Somebody has to be forgotten, and its memory is at hand.
        match self.ended.pop_front() {
            Some(mut oldest) => {
                *oldest = account;
                oldest
            }
            None => Box::new(account),
        }
    }

    /// Closes the books of a request.
    pub(crate) fn close(&mut self, mut account: Box<Account>, now: u64) {
        account.settle(&self.clock, now);
        account.standing = Standing::Ended(now);
        if self.ended.len() == self.remembered {
            self.ended.pop_front();
        }
        self.ended.push_back(account);
    }

    pub(crate) fn explain(&self, account: &Account, now: u64) -> Explanation {
        account.explain(&self.clock, now)
    }

    /// One that has ended, the newest of this name.
    pub(crate) fn explain_ended(&self, name: (u64, u32)) -> Option<Explanation> {
        let mut newest_first = self.ended.iter().rev();
        let account = newest_first.find(|account| account.name == name)?;
        Some(account.explain(&self.clock, 0))
    }
}
