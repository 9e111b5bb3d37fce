//! `[THINK]…[/THINK]` before the answer: Mistral's reasoning models.

use super::super::reasoning::ReasoningTags;
use super::ReasoningFormat;

pub(super) const MAGISTRAL: ReasoningFormat = ReasoningFormat {
    name: "magistral",
    tags: ReasoningTags {
        open: "[THINK]",
        close: &["[/THINK]"],
    },
};
