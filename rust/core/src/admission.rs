//! Admission, on the whole of a request's known tokens and on what it and the running ones are
//! predicted to need (see `forecast` and [`Admission`]). Who is next, `waiting` says.
//!
//! The blocks that the prefix cache has are pinned first, so that they cannot be evicted for the
//! rest; then all further blocks of the known tokens are reserved at once, and one more must be
//! left for the first output.

use crate::active::State;
use crate::config::Admission;
use crate::prefix::NodeRef;
use crate::reason::{MatchEnd, WaitReason};
use crate::schedule::Budget;
use crate::waiting::{Attempt, Berth};
use crate::{Core, Event};

/// Blocks that a request needs for its known tokens.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Blocks to take.
    private: u32,
    /// Blocks that the prefix cache has.
    matched: u32,
    /// Those of them that could be handed out now.
    revived: u32,
    /// Those that nobody owns, the fenced ones too.
    unowned: u32,
    /// Requests that are admitted together, each with a state row: outputs of the one prompt, or
    /// beams of one search.
    choices: u32,
    /// Blocks for the tails of all outputs but one.
    tails: u32,
    /// One more for the next output of each, where that needs one.
    outputs: u32,
    /// Blocks that all take if they run to `max_tokens`.
    claim: u64,
}

impl Need {
    /// Blocks for the known tokens, and for the next output of each choice.
    fn at_once(&self) -> u32 {
        self.private + self.tails + self.outputs
    }
}

impl Core {
    /// Returns what ended the admissions: those who still wait, wait for that.
    pub(crate) fn admit(&mut self, budget: &mut Budget, attempt: &mut Attempt) -> WaitReason {
        let mut limit = self.admit_in_order(budget, attempt);
        let stalls = |core: &Self| core.plan.rows.is_empty() && core.launches.is_empty();
        if stalls(self) && self.suspects.is_trial() && !self.waiting.is_empty() {
            self.release_parked();
            attempt.reopen();
            limit = self.admit_in_order(budget, attempt);
        }
        while self.waiting.has_candidates()
            && limit.is_want_of_room()
            && self.park_unmasked(stalls(self))
        {
            attempt.reopen();
            limit = self.admit_in_order(budget, attempt);
        }
        limit
    }

    pub(crate) fn admit_in_order(
        &mut self,
        budget: &mut Budget,
        attempt: &mut Attempt,
    ) -> WaitReason {
        while !self.waiting.is_empty() {
            if budget.tokens == 0 {
                return WaitReason::StepTokens;
            }
            if budget.prefill == 0 {
                return WaitReason::PrefillTokens;
            }
            if !self.rows.has_free() {
                return WaitReason::Rows;
            }
            if !budget.has_time() {
                return WaitReason::StepTime;
            }
            let Some(slot) = self.next_candidate(attempt) else {
                return attempt.limit();
            };
            self.offer(slot, budget, attempt);
        }
        WaitReason::Step
    }

    /// Gives the request a row and blocks for all its known tokens, or nothing. The prefix that
    /// was found is remembered either way, so that the next attempt only looks at the difference.
    pub(crate) fn try_admit(&mut self, slot: u32) -> Result<(), WaitReason> {
        if let Some(beams) = self.beams_of(slot).map(<[u32]>::to_vec) {
            return self.try_admit_beams(slot, &beams);
        }
        self.prepare_admission(slot)?;
        let scored = self.requests[slot].wants_scores().is_some();
        if self.config.prefix_cache && !scored && self.defer(slot) {
            return Err(WaitReason::SharedPrefix);
        }
        let need = self.need(slot);
        self.fits_now(need)?;
        self.fits_later(slot, need)?;
        self.pin_path(slot);
        self.take_in(slot, need.private);
        Ok(())
    }

    /// As [`Self::try_admit`] for all beams of a search, which lost their blocks together.
    fn try_admit_beams(&mut self, slot: u32, beams: &[u32]) -> Result<(), WaitReason> {
        for &beam in beams {
            self.prepare_admission(beam)?;
        }
        let need = self.need(slot);
        self.fits_now(need)?;
        self.fits_later(slot, need)?;
        // What two have found was counted once: it must not be evicted for a third.
        for &beam in beams {
            self.pin_path(beam);
        }
        for &beam in beams {
            let private = self.need_alone(beam).private;
            self.take_in(beam, private);
        }
        Ok(())
    }

    fn prepare_admission(&mut self, slot: u32) -> Result<(), WaitReason> {
        let request = &mut self.requests[slot];
        if request.ticket.berth == Berth::Parked {
            return Err(WaitReason::Trial);
        }
        request.release(&self.accounts.clock, self.cache.now);
        if request.inflight > 0 {
            return Err(WaitReason::InFlight);
        }
        self.look_up(slot);
        Ok(())
    }

    /// What a request that was looked up needs, and who is admitted with it.
    fn need(&self, slot: u32) -> Need {
        let mut need = self.need_alone(slot);
        let Some(beams) = self.beams_of(slot) else {
            return need;
        };
        for &beam in beams.iter().filter(|&&beam| beam != slot) {
            let other = self.need_alone(beam);
            need.private += other.private;
            need.matched += other.matched;
            need.outputs += other.outputs;
            need.claim += other.claim;
        }
        need.choices = beams.len() as u32;
        // They may have found the same blocks.
        let paths = beams.iter().flat_map(|&beam| &self.requests[beam].path);
        let mut found: Vec<NodeRef> = paths.copied().collect();
        found.sort_unstable_by_key(|node| node.block);
        found.dedup_by_key(|node| node.block);
        need.revived = self.cache.evictable_among(&found);
        need.unowned = self.cache.unowned_among(&found);
        need
    }

    fn need_alone(&self, slot: u32) -> Need {
        let request = &self.requests[slot];
        let (matched, block_size) = (request.path.len() as u32, self.config.block_size);
        let choices = request.unforked.len() as u32 + 1;
        let known = request.known().div_ceil(block_size);
        let whole = request.footprint(block_size);
        let others = u64::from(choices - 1) * u64::from(whole - request.prompt / block_size);
        Need {
            private: known - matched,
            matched,
            revived: self.cache.evictable_among(&request.path),
            unowned: self.cache.unowned_among(&request.path),
            choices,
            tails: crate::fork::tails(request.prompt, block_size, choices),
            outputs: choices * u32::from(whole > known),
            claim: u64::from(whole - matched) + others,
        }
    }

    /// Whether a request that was looked up fits, now or once the launched steps have retired.
    pub(crate) fn will_have_room(&self, slot: u32) -> bool {
        let need = self.need(slot);
        let needed = need.at_once();
        let pool = &self.cache.pool;
        let available = pool.allocatable() + pool.coming() - need.revived;
        self.rows.num_free() + self.rows.num_coming() >= need.choices
            && available >= needed
            && self.fits_later(slot, need).is_ok()
    }

    /// Whether the rows are there, the blocks of all known tokens and of each first output, and the
    /// reserve.
    fn fits_now(&self, need: Need) -> Result<(), WaitReason> {
        let needed = need.at_once();
        let available = self.cache.pool.allocatable() - need.revived;
        if self.rows.num_free() < need.choices {
            return Err(WaitReason::Rows);
        }
        if available < needed {
            return Err(WaitReason::Blocks);
        }
        if available < needed + self.reserve() {
            return Err(WaitReason::Reserve);
        }
        Ok(())
    }

    /// Whether the request and all running ones fit until they end, as far as the policy asks.
    /// Who runs alone always does: what could not is refused at submission.
    fn fits_later(&self, slot: u32, need: Need) -> Result<(), WaitReason> {
        let pool = &self.cache.pool;
        let blocks = pool.len() - 1;
        let unused = pool.allocatable() + pool.coming();
        let request = &self.requests[slot];
        match self.config.admission {
            Admission::NoEviction => {
                let claim = need.claim + u64::from(need.unowned);
                if self.forecast.claims() + claim > u64::from(unused) {
                    return Err(WaitReason::Promised);
                }
            }
            Admission::PredictedPeak {
                watermark_per_mille,
                ..
            } if !self.running.is_empty() => {
                let beams = self.beams_of(slot).map_or(1, <[u32]>::len) as u32;
                let (private, matched) = (need.private.div_ceil(beams), need.matched / beams);
                let stay = self.forecast.stay(request, private, matched);
                let shared = (blocks - unused + need.unowned).saturating_sub(self.forecast.held());
                let watermark = u64::from(blocks) * u64::from(watermark_per_mille) / 1_000;
                let full = request.prompt / self.config.block_size;
                let tail = need.tails / (need.choices - 1).max(1);
                let other = if beams > 1 {
                    stay.clone()
                } else {
                    self.forecast.stay(request, tail, full)
                };
                let others = (need.choices - 1, &other);
                let peak = self.forecast.peak_with(&stay, others) + u64::from(shared) + watermark;
                if peak > u64::from(blocks) {
                    return Err(WaitReason::PredictedPeak);
                }
            }
            Admission::PredictedPeak { .. } | Admission::WholePrompt => {}
        }
        Ok(())
    }

    /// Makes the blocks that were found the request's own.
    fn pin_path(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        request.reserve_memory(&self.config);
        for node in &request.path {
            self.cache.acquire(node.block);
            request.blocks.push(node.block);
        }
        self.cache.use_path(&request.path);
    }

    fn take_in(&mut self, slot: u32, private: u32) {
        let request = &mut self.requests[slot];
        // Before the missing blocks are allocated, which may evict what explains the match.
        let match_end = (!request.admitted).then(|| {
            let reusable = &request.tokens[..request.tokens.len() - 1];
            if self.config.prefix_cache && request.wants_scores().is_none() {
                let path = &request.path;
                self.cache.match_end(request.namespace, reusable, path)
            } else {
                MatchEnd::Off
            }
        });
        let allocated = self.cache.allocate(private, &mut request.blocks);
        debug_assert!(allocated, "the blocks were counted before");
        request.row = self.rows.take().expect("a free row was seen before");
        request.matched = request.path.len() as u32;
        request.cacheable = self.config.prefix_cache;
        request.computed = request.matched * self.config.block_size;
        request.retired = request.computed;
        request.state = State::Running;
        self.forecast.enter(request, private);
        if request.cacheable {
            self.move_frontier(slot);
        }
        let request = &mut self.requests[slot];
        self.side_users += u32::from(request.uses_side_arena());
        self.waiting.remove(request);
        self.running.insert(request.rank(), slot);
        let (clock, now) = (&self.accounts.clock, self.cache.now);
        let step = self.draft.step;
        request.account.admitted(clock, now, step, request.computed);
        self.equip(slot);
        if let Some(end) = match_end {
            self.first_admission(slot, end);
        }
    }

    fn first_admission(&mut self, slot: u32, end: MatchEnd) {
        let request = &mut self.requests[slot];
        let (prompt, cached) = (request.prompt, request.computed);
        request.account.looked_up(prompt, cached, end);
        request.admitted = true;
        self.counters.prefix_queries += u64::from(prompt);
        self.counters.prefix_hits += u64::from(cached);
        self.events.push(Event::Admitted {
            submission: request.submission(),
            cached,
        });
        let choices = std::mem::take(&mut self.requests[slot].unforked);
        for &choice in &choices {
            let account = &mut self.requests[choice].account;
            account.looked_up(prompt, cached, end);
        }
        self.requests[slot].unforked = choices;
    }

    pub(crate) fn grant_admitted(&mut self, slot: u32, budget: &mut Budget) {
        let request = &mut self.requests[slot];
        let ends = request.remaining() <= budget.tokens.min(budget.prefill);
        let words = request.side_words();
        request.side_granted = ends && request.is_ready() && words <= budget.side;
        if request.side_granted {
            budget.side -= words;
        }
    }
}
