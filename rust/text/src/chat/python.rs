//! Values as Python prints them: `str`, `repr` and `json.dumps`.

use std::fmt::{self, Write as _};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::numbers::LongInteger;

pub(super) fn str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => repr(value),
    }
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value, ["inf", "-inf", "nan"]),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = items(value).map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let entries: Vec<String> = entries(value)
                .map(|(key, value)| format!("{}: {}", repr(&key), repr(&value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        _ => value.to_string(),
    }
}

fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if is_printable(character) => out.push(character),
            _ => push_escape(character, &mut out),
        }
    }
    out.push(quote);
    out
}

fn push_escape(character: char, out: &mut String) {
    match u32::from(character) {
        code @ ..=0xff => push_formatted(out, format_args!("\\x{code:02x}")),
        code @ ..=0xffff => push_formatted(out, format_args!("\\u{code:04x}")),
        code => push_formatted(out, format_args!("\\U{code:08x}")),
    }
}

fn is_printable(character: char) -> bool {
    character == ' ' || !(character.is_control() || character.is_whitespace())
}

/// How `json.dumps` was asked to write.
pub(super) struct JsonStyle {
    pub(super) item: String,
    pub(super) key: String,
    pub(super) indent: Option<String>,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

impl JsonStyle {
    pub(super) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value, ["Infinity", "-Infinity", "NaN"])),
            ValueKind::String => self.write_str(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = items(value).collect();
                self.write_container(['[', ']'], &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut entries: Vec<(Value, Value)> = entries(value).collect();
                if self.sort_keys {
                    entries.sort_by(|left, right| left.0.cmp(&right.0));
                }
                self.write_container(['{', '}'], &entries, depth, out, |(key, value), out| {
                    self.write_key(key, out)?;
                    out.push_str(&self.key);
                    self.write(value, depth + 1, out)
                })?;
            }
            ValueKind::Plain if value.downcast_object_ref::<LongInteger>().is_some() => {
                out.push_str(&value.to_string());
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson: a value of type {kind} has no JSON form"),
                ));
            }
        }
        Ok(())
    }

    fn write_container<T>(
        &self,
        [open, close]: [char; 2],
        items: &[T],
        depth: usize,
        out: &mut String,
        write_item: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            self.break_line(depth + 1, out);
            write_item(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        if key.as_str().is_some() {
            return self.write(key, 0, out);
        }
        let mut written = String::new();
        self.write(key, 0, &mut written)?;
        self.write_str(&written, out);
        Ok(())
    }

    fn write_str(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\u{20}'..='\u{7e}' => out.push(character),
                '\u{7f}'.. if !self.ensure_ascii => out.push(character),
                _ => push_utf16_escape(character, out),
            }
        }
        out.push('"');
    }
}

fn push_utf16_escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        push_formatted(out, format_args!("\\u{unit:04x}"));
    }
}

fn push_formatted(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String succeeds");
}

fn items(value: &Value) -> impl Iterator<Item = Value> {
    value.try_iter().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    items(value).map(|key| {
        let item = value.get_item(&key).unwrap_or_default();
        (key, item)
    })
}

fn number(value: &Value, [infinity, negative_infinity, not_a_number]: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_finite() => float_repr(float),
        Ok(float) if float.is_nan() => not_a_number.to_owned(),
        Ok(float) if float > 0.0 => infinity.to_owned(),
        Ok(_) => negative_infinity.to_owned(),
        Err(_) => value.to_string(),
    }
}

/// Both languages print the shortest digits that read back. Of two such that are equally near, Python takes the even one,
/// which is also what Rust rounds to when it is told how many; and they differ in when and how an exponent is written.
fn float_repr(float: f64) -> String {
    let shortest = format!("{float:e}");
    let digits_behind = shortest.split_once('.').map_or(0, |(_, rest)| {
        rest.bytes().take_while(u8::is_ascii_digit).count()
    });
    let rounded = format!("{float:.digits_behind$e}");
    let exponent = rounded
        .split_once('e')
        .and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)));
    match exponent {
        Some((digits, exponent)) if float != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Some((_, exponent)) => {
            let decimals = (digits_behind as i32 - exponent).max(1) as usize;
            format!("{float:.decimals$}")
        }
        None => shortest,
    }
}
