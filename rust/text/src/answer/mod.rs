//! Answers taken apart: tool calls and reasoning, as families of models write them.

mod calls;
mod delta;
mod formats;
mod markers;
mod object;
mod reasoning;
#[cfg(test)]
mod tests;
mod value;

use crate::chat::{ChatTemplate, Rendered};
use crate::error::TextError;
use crate::grammar::{Begun, Calls, Function, Grammar, Reasoning};
use crate::table::TokenTable;
use calls::CallReader;
use formats::{REASONING_FORMATS, TOOL_FORMATS};
use reasoning::ReasoningReader;

pub(crate) use formats::{ReasoningFormat, ToolFormat};

pub use delta::{AnswerDelta, CallDelta, merge_calls};

/// How one model writes tool calls and reasoning.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerFormats {
    tools: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
}

impl AnswerFormats {
    /// Each is the name of a format, `none`, or `auto`: the one that the model's chat template is written for, by the
    /// marks that stand in it.
    ///
    /// # Errors
    /// [`TextError::UnknownFormat`] with the names that there are.
    pub fn choose(
        tools: &str,
        reasoning: &str,
        template: Option<&ChatTemplate>,
    ) -> Result<Self, TextError> {
        let source = template.map(ChatTemplate::source).unwrap_or_default();
        let tools = match tools {
            "none" => None,
            "auto" => TOOL_FORMATS
                .iter()
                .find(|format| (format.is_told_by)(source)),
            name => Some(
                TOOL_FORMATS
                    .iter()
                    .find(|format| format.name == name)
                    .ok_or_else(|| unknown("tool calls", name, &tool_format_names()))?,
            ),
        };
        let reasoning = match reasoning {
            "none" => None,
            "auto" => REASONING_FORMATS
                .iter()
                .find(|format| format.is_told_by(source)),
            name => Some(
                REASONING_FORMATS
                    .iter()
                    .find(|format| format.name == name)
                    .ok_or_else(|| unknown("reasoning", name, &reasoning_format_names()))?,
            ),
        };
        Ok(Self { tools, reasoning })
    }

    /// Name of the format of tool calls.
    #[must_use]
    pub fn tools(&self) -> Option<&'static str> {
        self.tools.map(|format| format.name)
    }

    /// Name of the format of reasoning.
    #[must_use]
    pub fn reasoning(&self) -> Option<&'static str> {
        self.reasoning.map(|format| format.name)
    }

    /// Special tokens of `table` that are marks of these formats: the text must have them, also where special tokens are
    /// skipped. Ascending.
    #[must_use]
    pub fn mark_ids(&self, table: &TokenTable) -> Vec<u32> {
        let tools = self.tools.into_iter().flat_map(ToolFormat::marks);
        let reasoning = self.reasoning.into_iter().flat_map(ReasoningFormat::marks);
        let marks: Vec<&str> = tools.chain(reasoning).collect();
        table
            .special_ids()
            .filter(|&id| {
                table
                    .bytes(id)
                    .is_some_and(|bytes| marks.iter().any(|mark| mark.as_bytes() == bytes))
            })
            .collect()
    }

    /// A parser for the answer to `prompt`; `None` if there is nothing to look for in it. What looks like a call is text
    /// where no tools were given. With `limit` the answer is complete with so many calls.
    #[must_use]
    pub fn parser(&self, prompt: &Rendered, limit: Option<u32>) -> Option<AnswerParser> {
        let calls = self
            .tools
            .filter(|_| !prompt.tool_names.is_empty())
            .map(|format| CallReader::new(&format.syntax, prompt.tool_names.clone(), limit));
        let reasoning = self.reasoning.map(|format| {
            let is_inside = ends_inside(prompt, format);
            ReasoningReader::new(&format.tags, is_inside)
        });
        (calls.is_some() || reasoning.is_some()).then(|| AnswerParser {
            reasoning,
            calls,
            answer: String::new(),
        })
    }

    /// An answer that calls some of `functions`, as the model writes that: nothing else if `is_forced`, else calls may stand
    /// in its text. `several`: more than one call. `None` where it is not known how the model writes calls.
    #[must_use]
    pub fn calls(
        &self,
        functions: Vec<Function>,
        is_forced: bool,
        several: bool,
    ) -> Option<Grammar> {
        let format = self.tools?.name;
        Some(Grammar::Calls(Calls {
            format,
            functions,
            is_forced,
            several,
        }))
    }

    /// What the whole output must look like where the answer to `prompt` follows `grammar`: the model may think before, as
    /// far as the prompt leaves that open.
    #[must_use]
    pub fn after_reasoning(&self, prompt: &Rendered, grammar: Grammar) -> Grammar {
        let Some(format) = self.reasoning else {
            return grammar;
        };
        let begun = if ends_inside(prompt, format) {
            Begun::ByPrompt
        } else if is_settled(prompt, format) {
            return grammar;
        } else {
            Begun::ByAnswer
        };
        let format = format.name;
        Grammar::AfterReasoning(Reasoning { format, begun }, Box::new(grammar))
    }
}

/// Names of the formats of tool calls.
#[must_use]
pub fn tool_format_names() -> Vec<&'static str> {
    TOOL_FORMATS.iter().map(|format| format.name).collect()
}

/// Names of the formats of reasoning.
#[must_use]
pub fn reasoning_format_names() -> Vec<&'static str> {
    REASONING_FORMATS.iter().map(|format| format.name).collect()
}

fn unknown(what: &'static str, name: &str, known: &[&str]) -> TextError {
    TextError::UnknownFormat {
        what,
        name: name.to_owned(),
        known: known.join(", "),
    }
}

/// Whether the prompt leaves the model in the middle of its reasoning: it ends with the tag that begins it, or what the
/// answer continues has begun some and not ended it.
fn ends_inside(prompt: &Rendered, format: &ReasoningFormat) -> bool {
    let open = format.tags.open;
    let continued = &prompt.text[prompt.answer_start..];
    let last = |mark: &str| continued.rfind(mark);
    let closed = format.tags.close.iter().filter_map(|mark| last(mark)).max();
    prompt.text.trim_end().ends_with(open)
        || last(open).is_some_and(|opened| closed.is_none_or(|closed| closed < opened))
}

/// Whether the prompt leaves no room for reasoning: it ends behind some, if only empty tags, as templates write where it is
/// switched off, or within the text of the answer.
fn is_settled(prompt: &Rendered, format: &ReasoningFormat) -> bool {
    let text = prompt.text.trim_end();
    let mut close = format.tags.close.iter();
    close.any(|mark| text.ends_with(mark)) || !prompt.text[prompt.answer_start..].trim().is_empty()
}

/// Takes one answer apart while it is being written: nothing waits but what may still become a mark, or a call whose name
/// is not known yet. All text, reasoning and calls of the joined deltas do not depend on how the text was cut.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    reasoning: Option<ReasoningReader>,
    calls: Option<CallReader>,
    answer: String,
}

impl AnswerParser {
    /// Takes the next text and adds what is sure to `delta`.
    pub fn push(&mut self, text: &str, delta: &mut AnswerDelta) {
        self.answer.clear();
        match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text, &mut delta.reasoning, &mut self.answer),
            None => self.answer.push_str(text),
        }
        self.pass_on(delta);
    }

    /// Ends the answer and adds what was held back.
    pub fn finish(&mut self, delta: &mut AnswerDelta) {
        self.answer.clear();
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish(&mut delta.reasoning, &mut self.answer);
        }
        self.pass_on(delta);
        if let Some(calls) = &mut self.calls {
            calls.finish(delta);
        }
    }

    /// Whether reasoning is looked for.
    #[must_use]
    pub fn knows_reasoning(&self) -> bool {
        self.reasoning.is_some()
    }

    /// Whether the model is thinking.
    #[must_use]
    pub fn is_reasoning(&self) -> bool {
        self.reasoning
            .as_ref()
            .is_some_and(ReasoningReader::is_inside)
    }

    /// Whether the answer has as many calls as it may: nothing that follows is passed on.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.calls.as_ref().is_some_and(CallReader::is_full)
    }

    /// Whether the answer, which has ended, has calls, the arguments of each of them complete.
    #[must_use]
    pub fn has_whole_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(CallReader::are_whole)
    }

    fn pass_on(&mut self, delta: &mut AnswerDelta) {
        match &mut self.calls {
            Some(calls) => calls.push(&self.answer, delta),
            None => delta.text.push_str(&self.answer),
        }
    }
}
