//! The one function that every output token must equal.

/// What a draw depends on beside the tokens before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Randomness {
    pub(crate) seed: u64,
    pub(crate) choice: u32,
}

impl Randomness {
    pub(crate) fn first_choice(seed: u64) -> Self {
        Self { seed, choice: 0 }
    }
}

/// Next token after `prefix`: a hash of the exact prefix, the request's seed and the choice, modulo
/// `vocabulary`.
pub(crate) fn next_token(prefix: &[u32], randomness: Randomness, vocabulary: u32) -> u32 {
    let choice = u64::from(randomness.choice).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut state = randomness.seed ^ 0x9e37_79b9_7f4a_7c15 ^ choice;
    for &token in prefix {
        state = (state ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 29;
    }
    state = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((state >> 33) % u64::from(vocabulary)) as u32
}

/// The first `count` outputs of a choice, computed without any engine.
pub(crate) fn outputs(
    prompt: &[u32],
    randomness: Randomness,
    vocabulary: u32,
    count: usize,
) -> Vec<u32> {
    let mut prefix = prompt.to_vec();
    for _ in 0..count {
        prefix.push(next_token(&prefix, randomness, vocabulary));
    }
    prefix.split_off(prompt.len())
}
