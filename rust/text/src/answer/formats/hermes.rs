//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and Qwen 3, and many that were trained likewise.

use super::super::calls::CallSyntax;
use super::ToolFormat;

pub(super) const HERMES: ToolFormat = ToolFormat {
    name: "hermes",
    // Others write XML within the same tags.
    is_told_by: |template| template.contains("<tool_call>") && !template.contains("<function="),
    syntax: CallSyntax {
        open: &["<tool_call>"],
        close: &["</tool_call>", "<tool_call>"],
        is_bare: false,
        has_lists: false,
        separators: &[],
        after_name: None,
    },
    arguments: "arguments",
    body: |rules| format!("ws object ws {}", rules.mark("</tool_call>")),
};
