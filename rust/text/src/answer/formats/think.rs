//! `<think>…</think>` before the answer: `DeepSeek` R1, Qwen 3 and many others.

use super::super::reasoning::ReasoningTags;
use super::ReasoningFormat;

pub(super) const THINK: ReasoningFormat = ReasoningFormat {
    name: "think",
    tags: ReasoningTags {
        open: "<think>",
        close: &["</think>"],
    },
};
