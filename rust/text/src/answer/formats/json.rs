//! A JSON object with a name and arguments or parameters, or a list of such objects, as the whole answer: for models that
//! were only asked to answer so. Nothing in a template tells it.

use super::super::calls::CallSyntax;
use super::ToolFormat;

pub(super) const JSON: ToolFormat = ToolFormat {
    name: "json",
    is_told_by: |_| false,
    syntax: CallSyntax {
        open: &[],
        close: &[],
        is_bare: true,
        has_lists: true,
        separators: &[',', ';'],
        after_name: None,
    },
    arguments: "arguments",
    body: |rules| format!("ws ( object | {} )", rules.list()),
};
