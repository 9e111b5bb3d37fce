//! What an output must look like, as a client says it.

use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::{Value, json};

use crate::error::TextError;
use crate::grammar::calls::{Calls, Function};
use crate::grammar::checks;
use crate::grammar::lark::literal;
use crate::grammar::limits::{MAX_CHOICES, MAX_GRAMMAR_BYTES, MAX_LARK_BYTES};
use crate::grammar::reasoning::{Reasoning, without_opening};
use crate::table::TokenTable;

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
    /// Tool calls, or text that they may stand in: see [`AnswerFormats::calls`](crate::AnswerFormats::calls).
    Calls(Calls),
    /// Reasoning, if there is any, and then what another grammar says: see
    /// [`AnswerFormats::after_reasoning`](crate::AnswerFormats::after_reasoning). Not to be nested.
    AfterReasoning(Reasoning, Box<Grammar>),
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
            Self::Calls(_) => "grammar of tool calls",
            Self::AfterReasoning(_, then) => then.kind(),
        }
    }

    /// The tools that it lets the model call.
    pub(super) fn calls(&self) -> Option<&Calls> {
        match self {
            Self::Calls(calls) => Some(calls),
            Self::AfterReasoning(_, then) => then.calls(),
            _ => None,
        }
    }

    /// The functions whose schemas are part of it.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        self.calls().map(Calls::functions).unwrap_or_default()
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
            Self::Calls(calls) => calls.bytes(),
            Self::AfterReasoning(_, then) => then.bytes(),
        }
    }

    /// What the library compiles for a model with the tokens of `table`, after checking what it would not.
    pub(super) fn prepare(&self, table: &TokenTable) -> Result<TopLevelGrammar, TextError> {
        match self {
            Self::AfterReasoning(reasoning, then) => {
                let answer = then.prepare_answer(table, reasoning.opening())?;
                Ok(reasoning.before(answer, table))
            }
            _ => self.prepare_answer(table, None),
        }
    }

    /// The answer begins with `opening` only where the grammar says so expressly.
    fn prepare_answer(
        &self,
        table: &TokenTable,
        opening: Option<&str>,
    ) -> Result<TopLevelGrammar, TextError> {
        let bytes = self.bytes();
        let limit = match self {
            Self::Lark(_) => MAX_LARK_BYTES,
            _ => MAX_GRAMMAR_BYTES,
        };
        if bytes > limit {
            return Err(TextError::GrammarTooLarge {
                kind: self.kind(),
                bytes,
                limit,
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
                    Value::Object(_) | Value::Bool(_) => {
                        checks::schema(&value).map_err(refused)?;
                        Ok(schema(value))
                    }
                    _ => Err(refused("a schema is an object, true or false".to_owned())),
                }
            }
            Self::Regex(text) if text.is_empty() => Err(refused(
                "it is empty, and so would be every output".to_owned(),
            )),
            Self::Regex(text) => {
                checks::regex(text).map_err(refused)?;
                let regex = || regex_to_lark(text, "");
                Ok(match opening {
                    Some(opening) => TopLevelGrammar::from_lark(without_opening(&regex(), opening)),
                    None => TopLevelGrammar::from_regex(text),
                })
            }
            Self::Choice(texts) => choice(texts).map_err(refused),
            Self::Lark(text) => {
                checks::lark(text).map_err(refused)?;
                Ok(TopLevelGrammar::from_lark(text.clone()))
            }
            Self::Calls(calls) => calls.prepare(table, opening),
            Self::AfterReasoning(..) => Err(refused(
                "reasoning comes once, before the answer".to_owned(),
            )),
        }
    }
}

fn schema(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(with_white_space(schema))
}

/// A schema that bounds white space, where it does not say itself what may stand between the parts.
pub(super) fn with_white_space(mut schema: Value) -> Value {
    if let Value::Object(object) = &mut schema {
        object
            .entry("x-guidance")
            .or_insert_with(|| json!({"whitespace_pattern": WHITE_SPACE}));
    }
    schema
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
