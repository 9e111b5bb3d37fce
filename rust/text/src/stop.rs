//! Stop strings: one automaton per request, and exactly as much held back as may still become a match.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

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

/// What is held back in one of the automaton's states.
#[derive(Debug, Clone, Copy, Default)]
struct Holding {
    /// The longest end of the text that may still win, where all later completions count.
    armed: Prefix,
    /// The longest that begins any stop string: what completes inside it may not count.
    unarmed: Prefix,
}

/// Searches text that comes token by token.
///
/// The match that *completes* first wins; of those that complete with the same byte, the longest, that is the one that
/// starts first. So the outcome depends on the text alone, never on how it was cut into tokens or on the order of the
/// list. A stop string that contains another one completing earlier can win only where that one did not count; what is
/// held back is exactly what may become part of the winning match.
///
/// A clone shares what was made of the stop strings: for all outputs of one prompt that is made once.
#[derive(Debug, Clone)]
pub(crate) struct StopMatcher {
    patterns: Arc<Patterns>,
    include_stop: bool,
    /// Tokens in which completions do not count.
    unarmed: u32,
    state: StateID,
    held: Prefix,
}

/// The stop strings, ready to be searched for.
#[derive(Debug)]
struct Patterns {
    automaton: NFA,
    stops: Vec<String>,
    /// Index into `stops` of each of the automaton's patterns.
    pattern_stops: Vec<usize>,
    holdings: HashMap<StateID, Holding>,
    start: StateID,
}

impl StopMatcher {
    /// `None` if there is nothing to search for.
    pub(crate) fn new(
        stops: Vec<String>,
        include_stop: bool,
        min_tokens: u32,
    ) -> Result<Option<Self>, TextError> {
        check_limits(&stops)?;
        if stops.is_empty() {
            return Ok(None);
        }
        let pattern_stops = distinct(&stops);
        let automaton = build(pattern_stops.iter().map(|&stop| &stops[stop]));
        let start = start_state(&automaton);
        let holdings = holdings(&automaton, &stops, &pattern_stops);
        let patterns = Patterns {
            automaton,
            stops,
            pattern_stops,
            holdings,
            start,
        };
        Ok(Some(Self {
            patterns: Arc::new(patterns),
            include_stop,
            unarmed: min_tokens,
            state: start,
            held: Prefix::default(),
        }))
    }

    /// Takes the text of the next token and appends to `out` what may be sent. After a match nothing more may be given.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        let armed = self.unarmed == 0;
        self.pass_token();
        let automaton = &self.patterns.automaton;
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            self.state = automaton.next_state(Anchored::No, self.state, byte);
            if armed && automaton.is_match(self.state) {
                return Some(self.end_at(text, index + 1, out));
            }
        }
        let next = if self.state == self.patterns.start {
            Prefix::default()
        } else {
            let holding = self.patterns.holdings[&self.state];
            if self.unarmed == 0 {
                holding.armed
            } else {
                holding.unarmed
            }
        };
        self.send(text, self.held.length + text.len() - next.length, out);
        self.held = next;
        None
    }

    /// Counts a token that has no text.
    pub(crate) fn pass_token(&mut self) {
        self.unarmed = self.unarmed.saturating_sub(1);
    }

    /// Ends the text without a match: what was held back is text after all.
    pub(crate) fn flush(&mut self, out: &mut String) {
        self.send("", self.held.length, out);
        self.held = Prefix::default();
    }

    /// The text that is held back.
    pub(crate) fn held(&self) -> &str {
        &self.patterns.stops[self.held.stop][..self.held.length]
    }

    fn end_at(&mut self, text: &str, end: usize, out: &mut String) -> StopMatch {
        let stop_index = self.longest_match();
        let end = self.held.length + end;
        let cut = if self.include_stop {
            end
        } else {
            end - self.patterns.stops[stop_index].len()
        };
        self.send(text, cut, out);
        self.held = Prefix::default();
        StopMatch { stop_index }
    }

    fn longest_match(&self) -> usize {
        let patterns = &self.patterns;
        let automaton = &patterns.automaton;
        (0..automaton.match_len(self.state))
            .map(|index| {
                patterns.pattern_stops[automaton.match_pattern(self.state, index).as_usize()]
            })
            .max_by_key(|&stop| patterns.stops[stop].len())
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

/// Indexes of the stop strings, each once.
fn distinct(stops: &[String]) -> Vec<usize> {
    let mut seen = HashSet::new();
    (0..stops.len())
        .filter(|&stop| seen.insert(&stops[stop]))
        .collect()
}

/// What is held back in each state that a text can end in. Walking a pattern from the start visits the states that stand
/// for its prefixes; the same walk one byte later visits what each falls back to.
fn holdings(automaton: &NFA, stops: &[String], patterns: &[usize]) -> HashMap<StateID, Holding> {
    let start = start_state(automaton);
    let mut begun: HashMap<StateID, Holding> = HashMap::new();
    // (length, state, what it falls back to)
    let mut states: Vec<(usize, StateID, StateID)> = Vec::new();
    for &stop in patterns {
        let text = stops[stop].as_bytes();
        let (mut state, mut fallback) = (start, start);
        let mut path = Vec::with_capacity(text.len());
        let mut decided = 0;
        for (index, &byte) in text.iter().enumerate() {
            state = automaton.next_state(Anchored::No, state, byte);
            if index > 0 {
                fallback = automaton.next_state(Anchored::No, fallback, byte);
            }
            let length = index + 1;
            path.push((length, state, fallback));
            // Before a text can become this stop string, it completes another one.
            if length < text.len() && automaton.is_match(state) {
                decided = length;
            }
        }
        for &(length, state, _) in &path[..text.len() - 1] {
            let prefix = Prefix { stop, length };
            let holding = begun.entry(state).or_default();
            holding.unarmed = prefix;
            if length >= decided {
                holding.armed = prefix;
            }
        }
        states.extend(path);
    }
    states.sort_unstable_by_key(|&(length, ..)| length);
    let mut holdings: HashMap<StateID, Holding> = HashMap::with_capacity(states.len());
    for (_, state, fallback) in states {
        let shorter = holdings.get(&fallback).copied().unwrap_or_default();
        let own = begun.get(&state).copied().unwrap_or_default();
        let longer = |own: Prefix, shorter| if own.length > 0 { own } else { shorter };
        holdings.insert(
            state,
            Holding {
                armed: longer(own.armed, shorter.armed),
                unarmed: longer(own.unarmed, shorter.unarmed),
            },
        );
    }
    holdings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_automaton_and_nothing_of_the_text() {
        let stops = vec!["end".to_owned(), "x".repeat(60_000)];
        let mut first = StopMatcher::new(stops, false, 0).unwrap().unwrap();
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.patterns, &second.patterns));
        let (mut one, mut two) = (String::new(), String::new());
        assert_eq!(first.push("the e", &mut one), None);
        assert_eq!(second.push("nd", &mut two), None);
        assert_eq!(
            first.push("nd", &mut one),
            Some(StopMatch { stop_index: 0 })
        );
        second.flush(&mut two);
        assert_eq!((one.as_str(), two.as_str()), ("the ", "nd"));
    }
}
