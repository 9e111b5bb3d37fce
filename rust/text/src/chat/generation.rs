//! `{% generation %}` marks what the model wrote, for training; when rendering it is a block like any other.

/// Rewrites `{% generation %}` … `{% endgeneration %}` as a block that every Jinja knows, keeping whitespace control.
pub(super) fn as_plain_blocks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else {
            break;
        };
        let (before, tag) = rest[..open + length].split_at(open);
        plain.push_str(before);
        let name = tag[2..].trim_matches(|c: char| c.is_ascii_whitespace() || c == '-' || c == '+');
        match name {
            "generation" | "endgeneration" => {
                let block = if name == "generation" {
                    "if true"
                } else {
                    "endif"
                };
                plain.push_str(&tag.replacen(name, block, 1));
            }
            _ => plain.push_str(tag),
        }
        rest = &rest[open + length..];
    }
    plain.push_str(rest);
    plain
}
