//! The Jinja environment that chat templates are written for.

use std::error::Error as _;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};

use super::python;
use crate::error::TextError;

/// What one rendering may cost: one for an instruction, one for every 64 bytes made. A message takes some hundred, so this
/// is far above any real conversation, and it is spent within a second or so.
const FUEL: u64 = 10_000_000;

pub(super) fn new() -> Environment<'static> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the default delimiters are valid");
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(print);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    minijinja_contrib::add_to_environment(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_sequence);
    environment
}

/// The message of a call to `raise_exception`, carried through the template engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// What a failed rendering means to the caller.
pub(super) fn template_error(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return TextError::TemplateRefused {
                message: message.clone(),
            };
        }
        if let Some(inner) = current.downcast_ref::<Error>()
            && inner.kind() == ErrorKind::OutOfFuel
        {
            return TextError::TemplateTooExpensive { limit: FUEL };
        }
        cause = current.source();
    }
    let reason = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    TextError::TemplateFailed { reason }
}

fn raise_exception(message: &Value) -> Result<String, Error> {
    let message = python::str(message);
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {error}"),
        )
    })
}

fn print(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::str(value)),
    };
    written.map_err(|error| Error::new(ErrorKind::WriteFailure, "cannot print").with_source(error))
}

/// In Jinja strings, mappings and undefined values are sequences too: whatever can be measured and indexed.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq
            | ValueKind::Iterable
            | ValueKind::Map
            | ValueKind::String
            | ValueKind::Undefined
    )
}

/// `json.dumps` with transformers' defaults, in place of Jinja's own filter, which escapes for HTML.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the template engine hands keyword arguments over by value"
)]
fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<&Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let named_indent: Option<Value> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ensure_ascii = ensure_ascii
        .or(options.get("ensure_ascii")?)
        .unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let indent = match indent.or(named_indent.as_ref()) {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent.clone())?),
        }),
    };
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be a pair of strings",
            ));
        }
    };
    python::JsonStyle {
        item,
        key,
        indent,
        ensure_ascii,
        sort_keys,
    }
    .dumps(value)
}
