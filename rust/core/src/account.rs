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

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    /// Plans and nanoseconds.
    Wait(WaitReason),
    /// Chunks and tokens.
    Chunks(ChunkLimit),
    /// Losses.
    Preemptions(PreemptCause),
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    item: Item,
    count: u64,
    amount: u64,
}

/// Every open request has one: what few requests have takes memory only there.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    submission: u64,
    submitted: u64,
    standing: Standing,
    hold: Option<Hold>,
    /// The clock's readings when the request began to wait for what the queue waits for, while it does.
    joined: Option<Box<Waits>>,
    cache: Option<CacheLookup>,
    /// What is not zero, each item once.
    sums: Vec<Sum>,
    /// Decision `number` stands at `number % KEPT`.
    decisions: Vec<Decision>,
    decided: u64,
    choice: u32,
}

/// A running request that nothing holds back has the account, two sums and two decisions.
const _: () = assert!(size_of::<Account>() <= 152);
const _: () = assert!(size_of::<Sum>() <= 24 && size_of::<Decision>() <= 32);

impl Account {
    fn new(name: (u64, u32), now: u64, clock: &WaitClock) -> Self {
        let mut account = Self {
            submission: name.0,
            choice: name.1,
            submitted: now,
            standing: Standing::Queued,
            hold: None,
            joined: None,
            cache: None,
            sums: Vec::new(),
            decisions: Vec::new(),
            decided: 0,
        };
        account.join(clock, now);
        account
    }

    /// From now on it waits for what the queue waits for.
    fn join(&mut self, clock: &WaitClock, now: u64) {
        let read = WaitReason::ALL.map(|reason| clock.read(reason, now));
        self.joined = Some(Box::new(read));
    }

    /// Ends what [`Self::join`] began.
    fn leave(&mut self, clock: &WaitClock, now: u64) {
        let Some(joined) = self.joined.take() else {
            return;
        };
        for (reason, before) in WaitReason::ALL.into_iter().zip(*joined) {
            let read = clock.read(reason, now);
            let steps = read.steps.wrapping_sub(before.steps);
            self.add(Item::Wait(reason), steps, read.ns.wrapping_sub(before.ns));
        }
    }

    fn add(&mut self, item: Item, count: u64, amount: u64) {
        if count == 0 && amount == 0 {
            return;
        }
        if let Some(sum) = self.sums.iter_mut().find(|sum| sum.item == item) {
            sum.count = sum.count.wrapping_add(count);
            sum.amount = sum.amount.wrapping_add(amount);
            return;
        }
        self.sums.reserve_exact(1);
        self.sums.push(Sum {
            item,
            count,
            amount,
        });
    }

    /// Count and amount of an item.
    fn sum(&self, item: Item) -> Option<(u64, u64)> {
        let sum = self.sums.iter().find(|sum| sum.item == item)?;
        (sum.count > 0 || sum.amount > 0).then_some((sum.count, sum.amount))
    }

    /// Books everything up to now. Afterwards the request waits for nothing.
    fn settle(&mut self, clock: &WaitClock, now: u64) {
        if let Some(hold) = self.hold.take() {
            let (steps, ns) = (clock.plans - hold.plans, now.saturating_sub(hold.since));
            self.add(Item::Wait(hold.reason), steps, ns);
        } else {
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
        self.add(Item::Chunks(limit), 1, u64::from(tokens));
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
        self.add(Item::Preemptions(cause), 1, 0);
        self.decide(step, now, Decided::Preempted { cause, computed });
    }

    fn decide(&mut self, step: u64, at: u64, what: Decided) {
        let place = self.decided as usize % KEPT;
        let decision = Decision { step, at, what };
        if let Some(oldest) = self.decisions.get_mut(place) {
            *oldest = decision;
        } else {
            if place == self.decisions.capacity() {
                // Most requests have two: doubled from there on, at most to what is kept.
                let more = place.max(2).min(KEPT - place);
                self.decisions.reserve_exact(more);
            }
            self.decisions.push(decision);
        }
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
        let waits = WaitReason::ALL.into_iter().filter_map(|reason| {
            let (steps, ns) = settled.sum(Item::Wait(reason))?;
            Some(Wait { reason, ns, steps })
        });
        let chunks = ChunkLimit::ALL.into_iter().filter_map(|limit| {
            let (chunks, tokens) = self.sum(Item::Chunks(limit))?;
            Some(Chunks {
                limit,
                chunks: chunks as u32,
                tokens,
            })
        });
        let preemptions = PreemptCause::ALL.into_iter().filter_map(|cause| {
            let (count, _) = self.sum(Item::Preemptions(cause))?;
            let count = count as u32;
            Some(Preemptions { cause, count })
        });
        let forgotten = self.decided.saturating_sub(KEPT as u64);
        let kept = forgotten..self.decided;
        Explanation {
            submission: self.submission,
            choice: self.choice,
            submitted: self.submitted,
            ended: match self.standing {
                Standing::Ended(at) => Some(at),
                Standing::Queued | Standing::Running => None,
            },
            waiting_for,
            waits: waits.collect(),
            cache: self.cache,
            chunks: chunks.collect(),
            preemptions: preemptions.collect(),
            decisions: kept
                .map(|number| self.decisions[number as usize % KEPT])
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
        let account = newest_first.find(|account| (account.submission, account.choice) == name)?;
        Some(account.explain(&self.clock, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_decisions_are_kept_and_take_no_more_memory_than_that() {
        let clock = WaitClock::new();
        let mut account = Account::new((7, 0), 0, &clock);
        account.admitted(&clock, 1, 1, 16);
        account.chunk((1, 1), (16, 4, 64), ChunkLimit::Prompt);
        assert!(account.joined.is_none(), "only who queues has readings");
        assert_eq!(account.decisions.capacity(), 2);
        assert_eq!(account.sums.capacity(), account.sums.len());
        for step in 2..40 {
            account.chunk((step, step), (0, 1, 64), ChunkLimit::StepTokens);
        }
        assert_eq!(account.decisions.capacity(), KEPT);
        let told = account.explain(&clock, 40);
        let steps: Vec<u64> = told
            .decisions
            .iter()
            .map(|decision| decision.step)
            .collect();
        assert_eq!(steps, (28..40).collect::<Vec<u64>>());
        assert_eq!(told.forgotten, 28);
        assert_eq!((told.chunks[1].chunks, told.chunks[1].tokens), (38, 38));
    }

    #[test]
    fn what_the_queue_waits_for_is_booked_between_joining_and_leaving() {
        let mut clock = WaitClock::new();
        clock.plan_made(WaitReason::Rows, 10);
        let mut account = Account::new((7, 0), 20, &clock);
        clock.plan_made(WaitReason::Rows, 30);
        clock.plan_made(WaitReason::Blocks, 50);
        let wait = |reason, ns, steps| Wait { reason, ns, steps };
        let waits = [
            wait(WaitReason::Rows, 30, 1),
            wait(WaitReason::Blocks, 5, 1),
        ];
        assert_eq!(account.explain(&clock, 55).waits, waits);
        account.admitted(&clock, 55, 3, 0);
        clock.plan_made(WaitReason::Rows, 70);
        assert_eq!(account.explain(&clock, 90).waits, waits);
        account.preempted(&clock, (4, 90), PreemptCause::Blocks, 8);
        let told = account.explain(&clock, 100);
        assert_eq!(told.waits[0], wait(WaitReason::Rows, 40, 1));
        assert_eq!(told.preemptions[0].count, 1);
    }
}
