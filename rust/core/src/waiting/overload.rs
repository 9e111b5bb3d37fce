//! Overload: what would wait too long is refused when it comes, with the time after which it would
//! not. Never later: once a request was let in, only its own deadlines end it.

use crate::active::Active;
use crate::latency::Work;
use crate::schedule::Budget;
use crate::waiting::Ticket;
use crate::{Core, Error, Handle, Request};

/// Steps of a kind that a latency model must have seen to be asked.
const LEARNT: u64 = 16;

/// Observed time after which older observations count half: about 17 seconds.
const HALF_LIFE_NS: u64 = 1 << 34;

/// How fast prompts were computed while there was more of them than a step takes.
///
/// Only such steps count: a step that computes all there is says nothing about what it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PromptRate {
    tokens: u64,
    time_ns: u64,
    /// When the last plan was made, and the prompt tokens in it, if some were left over.
    behind: Option<(u64, u64)>,
}

impl PromptRate {
    /// A plan was made at `now` with `tokens` prompt tokens, and more were left over.
    pub(crate) fn fell_behind(&mut self, now: u64, tokens: u64) {
        self.behind = Some((now, tokens));
    }

    /// The next plan is made, or the worker is lost and `now` says nothing about its pace.
    pub(crate) fn observe(&mut self, now: Option<u64>) {
        let Some((then, tokens)) = self.behind.take() else {
            return;
        };
        let elapsed = now.map_or(0, |now| now.saturating_sub(then));
        if elapsed == 0 {
            return;
        }
        self.tokens += tokens;
        self.time_ns += elapsed;
        if self.time_ns > HALF_LIFE_NS {
            self.tokens /= 2;
            self.time_ns /= 2;
        }
    }

    /// Whether anything was observed.
    pub(crate) fn is_known(&self) -> bool {
        self.tokens > 0
    }

    /// Time for this many prompt tokens in nanoseconds; `None` before anything was observed.
    pub(crate) fn predict(&self, tokens: u64) -> Option<u64> {
        let time = u128::from(tokens) * u128::from(self.time_ns);
        let time = time.checked_div(u128::from(self.tokens))?;
        Some(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

impl Core {
    /// Lets a request wait, or refuses it.
    pub(crate) fn enqueue(&mut self, request: Request, now: u64) -> Result<Handle, Error> {
        let (priority, tenant) = (request.priority, request.tenant);
        let (choices, beams) = (request.choices, request.beams);
        let mut ticket = Ticket::new(&request, now);
        let mut path = Vec::new();
        if self.config.prefix_cache && request.sampling.prompt_logprobs.is_none() {
            let reusable = &request.prompt[..request.prompt.len() - 1];
            self.cache
                .extend_path(request.namespace, reusable, &mut path);
            ticket.backlog -= path.len() as u32 * self.config.block_size;
            ticket.looked_up = self.cache.index.epoch();
        }
        if let Err(refusal) = self.check_overload(&ticket, tenant, now) {
            let counter = match refusal {
                Error::QueueFull { .. } => &mut self.counters.refused_queue_full,
                Error::QueuedTokens { .. } => &mut self.counters.refused_queued_tokens,
                _ => &mut self.counters.refused_first_token,
            };
            *counter += 1;
            return Err(refusal);
        }
        ticket.account = self.waiting.ledger.join(priority, tenant);
        let books = self.accounts.open((request.submission, 0), now);
        let mut active = Active::new(request, self.arrivals, ticket, books);
        active.path = path;
        self.arrivals += u64::from(choices);
        let handle = self.requests.insert(active);
        let request = &mut self.requests[handle.slot];
        self.deadlines.watch(request, handle.slot);
        self.waiting.insert(request, handle.slot);
        self.add_choices(handle.slot, choices);
        if let Some(beams) = beams {
            self.open_group(handle.slot, beams);
        }
        Ok(handle)
    }

    /// Whether a request may wait.
    fn check_overload(&self, ticket: &Ticket, tenant: u64, now: u64) -> Result<(), Error> {
        let waiting = self.num_waiting();
        let queued = self.waiting.tokens();
        if waiting >= self.config.max_queued_requests {
            let each = queued / u64::from(waiting).max(1);
            return Err(Error::QueueFull {
                waiting,
                retry_after_ns: self.time_for(each),
            });
        }
        if let Some(limit) = self.config.max_queued_tokens
            && queued > 0
            && queued + u64::from(ticket.backlog) > limit
        {
            let excess = queued + u64::from(ticket.backlog) - limit;
            return Err(Error::QueuedTokens {
                queued,
                tokens: ticket.backlog,
                limit,
                retry_after_ns: self.time_for(excess),
            });
        }
        self.check_first_token(ticket, tenant, now)
    }

    /// Whether some request may be refused for what waits.
    pub(crate) fn may_refuse(&self) -> bool {
        self.config.max_queued_tokens.is_some() || self.prompt_rate.is_known()
    }

    /// Compares the time to the first token, as it is predicted, with the least limit on it.
    fn check_first_token(&self, ticket: &Ticket, tenant: u64, now: u64) -> Result<(), Error> {
        // One that is too late already is let in, and ends by its own deadline.
        let own = ticket
            .moments()
            .map(|moment| moment.saturating_sub(now))
            .min()
            .filter(|&left| left > 0);
        let Some(limit_ns) = own.into_iter().chain(self.config.max_ttft_ns).min() else {
            return Ok(());
        };
        let ahead = self.tokens_until_first(ticket, tenant);
        match self.time_for(ahead) {
            Some(predicted_ns) if predicted_ns > limit_ns => Err(Error::FirstTokenTooLate {
                predicted_ns,
                limit_ns,
                retry_after_ns: predicted_ns - limit_ns,
            }),
            _ => Ok(()),
        }
    }

    /// Time for this many prompt tokens in nanoseconds: at the rate of late, or before prompts ever
    /// had to wait, by what the latency model says of steps as full as they may be beside the rows
    /// that decode now. `None` before it has seen enough of them.
    fn time_for(&self, tokens: u64) -> Option<u64> {
        if let Some(time) = self.prompt_rate.predict(tokens) {
            return Some(time);
        }
        let mut work = Work::default();
        for slot in self.running.slots() {
            let request = &self.requests[slot];
            if request.is_decoding() {
                work.add_decode(request.target());
            }
        }
        let room = self.config.max_batched_tokens - work.decode_rows;
        let chunk = room.min(self.config.max_prefill_tokens.unwrap_or(room));
        let share = u64::from(chunk.max(1)).min(tokens.max(1));
        work.add_chunk(0, share as u32);
        work.logit_rows = work.decode_rows + 1;
        let model = &self.latency.model;
        if model.observations(work.kind()) < LEARNT {
            return None;
        }
        let step = model.predict(&work);
        Some(step.saturating_mul(tokens.div_ceil(share)))
    }

    /// Prompt tokens that are computed until the request has its first token: what runs, what more
    /// urgent classes have waiting, and of its own class its tenant's share with everybody else's.
    fn tokens_until_first(&self, ticket: &Ticket, tenant: u64) -> u64 {
        let priority = ticket.priority;
        let running: u64 = self
            .running
            .slots()
            .map(|slot| &self.requests[slot])
            .filter(|other| other.ticket.priority <= priority && !other.is_decoding())
            .map(|other| u64::from(other.remaining()))
            .sum();
        let ledger = &self.waiting.ledger;
        let own = u64::from(ticket.backlog);
        let mut ahead = running;
        let mut same = (0, 0);
        for &class in ledger.classes() {
            let class = ledger.class(class);
            if class.priority < priority {
                ahead += class.tokens;
            } else if class.priority == priority {
                same = (class.tokens, class.weight);
            }
        }
        let account = ledger.find(priority, tenant);
        let weight = ledger.weight_of(tenant);
        let mine = own + account.map_or(0, |account| account.tokens);
        let seated = account.is_some_and(super::ledger::Account::is_seated);
        let all = same.1 + if seated { 0 } else { weight };
        let share = u128::from(mine) * u128::from(all) / u128::from(weight);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        ahead + share.min(same.0 + own)
    }

    /// A plan is made: learns from the time since the last one.
    pub(crate) fn observe_prompt_rate(&mut self, now: u64) {
        self.prompt_rate.observe(Some(now));
    }

    /// The plan is made, with this budget left.
    pub(crate) fn note_backlog(&mut self, budget: &Budget, now: u64) {
        if self.waiting.has_candidates() || !budget.has_prefill() || budget.out_of_time {
            let decodes = self.plan.num_decode_rows;
            let tokens = self.plan.token_ids.len() as u32 - decodes;
            self.prompt_rate.fell_behind(now, u64::from(tokens));
        }
    }

    /// Waiting requests and their uncached prompt tokens by priority, most urgent first. Prefixes
    /// are counted as cached that were when the request was last looked at.
    pub fn waiting_by_priority(&self) -> impl Iterator<Item = (u8, u32, u64)> + '_ {
        self.waiting.ledger.backlog()
    }
}
