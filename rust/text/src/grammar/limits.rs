//! What a grammar may cost. Its text is bounded here, what is made of it by llguidance, in units of its own work: no
//! clock is asked, so the same grammar is taken or refused on every machine.

use llguidance::api::ParserLimits;

/// Longest text of a grammar, of all choices together, in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;

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
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
