//! The text of one answer, token by token.

use std::sync::Arc;

use crate::detokenizer::Detokenizer;
use crate::error::TextError;
use crate::stop::{StopMatch, StopMatcher};
use crate::table::TokenTable;

/// How one answer becomes text.
#[derive(Debug, Clone, Default)]
pub struct StreamOptions {
    /// At most [`MAX_STOP_STRINGS`](crate::MAX_STOP_STRINGS), none empty.
    pub stop: Vec<String>,
    /// Whether the text ends after the stop string instead of before it.
    pub include_stop: bool,
    pub skip_special_tokens: bool,
    /// The last ids of the prompt: at least [`TokenTable::prompt_tail`] of it, more does no harm.
    pub prompt_tail: Vec<u32>,
}

/// Turns the ids of an answer into text: detokenising, special tokens and stop strings in one.
///
/// **Where the prompt ends inside a character.** Let P be the bytes of the prompt and O those of the answer. The prompt
/// alone settles every character and every broken sequence that no later byte can change; the text of the answer is
/// `from_utf8_lossy(P + O)` without what P alone settles. So a character that the prompt began and the answer completes
/// belongs to the answer, whole; and if the answer breaks it, or ends without completing it, its U+FFFD belongs to the
/// answer too. A prompt that ends with a whole character, as every prompt given as text does, changes nothing.
///
/// **Stop strings** are looked for in the text of the answer alone, as it is sent, U+FFFD included; see
/// [`StopMatch`]. Special tokens that are skipped and hidden tokens (end of sequence, stop ids) give no bytes: what stands
/// before and after them is neighbouring text.
#[derive(Debug)]
pub struct TextStream {
    table: Arc<TokenTable>,
    skip_special_tokens: bool,
    detokenizer: Detokenizer,
    stops: Option<Box<StopMatcher>>,
    decoded: String,
    ended: bool,
}

impl TextStream {
    /// # Errors
    /// If a stop string is empty, or there are too many of them, or too long ones.
    pub fn new(table: Arc<TokenTable>, options: StreamOptions) -> Result<Self, TextError> {
        let stops = StopMatcher::new(options.stop, options.include_stop)?.map(Box::new);
        let tail: Vec<u8> = table
            .prompt_tail(&options.prompt_tail, options.skip_special_tokens)
            .iter()
            .filter_map(|&id| table.visible(id, options.skip_special_tokens))
            .flat_map(|piece| piece.as_bytes().iter().copied())
            .collect();
        Ok(Self {
            table,
            skip_special_tokens: options.skip_special_tokens,
            detokenizer: Detokenizer::after(&tail),
            stops,
            decoded: String::new(),
            ended: false,
        })
    }

    /// Takes the next token and appends to `out` what may be sent now, possibly nothing. `Some` if a stop string was
    /// completed within this token: the text is cut there, this token is the last one, nothing may be pushed afterwards.
    ///
    /// An id that names no token gives no text, as in the tokenizer's own decode.
    #[inline]
    pub fn push(&mut self, id: u32, out: &mut String) -> Option<StopMatch> {
        debug_assert!(
            !self.ended,
            "token {id} was pushed after the end of the text"
        );
        if self.ended {
            return None;
        }
        let piece = self.table.visible(id, self.skip_special_tokens)?;
        let Some(stops) = &mut self.stops else {
            self.detokenizer.push(piece, out);
            return None;
        };
        let found = if let Some(text) = self.detokenizer.whole(piece) {
            stops.push(text, out)
        } else {
            self.decoded.clear();
            self.detokenizer
                .push_bytes(piece.as_bytes(), &mut self.decoded);
            stops.push(&self.decoded, out)
        };
        self.ended = found.is_some();
        found
    }

    /// Takes a token that counts but gives no text: end of sequence, or a stop id. A begun character goes on waiting.
    pub fn push_hidden(&mut self, id: u32) {
        debug_assert!(
            !self.ended,
            "token {id} was pushed after the end of the text"
        );
    }

    /// Ends the text and appends what was waiting: bytes of a begun character as U+FFFD, then what was held back for a
    /// stop string. After a match there is nothing left. `Some` only if that last U+FFFD completes a stop string.
    pub fn finish(&mut self, out: &mut String) -> Option<StopMatch> {
        if self.ended {
            return None;
        }
        self.ended = true;
        let Some(stops) = &mut self.stops else {
            self.detokenizer.flush(out);
            return None;
        };
        self.decoded.clear();
        self.detokenizer.flush(&mut self.decoded);
        let found = stops.push(&self.decoded, out);
        if found.is_none() {
            stops.flush(out);
        }
        found
    }

    /// The text held back because it may become part of a stop string.
    #[must_use]
    pub fn held_back(&self) -> &str {
        self.stops.as_deref().map_or("", StopMatcher::held)
    }
}
