//! Integers as Python's `json` reads them. `serde_json` makes floats of those past 64 bits and of `-0`; its feature against that
//! would change what every other user of it in the program reads.

use std::collections::hash_map::RandomState;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::Arc;

use minijinja::Value as TemplateValue;
use minijinja::value::{Object, ObjectRepr, Serde};
use serde_json::{Map, Value};

/// The only name of the objects that stand for such numbers in a marked text. It is drawn anew for each text, so that no
/// text can hold such an object of its own.
#[derive(Debug)]
pub(super) struct Mark(String);

/// The text with an object `{mark: number}` in place of each number that would be misread; `None` if there are none.
pub(super) fn mark(json: &str) -> Option<(String, Mark)> {
    let found = misread(json);
    if found.is_empty() {
        return None;
    }
    let name = format!("{:016x}", RandomState::new().build_hasher().finish());
    let mut marked = String::with_capacity(json.len() + found.len() * (name.len() + 8));
    let mut done = 0;
    for Range { start, end } in found {
        let (before, number) = (&json[done..start], &json[start..end]);
        write!(marked, "{before}{{\"{name}\":\"{number}\"}}")
            .expect("writing to a String succeeds");
        done = end;
    }
    marked.push_str(&json[done..]);
    Some((marked, Mark(name)))
}

impl Mark {
    /// What a template sees of a part of the marked text.
    pub(super) fn to_template(&self, value: &Value) -> TemplateValue {
        match value {
            Value::Array(items) => items.iter().map(|item| self.to_template(item)).collect(),
            Value::Object(fields) => match fields.get(&self.0) {
                Some(Value::String(text)) => number(text),
                _ => self.object(fields),
            },
            plain => TemplateValue::from(Serde(plain)),
        }
    }

    fn object(&self, fields: &Map<String, Value>) -> TemplateValue {
        let entries = fields.iter();
        TemplateValue::from_pairs(
            entries.map(|(name, value)| (name.clone(), self.to_template(value))),
        )
    }
}

fn number(text: &str) -> TemplateValue {
    match text.parse::<i128>() {
        Ok(integer) => TemplateValue::from(integer),
        Err(_) => TemplateValue::from_object(LongInteger(text.to_owned())),
    }
}

/// An integer past 128 bits: templates can print it, and not calculate with it.
#[derive(Debug)]
pub(super) struct LongInteger(String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Where the numbers stand that `serde_json` misreads.
fn misread(json: &str) -> Vec<Range<usize>> {
    let bytes = json.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest[0] {
            b'"' => string_length(rest),
            b'-' | b'0'..=b'9' => {
                let length = number_length(rest);
                if is_misread(&json[at..at + length]) {
                    found.push(at..at + length);
                }
                length
            }
            _ => 1,
        };
    }
    found
}

/// Bytes of the string that begins here, quotes included.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn number_length(bytes: &[u8]) -> usize {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    bytes
        .iter()
        .position(|byte| !is_part(byte))
        .unwrap_or(bytes.len())
}

/// What is no JSON, a leading zero among that, is left to `serde_json`, which refuses it.
fn is_misread(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    text == "-0" || (is_integer && !fits && !digits.starts_with('0'))
}
