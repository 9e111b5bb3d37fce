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

/// The field of a request that a grammar which cannot be compiled or followed comes from; `function`: one whose arguments cannot.
pub(crate) fn field(params: &Params, function: Option<usize>) -> &str {
    if let Some(grammar) = &params.grammar {
        return &grammar.field;
    }
    let Some(calls) = &params.calls else {
        return "";
    };
    let function = function.and_then(|index| calls.functions.get(index));
    function.map_or("tools", |function| &function.field)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::params::tests::json as neutral;

    fn params(choice: &str, changes: &Value) -> Result<Params, String> {
        let function = |name: &str| json!({"name": name, "parameters": null, "field": format!("{name}.parameters")});
        let mut all = neutral();
        all["calls"] =
            json!({"choice": choice, "several": true, "functions": [function("a"), function("b")]});
        for (key, value) in changes.as_object().unwrap() {
            all[key] = value.clone();
        }
        Params::from_json(all.to_string().as_bytes(), 100).map_err(|error| error.to_string())
    }

    fn prompt() -> Rendered {
        Rendered {
            text: "p".to_owned(),
            answer_start: 1,
            tool_names: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    #[test]
    fn calls_follow_a_grammar_where_the_model_can_write_them() {
        let params = params("required", &json!({})).unwrap();
        let known = AnswerFormats::choose("hermes", "think", None).unwrap();
        let found = grammar(&params, &known, Some(&prompt())).unwrap().unwrap();
        assert!(params.follows_grammar() && found.functions().len() == 2);
        assert!(matches!(found, Grammar::AfterReasoning(..)));
        let unknown = AnswerFormats::choose("none", "none", None).unwrap();
        for (formats, prompt) in [(&known, None), (&unknown, Some(&prompt()))] {
            let problem = grammar(&params, formats, prompt).unwrap_err();
            assert!(problem.message.starts_with("tool_choice: "), "{problem:?}");
        }
    }

    #[test]
    fn what_cannot_be_compiled_is_told_by_its_place() {
        let calls = params("auto", &json!({})).unwrap();
        assert_eq!(field(&calls, Some(1)), "b.parameters");
        assert_eq!(field(&calls, None), "tools");
        let regex = json!({"calls": null, "grammar": {"field": "guided_regex", "regex": "a"}});
        let regex = params("auto", &regex).unwrap();
        assert_eq!(field(&regex, None), "guided_regex");
    }

    #[test]
    fn what_calls_cannot_go_with_is_refused() {
        let regex = json!({"field": "guided_regex", "regex": "a"});
        for (choice, changes, wanted) in [
            ("named", json!({"ignore_eos": true}), "tool_choice"),
            ("auto", json!({"ignore_eos": true}), "tools"),
            ("required", json!({"grammar": regex}), "guided_regex"),
            (
                "required",
                json!({"calls": {"choice": "named", "several": false, "functions": []}}),
                "no function",
            ),
            ("any", json!({}), "any"),
        ] {
            let error = params(choice, &changes).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
