//! What llguidance would take and not follow, or not live through, in what clients write: checked before it sees any of it.

use std::collections::{HashMap, HashSet};

use serde_json::{Deserializer, Map, Value};

use crate::grammar::limits::{
    MAX_INTERSECTION, MAX_LARK_BYTES, MAX_PATTERN_BYTES, MAX_REGEX_BYTES,
};

/// Largest whole number that every number of JSON's usual readers holds exactly. The library counts in such, and recurses
/// without end near the end of its integers.
const LARGEST_WHOLE: f64 = 9_007_199_254_740_991.0;

/// Keys of bounds.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// A schema, with whatever stands in it: a reference may make a schema of any part. Gives the bytes of its patterns.
pub(super) fn schema(value: &Value) -> Result<usize, String> {
    if let Some(options) = value.get("x-guidance") {
        check_options(options)?;
    }
    let mut found = Found::default();
    walk(value, &mut found)?;
    let bytes = found.patterns.iter().map(|text| text.len()).sum();
    pattern_bytes(bytes)?;
    if found.intersects {
        let lengths = found.patterns.iter().map(|text| text.len());
        // Formats are expressions of the library's own.
        let formats = found.formats.iter().map(|_| 0);
        intersection(lengths.chain(formats))?;
    }
    Ok(bytes)
}

/// Bytes of patterns that are compiled together.
pub(super) fn pattern_bytes(bytes: usize) -> Result<(), String> {
    if bytes > MAX_PATTERN_BYTES {
        return Err(format!(
            "its patterns have {bytes} bytes together, at most {MAX_PATTERN_BYTES} are compiled"
        ));
    }
    Ok(())
}

/// Expressions of these lengths, if one text is to match them all.
fn intersection(lengths: impl Iterator<Item = usize>) -> Result<(), String> {
    // At one place of a text, an expression tells at most about so many sets of bytes apart.
    let sets = |length: usize| (16 + length / 4) as f64;
    let (mut count, mut product) = (0, 1.0);
    for length in lengths {
        count += 1;
        product *= sets(length);
    }
    if count > 1 && product > MAX_INTERSECTION {
        return Err(format!(
            "it may have one text match {count} expressions at once (allOf, $ref, anyOf or oneOf beside other keys, &): use fewer or shorter ones"
        ));
    }
    Ok(())
}

/// What stands in a schema.
#[derive(Default)]
struct Found<'a> {
    patterns: HashSet<&'a str>,
    formats: HashSet<&'a str>,
    /// Whether a text may have to follow more than one of them.
    intersects: bool,
}

/// A regular expression.
pub(super) fn regex(text: &str) -> Result<(), String> {
    if text.len() > MAX_REGEX_BYTES {
        return Err(format!(
            "a regular expression of {} bytes, at most {MAX_REGEX_BYTES} are compiled",
            text.len()
        ));
    }
    Ok(())
}

/// A Lark grammar: the schemas in it, and the expressions that it intersects.
pub(super) fn lark(text: &str) -> Result<(), String> {
    const DIRECTIVE: &str = "%json";
    let count = 1 + text.matches('&').count();
    intersection((0..count).map(|_| text.len() / count))?;
    terminals(text)?;
    let mut patterns = 0;
    for (place, _) in text.match_indices(DIRECTIVE) {
        let rest = &text[place + DIRECTIVE.len()..];
        // What is no JSON is in a comment or a text, or the library says so.
        if let Some(Ok(value)) = Deserializer::from_str(rest).into_iter::<Value>().next() {
            patterns += schema(&value)?;
        }
    }
    pattern_bytes(patterns)
}

/// Terminals stand for their whole text wherever they are named, so few could double one another to any length.
fn terminals(text: &str) -> Result<(), String> {
    let mut bodies: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut current = "";
    for line in text.lines() {
        let (first, rest) = first_name(line);
        let is_definition = !first.is_empty() && rest.trim_start().starts_with(':');
        if !is_definition {
            bodies.entry(current).or_default().push(line);
        }
        // With attributes between, it cannot be told: it counts for both.
        if !first.is_empty() && rest.contains(':') {
            current = first;
            bodies.entry(current).or_default().push(rest);
        }
    }
    let mut lengths = HashMap::new();
    let mut names: Vec<&str> = bodies
        .keys()
        .copied()
        .filter(|name| is_terminal(name))
        .collect();
    names.sort_unstable();
    for name in names {
        let length = expanded(name, &bodies, &mut lengths);
        if length > MAX_LARK_BYTES {
            return Err(format!(
                "the terminal {name} has {length} bytes or more with those that it is made of, at most {MAX_LARK_BYTES} are compiled"
            ));
        }
    }
    Ok(())
}

fn first_name(line: &str) -> (&str, &str) {
    let line = line.trim_start();
    let end = line.find(|letter| !is_of_name(letter));
    line.split_at(end.unwrap_or(line.len()))
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn is_terminal(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    name.starts_with(|letter: char| letter.is_ascii_uppercase())
}

/// Bytes of a terminal with those that it names.
fn expanded<'a>(
    name: &'a str,
    bodies: &HashMap<&'a str, Vec<&'a str>>,
    lengths: &mut HashMap<&'a str, usize>,
) -> usize {
    if let Some(length) = lengths.get(name) {
        return *length;
    }
    // What is made of itself is refused by the library.
    lengths.insert(name, 0);
    let mut length = 0_usize;
    for body in bodies.get(name).into_iter().flatten() {
        length = length.saturating_add(body.len());
        for word in body.split(|letter| !is_of_name(letter)) {
            if is_terminal(word) && bodies.contains_key(word) {
                length = length.saturating_add(expanded(word, bodies, lengths));
            }
        }
    }
    lengths.insert(name, length);
    length
}

/// Options of the library, of which some make other text than JSON.
fn check_options(options: &Value) -> Result<(), String> {
    const ALLOWED: &str = "whitespace_flexible";
    let is_allowed = |(key, value): (&String, &Value)| key == ALLOWED && value.is_boolean();
    match options.as_object() {
        Some(options) if options.iter().all(is_allowed) => Ok(()),
        _ => Err(format!(
            "x-guidance: {options} is not allowed, only an object with {ALLOWED:?}, true or false"
        )),
    }
}

fn walk<'a>(value: &'a Value, found: &mut Found<'a>) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, found)),
        Value::Object(object) => {
            check_interval(object)?;
            found.intersects |= intersects(object);
            object
                .iter()
                .try_for_each(|(key, value)| member(key, value, found))
        }
        _ => Ok(()),
    }
}

fn member<'a>(key: &str, value: &'a Value, found: &mut Found<'a>) -> Result<(), String> {
    match (key, value) {
        ("const" | "enum", _) => exact_numbers(key, value)?,
        ("multipleOf", Value::Number(number)) => {
            exact(key, value)?;
            check_divisor(number.as_f64().unwrap_or_default())?;
        }
        ("pattern", Value::String(text)) => {
            regex(text)?;
            found.patterns.insert(text);
        }
        ("format", Value::String(text)) => {
            found.formats.insert(text);
        }
        ("patternProperties", Value::Object(object)) => {
            for text in object.keys() {
                regex(text)?;
                found.patterns.insert(text);
            }
        }
        _ if BOUNDS.contains(&key) => exact(key, value)?,
        _ => {}
    }
    walk(value, found)
}

/// Whether what it accepts is the intersection of schemas.
fn intersects(object: &Map<String, Value>) -> bool {
    const JOINS: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
    const ASIDE: [&str; 17] = [
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "nullable",
        "readOnly",
        "title",
        "type",
        "writeOnly",
    ];
    let all = object.get("allOf").and_then(Value::as_array);
    let counts = object.keys().filter(|key| !ASIDE.contains(&key.as_str()));
    let joins = object.keys().any(|key| JOINS.contains(&key.as_str()));
    all.is_some_and(|all| all.len() > 1) || (joins && counts.count() > 1)
}

/// All numbers in a value.
fn exact_numbers(key: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| exact_numbers(key, item)),
        Value::Object(object) => object
            .values()
            .try_for_each(|item| exact_numbers(key, item)),
        _ => exact(key, value),
    }
}

fn exact(key: &str, value: &Value) -> Result<(), String> {
    let number = value.as_f64();
    if number.is_some_and(|number| number.abs() > LARGEST_WHOLE) {
        return Err(format!(
            "{key}: {value} cannot be followed exactly, only numbers from -{LARGEST_WHOLE} to {LARGEST_WHOLE}"
        ));
    }
    Ok(())
}

/// The library makes a whole number of 32 bits of it by steps of ten, rounding.
fn check_divisor(divisor: f64) -> Result<(), String> {
    let (mut coefficient, mut exponent) = (divisor, 0);
    while coefficient.fract() != 0.0 && exponent < 9 {
        coefficient *= 10.0;
        exponent += 1;
    }
    let is_whole = coefficient.fract() == 0.0 && coefficient <= f64::from(u32::MAX);
    #[expect(clippy::float_cmp, reason = "exactness is what is asked for")]
    let is_same = coefficient / 10_f64.powi(exponent) == divisor;
    if divisor > 0.0 && is_whole && is_same {
        return Ok(());
    }
    Err(format!(
        "multipleOf: {divisor} cannot be followed exactly, only numbers above 0 with few digits"
    ))
}

/// The library lets an excluded whole bound through where the other bound has the same whole part.
fn check_interval(object: &Map<String, Value>) -> Result<(), String> {
    let bound = |key: &str| object.get(key).and_then(Value::as_f64);
    let lowest = |keys: [&str; 2], choose: fn(f64, f64) -> f64| {
        keys.into_iter().filter_map(bound).reduce(choose)
    };
    let below = lowest(["minimum", "exclusiveMinimum"], f64::max);
    let above = lowest(["maximum", "exclusiveMaximum"], f64::min);
    let (Some(below), Some(above)) = (below, above) else {
        return Ok(());
    };
    let is_lost = |excluded: Option<f64>, whole: f64| {
        excluded == Some(whole) && whole.fract() == 0.0 && above - below < 1.0
    };
    let is_lost = (below >= 0.0 && is_lost(bound("exclusiveMinimum"), below))
        || (above <= 0.0 && is_lost(bound("exclusiveMaximum"), above));
    if is_lost && object.get("type").is_none_or(|kind| kind != "integer") {
        return Err(format!(
            "the numbers between {below} and {above} without the whole one at the end cannot be followed exactly: include it, or leave the other bound out"
        ));
    }
    Ok(())
}
