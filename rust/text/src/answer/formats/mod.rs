//! The registry: how families of models write tool calls and reasoning, a file each. A new one is a file and a line here.

mod hermes;
mod json;
mod llama;
mod magistral;
mod mistral;
mod think;

use super::calls::CallSyntax;
use super::reasoning::ReasoningTags;
use crate::grammar::CallRules;

/// Tool calls of one family of models.
#[derive(Debug)]
pub(crate) struct ToolFormat {
    pub(crate) name: &'static str,
    /// Whether a chat template is written for it.
    pub(super) is_told_by: fn(&str) -> bool,
    pub(crate) syntax: CallSyntax,
    /// The member of a call's object that holds its arguments, as the models were taught to write it.
    pub(crate) arguments: &'static str,
    /// What a model that follows a grammar writes behind a mark that opens, or bare: an expression of Lark for one call, or
    /// for as many as stand together. All that it derives is read as calls.
    pub(crate) body: fn(&CallRules<'_>) -> String,
}

/// Reasoning of one family of models; a chat template that has either tag is written for it.
#[derive(Debug)]
pub(crate) struct ReasoningFormat {
    pub(crate) name: &'static str,
    pub(crate) tags: ReasoningTags,
}

/// In the order in which they are looked for in a template.
pub(crate) static TOOL_FORMATS: [ToolFormat; 4] =
    [mistral::MISTRAL, hermes::HERMES, llama::LLAMA, json::JSON];

/// In the order in which they are looked for in a template.
pub(crate) static REASONING_FORMATS: [ReasoningFormat; 2] = [think::THINK, magistral::MAGISTRAL];

impl ToolFormat {
    /// The format of a name that is in the registry.
    pub(crate) fn named(name: &str) -> &'static Self {
        let mut all = TOOL_FORMATS.iter();
        all.find(|format| format.name == name)
            .expect("names of formats come from the registry")
    }

    /// Marks that may be special tokens of the model's.
    pub(super) fn marks(&self) -> impl Iterator<Item = &'static str> {
        let after_name = self.syntax.after_name.unwrap_or_default();
        [self.syntax.open, self.syntax.close, after_name]
            .into_iter()
            .flatten()
            .copied()
    }
}

impl ReasoningFormat {
    /// The format of a name that is in the registry.
    pub(crate) fn named(name: &str) -> &'static Self {
        let mut all = REASONING_FORMATS.iter();
        all.find(|format| format.name == name)
            .expect("names of formats come from the registry")
    }

    pub(super) fn is_told_by(&self, template: &str) -> bool {
        self.marks().any(|mark| template.contains(mark))
    }

    /// Marks that may be special tokens of the model's.
    pub(super) fn marks(&self) -> impl Iterator<Item = &'static str> {
        [self.tags.open]
            .into_iter()
            .chain(self.tags.close.iter().copied())
    }
}
