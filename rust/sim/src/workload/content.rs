//! What prompts are made of: system prompts that many share, conversations that grow turn by turn, and text
//! that nobody else sends.

use super::{Lengths, Sharing};
use crate::oracle::{Chain, append};
use crate::random::{Purpose, Stream, mix};

/// Conversations that may go on at a time; older ones end.
const CONVERSATIONS: usize = 1_024;

/// Makes prompts.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    stream: Stream,
    sharing: Sharing,
    longest: usize,
    /// Cumulated weights of the system prompts.
    zipf: Vec<f64>,
    open: Vec<Vec<u32>>,
    texts: u64,
}

impl Content {
    pub(crate) fn new(sharing: Sharing, lengths: &Lengths, seed: u64) -> Self {
        let mut total = 0.0;
        let zipf = (1..=sharing.systems.min(1 << 16))
            .map(|rank| {
                total += 1.0 / rank as f64;
                total
            })
            .collect();
        Self {
            stream: Stream::new(seed, Purpose::Content),
            sharing,
            longest: lengths.longest as usize,
            zipf,
            open: Vec::new(),
            texts: 0,
        }
    }

    /// A turn of a conversation whose new text has `length` tokens, and whose answer will have `output`.
    pub(crate) fn turn(&mut self, length: u32, output: u32) -> Vec<u32> {
        let going_on = 1.0 - 1.0 / self.sharing.turns;
        let mut prompt = if !self.open.is_empty() && self.stream.unit() < going_on {
            let chosen = self.stream.below(self.open.len() as u64) as usize;
            self.open.swap_remove(chosen)
        } else {
            self.system()
        };
        self.append_text(&mut prompt, length);
        if going_on > 0.0 && prompt.len() < self.longest {
            let mut conversation = prompt.clone();
            let mut chain = Chain::new(&prompt);
            // The last token of an answer is the end of sequence, which no prompt repeats.
            conversation.extend((1..output).map(|_| chain.next()));
            self.remember(conversation);
        }
        prompt
    }

    /// A prompt of `length` tokens in all.
    pub(crate) fn prompt(&mut self, length: u32) -> Vec<u32> {
        let mut prompt = self.system();
        if prompt.len() >= length as usize {
            prompt.clear();
        }
        let rest = length - prompt.len() as u32;
        self.append_text(&mut prompt, rest);
        prompt
    }

    /// Appends `count` tokens that occur nowhere else.
    pub(crate) fn append_text(&mut self, prompt: &mut Vec<u32>, count: u32) {
        self.texts += 1;
        append(prompt, mix(self.texts ^ 0x7465_7874_0000_0000), count);
    }

    fn remember(&mut self, conversation: Vec<u32>) {
        if self.open.len() == CONVERSATIONS {
            let ended = self.stream.below(CONVERSATIONS as u64) as usize;
            self.open.swap_remove(ended);
        }
        self.open.push(conversation);
    }

    fn system(&mut self) -> Vec<u32> {
        let mut prompt = Vec::new();
        if self.stream.unit() < self.sharing.system_share {
            let most = self.zipf.last().copied().unwrap_or(1.0);
            let drawn = self.stream.unit() * most;
            let chosen = self.zipf.partition_point(|&weight| weight <= drawn) as u64;
            append(
                &mut prompt,
                mix(chosen ^ 0x7379_7374_656d),
                self.sharing.system_tokens,
            );
        }
        prompt
    }
}
