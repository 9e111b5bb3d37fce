//! Text to ids, and the table for the way back.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::error::TextError;
use crate::table::TokenTable;

/// Sixty times the largest vocabulary in use: what lies beyond is a broken file, not a reason for a table of gigabytes.
const HIGHEST_ID: u32 = (1 << 24) - 1;

/// A byte-level BPE tokenizer read from a `tokenizer.json`.
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
    /// If the file cannot be read or parsed, or if its decoder is not byte-level: what decides is the decoder written
    /// in the file, never the model's name.
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
        check_decoder(&inner)?;
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
        let table = Arc::new(token_table(&inner, highest));
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

fn check_decoder(tokenizer: &tokenizers::Tokenizer) -> Result<(), TextError> {
    let decoder = match tokenizer.get_decoder() {
        None => Value::Null,
        Some(decoder) => {
            serde_json::to_value(decoder).map_err(|error| TextError::UnsupportedDecoder {
                found: format!("unreadable ({error})"),
            })?
        }
    };
    if is_byte_level(&decoder) {
        Ok(())
    } else {
        Err(TextError::UnsupportedDecoder {
            found: describe(&decoder),
        })
    }
}

fn is_byte_level(decoder: &Value) -> bool {
    match kind(decoder) {
        Some("ByteLevel") => true,
        // ByteLevel joins all tokens into one piece, so nothing but it may come first, and Fuse after it does nothing.
        Some("Sequence") => {
            let parts = members(decoder);
            parts
                .first()
                .is_some_and(|first| kind(first) == Some("ByteLevel"))
                && parts[1..].iter().all(|part| kind(part) == Some("Fuse"))
        }
        _ => false,
    }
}

fn kind(decoder: &Value) -> Option<&str> {
    decoder.get("type").and_then(Value::as_str)
}

fn members(sequence: &Value) -> &[Value] {
    sequence
        .get("decoders")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn describe(decoder: &Value) -> String {
    match kind(decoder) {
        Some("Sequence") => {
            let parts: Vec<String> = members(decoder).iter().map(describe).collect();
            format!("Sequence[{}]", parts.join(", "))
        }
        Some(name) => name.to_owned(),
        None => "missing".to_owned(),
    }
}

fn token_table(tokenizer: &tokenizers::Tokenizer, highest: u32) -> TokenTable {
    let byte_of = byte_of_character();
    let added = tokenizer.get_added_vocabulary();
    TokenTable::new((0..=highest).map(|id| {
        let token = tokenizer.id_to_token(id)?;
        Some((
            token_bytes(&token, &byte_of),
            added.is_special_token(&token),
        ))
    }))
}

/// As the `ByteLevel` decoder does it: a token written wholly in the byte alphabet is those bytes, any other (an added
/// token with a space or an emoji in it) is its own UTF-8.
fn token_bytes(token: &str, byte_of: &HashMap<char, u8>) -> Vec<u8> {
    token
        .chars()
        .map(|character| byte_of.get(&character).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte alphabet of byte-level BPE: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards.
fn byte_of_character() -> HashMap<char, u8> {
    let mut shifted = 0x100u32..;
    (0..=u8::MAX)
        .map(|byte| {
            let character = if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                char::from(byte)
            } else {
                shifted
                    .next()
                    .and_then(char::from_u32)
                    .expect("below the surrogates")
            };
            (character, byte)
        })
        .collect()
}
