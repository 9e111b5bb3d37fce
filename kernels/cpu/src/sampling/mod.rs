//! From logits to token ids: the same logits give the same token as in every other implementation.
//!
//! Order: penalties, logit bias, temperature, top-k, top-p, min-p, then the inverse of the cumulated probabilities at
//! one uniform number. Candidates have one total order: adjusted logit descending (0.0 and -0.0 equal), id ascending.
//! In it what top-k, top-p and min-p keep is always a prefix. Precisely, with weights
//! w = exp((logit - maximum) / temperature) in f64, and sums taken one after the other:
//!
//! - top-k: the first k candidates; off below 1 and from the vocabulary's size on;
//! - top-p: the shortest prefix whose weights reach top-p × the weights that top-k kept; off at 1;
//! - min-p: weights of at least min-p (the largest is 1); off at 0;
//! - token: the first candidate at which the cumulated weights of the kept exceed uniform × their sum.
//!
//! The sum over a whole row is taken in order of ids, over part of it in order of candidates. Candidates are put in
//! order only as far as they are asked for. Log probabilities are those of the model: before all of that.

mod adjust;
mod best;
mod candidates;
mod likeliest;
mod order;
mod philox;
mod row;
mod sampler;
#[cfg(test)]
mod tests;
mod weights;

pub use best::Best;
pub use likeliest::Scores;
pub use philox::{philox, uniform};
pub use row::{Entries, SamplingError, SamplingRow, Status, read_bias, read_history};
pub use sampler::Sampler;
