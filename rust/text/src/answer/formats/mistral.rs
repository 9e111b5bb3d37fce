//! `[TOOL_CALLS]` and a JSON list of calls, or `name{…}` with its arguments; between the two may stand `[CALL_ID]` with an
//! id and `[ARGS]`: Mistral's models.

use super::super::calls::CallSyntax;
use super::ToolFormat;

pub(super) const MISTRAL: ToolFormat = ToolFormat {
    name: "mistral",
    is_told_by: |template| template.contains("[TOOL_CALLS]"),
    syntax: CallSyntax {
        open: &["[TOOL_CALLS]"],
        close: &[],
        is_bare: false,
        has_lists: true,
        separators: &[],
        after_name: Some(&["[CALL_ID]", "[ARGS]"]),
    },
    arguments: "arguments",
    body: |rules| {
        let (id, arguments) = (rules.mark("[CALL_ID]"), rules.mark("[ARGS]"));
        let named = rules.named(&format!("( ( {id} /[a-zA-Z0-9]{{9}}/ )? {arguments} )?"));
        let list = format!("ws {}", rules.list());
        [list]
            .into_iter()
            .chain(named)
            .collect::<Vec<_>>()
            .join(" | ")
    },
};
