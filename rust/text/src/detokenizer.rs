//! Bytes to characters, as they come.

use crate::table::Piece;

const REPLACEMENT: &str = "\u{FFFD}";

/// An incremental UTF-8 decoder: joined output plus [`flush`](Self::flush) is `String::from_utf8_lossy` of all bytes
/// given, which is also Python's `bytes.decode("utf-8", "replace")`, whatever the chunking.
///
/// A character is given out with its last byte. A sequence that can no longer become a character gives one U+FFFD for
/// its maximal valid prefix, with the very byte that breaks it. So never more than three bytes wait.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// The begun character: a proper prefix of a valid sequence.
    pending: [u8; 3],
    pending_length: u8,
}

impl Detokenizer {
    /// Starts inside whatever character these bytes begin; the characters they complete are not given out.
    #[must_use]
    pub fn after(bytes: &[u8]) -> Self {
        let mut detokenizer = Self::default();
        detokenizer.push_bytes(bytes, &mut String::new());
        detokenizer
    }

    /// The bytes waiting to become a character, at most three.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.pending[..usize::from(self.pending_length)]
    }

    /// Decodes one token, appending to `out`.
    #[inline]
    pub fn push(&mut self, piece: Piece<'_>, out: &mut String) {
        match self.whole(piece) {
            Some(text) => out.push_str(text),
            None => self.push_bytes(piece.as_bytes(), out),
        }
    }

    /// The piece's text where it is whole characters and nothing waits, that is almost always.
    #[inline]
    pub(crate) fn whole<'a>(&self, piece: Piece<'a>) -> Option<&'a str> {
        match piece {
            Piece::Text(text) if self.pending_length == 0 => Some(text),
            _ => None,
        }
    }

    /// Decodes `bytes`, appending to `out`.
    pub fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = self.complete_pending(bytes, out);
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            for chunk in valid.utf8_chunks() {
                out.push_str(chunk.valid());
            }
            let Some(broken) = error.error_len() else {
                return self.wait_for_more(after);
            };
            out.push_str(REPLACEMENT);
            rest = &after[broken..];
        }
    }

    /// Ends the text: what waits can no longer become a character.
    pub fn flush(&mut self, out: &mut String) {
        if self.pending_length > 0 {
            out.push_str(REPLACEMENT);
            self.pending_length = 0;
        }
    }

    fn wait_for_more(&mut self, begun: &[u8]) {
        self.pending[..begun.len()].copy_from_slice(begun);
        self.pending_length = begun.len() as u8;
    }

    /// Feeds the begun character until it is complete or broken, and returns the bytes it did not take.
    fn complete_pending<'b>(&mut self, mut bytes: &'b [u8], out: &mut String) -> &'b [u8] {
        while self.pending_length > 0 {
            let Some((&byte, rest)) = bytes.split_first() else {
                break;
            };
            let length = usize::from(self.pending_length);
            let mut sequence = [0; 4];
            sequence[..length].copy_from_slice(self.pending());
            sequence[length] = byte;
            let sequence = &sequence[..=length];
            match std::str::from_utf8(sequence) {
                Ok(character) => {
                    out.push_str(character);
                    self.pending_length = 0;
                }
                Err(error) if error.error_len().is_none() => self.wait_for_more(sequence),
                Err(_) => {
                    // The byte that breaks a sequence is not part of it: it is looked at again as a beginning.
                    self.flush(out);
                    break;
                }
            }
            bytes = rest;
        }
        bytes
    }
}
