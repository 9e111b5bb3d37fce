//! Text to ids, and the table for the way back.

use std::path::Path;
use std::sync::Arc;

use crate::decoder::DecodingPlan;
use crate::error::TextError;
use crate::table::TokenTable;

/// Sixty times the largest vocabulary in use: what lies beyond is a broken file, not a reason for a table of gigabytes.
const HIGHEST_ID: u32 = (1 << 24) - 1;

/// A tokenizer of any kind, read from a `tokenizer.json`: byte-level and `SentencePiece` BPE, Unigram, `WordPiece`.
///
/// Only single `encode` calls are made, on the caller's thread: the library's batch calls would start a global thread
/// pool that hangs after a fork.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    table: Arc<TokenTable>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `folder`.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or if its decoder gives no text before it has seen all of it.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        let json = std::fs::read(&path).map_err(|source| TextError::Read {
            path: path.clone(),
            source,
        })?;
        let invalid = |reason: String| TextError::InvalidTokenizer {
            path: path.clone(),
            reason,
        };
        let mut inner =
            tokenizers::Tokenizer::from_bytes(&json).map_err(|error| invalid(error.to_string()))?;
        // A file may carry the truncation and padding of a training run; a prompt must arrive as it is.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| invalid(error.to_string()))?;
        let highest = inner.get_vocab(true).into_values().max();
        let highest = highest.ok_or_else(|| invalid("its vocabulary is empty".to_owned()))?;
        if highest > HIGHEST_ID {
            return Err(invalid(format!(
                "it has a token of id {highest}, the highest id that is supported is {HIGHEST_ID}"
            )));
        }
        let table = Arc::new(token_table(&inner, highest)?);
        Ok(Self { inner, table })
    }

    /// The ids of `text`. `add_special_tokens` adds what the tokenizer's post-processor adds, usually a BOS token.
    ///
    /// # Errors
    /// If the tokenizer's model cannot represent the text (a vocabulary without some byte and without an unknown token).
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|error| TextError::Encode {
                reason: error.to_string(),
            })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A token as the vocabulary has it, in the spelling that the decoder expects; `None` for an id that names none.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    #[must_use]
    pub fn table(&self) -> Arc<TokenTable> {
        Arc::clone(&self.table)
    }

    /// One more than the highest id, added tokens included. A model's own vocabulary may be padded beyond it.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.table.len() as u32
    }
}

fn token_table(tokenizer: &tokenizers::Tokenizer, highest: u32) -> Result<TokenTable, TextError> {
    let plan = DecodingPlan::new(tokenizer.get_decoder())?;
    let added = tokenizer.get_added_vocabulary();
    let tokens = (0..=highest).map(|id| {
        let token = tokenizer.id_to_token(id)?;
        let special = added.is_special_token(&token);
        Some((token, special))
    });
    TokenTable::decoded(&plan, tokens).map_err(|reason| TextError::Decode { reason })
}
