//! What running requests will still need of the pool: how long outputs get, when memory peaks, and
//! how much risk an admission may take.
//!
//! ```text
//!   finished requests ─▶ lengths ──(quantile 1 − risk)──▶ predicted end of each running request
//!   preemptions ───────▶ risk  ──────────┘                          │
//!                                                                   ▼
//!   candidate ─────────────────────────────────────▶ horizon: blocks at the worst moment ahead
//! ```
//!
//! Everything is integer arithmetic, so that equal inputs decide equally on every machine.

mod horizon;
mod lengths;
mod risk;

use std::hash::{Hash, Hasher};

use horizon::Horizon;
pub(crate) use horizon::Stay;
use lengths::Lengths;
use risk::Risk;

use crate::CoreConfig;
use crate::active::{Active, State};
use crate::config::Admission;

/// Predictions for all running requests together.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    lengths: Lengths,
    horizon: Horizon,
    risk: Risk,
    /// Blocks that running requests may still take if each runs to `max_tokens`.
    claims: u64,
    block_size: u32,
}

impl Forecast {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let target = match config.admission {
            Admission::PredictedPeak {
                preempted_per_mille,
                ..
            } => preempted_per_mille,
            Admission::WholePrompt | Admission::NoEviction => 0,
        };
        Self {
            lengths: Lengths::default(),
            horizon: Horizon::new(config.max_model_len),
            risk: Risk::new(target),
            claims: 0,
            block_size: config.block_size,
        }
    }

    /// The worker's memory is gone: nobody runs. What was learnt stays.
    pub(crate) fn reset(&mut self) {
        self.horizon.clear();
        self.claims = 0;
    }

    /// Moves to the step that is being planned.
    pub(crate) fn advance(&mut self, step: u64) {
        self.horizon.advance(step);
    }

    /// Blocks that running requests may still take.
    pub(crate) fn claims(&self) -> u64 {
        self.claims
    }

    /// Private blocks of the running requests, as the horizon counts them.
    pub(crate) fn held(&self) -> u32 {
        self.horizon.held()
    }

    /// What a request is predicted to do that holds `private` blocks of its own and `shared` ones.
    pub(crate) fn stay(&self, request: &Active, private: u32, shared: u32) -> Stay {
        let outputs = request.outputs();
        let risk = if request.must_run() {
            0
        } else {
            self.risk.share()
        };
        let predicted = self.lengths.predict(request.max_tokens, outputs, risk);
        // The last token's KV is never written.
        let whole = (request.prompt + predicted - 1).div_ceil(self.block_size);
        let last = whole.saturating_sub(shared);
        self.horizon
            .stay(predicted, predicted - outputs, private, last)
    }

    /// Private blocks of all running requests, of the candidate and of a number of others that are
    /// alike at the worst moment ahead.
    pub(crate) fn peak_with(&self, candidate: &Stay, others: (u32, &Stay)) -> u64 {
        self.horizon.peak_with(candidate, others, self.block_size)
    }

    /// The request starts to run with `private` blocks of its own besides the matched ones.
    pub(crate) fn enter(&mut self, request: &mut Active, private: u32) {
        request.stay = self.stay(request, private, request.matched);
        self.horizon.insert(&request.stay);
        self.claims += u64::from(growth(request, self.block_size));
    }

    /// The request runs no more.
    pub(crate) fn leave(&mut self, request: &mut Active) {
        self.horizon.remove(&request.stay);
        self.claims -= u64::from(growth(request, self.block_size));
        request.stay = Stay::default();
    }

    /// The request has taken one more block.
    pub(crate) fn grown(&mut self, request: &mut Active) {
        self.horizon.grow(&mut request.stay);
        self.claims -= 1;
    }

    /// Whether the request's prediction is used up, or was made before its prompt was computed.
    pub(crate) fn is_outdated(request: &Active) -> bool {
        let outputs = request.outputs();
        outputs == 1 || outputs >= request.stay.predicted
    }

    /// Predicts the end of a running request anew.
    pub(crate) fn renew(&mut self, request: &mut Active) {
        self.horizon.remove(&request.stay);
        request.stay = self.stay(request, request.stay.held, request.matched);
        self.horizon.insert(&request.stay);
    }

    /// A request that had run has ended after `outputs` tokens.
    pub(crate) fn ended(&mut self, max_tokens: u32, outputs: u32) {
        self.lengths.record(max_tokens, outputs);
        self.risk.ended();
    }

    pub(crate) fn preempted(&mut self) {
        self.risk.preempted();
    }

    /// Feeds all that influences later admissions.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        self.lengths.hash(state);
        self.risk.hash(state);
    }

    /// Feeds a running request's place, counted from now.
    pub(crate) fn hash_stay(&self, stay: &Stay, state: &mut impl Hasher) {
        self.horizon.hash_stay(stay, state);
    }

    /// Recounts the books from the running requests and the choices that they compute for.
    pub(crate) fn check<'a>(
        &self,
        running: impl Iterator<Item = &'a Active>,
    ) -> Result<(), String> {
        let mut horizon = self.horizon.emptied();
        let mut claims = 0;
        for request in running {
            let shares_later = request.state == State::Unforked;
            let later = if shares_later { request.matched } else { 0 };
            let blocks = request.blocks.len() as u32 + later;
            if request.stay.held + request.matched != blocks {
                return Err(format!(
                    "request {}: {} private blocks are forecast, {} of {blocks} came from the cache",
                    request.submission(),
                    request.stay.held,
                    request.matched
                ));
            }
            horizon.insert(&request.stay);
            claims += u64::from(growth(request, self.block_size));
        }
        if horizon != self.horizon {
            return Err("the forecast's horizon is not the sum of its requests".to_owned());
        }
        if claims != self.claims {
            return Err(format!(
                "{} claims are counted, there are {claims}",
                self.claims
            ));
        }
        Ok(())
    }
}

/// Blocks that the request may still take.
fn growth(request: &Active, block_size: u32) -> u32 {
    let held = request.matched + request.stay.held;
    request.footprint(block_size).saturating_sub(held)
}
