//! What the output of a request must look like: made of what it asks for and of how its prompt ends.

use diptych_text::{AnswerFormats, Function, Grammar, Rendered};
use serde::Deserialize;

use crate::frame::FailureKind;
use crate::messages::Problem;
use crate::params::Params;

/// How the answer to a chat may call tools, where that follows a grammar.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallParams {
    choice: CallChoice,
    /// Whether more than one call may be made.
    several: bool,
    /// Those that may be called.
    functions: Vec<FunctionParams>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CallChoice {
    /// The answer is text, and what begins as a call is one.
    Auto,
    /// The answer is calls and nothing else.
    Required,
    /// As `Required`, and the caller has chosen which.
    Named,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionParams {
    name: String,
    /// The JSON schema of its arguments, as JSON; none for any object.
    parameters: Option<String>,
    /// Where the request has that schema, for messages.
    field: String,
}

impl CallParams {
    /// What asks for it, for messages.
    pub(crate) fn field(&self) -> &'static str {
        match self.choice {
            CallChoice::Auto => "tools",
            CallChoice::Required | CallChoice::Named => "tool_choice",
        }
    }

    /// Whether an answer with calls ends because of them, and not because its caller chose the call.
    pub(crate) fn names_one(&self) -> bool {
        self.choice == CallChoice::Named
    }

    pub(crate) fn has_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    fn functions(&self) -> Vec<Function> {
        let function = |given: &FunctionParams| Function {
            name: given.name.clone(),
            parameters: given.parameters.clone(),
        };
        self.functions.iter().map(function).collect()
    }
}

/// The grammar of the whole output, if it follows one. `prompt`: the conversation that it answers.
pub(crate) fn grammar(
    params: &Params,
    formats: &AnswerFormats,
    prompt: Option<&Rendered>,
) -> Result<Option<Grammar>, Problem> {
    let answer = match (&params.grammar, &params.calls) {
        (Some(grammar), _) => grammar.grammar(),
        (None, Some(calls)) => calls_of(calls, formats, prompt)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(match prompt {
        Some(prompt) => formats.after_reasoning(prompt, answer),
        None => answer,
    }))
}

fn calls_of(
    calls: &CallParams,
    formats: &AnswerFormats,
    prompt: Option<&Rendered>,
) -> Result<Grammar, Problem> {
    let is_forced = calls.choice != CallChoice::Auto;
    let grammar = prompt.and_then(|_| formats.calls(calls.functions(), is_forced, calls.several));
    grammar.ok_or_else(|| {
        let field = calls.field();
        let why = format!(
            "{field}: only the answer to a conversation calls tools, of a model that is known to write calls"
        );
        Problem::new(FailureKind::InvalidParameter, why)
    })
}

/// The field of a request that a grammar which cannot be compiled comes from; `function`: one whose arguments cannot.
pub(super) fn field(params: &Params, function: Option<usize>) -> &str {
    if let Some(grammar) = &params.grammar {
        return &grammar.field;
    }
    let Some(calls) = &params.calls else {
        return "";
    };
    let function = function.and_then(|index| calls.functions.get(index));
    function.map_or("tools", |function| &function.field)
}
