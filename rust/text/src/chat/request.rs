//! What a chat request holds, checked and brought into the form that templates expect.

use minijinja::Value as TemplateValue;
use minijinja::value::Serde;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::numbers::{self, Mark};
use crate::error::TextError;

/// The mark that transformers puts behind the message to be continued, to find it again in the rendered text.
const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// What fields of the request say, and what transformers takes for its own arguments: no variables of the client's.
const OWN_VARIABLES: [&str; 7] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenderRequest {
    messages: Vec<Map<String, Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    pub(super) tools: Option<Vec<Value>>,
    #[serde(default)]
    documents: Option<Vec<Value>>,
    #[serde(default)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Set where there are numbers that `Value` would not hold as they are.
    #[serde(skip)]
    mark: Option<Mark>,
}

impl RenderRequest {
    pub(super) fn parse(json: &str) -> Result<Self, TextError> {
        let parse = |json: &str| -> Result<Self, TextError> {
            serde_json::from_str(json).map_err(|error| invalid(error.to_string()))
        };
        let mut request = match numbers::mark(json) {
            None => parse(json)?,
            Some((marked, mark)) => Self {
                mark: Some(mark),
                ..parse(&marked)?
            },
        };
        if request.messages.is_empty() {
            return Err(invalid(
                "`messages` is empty: give at least one message".to_owned(),
            ));
        }
        if request.add_generation_prompt && request.continue_final_message {
            return Err(invalid(
                "`add_generation_prompt` and `continue_final_message` are both true: one begins a new message, the \
                 other goes on with the last one; set one of them to false"
                    .to_owned(),
            ));
        }
        let extra = request.chat_template_kwargs.iter().flatten();
        for (name, _) in extra {
            if let Some(name) = OWN_VARIABLES.iter().find(|own| *own == name) {
                return Err(TextError::OwnVariable { name });
            }
        }
        for (index, message) in request.messages.iter_mut().enumerate() {
            check_message(index, message)?;
            normalise(message);
        }
        Ok(request)
    }

    /// Joins each list of text parts by newlines.
    pub(super) fn join_text_parts(&mut self) {
        for message in &mut self.messages {
            if let Some(Value::Array(parts)) = message.get("content") {
                let texts: Vec<&str> = parts.iter().filter_map(part_text).collect();
                let joined = texts.join("\n");
                message.insert("content".to_owned(), Value::String(joined));
            }
        }
    }

    /// Marks the end of the last message, if that is to be continued.
    pub(super) fn mark_continued(&mut self) -> Result<Option<Continued>, TextError> {
        if !self.continue_final_message {
            return Ok(None);
        }
        let content = self
            .messages
            .last_mut()
            .and_then(|message| message.get_mut("content"));
        let text = match content {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => {
                match parts.last_mut().and_then(|part| part.get_mut("text")) {
                    Some(Value::String(text)) => text,
                    _ => return Err(nothing_to_continue()),
                }
            }
            _ => return Err(nothing_to_continue()),
        };
        let continued = Continued {
            message: text.trim().to_owned(),
        };
        text.push_str(CONTINUE_MARK);
        Ok(Some(continued))
    }

    /// Names of the tools, as OpenAI's API and transformers' functions write them.
    pub(super) fn tool_names(&self) -> Vec<String> {
        let name = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            function.get("name")?.as_str().map(str::to_owned)
        };
        self.tools.iter().flatten().filter_map(name).collect()
    }

    /// What a template may know or not, and whether this request has it.
    pub(super) fn optional(&self) -> [(&'static str, bool); 2] {
        [
            ("tools", self.tools.is_some()),
            ("documents", self.documents.is_some()),
        ]
    }

    /// The variables a template sees beside the special tokens, which `chat_template_kwargs` may give another value, as in
    /// transformers.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, TemplateValue)> + '_ {
        let fixed = [
            ("messages", self.to_template(&self.messages)),
            ("tools", self.to_template(&self.tools)),
            ("documents", self.to_template(&self.documents)),
            (
                "add_generation_prompt",
                TemplateValue::from(self.add_generation_prompt),
            ),
        ];
        let extra = self.chat_template_kwargs.iter().flatten();
        fixed
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(extra.map(|(name, value)| (name.clone(), self.to_template(value))))
    }

    fn to_template(&self, part: &impl Serialize) -> TemplateValue {
        match &self.mark {
            None => TemplateValue::from(Serde(part)),
            Some(mark) => {
                let value = serde_json::to_value(part);
                mark.to_template(&value.expect("what was parsed can be written"))
            }
        }
    }
}

/// A message whose end is to be the end of the prompt.
pub(super) struct Continued {
    message: String,
}

impl Continued {
    /// Cuts the rendered text where the continued message ends; with it, where that message begins.
    pub(super) fn cut(&self, mut text: String) -> Result<(String, usize), TextError> {
        let mark = text.rfind(CONTINUE_MARK.trim_end());
        let Some((mark, answer_start)) = mark.zip(text.rfind(&self.message)) else {
            return Err(TextError::TemplateFailed {
                reason: "the last message cannot be continued, because the template does not print it as it was given; \
                         set `continue_final_message` to false"
                    .to_owned(),
            });
        };
        let keeps_spacing = text[mark..].starts_with(CONTINUE_MARK);
        text.truncate(mark);
        if !keeps_spacing {
            text.truncate(text.trim_end().len());
        }
        let answer_start = answer_start.min(text.len());
        Ok((text, answer_start))
    }
}

fn check_message(index: usize, message: &Map<String, Value>) -> Result<(), TextError> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(invalid(format!(
            "messages[{index}] has no `role` that is a string"
        )));
    }
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .try_for_each(|(part_index, part)| check_part(index, part_index, part)),
        Some(_) => Err(invalid(format!(
            "messages[{index}].content must be a string or a list of text parts"
        ))),
    }
}

fn check_part(index: usize, part_index: usize, part: &Value) -> Result<(), TextError> {
    let place = format!("messages[{index}].content[{part_index}]");
    match part.get("type").and_then(Value::as_str) {
        Some("text") if part_text(part).is_some() => Ok(()),
        Some("text") => Err(invalid(format!("{place} has no `text` that is a string"))),
        Some(other) => Err(invalid(format!(
            "{place} is of type \"{other}\", but this model takes text only: use {{\"type\": \"text\", \"text\": …}}"
        ))),
        None => Err(invalid(format!("{place} has no `type`"))),
    }
}

fn part_text(part: &Value) -> Option<&str> {
    part.get("text").and_then(Value::as_str)
}

/// As transformers does it: a field that is null counts as absent (templates would print "None"), and the reasoning of an
/// earlier answer is found under whichever of its names the template uses.
fn normalise(message: &mut Map<String, Value>) {
    message.retain(|_, value| !value.is_null());
    let reasoning = REASONING_FIELDS
        .iter()
        .find_map(|name| message.get(*name))
        .cloned();
    if let Some(reasoning) = reasoning {
        message
            .entry("thinking")
            .or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
}

fn invalid(reason: String) -> TextError {
    TextError::InvalidChat { reason }
}

fn nothing_to_continue() -> TextError {
    invalid(
        "`continue_final_message` is true, but the last message has no text to continue".to_owned(),
    )
}
