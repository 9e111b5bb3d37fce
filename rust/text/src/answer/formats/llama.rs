//! `{"name": …, "parameters": {…}}` as the whole answer, also after `<|python_tag|>`; several stand behind one another or
//! with semicolons between them: Llama 3.1 and later.

use super::super::calls::CallSyntax;
use super::ToolFormat;

pub(super) const LLAMA: ToolFormat = ToolFormat {
    name: "llama3_json",
    is_told_by: |template| {
        template.contains("<|python_tag|>")
            || (template.contains("<|start_header_id|>") && template.contains("\"parameters\""))
    },
    syntax: CallSyntax {
        open: &["<|python_tag|>"],
        close: &[],
        is_bare: true,
        has_lists: false,
        separators: &[';'],
        after_name: None,
    },
    arguments: "parameters",
    body: |rules| rules.chain(";"),
};
