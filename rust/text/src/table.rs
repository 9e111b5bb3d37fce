//! Ids to bytes.

use std::ops::Range;

use crate::decoder::{Contribution, DecodingPlan};
use crate::steps::TextSteps;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    start: u32,
    length: u32,
    kind: Kind,
    special: bool,
    fallback: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Text,
    Bytes,
}

/// A token that shows in the text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    id: u32,
    entry: Entry,
}

impl Shown {
    pub(crate) fn is_special(self) -> bool {
        self.entry.special
    }

    /// Whether it is a byte that runs together with such bytes before and after it.
    pub(crate) fn is_fallback(self) -> bool {
        self.entry.fallback
    }
}

/// The exact bytes of every token id, and which ids are special. Immutable and shared by all requests.
#[derive(Debug)]
pub struct TokenTable {
    entries: Vec<Entry>,
    /// What the tokens give as the first of a text, where that is something else for any of them.
    first: Option<Vec<Entry>>,
    // Valid tokens are kept apart in a `String`, so that giving one out as `&str` costs two boundary checks, not a
    // validation.
    text: String,
    bytes: Vec<u8>,
    steps: TextSteps,
    has_runs: bool,
}

impl TokenTable {
    /// Builds a table from `(bytes, special)` per id, in order of id; `None` for an id that names no token. The text is
    /// then the bytes, one after the other.
    ///
    /// # Panics
    /// If all tokens together have 4 GiB or more.
    #[must_use]
    pub fn new(tokens: impl IntoIterator<Item = Option<(Vec<u8>, bool)>>) -> Self {
        let mut table = Self::empty(TextSteps::new(Vec::new(), true, false));
        for token in tokens {
            let entry = match token {
                Some((bytes, special)) => table.store(&bytes, special, false),
                None => UNKNOWN,
            };
            table.entries.push(entry);
        }
        table
    }

    /// Builds a table from the tokens as the vocabulary has them, and whether each is special.
    ///
    /// # Errors
    /// What the library says of a token that its decoder fails on.
    pub(crate) fn decoded(
        plan: &DecodingPlan,
        tokens: impl IntoIterator<Item = Option<(String, bool)>>,
    ) -> Result<Self, String> {
        let steps = TextSteps::new(plan.text_steps.clone(), plan.fused, plan.has_runs());
        let mut table = Self::empty(steps);
        table.has_runs = plan.has_runs();
        let mut first = Vec::new();
        for token in tokens {
            let Some((token, special)) = token else {
                table.entries.push(UNKNOWN);
                first.push(UNKNOWN);
                continue;
            };
            let contribution: Contribution = plan.contribution(token)?;
            let entry = table.store(&contribution.bytes, special, contribution.fallback);
            table.entries.push(entry);
            first.push(match contribution.first {
                Some(bytes) => table.store(&bytes, special, contribution.fallback),
                None => entry,
            });
        }
        table.first = (first != table.entries).then_some(first);
        Ok(table)
    }

    fn empty(steps: TextSteps) -> Self {
        Self {
            entries: Vec::new(),
            first: None,
            text: String::new(),
            bytes: Vec::new(),
            steps,
            has_runs: false,
        }
    }

    fn store(&mut self, bytes: &[u8], special: bool, fallback: bool) -> Entry {
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
            fallback,
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

    /// The bytes of a token that others precede; `None` for an id that names no token (a gap, or past the end: models
    /// pad vocabularies).
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.piece(id).map(Piece::as_bytes)
    }

    /// As [`bytes`](Self::bytes), knowing whether they are whole characters.
    #[must_use]
    pub fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let shown = self.shown(id, false)?;
        Some(self.piece_of(shown.entry))
    }

    /// `None` if an id names no token, or a special one where those are skipped.
    #[inline]
    pub(crate) fn shown(&self, id: u32, skip_special_tokens: bool) -> Option<Shown> {
        let entry = *self.entries.get(id as usize)?;
        let hidden = entry.kind == Kind::Unknown || (skip_special_tokens && entry.special);
        (!hidden).then_some(Shown { id, entry })
    }

    /// What a token contributes to the text where others precede it.
    #[inline]
    pub(crate) fn piece_after_others(&self, shown: Shown) -> Piece<'_> {
        self.piece_of(shown.entry)
    }

    /// What it contributes as the first.
    pub(crate) fn piece_as_first(&self, shown: Shown) -> Piece<'_> {
        let first = self.first.as_ref();
        self.piece_of(first.map_or(shown.entry, |first| first[shown.id as usize]))
    }

    /// Whether what a token contributes depends on whether others precede it.
    #[inline]
    pub(crate) fn depends_on_place(&self) -> bool {
        self.first.is_some()
    }

    /// Whether a token ends the run of byte tokens before it though it has no text itself.
    #[inline]
    pub(crate) fn ends_run(&self, piece: Piece<'_>) -> bool {
        self.has_runs && piece == Piece::Text("")
    }

    /// What the decoder does beyond the table, at the beginning of a text.
    pub(crate) fn steps(&self) -> &TextSteps {
        &self.steps
    }

    #[inline]
    fn piece_of(&self, entry: Entry) -> Piece<'_> {
        let range: Range<usize> =
            entry.start as usize..entry.start as usize + entry.length as usize;
        match entry.kind {
            Kind::Text => Piece::Text(&self.text[range]),
            Kind::Bytes => Piece::Bytes(&self.bytes[range]),
            Kind::Unknown => Piece::Text(""),
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
}

const UNKNOWN: Entry = Entry {
    start: 0,
    length: 0,
    kind: Kind::Unknown,
    special: false,
    fallback: false,
};
