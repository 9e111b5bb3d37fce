//! A search that looks at every continuation of every beam.

use diptych_core::Request;
use diptych_core::beam::EarlyStopping;

use super::VOCABULARY;

/// Log probabilities of all ids after a prefix, of few distinct values and therefore rounded alike
/// in any order of summation.
pub(super) fn logprobs(prefix: &[u32]) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for &token in prefix {
        state = (state ^ u64::from(token + 1)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 31;
    }
    (0..u64::from(VOCABULARY))
        .map(|id| {
            let mixed = (state ^ id.wrapping_mul(0xc4ce_b9fe_1a85_ec53))
                .wrapping_mul(0xff51_afd7_ed55_8ccd);
            // Sixteenths are exact, and so are their sums.
            -(((mixed >> 50) % 160) as f32 + id as f32 / 1024.0) / 16.0
        })
        .collect()
}

pub(super) struct Naive {
    score: f32,
    pub(super) tokens: Vec<u32>,
    pub(super) stopped: bool,
}

/// All outputs of a search, best first.
pub(super) fn search(request: &Request) -> Vec<Naive> {
    let beams = request.beams.expect("a beam search");
    let width = request.choices as usize;
    let mut running: Vec<(f32, Vec<u32>)> = vec![(0.0, Vec::new())];
    let mut done: Vec<Naive> = Vec::new();
    for length in 1..=request.max_tokens {
        let mut all: Vec<(f32, Vec<u32>)> = Vec::new();
        for (sum, outputs) in &running {
            let prefix = [request.prompt.as_slice(), outputs].concat();
            for (id, log) in (0..).zip(logprobs(&prefix)) {
                all.push((log + sum, [outputs.as_slice(), &[id]].concat()));
            }
        }
        all.sort_by(|left, right| right.0.total_cmp(&left.0));
        let ends = |tokens: &[u32]| {
            tokens
                .last()
                .is_some_and(|id| request.stop_ids.contains(id))
        };
        let penalty = f64::from(length).powf(beams.length_penalty) as f32;
        for (sum, tokens) in all.iter().take(width) {
            let stopped = ends(tokens);
            if stopped || length == request.max_tokens {
                done.push(Naive {
                    score: sum / penalty,
                    tokens: tokens.clone(),
                    stopped,
                });
            }
        }
        done.sort_by(|left, right| right.score.total_cmp(&left.score));
        done.truncate(width);
        all.retain(|(_, tokens)| !ends(tokens));
        all.truncate(width);
        running = all;
        let longest = match beams.early_stopping {
            EarlyStopping::Never if beams.length_penalty > 0.0 => request.max_tokens,
            _ => length,
        };
        let best = running[0].0 / f64::from(longest).powf(beams.length_penalty) as f32;
        let full = done.len() == width;
        if full && (beams.early_stopping == EarlyStopping::Yes || best <= done[width - 1].score) {
            break;
        }
    }
    done
}
