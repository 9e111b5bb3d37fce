//! One open request, from submission to its last event.
//!
//! ```text
//!   positions   0 ......... prompt ........ known ...... known + pending = target
//!   tokens      │◀─ prompt ──▶│◀── output ──▶│◀ sampled by launched steps, ids not known ▶│
//!   KV          │◀── retired ──▶│◀ launched ▶ computed        computed < target while planned
//! ```

use std::hash::{Hash, Hasher};

use crate::account::{Account, WaitClock};
use crate::forecast::Stay;
use crate::latency::Pace;
use crate::mask::Masks;
use crate::pool::NONE;
use crate::prefix::NodeRef;
use crate::reason::{ChunkLimit, WaitReason};
use crate::retention::Terms;
use crate::running::Rank;
use crate::suspects::Suspicion;
use crate::template::Template;
use crate::waiting::Ticket;
use crate::{CoreConfig, PLACEHOLDER, Request, Sampling};

/// Output tokens that a row with stop strings may run ahead of its last acknowledgement.
pub(crate) const ACK_WINDOW: u32 = 8;

/// Output tokens for which an admitted request has memory at once; beyond, it grows by doubling.
const RESERVED_OUTPUTS: u32 = 4096;

/// Preemptions after which a request must run.
const MUST_RUN: u8 = 2;

/// What a request holds of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Nothing; it is in the queue.
    Waiting,
    /// Nothing; it waits for blocks that a running request computes.
    Deferred,
    /// A choice whose prompt another one computes: a state row and a block for its tail from the
    /// other's admission on, nothing before.
    Unforked,
    /// A state row and the blocks of all its known tokens.
    Running,
}

/// Stop ids of a request without more of its own.
const FEW: usize = 4;

/// A slot of the slab is eight cache lines, its generation included.
const _: () = assert!(size_of::<Active>() <= 504);

/// Fields stand in the order in which a step touches them: the hot ones share cache lines.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct Active {
    /// Prompt and committed output.
    pub(crate) tokens: Vec<u32>,
    pub(crate) blocks: Vec<u32>,
    /// The node of each full block whose step has retired: its own, or that of an equal block.
    /// While waiting: the prefix that was found when admission was last tried.
    pub(crate) path: Vec<NodeRef>,
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) row: u32,
    /// Positions whose KV is written by launched or retired steps.
    pub(crate) computed: u32,
    /// Positions whose KV is written by retired steps.
    pub(crate) retired: u32,
    /// Output tokens that launched steps sample.
    pub(crate) pending: u32,
    /// Launched and unretired steps that name the request.
    pub(crate) inflight: u32,
    /// Output tokens that the text side has searched.
    pub(crate) acked: u32,
    /// Leading blocks that the worker's block table has.
    pub(crate) table_sent: u32,
    /// Changes when blocks are given back: launched steps then say nothing about KV any more.
    pub(crate) residency: u32,
    /// Changes when a token must be sampled again: launched steps then say nothing at all.
    pub(crate) lineage: u32,
    pub(crate) suspicion: Suspicion,
    pub(crate) has_stop_strings: bool,
    pub(crate) has_penalties: bool,
    pub(crate) masks: Masks,
    /// Whether sampling needs penalty or bias data, or bans stop ids for a while.
    pub(crate) has_side_data: bool,
    /// Whether the plan being made has room for the request's side data.
    pub(crate) side_granted: bool,
    /// Whether blocks may be interned in this residency.
    pub(crate) cacheable: bool,
    /// Whether it was ever admitted.
    pub(crate) admitted: bool,
    /// Whether a beam's likeliest continuations are there, so that it waits for the other beams.
    pub(crate) reported: bool,
    /// Whether the last plans left it out for a reason of its own.
    held: bool,
    pub(crate) state: State,
    /// The block whose beginning is to be copied into the last of `blocks`, or [`NONE`]; owned
    /// until then.
    pub(crate) tail_source: u32,
    /// Choices that are forked when this one's prompt has retired, in their order.
    pub(crate) unforked: Vec<u32>,
    /// Last launched step that names the request.
    pub(crate) last_step: u64,
    /// What all its draws have in common.
    pub(crate) template: Template,
    /// Sampled ids that end the output, the first few without a detour over the heap. Every id of a
    /// vocabulary is below the filler [`NONE`].
    stop_ids: [u32; FEW],
    /// What few requests have.
    rare: Option<Box<Rare>>,
    min_tokens: u32,
    /// Times that blocks were taken from it for others, up to [`MUST_RUN`].
    pub(crate) preemptions: u8,
    /// Times that it was deferred, up to the most.
    pub(crate) deferrals: u8,
    pub(crate) pace: Pace,

    /// Place in the order of arrival.
    pub(crate) arrival: u64,
    pub(crate) namespace: u64,
    /// How long what it uses stays cached.
    pub(crate) terms: Terms,
    /// Last step that carried side data of the request.
    pub(crate) side_step: u64,
    /// The choice that computes the prompt of an unforked one.
    pub(crate) first_choice: u32,
    /// The search whose beam it is, or [`NONE`].
    pub(crate) group: u32,
    /// What its end is predicted to be, while it runs.
    pub(crate) stay: Stay,
    /// Hash of its first block that is not indexed, while it computes that block (see `dedupe`).
    pub(crate) frontier: Option<u64>,
    /// The running request that computes its next blocks, and how many must be indexed.
    pub(crate) awaits: Option<(u32, u32)>,
    /// Leading blocks that it did not compute: from the prefix cache, or shared when it was forked. An
    /// unforked choice whose prompt is being computed does not hold them yet.
    pub(crate) matched: u32,
    /// Why it waited and what it was given.
    pub(crate) account: Box<Account>,
    /// What the queue knows of it.
    pub(crate) ticket: Ticket,
}

/// Of a request that biases logits, has more than [`FEW`] stop ids, or asks for its prompt's log
/// probabilities.
#[derive(Clone, Debug)]
struct Rare {
    bias: Vec<(u32, f32)>,
    stop_ids: Vec<u32>,
    /// See [`crate::Sampling`].
    prompt_logprobs: Option<u32>,
}

impl Rare {
    fn new(sampling: Sampling, stop_ids: &[u32]) -> Option<Box<Self>> {
        let rare = Self {
            bias: sampling.logit_bias,
            stop_ids: stop_ids.get(FEW..).unwrap_or_default().to_vec(),
            prompt_logprobs: sampling.prompt_logprobs,
        };
        let is_there = rare.prompt_logprobs.is_some();
        (is_there || !rare.bias.is_empty() || !rare.stop_ids.is_empty()).then(|| Box::new(rare))
    }
}

/// The first of these ids, filled up.
fn first_stop_ids(ids: &[u32]) -> [u32; FEW] {
    let mut padded = [NONE; FEW];
    for (place, &id) in padded.iter_mut().zip(ids) {
        *place = id;
    }
    padded
}

impl Active {
    pub(crate) fn new(
        request: Request,
        arrival: u64,
        ticket: Ticket,
        account: Box<Account>,
    ) -> Self {
        let terms = Terms::of(&request);
        let template = Template::of(&request);
        let (bans, min_tokens) = (bans_stop_ids(&request), least_outputs(&request));
        let sampling = request.sampling;
        Self {
            arrival,
            max_tokens: request.max_tokens,
            has_side_data: template.has_penalty() || !sampling.logit_bias.is_empty() || bans,
            stop_ids: first_stop_ids(&request.stop_ids),
            min_tokens,
            masks: Masks::new(request.masked),
            has_penalties: template.has_penalty(),
            has_stop_strings: request.has_stop_strings,
            namespace: request.namespace,
            pace: Pace::new(request.target_itl_ns),
            terms,
            template,
            rare: Rare::new(sampling, &request.stop_ids),
            state: State::Waiting,
            tail_source: NONE,
            unforked: Vec::new(),
            first_choice: NONE,
            group: NONE,
            reported: false,
            admitted: false,
            held: false,
            account,
            row: NONE,
            blocks: Vec::new(),
            path: Vec::new(),
            stay: Stay::default(),
            preemptions: 0,
            frontier: None,
            awaits: None,
            deferrals: 0,
            matched: 0,
            cacheable: false,
            table_sent: 0,
            computed: 0,
            retired: 0,
            pending: 0,
            inflight: 0,
            acked: 0,
            residency: 0,
            lineage: 0,
            last_step: 0,
            side_step: 0,
            side_granted: false,
            suspicion: Suspicion::default(),
            ticket,
            prompt: request.prompt.len() as u32,
            tokens: request.prompt,
        }
    }

    pub(crate) fn submission(&self) -> u64 {
        self.template.submission
    }

    pub(crate) fn choice(&self) -> u32 {
        self.template.choice_index
    }

    pub(crate) fn known(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(crate) fn outputs(&self) -> u32 {
        // An unforked choice has no tokens yet.
        self.known().saturating_sub(self.prompt)
    }

    /// Tokens known or being sampled.
    pub(crate) fn target(&self) -> u32 {
        self.known() + self.pending
    }

    /// Tokens without launched KV; at least 1 while more output is wanted.
    pub(crate) fn remaining(&self) -> u32 {
        self.target() - self.computed
    }

    /// Whether it computes one token after output has begun.
    pub(crate) fn is_decoding(&self) -> bool {
        self.target() > self.prompt && self.remaining() == 1
    }

    /// Blocks that it fills if it runs to `max_tokens`: the last token's KV is never written.
    pub(crate) fn footprint(&self, block_size: u32) -> u32 {
        (self.prompt + self.max_tokens - 1).div_ceil(block_size)
    }

    /// Whether it was preempted so often that others are preempted before it, and that it is
    /// admitted for all of its `max_tokens`.
    pub(crate) fn must_run(&self) -> bool {
        self.preemptions >= MUST_RUN
    }

    pub(crate) fn count_preemption(&mut self) {
        self.preemptions = (self.preemptions + 1).min(MUST_RUN);
    }

    /// Whether the id, sampled as the output token of that index, ends the output.
    pub(crate) fn stops_at(&self, index: u32, id: u32) -> bool {
        index >= self.min_tokens
            && (self.stop_ids.contains(&id) || self.more_stop_ids().contains(&id))
    }

    /// The ids that the next output token cannot be.
    pub(crate) fn banned(&self) -> impl Iterator<Item = u32> + '_ {
        let bans = self.outputs() + self.pending < self.min_tokens;
        self.all_stop_ids().filter(move |_| bans)
    }

    /// How many ids end the output.
    pub(crate) fn num_stop_ids(&self) -> u32 {
        self.all_stop_ids().count() as u32
    }

    fn more_stop_ids(&self) -> &[u32] {
        self.rare.as_ref().map_or(&[], |rare| &rare.stop_ids)
    }

    fn all_stop_ids(&self) -> impl Iterator<Item = u32> + '_ {
        let first = self.stop_ids.iter().filter(|&&id| id != NONE);
        first.chain(self.more_stop_ids()).copied()
    }

    /// What is added to the logits of which ids.
    pub(crate) fn bias(&self) -> &[(u32, f32)] {
        self.rare.as_ref().map_or(&[], |rare| &rare.bias)
    }

    /// See [`crate::Sampling`].
    pub(crate) fn prompt_logprobs(&self) -> Option<u32> {
        self.rare.as_ref()?.prompt_logprobs
    }

    pub(crate) fn hash_stop_ids(&self, state: &mut impl Hasher) {
        (self.stop_ids, self.more_stop_ids(), self.min_tokens).hash(state);
        self.prompt_logprobs().hash(state);
    }

    /// Words of side data of a step that samples this request now.
    pub(crate) fn side_words(&self) -> u32 {
        let bias = self.bias().len() + self.banned().count();
        side_words(self.has_penalties, self.known(), bias as u32)
    }

    /// Whether its sampling needs data that the plan's rows have no room for.
    pub(crate) fn uses_side_arena(&self) -> bool {
        self.has_side_data || self.masks.wanted
    }

    /// Whether its last token must be known before the next is computed.
    fn needs_last_token(&self) -> bool {
        self.has_penalties || self.masks.wanted
    }

    /// Whether a step may name it now, memory and budgets aside.
    pub(crate) fn is_plannable(&self) -> bool {
        self.outputs() + self.pending < self.max_tokens
            && !(self.inflight > 0 && self.needs_last_token())
            && !self.waits_as_beam()
    }

    /// Whether it is a beam of which something is in flight, or whose continuations are there.
    fn waits_as_beam(&self) -> bool {
        self.group != NONE && (self.inflight > 0 || self.pending > 0)
    }

    /// What keeps it from being planned, where [`Self::is_plannable`] says no and more is wanted.
    pub(crate) fn waits_for(&self) -> Option<WaitReason> {
        if self.reported {
            Some(WaitReason::OtherBeams)
        } else if self.waits_for_flight() || self.waits_as_beam() {
            Some(WaitReason::InFlight)
        } else {
            None
        }
    }

    /// Choices that are sampled with its prompt's last token.
    pub(crate) fn num_forks(&self) -> u32 {
        if self.group == NONE {
            self.unforked.len() as u32
        } else {
            0
        }
    }

    /// Whether it could be planned as soon as the token in flight is known.
    pub(crate) fn waits_for_flight(&self) -> bool {
        let next = self.outputs() + self.pending;
        self.inflight > 0
            && self.needs_last_token()
            && next < self.max_tokens
            && self.masks.allow(next)
    }

    /// What keeps it from being sampled, where [`Self::may_sample`] says no.
    pub(crate) fn sampling_limit(&self) -> ChunkLimit {
        if !self.is_in_ack_window() {
            ChunkLimit::TextAck
        } else if self.is_unmasked() {
            ChunkLimit::Mask
        } else {
            ChunkLimit::SideData
        }
    }

    /// The plan being made leaves it out for a reason of its own.
    pub(crate) fn hold(&mut self, reason: WaitReason, clock: &WaitClock, now: u64) {
        self.held = true;
        self.account.hold(reason, clock, now);
    }

    /// Nothing of its own holds it back.
    pub(crate) fn release(&mut self, clock: &WaitClock, now: u64) {
        if std::mem::take(&mut self.held) {
            self.account.release(clock, now);
        }
    }

    /// Whether its next output needs a mask that must be known first, and is not.
    pub(crate) fn is_unmasked(&self) -> bool {
        !self.masks.allow(self.outputs() + self.pending)
    }

    /// Whether text side and mask are ready for one more token.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_in_ack_window() && !self.is_unmasked()
    }

    /// Whether the text side is close enough behind for one more token.
    fn is_in_ack_window(&self) -> bool {
        !self.has_stop_strings || self.outputs() + self.pending < self.acked + ACK_WINDOW
    }

    /// Whether a step may sample it now, given the side data granted.
    pub(crate) fn may_sample(&self) -> bool {
        self.is_ready() && (self.side_granted || !self.has_side_data)
    }

    /// Whether its next token's KV needs a block that it does not own.
    pub(crate) fn needs_block(&self, block_shift: u32) -> bool {
        self.is_decoding() && self.computed >> block_shift >= self.blocks.len() as u32
    }

    /// Token id at `position`, or [`PLACEHOLDER`].
    pub(crate) fn token_at(&self, position: u32) -> i32 {
        self.tokens
            .get(position as usize)
            .map_or(PLACEHOLDER, |&token| token as i32)
    }

    /// Leading positions that are final in content and in KV.
    pub(crate) fn internable(&self) -> u32 {
        if self.has_stop_strings {
            self.retired.min(self.prompt + self.acked)
        } else {
            self.retired
        }
    }

    /// Leading positions that it computes and indexes whatever is sampled or acknowledged.
    pub(crate) fn promised(&self) -> u32 {
        let known = if self.has_stop_strings {
            self.prompt
        } else {
            self.known()
        };
        known.min(self.known() - 1)
    }

    /// Makes room for what running will append, so that steps allocate nothing.
    pub(crate) fn reserve_memory(&mut self, config: &CoreConfig) {
        let outputs = (self.max_tokens - self.outputs()).min(RESERVED_OUTPUTS);
        let blocks = (self.known() + outputs).div_ceil(config.block_size) as usize;
        self.tokens.reserve_exact(outputs as usize);
        self.blocks.reserve_exact(blocks);
        if config.prefix_cache {
            self.path
                .reserve_exact(blocks.saturating_sub(self.path.len()));
        }
    }

    /// Place among the running requests.
    pub(crate) fn rank(&self) -> Rank {
        (self.ticket.priority, self.arrival)
    }

    /// Back to a request that holds nothing of the worker.
    pub(crate) fn give_back(&mut self) {
        self.ticket.served = self.ticket.served.max(self.computed);
        self.ticket.look_up_again();
        self.ticket.backlog = self.known();
        self.state = State::Waiting;
        self.row = NONE;
        self.blocks.clear();
        self.tail_source = NONE;
        self.path.clear();
        self.matched = 0;
        self.cacheable = false;
        self.table_sent = 0;
        self.computed = 0;
        self.retired = 0;
        self.residency = self.residency.wrapping_add(1);
    }
}

/// Output tokens before which no stop id ends the output.
fn least_outputs(request: &Request) -> u32 {
    if request.masked {
        0
    } else {
        request.min_tokens
    }
}

/// Whether stop ids are kept out of its first tokens, as a bias.
pub(crate) fn bans_stop_ids(request: &Request) -> bool {
    request.min_tokens > 0 && !request.stop_ids.is_empty() && !request.masked
}

/// Words of `[prompt_len, output_len, ids..]` and of `[count, ids.., values..]`.
pub(crate) fn side_words(penalised: bool, known: u32, bias: u32) -> u32 {
    let penalty = if penalised { 2 + known } else { 0 };
    let bias = if bias > 0 { 1 + 2 * bias } else { 0 };
    penalty + bias
}
