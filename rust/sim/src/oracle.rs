//! The fake model: the next token is a hash of everything before it.

use crate::random::mix;
use crate::scheduler::VOCABULARY;

/// A sequence as far as its future depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain(u64);

impl Chain {
    pub(crate) fn new(prompt: &[u32]) -> Self {
        let mut chain = 0x9e37_79b9_7f4a_7c15_u64;
        for &token in prompt {
            chain = (chain ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            chain ^= chain >> 29;
        }
        Self(chain)
    }

    /// Samples the next token, which is never the end of sequence.
    pub(crate) fn next(&mut self) -> u32 {
        let token = token(self.0, 0);
        self.0 = (self.0 ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 29;
        token
    }
}

/// Token `position` of the text that `name` stands for.
pub(crate) fn token(name: u64, position: u64) -> u32 {
    let bits = mix(name.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    1 + (((bits >> 32) * u64::from(VOCABULARY - 1)) >> 32) as u32
}

/// Appends the first `count` tokens of the text that `name` stands for.
pub(crate) fn append(into: &mut Vec<u32>, name: u64, count: u32) {
    into.extend((0..u64::from(count)).map(|position| token(name, position)));
}

/// The first `count` tokens after a prompt, where none of them is the last.
#[cfg(test)]
pub(crate) fn answers(prompt: &[u32], count: u32) -> Vec<u32> {
    let mut chain = Chain::new(prompt);
    (0..count).map(|_| chain.next()).collect()
}
