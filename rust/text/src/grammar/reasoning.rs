//! Reasoning that may or must come before what a grammar says.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use crate::answer::ReasoningFormat;
use crate::grammar::lark::{ANY, beginning, containing, literal, special, up_to_mark};
use crate::table::TokenTable;

/// How the answer's part of the reasoning begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Begun {
    /// The prompt began it: the answer goes on until it ends.
    ByPrompt,
    /// The answer may begin it, or have none.
    ByAnswer,
}

/// Reasoning in one of the formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reasoning {
    pub(crate) format: &'static str,
    pub(crate) begun: Begun,
}

impl Reasoning {
    /// What texts of the answer begin with that are reasoning, and not what the grammar says.
    pub(super) fn opening(&self) -> Option<&'static str> {
        let open = ReasoningFormat::named(self.format).tags.open;
        (self.begun == Begun::ByAnswer).then_some(open)
    }

    /// Puts it before a grammar.
    pub(super) fn before(
        &self,
        mut answer: TopLevelGrammar,
        table: &TokenTable,
    ) -> TopLevelGrammar {
        if let Some(first) = answer.grammars.first_mut() {
            first.name = Some("answer".to_owned());
        }
        let lark = GrammarWithLexer {
            name: Some("reasoning".to_owned()),
            lark_grammar: Some(self.lark(table)),
            ..GrammarWithLexer::default()
        };
        answer.grammars.insert(0, lark);
        answer
    }

    fn lark(&self, table: &TokenTable) -> String {
        let tags = &ReasoningFormat::named(self.format).tags;
        // There is one.
        let close = tags.close[0];
        let up_to_close = || up_to_mark(table, "thought", close, &[]);
        let (start, rules) = match (self.begun, special(table, tags.open)) {
            (Begun::ByPrompt, _) => ("thought gap @answer", up_to_close()),
            (Begun::ByAnswer, Some(open)) => (
                "( open thought gap )? @answer",
                format!("open: {open}\n{}", up_to_close()),
            ),
            (Begun::ByAnswer, None) => (
                "( thought gap )? @answer",
                opened_by_text(table, tags.open, close),
            ),
        };
        // Line ends there belong to neither.
        format!("start: {start}\n{rules}\ngap: GAP?\nGAP: /\\n{{1,2}}/")
    }
}

/// One lexeme up to where it ends or a special token does that, so that no other reading of the first tag outlives it.
fn opened_by_text(table: &TokenTable, open: &str, close: &str) -> String {
    let open = literal(open);
    match special(table, close) {
        Some(token) => format!(
            "thought: THOUGHT {token}\nTHOUGHT: {open} INNER\nINNER: {ANY} & ~CLOSED\nCLOSED: {}",
            containing(close)
        ),
        None => format!("thought[lazy]: {open} {ANY} {}", literal(close)),
    }
}

/// A terminal's expression for what a regular expression matches and no reasoning begins.
pub(super) fn without_opening(regex: &str, opening: &str) -> String {
    format!(
        "start: ANSWER\nANSWER: /{regex}/ & ~THOUGHT\nTHOUGHT: {}",
        beginning(opening)
    )
}
