//! Ids to bytes.

use std::ops::Range;

/// What one token contributes to the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Whole characters, possibly none.
    Text(&'a str),
    /// Bytes that are not valid UTF-8 by themselves: they begin, continue or break a character.
    Bytes(&'a [u8]),
}

impl<'a> Piece<'a> {
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    length: u32,
    kind: Kind,
    special: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Text,
    Bytes,
}

/// The exact bytes of every token id, and which ids are special. Immutable and shared by all requests.
#[derive(Debug)]
pub struct TokenTable {
    entries: Vec<Entry>,
    // Valid tokens are kept apart in a `String`, so that giving one out as `&str` costs two boundary checks, not a
    // validation.
    text: String,
    bytes: Vec<u8>,
}

impl TokenTable {
    /// Builds a table from `(bytes, special)` per id, in order of id; `None` for an id that names no token.
    ///
    /// # Panics
    /// If all tokens together have 4 GiB or more.
    #[must_use]
    pub fn new(tokens: impl IntoIterator<Item = Option<(Vec<u8>, bool)>>) -> Self {
        let mut table = Self {
            entries: Vec::new(),
            text: String::new(),
            bytes: Vec::new(),
        };
        for token in tokens {
            let entry = match token {
                Some((bytes, special)) => table.store(&bytes, special),
                None => Entry {
                    start: 0,
                    length: 0,
                    kind: Kind::Unknown,
                    special: false,
                },
            };
            table.entries.push(entry);
        }
        table
    }

    fn store(&mut self, bytes: &[u8], special: bool) -> Entry {
        let (start, kind) = if let Ok(text) = std::str::from_utf8(bytes) {
            self.text.push_str(text);
            (self.text.len() - text.len(), Kind::Text)
        } else {
            self.bytes.extend_from_slice(bytes);
            (self.bytes.len() - bytes.len(), Kind::Bytes)
        };
        Entry {
            start: u32::try_from(start).expect("a vocabulary's bytes fit in 4 GiB"),
            length: u32::try_from(bytes.len()).expect("a token's bytes fit in 4 GiB"),
            kind,
            special,
        }
    }

    /// One more than the highest id.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of a token; `None` for an id that names no token (a gap, or past the end: models pad vocabularies).
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.piece(id).map(Piece::as_bytes)
    }

    /// As [`bytes`](Self::bytes), knowing whether they are whole characters.
    #[must_use]
    pub fn piece(&self, id: u32) -> Option<Piece<'_>> {
        self.entries
            .get(id as usize)
            .and_then(|entry| self.piece_of(entry))
    }

    /// What an id contributes to the text: `None` if it names no token, or a special one where those are skipped.
    pub(crate) fn visible(&self, id: u32, skip_special_tokens: bool) -> Option<Piece<'_>> {
        let entry = self.entries.get(id as usize)?;
        if skip_special_tokens && entry.special {
            return None;
        }
        self.piece_of(entry)
    }

    fn piece_of(&self, entry: &Entry) -> Option<Piece<'_>> {
        let range: Range<usize> =
            entry.start as usize..entry.start as usize + entry.length as usize;
        match entry.kind {
            Kind::Unknown => None,
            Kind::Text => Some(Piece::Text(&self.text[range])),
            Kind::Bytes => Some(Piece::Bytes(&self.bytes[range])),
        }
    }

    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.entries
            .get(id as usize)
            .is_some_and(|entry| entry.special)
    }

    /// All special ids, ascending.
    pub fn special_ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.special)
            .map(|(id, _)| id)
    }

    /// The shortest suffix of a prompt that settles whether its text ends inside a character: as many ids as hold three
    /// visible bytes. It is what `StreamOptions::prompt_tail` needs; more does no harm.
    #[must_use]
    pub fn prompt_tail<'p>(&self, prompt: &'p [u32], skip_special_tokens: bool) -> &'p [u32] {
        let mut bytes = 0;
        for (index, &id) in prompt.iter().enumerate().rev() {
            bytes += self
                .visible(id, skip_special_tokens)
                .map_or(0, |piece| piece.as_bytes().len());
            if bytes >= 3 {
                return &prompt[index..];
            }
        }
        prompt
    }
}
