//! Masks against acceptance by definition.

use std::sync::Arc;

use diptych_text::{Grammar, GrammarCompiler, Matcher, TextError, TokenTable};
use proptest::prelude::*;
use serde_json::Value;

use crate::common::cases;

pub(crate) const PIECES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"ab",
    b"ba",
    b"abc",
    b"cc",
    b"aab",
    b"bc",
    b"\xC3",
    b"\xA9",
    b"\xC3\xA9",
    b"a\xC3",
    b"a",
];

/// Pieces, an id without a token, a special token that spells `a`, and two that end an output.
pub(crate) struct Vocabulary {
    tokens: Vec<Option<(Vec<u8>, bool)>>,
    pub(crate) ends: [u32; 2],
}

impl Vocabulary {
    pub(crate) fn new(pieces: &[&[u8]]) -> Self {
        let ordinary = pieces.iter().map(|piece| Some((piece.to_vec(), false)));
        let mut tokens: Vec<_> = ordinary.collect();
        tokens.extend([None, Some((b"a".to_vec(), true))]);
        let end = tokens.len() as u32;
        tokens.extend([
            Some((b"<end>".to_vec(), true)),
            Some((b"<eos>".to_vec(), true)),
        ]);
        Self {
            tokens,
            ends: [end, end + 1],
        }
    }

    pub(crate) fn compiler(&self) -> GrammarCompiler {
        let table = Arc::new(TokenTable::new(self.tokens.iter().cloned()));
        // A model's vocabulary may be padded.
        GrammarCompiler::new(table, self.tokens.len() as u32 + 3, &self.ends)
    }

    fn ordinary(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let all = (0..).zip(&self.tokens);
        all.filter_map(|(id, token)| match token {
            Some((bytes, false)) => Some((id, bytes.as_slice())),
            _ => None,
        })
    }
}

pub(crate) fn ids(mask: &[u32]) -> Vec<u32> {
    let all = 0..mask.len() as u32 * 32;
    all.filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
        .collect()
}

fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mut mask = Vec::new();
    matcher.mask(&[], &mut mask).expect("within the limits");
    ids(&mask)
}

/// A regular expression by its definition.
#[derive(Clone, Debug, PartialEq)]
enum Regex {
    Nothing,
    Empty,
    Byte(u8),
    Both(Box<Regex>, Box<Regex>),
    Either(Box<Regex>, Box<Regex>),
    Many(Box<Regex>),
}

impl Regex {
    fn both(first: Self, second: Self) -> Self {
        match (first, second) {
            (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
            (Self::Empty, other) | (other, Self::Empty) => other,
            (first, second) => Self::Both(Box::new(first), Box::new(second)),
        }
    }

    fn either(first: Self, second: Self) -> Self {
        match (first, second) {
            (Self::Nothing, other) | (other, Self::Nothing) => other,
            (first, second) if first == second => first,
            (first, second) => Self::Either(Box::new(first), Box::new(second)),
        }
    }

    fn accepts_nothing_more(&self) -> bool {
        match self {
            Self::Nothing | Self::Byte(_) => false,
            Self::Empty | Self::Many(_) => true,
            Self::Both(first, second) => {
                first.accepts_nothing_more() && second.accepts_nothing_more()
            }
            Self::Either(first, second) => {
                first.accepts_nothing_more() || second.accepts_nothing_more()
            }
        }
    }

    /// What is left to match after one byte (Brzozowski, 1964).
    fn after(&self, byte: u8) -> Self {
        match self {
            Self::Byte(own) if *own == byte => Self::Empty,
            Self::Nothing | Self::Empty | Self::Byte(_) => Self::Nothing,
            Self::Both(first, second) => {
                let within = Self::both(first.after(byte), second.as_ref().clone());
                if first.accepts_nothing_more() {
                    Self::either(within, second.after(byte))
                } else {
                    within
                }
            }
            Self::Either(first, second) => Self::either(first.after(byte), second.after(byte)),
            Self::Many(part) => Self::both(part.after(byte), self.clone()),
        }
    }

    fn after_all(&self, bytes: &[u8]) -> Self {
        bytes
            .iter()
            .fold(self.clone(), |regex, &byte| regex.after(byte))
    }
}

/// As text, and by definition.
fn regexes() -> impl Strategy<Value = (String, Regex)> {
    let bytes = |text: &str| {
        text.bytes().fold(Regex::Empty, |before, byte| {
            Regex::both(before, Regex::Byte(byte))
        })
    };
    let leaf = prop_oneof![
        Just("a"),
        Just("b"),
        Just("c"),
        Just("ab"),
        Just("é"),
        Just("cab")
    ];
    let leaf = leaf.prop_map(move |text| (text.to_owned(), bytes(text)));
    leaf.prop_recursive(4, 16, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| (format!("{}{}", a.0, b.0), Regex::both(a.1, b.1))),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| (format!("({}|{})", a.0, b.0), Regex::either(a.1, b.1))),
            inner
                .clone()
                .prop_map(|a| (format!("({})*", a.0), Regex::Many(Box::new(a.1)))),
            inner.prop_map(|a| (format!("({})?", a.0), Regex::either(Regex::Empty, a.1))),
        ]
    })
}

/// Follows a random output and compares each mask with the definition.
fn follow(vocabulary: &Vocabulary, grammar: &Grammar, regex: &Regex, picks: &[u8]) {
    let mut matcher = match vocabulary.compiler().compile(grammar) {
        Ok(matcher) => matcher,
        Err(error) => panic!("{grammar:?}: {error}"),
    };
    let mut left = regex.clone();
    for &pick in picks {
        let fits = vocabulary
            .ordinary()
            .filter(|(_, bytes)| left.after_all(bytes) != Regex::Nothing);
        let mut expected: Vec<u32> = fits.map(|(id, _)| id).collect();
        if left.accepts_nothing_more() {
            expected.extend(vocabulary.ends);
        }
        let mut other = matcher.clone();
        assert_eq!(
            allowed(&mut matcher),
            expected,
            "{grammar:?}, left {left:?}"
        );
        assert_eq!(allowed(&mut other), expected, "a clone of {grammar:?}");
        assert_eq!(
            matcher.may_end().expect("in order"),
            left.accepts_nothing_more()
        );
        let next = expected[usize::from(pick) % expected.len()];
        matcher.push(next).expect("it was in the mask");
        if vocabulary.ends.contains(&next) {
            return assert_eq!(allowed(&mut matcher), vocabulary.ends);
        }
        let (bytes, _) = vocabulary.tokens[next as usize].as_ref().expect("a token");
        left = left.after_all(bytes);
        // The fork stays where it was.
        assert_eq!(allowed(&mut other), expected);
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn masks_of_regular_expressions_are_those_of_their_definition(
        (text, regex) in regexes(),
        picks in proptest::collection::vec(any::<u8>(), 1..8),
    ) {
        // Only what can be written as a token of this vocabulary can be followed to an end.
        follow(&Vocabulary::new(PIECES), &Grammar::Regex(text), &regex, &picks);
    }

    #[test]
    fn masks_of_choices_are_their_continuations(
        texts in proptest::collection::vec("[abcé]{1,5}", 1..6),
        picks in proptest::collection::vec(any::<u8>(), 1..8),
    ) {
        let spelt = |text: &String| {
            text.bytes().fold(Regex::Empty, |before, byte| Regex::both(before, Regex::Byte(byte)))
        };
        let regex = texts.iter().map(spelt).fold(Regex::Nothing, Regex::either);
        follow(&Vocabulary::new(PIECES), &Grammar::Choice(texts), &regex, &picks);
    }
}

pub(crate) fn json_vocabulary() -> Vocabulary {
    let bytes: Vec<Vec<u8>> = (0x20..0x7F).map(|byte| vec![byte]).collect();
    let longer: [&[u8]; 12] = [
        b"{\"", b"\":", b"\": \"", b"\"}", b"true", b"null", b" \n", b"12", b"name", b"\xC3",
        b"\xA9", b"\", \"",
    ];
    let pieces: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).chain(longer).collect();
    Vocabulary::new(&pieces)
}

/// A random output of at most so many tokens; `None` if it did not end.
fn output(
    compiler: &GrammarCompiler,
    vocabulary: &Vocabulary,
    grammar: &Grammar,
    picks: &[u16],
) -> Option<String> {
    let mut matcher = compiler.compile(grammar).expect("a grammar");
    let mut text = Vec::new();
    for (index, &pick) in picks.iter().enumerate() {
        let allowed = allowed(&mut matcher);
        // Towards the end, whatever ends soonest.
        let ends = allowed.iter().find(|id| vocabulary.ends.contains(id));
        let shortest = |id: &u32| {
            let bytes = &vocabulary.tokens[*id as usize].as_ref().expect("a token").0;
            u8::from(!matches!(bytes[0], b'}' | b']' | b'"'))
        };
        let next = match (ends, allowed.iter().copied().min_by_key(shortest)) {
            (Some(&end), _) if index > 30 => end,
            (None, Some(closing)) if index > 60 => closing,
            _ => allowed[usize::from(pick) % allowed.len()],
        };
        if vocabulary.ends.contains(&next) {
            return Some(String::from_utf8(text).expect("a grammar of characters"));
        }
        matcher.push(next).expect("it was in the mask");
        text.extend(
            &vocabulary.tokens[next as usize]
                .as_ref()
                .expect("a token")
                .0,
        );
    }
    None
}

const PERSON: &str = r##"{"type": "object", "additionalProperties": false, "required": ["name", "age"],
  "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"$ref": "#/$defs/small"},
                 "tags": {"type": "array", "items": {"enum": ["x", "é"]}, "maxItems": 2}},
  "$defs": {"small": {"type": "integer", "minimum": 3, "maximum": 17}}}"##;

fn is_person(value: &Value) -> bool {
    let Some(object) = value.as_object() else {
        return false;
    };
    let tags = |tags: &Value| {
        let tags = tags.as_array();
        tags.is_some_and(|tags| tags.len() <= 2 && tags.iter().all(|tag| tag == "x" || tag == "é"))
    };
    object
        .get("name")
        .and_then(Value::as_str)
        .is_some_and(|name| name.chars().count() <= 5)
        && object
            .get("age")
            .and_then(Value::as_i64)
            .is_some_and(|age| (3..=17).contains(&age))
        && object.get("tags").is_none_or(tags)
        && object
            .keys()
            .all(|key| ["name", "age", "tags"].contains(&key.as_str()))
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn every_finished_output_is_what_its_schema_says(picks in proptest::collection::vec(any::<u16>(), 400)) {
        let vocabulary = json_vocabulary();
        let compiler = vocabulary.compiler();
        let text = output(&compiler, &vocabulary, &Grammar::JsonSchema(PERSON.to_owned()), &picks);
        let text = text.expect("strings and lists are bounded");
        let value: Value = serde_json::from_str(&text).expect(&text);
        prop_assert!(is_person(&value), "{}", text);
        if let Some(text) = output(&compiler, &vocabulary, &Grammar::JsonObject, &picks) {
            match serde_json::from_str::<Value>(&text) {
                Ok(value) => prop_assert!(value.is_object(), "{}", text),
                // JSON knows no largest number.
                Err(error) => prop_assert!(error.to_string().contains("out of range"), "{}", text),
            }
        }
    }
}

#[test]
fn a_lark_grammar_derives_what_its_start_says() {
    let vocabulary = json_vocabulary();
    let compiler = vocabulary.compiler();
    let grammar = Grammar::Lark("start: \"1\" rest\nrest: \"2\" | \"3\" rest".to_owned());
    let mut matcher = compiler.compile(&grammar).unwrap();
    let id = |text: &str| {
        let mut all = vocabulary.ordinary();
        all.find(|(_, bytes)| *bytes == text.as_bytes()).unwrap().0
    };
    assert_eq!(allowed(&mut matcher), [id("1"), id("12")]);
    matcher.push(id("1")).unwrap();
    assert_eq!(allowed(&mut matcher), [id("2"), id("3")]);
    matcher.push(id("3")).unwrap();
    matcher.push(id("2")).unwrap();
    assert_eq!(allowed(&mut matcher), vocabulary.ends);
}

#[test]
fn special_tokens_come_where_a_grammar_names_them_and_nowhere_else() {
    let vocabulary = Vocabulary::new(PIECES);
    let compiler = vocabulary.compiler();
    let mut any = compiler
        .compile(&Grammar::Regex("(?s:.)*".to_owned()))
        .unwrap();
    let special = vocabulary.ends[0] - 1;
    assert!(!allowed(&mut any).contains(&special));
    assert!(allowed(&mut any).contains(&vocabulary.ends[0]));
    let mut named = compiler
        .compile(&Grammar::Lark("start: \"a\" <end> \"b\"".to_owned()))
        .unwrap();
    named.push(0).unwrap();
    assert_eq!(allowed(&mut named), [vocabulary.ends[0]]);
}

#[test]
fn avoided_tokens_are_left_out_as_long_as_any_other_is_left() {
    let vocabulary = Vocabulary::new(PIECES);
    let mut matcher = vocabulary
        .compiler()
        .compile(&Grammar::Regex("a?".to_owned()))
        .unwrap();
    let mut mask = Vec::new();
    matcher.mask(&vocabulary.ends, &mut mask).unwrap();
    // Two tokens spell it.
    assert_eq!(ids(&mask), [0, 13]);
    matcher.push(0).unwrap();
    matcher.mask(&vocabulary.ends, &mut mask).unwrap();
    assert_eq!(ids(&mask), vocabulary.ends);
}

#[test]
fn a_token_outside_the_mask_and_a_stopped_matcher_are_errors() {
    let vocabulary = Vocabulary::new(PIECES);
    let compiler = vocabulary.compiler();
    let grammar = Grammar::Regex("a+".to_owned());
    let mut matcher = compiler.compile(&grammar).unwrap();
    let error = matcher.push(1).unwrap_err();
    assert!(matches!(error, TextError::GrammarFailed { .. }), "{error}");
    let mut stopped = compiler.compile(&grammar).unwrap();
    let mut fork = stopped.clone();
    stopped.stopper().stop();
    assert!(stopped.mask(&[], &mut Vec::new()).is_err());
    assert_eq!(allowed(&mut fork), [0, 7 + 6]);
}

#[test]
fn a_model_without_an_end_follows_no_grammar() {
    let table = Arc::new(TokenTable::new([Some((b"a".to_vec(), false))]));
    let error = GrammarCompiler::new(table, 1, &[]).compile(&Grammar::JsonObject);
    assert!(
        matches!(error, Err(TextError::NoGrammars { .. })),
        "{error:?}"
    );
}
