//! One open request of a reference scheduler.

use crate::random::mix;
use crate::scheduler::Job;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) submission: u64,
    /// Prompt and output.
    tokens: Vec<u32>,
    pub(super) prompt: u32,
    pub(super) max_tokens: u32,
    block_size: u32,
    /// Of each full block of known tokens: the hash of everything up to its end.
    pub(super) hashes: Vec<u64>,
    /// Leading blocks owned as content.
    pub(super) filled: u32,
    /// Further blocks owned.
    pub(super) private: u32,
    /// Tokens with KV.
    pub(super) computed: u32,
    pub(super) admitted: bool,
}

impl Entry {
    pub(super) fn new(job: Job, block_size: u32) -> Self {
        let mut entry = Self {
            submission: job.submission,
            prompt: job.prompt.len() as u32,
            tokens: job.prompt,
            max_tokens: job.max_tokens,
            block_size,
            hashes: Vec::new(),
            filled: 0,
            private: 0,
            computed: 0,
            admitted: false,
        };
        entry.extend_hashes();
        entry
    }

    fn extend_hashes(&mut self) {
        let size = self.block_size as usize;
        let mut chain = self.hashes.last().copied().unwrap_or(0);
        for block in self.tokens[self.hashes.len() * size..].chunks_exact(size) {
            for &token in block {
                chain = mix(chain ^ u64::from(token));
            }
            self.hashes.push(chain);
        }
    }

    pub(super) fn push(&mut self, id: u32) {
        self.tokens.push(id);
        self.extend_hashes();
    }

    pub(super) fn known(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(super) fn outputs(&self) -> u32 {
        self.known() - self.prompt
    }

    pub(super) fn remaining(&self) -> u32 {
        self.known() - self.computed
    }

    /// Whether it computes one token after output has begun.
    pub(super) fn is_decoding(&self) -> bool {
        self.outputs() > 0 && self.remaining() == 1
    }

    pub(super) fn owned(&self) -> u32 {
        self.filled + self.private
    }
}
