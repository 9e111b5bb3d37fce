//! Stop strings: one automaton per request, and exactly as much held back as may still become a match.

use std::collections::{HashMap, HashSet};

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use crate::error::TextError;

/// The most stop strings of one request.
pub const MAX_STOP_STRINGS: usize = 128;
/// The most bytes of UTF-8 in all stop strings of one request.
pub const MAX_STOP_BYTES: usize = 64 * 1024;

/// Which stop string ended the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Its index in the request's list; the first, where a string is listed twice.
    pub stop_index: usize,
}

/// A prefix of a stop string: the text held back is always one, so that it need not be stored.
#[derive(Debug, Clone, Copy, Default)]
struct Prefix {
    stop: usize,
    length: usize,
}

/// Searches text that comes in pieces.
///
/// The match that *completes* first wins; of those that complete with the same byte, the longest, that is the one that
/// starts first. So the outcome depends on the text alone, never on how it was cut into tokens or on the order of the
/// list. A stop string that contains another one completing earlier can never win; such strings are left out, and what
/// is held back is exactly what may become part of the winning match.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    automaton: NFA,
    stops: Vec<String>,
    /// Index into `stops` of each of the automaton's patterns.
    pattern_stops: Vec<usize>,
    /// What the automaton's states stand for: the longest suffix of the text that begins some stop string.
    prefixes: HashMap<StateID, Prefix>,
    include_stop: bool,
    start: StateID,
    state: StateID,
    held: Prefix,
}

impl StopMatcher {
    /// `None` if there is nothing to search for.
    pub(crate) fn new(stops: Vec<String>, include_stop: bool) -> Result<Option<Self>, TextError> {
        check_limits(&stops)?;
        if stops.is_empty() {
            return Ok(None);
        }
        let pattern_stops = winnable(&stops);
        let automaton = build(pattern_stops.iter().map(|&stop| &stops[stop]));
        let start = start_state(&automaton);
        let prefixes = name_states(&automaton, &stops, &pattern_stops);
        Ok(Some(Self {
            automaton,
            stops,
            pattern_stops,
            prefixes,
            include_stop,
            start,
            state: start,
            held: Prefix::default(),
        }))
    }

    /// Takes the next text and appends to `out` what may be sent. After a match nothing more may be given.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            self.state = self.automaton.next_state(Anchored::No, self.state, byte);
            if self.automaton.is_match(self.state) {
                return Some(self.end_at(text, index + 1, out));
            }
        }
        let next = if self.state == self.start {
            Prefix::default()
        } else {
            self.prefixes[&self.state]
        };
        self.send(text, self.held.length + text.len() - next.length, out);
        self.held = next;
        None
    }

    /// Ends the text without a match: what was held back is text after all.
    pub(crate) fn flush(&mut self, out: &mut String) {
        self.send("", self.held.length, out);
        self.held = Prefix::default();
    }

    /// The text that is held back.
    pub(crate) fn held(&self) -> &str {
        &self.stops[self.held.stop][..self.held.length]
    }

    fn end_at(&mut self, text: &str, end: usize, out: &mut String) -> StopMatch {
        let stop_index = self.longest_match();
        let end = self.held.length + end;
        let cut = if self.include_stop {
            end
        } else {
            end - self.stops[stop_index].len()
        };
        self.send(text, cut, out);
        self.held = Prefix::default();
        StopMatch { stop_index }
    }

    fn longest_match(&self) -> usize {
        (0..self.automaton.match_len(self.state))
            .map(|index| {
                self.pattern_stops[self.automaton.match_pattern(self.state, index).as_usize()]
            })
            .max_by_key(|&stop| self.stops[stop].len())
            .expect("a match state has a match")
    }

    /// Sends the first `length` bytes of the held text followed by `text`.
    fn send(&self, text: &str, length: usize, out: &mut String) {
        let from_held = length.min(self.held.length);
        out.push_str(&self.held()[..from_held]);
        out.push_str(&text[..length - from_held]);
    }
}

fn check_limits(stops: &[String]) -> Result<(), TextError> {
    if let Some(index) = stops.iter().position(String::is_empty) {
        return Err(TextError::EmptyStop { index });
    }
    if stops.len() > MAX_STOP_STRINGS {
        return Err(TextError::TooManyStops {
            count: stops.len(),
            limit: MAX_STOP_STRINGS,
        });
    }
    let bytes = stops.iter().map(String::len).sum();
    if bytes > MAX_STOP_BYTES {
        return Err(TextError::StopsTooLong {
            bytes,
            limit: MAX_STOP_BYTES,
        });
    }
    Ok(())
}

fn build<'s>(patterns: impl Iterator<Item = &'s String>) -> NFA {
    NFA::builder()
        .match_kind(MatchKind::Standard)
        .prefilter(false)
        .build(patterns)
        .expect("the limits on stop strings are far below the automaton's")
}

fn start_state(automaton: &NFA) -> StateID {
    automaton
        .start_state(Anchored::No)
        .expect("a standard automaton searches unanchored")
}

/// Indexes of the stop strings that can win: each once, and none that contains another one ending before its own end.
fn winnable(stops: &[String]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let distinct: Vec<usize> = (0..stops.len())
        .filter(|&stop| seen.insert(&stops[stop]))
        .collect();
    if distinct.len() < 2 {
        return distinct;
    }
    let automaton = build(distinct.iter().map(|&stop| &stops[stop]));
    let ends_early = |stop: &str| {
        let mut state = start_state(&automaton);
        stop.as_bytes()[..stop.len() - 1].iter().any(|&byte| {
            state = automaton.next_state(Anchored::No, state, byte);
            automaton.is_match(state)
        })
    };
    distinct
        .into_iter()
        .filter(|&stop| !ends_early(&stops[stop]))
        .collect()
}

/// Walking a pattern from the start visits the states that stand for its prefixes.
fn name_states(automaton: &NFA, stops: &[String], patterns: &[usize]) -> HashMap<StateID, Prefix> {
    let mut prefixes = HashMap::new();
    for &stop in patterns {
        let mut state = start_state(automaton);
        for (index, &byte) in stops[stop].as_bytes().iter().enumerate() {
            state = automaton.next_state(Anchored::No, state, byte);
            prefixes.entry(state).or_insert(Prefix {
                stop,
                length: index + 1,
            });
        }
    }
    prefixes
}
