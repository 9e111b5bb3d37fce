//! The registry: how families of models write tool calls and reasoning, a file each. A new one is a file and a line here.

mod hermes;
mod json;
mod llama;
mod magistral;
mod mistral;
mod think;

use super::calls::CallSyntax;
use super::reasoning::ReasoningTags;

/// Tool calls of one family of models.
#[derive(Debug)]
pub(super) struct ToolFormat {
    pub(super) name: &'static str,
    /// Whether a chat template is written for it.
    pub(super) is_told_by: fn(&str) -> bool,
    pub(super) syntax: CallSyntax,
}

/// Reasoning of one family of models; a chat template that has either tag is written for it.
#[derive(Debug)]
pub(super) struct ReasoningFormat {
    pub(super) name: &'static str,
    pub(super) tags: ReasoningTags,
}

/// In the order in which they are looked for in a template.
pub(super) static TOOL_FORMATS: [ToolFormat; 4] =
    [mistral::MISTRAL, hermes::HERMES, llama::LLAMA, json::JSON];

/// In the order in which they are looked for in a template.
pub(super) static REASONING_FORMATS: [ReasoningFormat; 2] = [think::THINK, magistral::MAGISTRAL];

impl ToolFormat {
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
