//! Pieces of grammars in llguidance's dialect of Lark.

use std::{iter, slice};

use serde_json::Value;

use crate::table::TokenTable;

/// Any text.
pub(super) const ANY: &str = "/(?s:.*)/";

/// Any text but none.
pub(super) const SOME: &str = "/(?s:.+)/";

/// A text as it is: written as JSON, where no character is special but by an escape.
pub(super) fn literal(text: &str) -> String {
    let json = Value::String(text.to_owned()).to_string();
    json.replace('\u{7F}', "\\u007f")
}

/// A mark: the special tokens that spell it, else its text, in whatever tokens.
pub(super) fn mark(table: &TokenTable, text: &str) -> String {
    special(table, text).unwrap_or_else(|| literal(text))
}

/// Rules for text up to the first time that a mark stands in it, and the mark; the text is in none of the terminals
/// `refused`. The first rule has the given name; terminals of its own begin with it in upper case.
pub(super) fn up_to_mark(table: &TokenTable, name: &str, text: &str, refused: &[String]) -> String {
    let own = name.to_uppercase();
    let Some(token) = special(table, text) else {
        let before = without(ANY, refused);
        let mark = literal(text);
        return format!("{name}[lazy]: {own} {mark}\n{own}: {before}");
    };
    // What spells it in other tokens is read as the mark too.
    let marked = format!("{own}_MARKED");
    let before = without(SOME, &[refused, slice::from_ref(&marked)].concat());
    let containing = containing(text);
    format!("{name}: {own}? {token}\n{own}: {before}\n{marked}: {containing}")
}

/// A terminal's expression for what is in none of the terminals `refused`.
pub(super) fn without(terminal: &str, refused: &[String]) -> String {
    let refused = refused.iter().map(|refused| format!("~{refused}"));
    let all: Vec<String> = iter::once(terminal.to_owned()).chain(refused).collect();
    all.join(" & ")
}

/// A terminal's expression for all texts that a text stands in.
pub(super) fn containing(text: &str) -> String {
    format!("{ANY} {} {ANY}", literal(text))
}

/// A terminal's expression for all texts that begin with a text, white space before it left aside.
pub(super) fn beginning(text: &str) -> String {
    format!(r"/\s*/ {} {ANY}", literal(text))
}

/// The special tokens that spell a text.
pub(super) fn special(table: &TokenTable, text: &str) -> Option<String> {
    let spells = |id: &u32| table.bytes(*id) == Some(text.as_bytes());
    let ids: Vec<String> = table
        .special_ids()
        .filter(spells)
        .map(|id| id.to_string())
        .collect();
    (!ids.is_empty()).then(|| format!("<[{}]>", ids.join(",")))
}
