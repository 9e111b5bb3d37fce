//! Outputs that follow a grammar: which tokens may come next.
//!
//! A [`GrammarCompiler`] belongs to a tokenizer and makes a [`Matcher`] of a [`Grammar`]. A matcher is
//! told each token of an output and gives the mask of those that may follow: a token is in it exactly if
//! its bytes can be continued to something that the grammar accepts. Everything is bounded beforehand, by the
//! size of a grammar's text and by llguidance's own limits for what is made of it (see `limits`).
//!
//! Special tokens are in no mask, but those that end the output where the grammar may end, those that
//! a Lark grammar names (`<|name|>`), and the marks of tool calls and reasoning where they belong.

mod calls;
mod checks;
mod lark;
mod limits;
mod matcher;
mod reasoning;
mod source;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::error::TextError;
use crate::table::TokenTable;

pub(crate) use crate::grammar::calls::CallRules;
pub use crate::grammar::calls::{Calls, Function};
pub use crate::grammar::limits::{MAX_CHOICES, MAX_GRAMMAR_BYTES};
pub use crate::grammar::matcher::{Matcher, Stopper, avoid};
pub(crate) use crate::grammar::reasoning::Begun;
pub use crate::grammar::reasoning::Reasoning;
pub use crate::grammar::source::Grammar;

/// Makes matchers for one tokenizer. May be used from any thread.
pub struct GrammarCompiler {
    table: Arc<TokenTable>,
    vocabulary: u32,
    end_ids: Vec<u32>,
    /// Made with the first grammar: that takes a moment, and most engines never need it.
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("GrammarCompiler")
            .field("vocabulary", &self.vocabulary)
            .field("end_ids", &self.end_ids)
            .finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// For the tokens of `table`, in a model whose ids are below `vocabulary`; an output ends with one of `end_ids`.
    #[must_use]
    pub fn new(table: Arc<TokenTable>, vocabulary: u32, end_ids: &[u32]) -> Self {
        let end_ids = end_ids.iter().copied();
        Self {
            table,
            vocabulary,
            end_ids: end_ids.filter(|&id| id < vocabulary).collect(),
            factory: OnceLock::new(),
        }
    }

    /// Words of 32 bits that a mask has: bit `id % 32` of word `id / 32` is that of token `id`.
    #[must_use]
    pub fn mask_words(&self) -> usize {
        self.vocabulary.div_ceil(32) as usize
    }

    /// A matcher at the beginning of an output. Needs a stack of [`Self::STACK_BYTES`].
    ///
    /// # Errors
    /// [`TextError::GrammarTooLarge`], [`TextError::InvalidGrammar`] for one that is no grammar or takes more than
    /// the limits, [`TextError::InvalidFunction`] if that lies at the arguments of one function, [`TextError::NoGrammars`] for a
    /// model without grammars.
    pub fn compile(&self, grammar: &Grammar) -> Result<Matcher, TextError> {
        self.compile_prepared(grammar.prepare(&self.table)?, grammar.kind())
            .map_err(|error| self.blame_function(grammar, error))
    }

    /// The same error, or that of the first function whose schema cannot even be compiled alone.
    fn blame_function(&self, grammar: &Grammar, error: TextError) -> TextError {
        let Some(calls) = grammar.calls() else {
            return error;
        };
        for (index, function) in calls.functions().iter().enumerate() {
            let alone = calls
                .alone(index)
                .and_then(|top| self.compile_prepared(top, "json schema"));
            if let Err(TextError::InvalidGrammar { reason, .. }) = alone {
                return TextError::InvalidFunction {
                    name: function.name.clone(),
                    index,
                    reason,
                };
            }
        }
        error
    }

    fn compile_prepared(
        &self,
        top: TopLevelGrammar,
        kind: &'static str,
    ) -> Result<Matcher, TextError> {
        let factory = self.factory.get_or_init(|| self.make_factory());
        let factory = factory.as_ref().map_err(|reason| TextError::NoGrammars {
            reason: reason.clone(),
        })?;
        let refused = |reason: String| TextError::InvalidGrammar { kind, reason };
        let parser = catch_unwind(AssertUnwindSafe(|| factory.create_parser(top)))
            .map_err(|_| refused("a bug in its compiler made that fail".to_owned()))?;
        let parser = parser.map_err(|error| refused(limits::reason(&format!("{error:#}"))))?;
        Matcher::new(parser, self.mask_words(), self.vocabulary)
            .map_err(|error| refused(limits::reason(&error)))
    }

    /// The stack of a thread that compiles: schemas nest as deeply as JSON may.
    pub const STACK_BYTES: usize = 64 << 20;

    fn make_factory(&self) -> Result<ParserFactory, String> {
        let Some(&end_id) = self.end_ids.first() else {
            return Err("the model names no token that ends an output".to_owned());
        };
        let words: Vec<Vec<u8>> = (0..self.vocabulary).map(|id| self.word(id)).collect();
        let made = catch_unwind(AssertUnwindSafe(|| {
            let info = TokRxInfo::new(self.vocabulary, end_id);
            let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.end_ids);
            // A tokenizer that claims to be canonical would have single tokens forced on the model.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        }));
        let mut factory = made
            .map_err(|_| "its tokens are too long or too many".to_owned())?
            .map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        Ok(factory)
    }

    /// The bytes of a token as the library wants them: none for what is no token, a mark before special ones.
    fn word(&self, id: u32) -> Vec<u8> {
        let bytes = self.table.bytes(id).unwrap_or_default();
        if self.table.is_special(id) || self.end_ids.contains(&id) {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
        } else {
            bytes.to_vec()
        }
    }
}
