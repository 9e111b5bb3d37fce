//! Made-up requests, for what is timed and for what is counted.

use diptych_core::config::HashMode;
use diptych_core::{CoreConfig, Request, Sampling};

pub(crate) const BLOCK: u32 = 16;
const VOCABULARY: u32 = 50_000;

pub(crate) fn config(max_running: u32, max_batched_tokens: u32, num_blocks: u32) -> CoreConfig {
    CoreConfig {
        block_size: BLOCK,
        num_blocks,
        max_running,
        max_batched_tokens,
        max_model_len: 1 << 20,
        max_queued_requests: 1 << 20,
        side_words: 1 << 16,
        vocabulary: VOCABULARY,
        hash: HashMode::Keyed(0x5eed),
        ..CoreConfig::default()
    }
}

pub(crate) fn request(submission: u64, prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request {
        submission,
        prompt,
        max_tokens,
        stop_ids: vec![0, 2],
        sampling: Sampling {
            temperature: 0.7,
            top_p: 0.95,
            seed: submission,
            ..Sampling::default()
        },
        ..Request::default()
    }
}

/// Token ids that differ between requests and positions and never end an output.
pub(crate) fn token(request: usize, position: usize) -> u32 {
    ((request * 7_919 + position * 104_729) % (VOCABULARY as usize - 3)) as u32 + 3
}

pub(crate) fn prompt(request: usize, length: usize) -> Vec<u32> {
    (0..length)
        .map(|position| token(request, position))
        .collect()
}
