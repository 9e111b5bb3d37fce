//! The text of one answer, token by token.

use std::sync::Arc;

use crate::detokenizer::Detokenizer;
use crate::error::TextError;
use crate::steps::TextSteps;
use crate::stop::{StopMatch, StopMatcher};
use crate::table::{Piece, Shown, TokenTable};

/// How one answer becomes text.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// At most [`MAX_STOP_STRINGS`](crate::MAX_STOP_STRINGS), none empty.
    pub stop: Vec<String>,
    /// Whether the text ends after the stop string instead of before it.
    pub include_stop: bool,
    /// A stop string counts only if it is completed after so many tokens.
    pub min_tokens: u32,
    pub skip_special_tokens: bool,
    /// Whether the space stays that a decoder like `WordPiece` puts between a special token and a special token right
    /// after it. All other decoders put none there, so that nothing else ever changes.
    pub spaces_between_special_tokens: bool,
    /// Special tokens that are text all the same where others are skipped, for whoever reads their marks.
    pub kept_special_ids: Vec<u32>,
}

impl Default for StreamOptions {
    /// No stop strings, and the text is the tokenizer's own decode.
    fn default() -> Self {
        Self {
            stop: Vec::new(),
            include_stop: false,
            min_tokens: 0,
            skip_special_tokens: false,
            spaces_between_special_tokens: true,
            kept_special_ids: Vec::new(),
        }
    }
}

/// Turns the ids of an answer into text: detokenising, special tokens and stop strings in one.
///
/// **Where the prompt ends.** Let P be the ids of the prompt and O those of the answer. The prompt alone settles all of
/// its text that no later token can change; the text of the answer is that of P and O together, without what P alone
/// settles. So whether the answer's first token keeps its space is as in the decode of the whole. A character that the
/// prompt began and the answer completes belongs to the answer, whole; and if the answer breaks it, or ends without
/// completing it, its U+FFFD belongs to the answer too. A prompt that ends with a whole character, as every prompt given
/// as text does, changes nothing.
///
/// **Stop strings** are looked for in the text of the answer alone, as it is sent, U+FFFD included; see
/// [`StopMatch`]. Special tokens that are skipped and hidden tokens (end of sequence, stop ids) give no bytes: what stands
/// before and after them is neighbouring text.
///
/// Several outputs of one prompt are clones of one stream: what was made of prompt and stop strings is made once.
#[derive(Debug, Clone)]
pub struct TextStream {
    table: Arc<TokenTable>,
    place: Place,
    detokenizer: Detokenizer,
    steps: TextSteps,
    stops: Option<Box<StopMatcher>>,
    decoded: String,
    ended: bool,
}

/// What decides which form of a token the text takes.
#[derive(Debug, Clone)]
struct Place {
    skip_special_tokens: bool,
    kept_special_ids: Vec<u32>,
    spaces_between_special_tokens: bool,
    previous: Previous,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Previous {
    Nothing,
    Token,
    Special,
}

/// What the next token contributes.
struct Next<'t> {
    piece: Piece<'t>,
    shown: Shown,
}

impl Place {
    #[inline]
    fn shown(&self, table: &TokenTable, id: u32) -> Option<Shown> {
        let skips = self.skip_special_tokens && !self.kept_special_ids.contains(&id);
        table.shown(id, skips)
    }

    #[inline]
    fn next<'t>(&mut self, table: &'t TokenTable, id: u32) -> Option<Next<'t>> {
        let shown = self.shown(table, id)?;
        if table.depends_on_place() {
            let previous = self.previous;
            self.pass(shown);
            let joins = previous == Previous::Special
                && shown.is_special()
                && !self.spaces_between_special_tokens;
            if previous == Previous::Nothing || joins {
                let piece = table.piece_as_first(shown);
                return Some(Next { piece, shown });
            }
        }
        let piece = table.piece_after_others(shown);
        Some(Next { piece, shown })
    }

    fn pass(&mut self, shown: Shown) {
        self.previous = if shown.is_special() {
            Previous::Special
        } else {
            Previous::Token
        };
    }
}

impl TextStream {
    /// The text of an answer to `prompt`, which need only be looked at as far as the decoder looks back: a few tokens
    /// for all common ones.
    ///
    /// # Errors
    /// If a stop string is empty, or there are too many of them, or too long ones.
    pub fn new(
        table: Arc<TokenTable>,
        options: StreamOptions,
        prompt: &[u32],
    ) -> Result<Self, TextError> {
        let stops = StopMatcher::new(options.stop, options.include_stop, options.min_tokens)?;
        let mut stream = Self {
            steps: table.steps().clone(),
            table,
            place: Place {
                skip_special_tokens: options.skip_special_tokens,
                kept_special_ids: options.kept_special_ids,
                spaces_between_special_tokens: options.spaces_between_special_tokens,
                previous: Previous::Nothing,
            },
            detokenizer: Detokenizer::default(),
            stops: stops.map(Box::new),
            decoded: String::new(),
            ended: false,
        };
        stream.pass(prompt);
        Ok(stream)
    }

    /// Takes the prompt, whose text is not the answer's.
    fn pass(&mut self, prompt: &[u32]) {
        for &id in prompt {
            if self.steps.are_done() {
                break;
            }
            self.decode(id);
        }
        let last = prompt.iter().rev();
        let mut shown = last.filter_map(|&id| self.place.shown(&self.table, id));
        if let Some(last) = shown.next() {
            self.place.pass(last);
        }
        if self.steps.are_done() {
            let tail = self.last_bytes(prompt);
            self.detokenizer = Detokenizer::after(&tail);
        }
    }

    /// The end of the prompt's bytes that settles whether it ends inside a character: at least three, if it has them.
    fn last_bytes(&self, prompt: &[u32]) -> Vec<u8> {
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut length = 0;
        for &id in prompt.iter().rev() {
            if length >= 3 {
                break;
            }
            if let Some(shown) = self.place.shown(&self.table, id) {
                let piece = self.table.piece_after_others(shown);
                if self.table.ends_run(piece) {
                    break;
                }
                length += piece.as_bytes().len();
                pieces.push(piece.as_bytes());
            }
        }
        pieces.reverse();
        pieces.concat()
    }

    /// Takes the next token and appends to `out` what may be sent now, possibly nothing. `Some` if a stop string was
    /// completed within this token: the text is cut there, this token is the last one, nothing may be pushed afterwards.
    ///
    /// An id that names no token gives no text, as in the tokenizer's own decode.
    #[inline]
    pub fn push(&mut self, id: u32, out: &mut String) -> Option<StopMatch> {
        if self.has_ended(id) {
            return None;
        }
        if !self.steps.are_done() {
            self.decode(id);
            return self.search_decoded(out);
        }
        self.decoded.clear();
        let Some(Next { piece, .. }) = self.place.next(&self.table, id) else {
            return self.search_decoded(out);
        };
        if self.table.ends_run(piece) {
            self.detokenizer.flush(&mut self.decoded);
            return self.search_decoded(out);
        }
        let Some(stops) = &mut self.stops else {
            self.detokenizer.push(piece, out);
            return None;
        };
        let Some(text) = self.detokenizer.whole(piece) else {
            self.detokenizer
                .push_bytes(piece.as_bytes(), &mut self.decoded);
            return self.search_decoded(out);
        };
        let found = stops.push(text, out);
        self.ended = found.is_some();
        found
    }

    /// Takes a token that counts but gives no text: end of sequence, or a stop id. A begun character goes on waiting.
    pub fn push_hidden(&mut self, id: u32) {
        if !self.has_ended(id)
            && let Some(stops) = &mut self.stops
        {
            stops.pass_token();
        }
    }

    /// Ends the text and appends what was waiting: bytes of a begun character as U+FFFD, then what was held back for a
    /// stop string. After a match there is nothing left. `Some` only if that last text completes a stop string.
    pub fn finish(&mut self, out: &mut String) -> Option<StopMatch> {
        if self.ended {
            return None;
        }
        self.decoded.clear();
        if self.steps.are_done() {
            self.detokenizer.flush(&mut self.decoded);
        } else {
            self.steps.finish(&mut self.detokenizer, &mut self.decoded);
        }
        let found = self.search_decoded(out);
        self.ended = true;
        if found.is_none()
            && let Some(stops) = &mut self.stops
        {
            stops.flush(out);
        }
        found
    }

    /// What the ids stand for.
    #[must_use]
    pub fn table(&self) -> &TokenTable {
        &self.table
    }

    /// The text held back because it may become part of a stop string.
    #[must_use]
    pub fn held_back(&self) -> &str {
        self.stops.as_deref().map_or("", StopMatcher::held)
    }

    /// The bytes that wait for the rest of their character, at most three.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        self.detokenizer.pending()
    }

    fn has_ended(&self, id: u32) -> bool {
        debug_assert!(
            !self.ended,
            "token {id} was pushed after the end of the text"
        );
        self.ended
    }

    /// Runs a token through all of the decoder, into `decoded`.
    fn decode(&mut self, id: u32) {
        self.decoded.clear();
        if let Some(Next { piece, shown }) = self.place.next(&self.table, id) {
            self.steps.push(
                piece.as_bytes(),
                shown.is_fallback(),
                &mut self.detokenizer,
                &mut self.decoded,
            );
        }
    }

    fn search_decoded(&mut self, out: &mut String) -> Option<StopMatch> {
        let Some(stops) = &mut self.stops else {
            out.push_str(&self.decoded);
            return None;
        };
        let found = stops.push(&self.decoded, out);
        self.ended = found.is_some();
        found
    }
}
