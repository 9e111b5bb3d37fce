//! What a grammar may cost. Its text is bounded here, what is made of it by llguidance, in units of its own work: no
//! clock is asked, so the same grammar is taken or refused on every machine.

use llguidance::api::ParserLimits;

/// Longest text of a grammar, of all choices together, in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// Longest Lark grammar, in bytes, and longest terminal in it with those that it is made of.
pub(super) const MAX_LARK_BYTES: usize = 16 << 10;

/// Longest regular expression, in bytes: that many optional letters make one derivative take the square of it, before the library
/// looks at what it has spent.
pub(super) const MAX_REGEX_BYTES: usize = 4 << 10;

/// Most bytes of all patterns in one schema.
pub(super) const MAX_PATTERN_BYTES: usize = 8 << 10;

/// Most combinations of what intersected expressions tell apart: the library makes them all before it looks at what it has spent.
pub(super) const MAX_INTERSECTION: f64 = 1_200_000.0;

/// Most choices.
pub const MAX_CHOICES: usize = 4096;

/// Limits of compiling, and of one mask: some 20 ms each on a processor of today. A mask that would take more ends its
/// request.
pub(super) fn parser() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        // It runs regular expressions over the whole vocabulary, at no fuel.
        precompute_large_lexemes: false,
        // The state that they show is no help to a client.
        verbose_errors: false,
    }
}

/// What a client is told of an error of the library: one line, bounded.
pub(super) fn reason(error: &str) -> String {
    const LONGEST: usize = 500;
    let error = error.split("<non-verbose/>").next().unwrap_or_default();
    let error = error.split("<backtrace>").next().unwrap_or_default();
    let error = if error.trim() == "NoExtensionBias" {
        "nothing can be written that it accepts"
    } else {
        error
    };
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
