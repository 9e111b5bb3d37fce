//! One accepted request as the outside knows it.

use diptych_core::config::Eviction;
use diptych_core::{CoreConfig, Event, FinishReason, Handle, Request, SamplingRow, StepPlan};

use crate::oracle::{self, Randomness};

/// Tokens that a row with stop strings may run ahead of its last acknowledgement (`protocol.md`).
pub(crate) const ACKNOWLEDGEMENT_WINDOW: u32 = 8;

/// Outputs from one with a late mask on that are planned only with a known mask.
const OUTPUTS_AFTER_A_LATE_MASK: u32 = 8;

/// One choice of an accepted request.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent facts, each of which a step may change"
)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) choice: u32,
    pub(crate) handle: Handle,
    /// Where the text side finds a stop string.
    pub(crate) stop_token: Option<u32>,
    /// Every output the choice can have, by the oracle.
    pub(crate) outputs: Vec<u32>,
    pub(crate) committed: u32,
    pub(crate) acknowledged: u32,
    /// Sampling rows of this request in unretired steps.
    pub(crate) in_flight: u32,
    pub(crate) finished: Option<FinishReason>,
    /// When the outside knew that.
    pub(crate) ended: Option<u64>,
    pub(crate) cached: Option<u32>,
    /// Sampled since it was last admitted, so that it decodes now.
    pub(crate) decoding: bool,
    /// May have blocks in the prefix index: admitted since the index was last emptied.
    pub(crate) indexed: bool,
    pub(crate) occupant: u64,
    /// Its first token was drawn, together with that of the first choice or by itself: it no longer
    /// depends on that one.
    pub(crate) forked: bool,
    /// Its next draw is the first from a row of its own.
    pub(crate) moves: bool,
    /// Deaths of a worker in which this may have been the only unretired request, and the number of
    /// outputs that, once committed, clears it.
    pub(crate) lone_deaths: (u32, u32),
    /// Outputs whose masks are known.
    pub(crate) masks: u32,
    /// First output that may be planned whether or not its mask is known.
    pub(crate) trusted_from: u32,
    /// Later requests of its tenant and class that were admitted before it.
    pub(crate) bypassed: u32,
}

impl Entry {
    pub(crate) fn new(
        request: Request,
        stop: Option<u32>,
        (choice, handle): (u32, Handle),
        vocabulary: u32,
    ) -> Self {
        let seed = request.sampling.seed;
        let outputs = oracle::outputs(
            &request.prompt,
            Randomness { seed, choice },
            vocabulary,
            request.max_tokens as usize,
        );
        Self {
            request,
            choice,
            handle,
            stop_token: stop,
            outputs,
            committed: 0,
            acknowledged: 0,
            in_flight: 0,
            finished: None,
            ended: None,
            cached: None,
            decoding: false,
            indexed: false,
            occupant: 0,
            forked: choice == 0,
            moves: false,
            lone_deaths: (0, 0),
            masks: 0,
            trusted_from: 0,
            bypassed: 0,
        }
    }

    pub(crate) fn open(&self) -> bool {
        self.finished.is_none()
    }

    pub(crate) fn submission(&self) -> u64 {
        self.request.submission
    }

    pub(crate) fn key(&self) -> (u64, u32) {
        (self.submission(), self.choice)
    }

    pub(crate) fn penalised(&self) -> bool {
        let sampling = &self.request.sampling;
        sampling.repetition_penalty.to_bits() != 1.0_f32.to_bits()
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0
    }

    /// Decodes, and its next draw needs the token that is in flight.
    pub(crate) fn waits_for_flight(&self) -> bool {
        self.decoding
            && (self.penalised() || self.request.masked)
            && self.in_flight > 0
            && self.committed + self.in_flight < self.request.max_tokens
            && !self.is_unmasked()
    }

    /// The mask of its next output was late, or one of the eight before was, and it is not known.
    pub(crate) fn is_unmasked(&self) -> bool {
        let next = self.committed + self.in_flight;
        self.request.masked && self.masks <= next && self.trusted_from > next
    }

    /// The worker could not sample its next output.
    pub(crate) fn not_sampled(&mut self) {
        self.in_flight = 0;
        if self.request.masked {
            self.trusted_from = self.committed + OUTPUTS_AFTER_A_LATE_MASK;
        }
    }

    /// Prompt and the first `count` outputs.
    pub(crate) fn tokens(&self, count: u32) -> Vec<u32> {
        let outputs = &self.outputs[..count as usize];
        [&self.request.prompt, outputs].concat()
    }

    /// The next output would leave the acknowledgement window.
    pub(crate) fn past_window(&self) -> bool {
        self.request.has_stop_strings
            && self.committed + self.in_flight + 1 > self.acknowledged + ACKNOWLEDGEMENT_WINDOW
    }

    /// Tokens whose blocks may be shared: computed, retired and acknowledged.
    fn shareable(&self) -> u32 {
        let outputs = if self.request.has_stop_strings {
            self.acknowledged
        } else {
            self.committed
        };
        self.request.prompt.len() as u32 + outputs
    }

    /// Whether what it used may be found `now`: for a time after its end.
    fn lives(&self, now: u64, config: &CoreConfig) -> bool {
        let ttl = self.request.cache_ttl_ns.or(match config.eviction {
            Eviction::LruWithTtl { ttl_ns } => Some(ttl_ns),
            Eviction::Lru | Eviction::FrequencyGuarded => None,
        });
        match (self.ended, ttl) {
            (Some(ended), Some(ttl)) => ended + ttl > now,
            _ => true,
        }
    }

    /// Whether a prompt of the same namespace may find its first `cached` tokens here, if they are kept.
    pub(crate) fn shares(&self, request: &Request, cached: u32) -> bool {
        cached <= self.shareable() && self.begins_as(request, cached)
    }

    /// Whether this one's time to live keeps the first `cached` tokens of a prompt.
    pub(crate) fn keeps(
        &self,
        request: &Request,
        cached: u32,
        now: u64,
        config: &CoreConfig,
    ) -> bool {
        self.lives(now, config) && self.begins_as(request, cached)
    }

    fn begins_as(&self, request: &Request, cached: u32) -> bool {
        let beginning = ..cached as usize;
        self.indexed
            && self.request.namespace == request.namespace
            && self.tokens(self.committed).get(beginning) == request.prompt.get(beginning)
    }
}

impl Entry {
    pub(crate) fn commit(&mut self, id: u32) -> Result<Event, String> {
        let index = self.committed;
        let expected = self.outputs.get(index as usize);
        if expected != Some(&id) {
            return Err(format!(
                "invariant 17: output {index} of {} is {id}, the oracle says {expected:?}",
                self.submission()
            ));
        }
        self.committed += 1;
        Ok(Event::Token {
            submission: self.submission(),
            choice: self.choice,
            index,
            token: id,
        })
    }

    pub(crate) fn end_after(&self, id: u32) -> Option<FinishReason> {
        let least = if self.request.masked {
            0
        } else {
            self.request.min_tokens
        };
        if self.committed > least && self.request.stop_ids.contains(&id) {
            Some(FinishReason::StopToken(id))
        } else if self.committed == self.request.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }
}

/// The sampling row and its side data say exactly what the request asked for.
pub(crate) fn check_parameters(
    plan: &StepPlan,
    row: &SamplingRow,
    entry: &Entry,
) -> Result<(), String> {
    let sampling = &entry.request.sampling;
    let floats = [
        (row.temperature, sampling.temperature),
        (row.top_p, sampling.top_p),
        (row.min_p, sampling.min_p),
        (row.presence_penalty, sampling.presence_penalty),
        (row.frequency_penalty, sampling.frequency_penalty),
        (row.repetition_penalty, sampling.repetition_penalty),
    ];
    let equal = floats
        .iter()
        .all(|(left, right)| left.to_bits() == right.to_bits())
        && (row.seed, row.top_k) == (sampling.seed, sampling.top_k)
        && row.masked == entry.request.masked;
    let penalties = entry.penalised().then(|| {
        let outputs = &entry.outputs[..row.output_index as usize];
        let lengths = [entry.request.prompt.len() as u32, row.output_index];
        [&lengths, entry.request.prompt.as_slice(), outputs].concat()
    });
    let mut biases = sampling.logit_bias.clone();
    if row.output_index < entry.request.min_tokens && !entry.request.masked {
        let stop_ids = entry.request.stop_ids.iter();
        biases.extend(stop_ids.map(|&id| (id, f32::NEG_INFINITY)));
    }
    let bias = (!biases.is_empty()).then(|| {
        let (ids, values): (Vec<u32>, Vec<u32>) = biases
            .iter()
            .map(|&(id, value)| (id, value.to_bits()))
            .unzip();
        [vec![ids.len() as u32], ids, values].concat()
    });
    let at = |offset: Option<u32>, record: &Option<Vec<u32>>| match (offset, record) {
        (None, None) => true,
        (Some(offset), Some(record)) => plan
            .side
            .get(offset as usize..)
            .is_some_and(|side| side.starts_with(record)),
        _ => false,
    };
    if equal && at(row.penalty_offset, &penalties) && at(row.bias_offset, &bias) {
        Ok(())
    } else {
        Err(format!(
            "sampling row {row:?} with side {:?} is not what {:?} asked for",
            plan.side, entry.request
        ))
    }
}
