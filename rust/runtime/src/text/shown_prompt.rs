//! What a reader wants of the prompt: its text, and the log probabilities of its tokens.

use std::sync::Arc;

use diptych_text::{StreamOptions, TextError, TextStream, TokenTable};

use crate::arena::Score;
use crate::frame::{NamedLogprob, TokenLogprobs};

/// A prompt's text, and where in it each token begins. What the prompt leaves open of a character belongs to the answer.
#[derive(Clone, Debug)]
pub(crate) struct ShownPrompt {
    table: Arc<TokenTable>,
    ids: Vec<u32>,
    offsets: Vec<usize>,
    pub(super) text: String,
    /// By position; that of the first stays empty.
    scores: Vec<Option<Score>>,
}

impl ShownPrompt {
    pub(crate) fn of(
        table: Arc<TokenTable>,
        ids: &[u32],
        skip_special_tokens: bool,
    ) -> Result<Self, TextError> {
        let options = StreamOptions {
            skip_special_tokens,
            ..StreamOptions::default()
        };
        let mut stream = TextStream::new(Arc::clone(&table), options, &[])?;
        let (mut text, mut characters) = (String::new(), 0);
        let mut offsets = Vec::with_capacity(ids.len());
        for &id in ids {
            let before = text.len();
            offsets.push(characters);
            stream.push(id, &mut text);
            characters += text[before..].chars().count();
        }
        Ok(Self {
            table,
            ids: ids.to_vec(),
            offsets,
            text,
            scores: vec![None; ids.len()],
        })
    }

    pub(super) fn score(&mut self, position: u32, score: Score) {
        if let Some(place) = self.scores.get_mut(position as usize) {
            *place = Some(score);
        }
    }

    /// For each token; `None` if one is missing. Of the first, which nothing precedes, it is 0.
    pub(super) fn take_logprobs(&mut self) -> Option<Vec<TokenLogprobs>> {
        if let Some(first) = self.scores.first_mut() {
            *first = Some(Score::default());
        }
        let named = |(id, logprob)| NamedLogprob {
            id,
            logprob,
            bytes: self.table.bytes(id).unwrap_or_default().to_vec(),
        };
        let tokens = self.ids.iter().zip(&self.offsets).zip(&mut self.scores);
        tokens
            .map(|((&id, &offset), score)| {
                let score = score.take()?;
                Some(TokenLogprobs {
                    offset,
                    token: named((id, score.logprob)),
                    likeliest: score.likeliest.into_iter().map(named).collect(),
                })
            })
            .collect()
    }
}
