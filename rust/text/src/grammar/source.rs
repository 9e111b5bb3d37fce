//! What an output must look like, as a client says it.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::error::TextError;
use crate::grammar::limits::{MAX_CHOICES, MAX_GRAMMAR_BYTES};

/// White space between the parts of JSON: at most so much at once, or a weak model would write nothing else.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// The whole output, from its first token to its last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that the schema, JSON itself, accepts.
    JsonSchema(String),
    /// What the regular expression matches as a whole; no look-around, no back references, no anchors needed.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// What `start` of the grammar derives, in the Lark dialect of llguidance.
    Lark(String),
}

impl Grammar {
    /// Its kind, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject => "json_object",
            Self::JsonSchema(_) => "json schema",
            Self::Regex(_) => "regex",
            Self::Choice(_) => "choice",
            Self::Lark(_) => "grammar",
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }

    /// What the library compiles, after checking what it would not.
    pub(super) fn prepare(&self) -> Result<TopLevelGrammar, TextError> {
        let bytes = self.bytes();
        if bytes > MAX_GRAMMAR_BYTES {
            return Err(TextError::GrammarTooLarge {
                kind: self.kind(),
                bytes,
                limit: MAX_GRAMMAR_BYTES,
            });
        }
        let refused = |reason: String| TextError::InvalidGrammar {
            kind: self.kind(),
            reason,
        };
        match self {
            Self::JsonObject => Ok(schema(json!({"type": "object"}))),
            Self::JsonSchema(text) => {
                let value =
                    serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
                match value {
                    Value::Object(_) | Value::Bool(_) => Ok(schema(value)),
                    _ => Err(refused("a schema is an object, true or false".to_owned())),
                }
            }
            Self::Regex(text) if text.is_empty() => Err(refused(
                "it is empty, and so would be every output".to_owned(),
            )),
            Self::Regex(text) => Ok(TopLevelGrammar::from_regex(text)),
            Self::Choice(texts) => choice(texts).map_err(refused),
            Self::Lark(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
        }
    }
}

fn schema(mut schema: Value) -> TopLevelGrammar {
    if let Value::Object(object) = &mut schema {
        object
            .entry("x-guidance")
            .or_insert_with(|| json!({"whitespace_pattern": WHITE_SPACE}));
    }
    TopLevelGrammar::from_json_schema(schema)
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, String> {
    if texts.is_empty() || texts.len() > MAX_CHOICES {
        return Err(format!(
            "{} choices: 1 to {MAX_CHOICES} can be made",
            texts.len()
        ));
    }
    if let Some(index) = texts.iter().position(String::is_empty) {
        return Err(format!("choice {index} is empty"));
    }
    let literals: Vec<String> = texts.iter().map(|text| literal(text)).collect();
    Ok(TopLevelGrammar::from_lark(format!(
        "start: {}",
        literals.join("\n | ")
    )))
}

/// A Lark string: written as JSON, where no character is special but by an escape.
fn literal(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
