//! The one function that every output token must equal.

/// Next token after `prefix`: a hash of the exact prefix and the request's seed, modulo `vocabulary`.
pub(crate) fn next_token(prefix: &[u32], seed: u64, vocabulary: u32) -> u32 {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    for &token in prefix {
        state = (state ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 29;
    }
    state = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((state >> 33) % u64::from(vocabulary)) as u32
}

/// The first `count` outputs of a request, computed without any engine.
pub(crate) fn outputs(prompt: &[u32], seed: u64, vocabulary: u32, count: usize) -> Vec<u32> {
    let mut prefix = prompt.to_vec();
    for _ in 0..count {
        prefix.push(next_token(&prefix, seed, vocabulary));
    }
    prefix.split_off(prompt.len())
}
