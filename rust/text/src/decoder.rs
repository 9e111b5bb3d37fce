//! What a tokenizer's decoder does, split in two: what it does to each token alone, which becomes a table of bytes, and
//! what it does to the text of several, which is done as the text comes.
//!
//! What decides is the decoder written in the file, never the model's name. The kinds of decoders and what each does are
//! those of the `tokenizers` library; on tokens alone the library's own code is run.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Decoder as _;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::strip::Strip;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use crate::error::TextError;
use crate::steps::Step;

/// How the text of a token stands for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// UTF-8.
    Text,
    /// Every character stands for a byte.
    ByteLevel,
    /// UTF-8, but `<0x0A>` is one byte.
    ByteFallback,
}

/// What is done to a token alone.
#[derive(Debug)]
enum TokenStep {
    Library(DecoderWrapper),
    // The library's own panics on tokens that are shorter than what it strips.
    Strip(Strip),
    /// A tokenizer without a decoder puts a space between any two tokens.
    Space,
}

/// A decoder, inspected.
#[derive(Debug)]
pub(crate) struct DecodingPlan {
    token_steps: Vec<TokenStep>,
    spelling: Spelling,
    byte_of: HashMap<char, u8>,
    /// Whether what the text steps see is one text, or tokens.
    pub(crate) fused: bool,
    pub(crate) text_steps: Vec<Step>,
    /// Whether only text steps may follow.
    on_text: bool,
}

/// What a token contributes.
pub(crate) struct Contribution {
    pub(crate) bytes: Vec<u8>,
    /// If it is another one where the token is the first of the text.
    pub(crate) first: Option<Vec<u8>>,
    /// Whether it is one byte of a run.
    pub(crate) fallback: bool,
}

impl DecodingPlan {
    /// # Errors
    /// If the decoder needs the whole text before any of it is known, or is for speech.
    pub(crate) fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, TextError> {
        let mut plan = Self {
            token_steps: Vec::new(),
            spelling: Spelling::Text,
            byte_of: byte_of_character(),
            fused: false,
            text_steps: Vec::new(),
            on_text: false,
        };
        let Some(decoder) = decoder else {
            plan.token_steps.push(TokenStep::Space);
            return Ok(plan);
        };
        for part in parts(decoder) {
            let taken = if plan.on_text {
                plan.add_to_text(part)
            } else {
                plan.add_to_tokens(part)
            };
            if !taken {
                return Err(TextError::UnsupportedDecoder {
                    found: describe(decoder),
                    part: name(part),
                });
            }
        }
        Ok(plan)
    }

    /// Takes a part that still sees the tokens as the vocabulary has them.
    fn add_to_tokens(&mut self, part: &DecoderWrapper) -> bool {
        match part {
            DecoderWrapper::Replace(_)
            | DecoderWrapper::Metaspace(_)
            | DecoderWrapper::WordPiece(_) => {
                self.token_steps.push(TokenStep::Library(part.clone()));
                return true;
            }
            DecoderWrapper::Strip(strip) => {
                self.token_steps.push(TokenStep::Strip(strip.clone()));
                return true;
            }
            DecoderWrapper::ByteLevel(_) => {
                self.spelling = Spelling::ByteLevel;
                // It makes one text of all tokens.
                self.fused = true;
            }
            DecoderWrapper::ByteFallback(_) => self.spelling = Spelling::ByteFallback,
            DecoderWrapper::Fuse(_) => self.fused = true,
            DecoderWrapper::BPE(decoder) => {
                if decoder.suffix.is_empty() {
                    return false;
                }
                self.text_steps.push(Step::end_of_word(&decoder.suffix));
            }
            DecoderWrapper::CTC(_) | DecoderWrapper::Sequence(_) => return false,
        }
        self.on_text = true;
        true
    }

    /// Takes a part that sees what other tokens made of the text.
    fn add_to_text(&mut self, part: &DecoderWrapper) -> bool {
        let step = match part {
            DecoderWrapper::Fuse(_) if self.text_steps.is_empty() => {
                self.fused = true;
                return true;
            }
            DecoderWrapper::Fuse(_) => Step::fuse(),
            DecoderWrapper::Strip(strip) => Step::strip(strip.content, strip.start, strip.stop),
            DecoderWrapper::Metaspace(metaspace) => {
                let drops_first = metaspace.prepend_scheme != PrependScheme::Never;
                Step::metaspace(metaspace.get_replacement(), drops_first)
            }
            DecoderWrapper::Replace(_) => {
                let Some((pattern, content)) = literal(part) else {
                    return false;
                };
                Step::replace(&pattern, &content)
            }
            DecoderWrapper::ByteLevel(_)
            | DecoderWrapper::ByteFallback(_)
            | DecoderWrapper::WordPiece(_)
            | DecoderWrapper::BPE(_)
            | DecoderWrapper::CTC(_)
            | DecoderWrapper::Sequence(_) => return false,
        };
        self.text_steps.push(step);
        true
    }

    /// What `token`, as the vocabulary has it, contributes.
    ///
    /// # Errors
    /// What the library says of a pattern that fails on this token.
    pub(crate) fn contribution(&self, token: String) -> Result<Contribution, String> {
        let first = if self.token_steps.iter().any(TokenStep::depends_on_place) {
            Some(self.form(token.clone(), true)?)
        } else {
            None
        };
        let (bytes, fallback) = self.bytes(&self.form(token, false)?);
        let first = first.map(|first| self.bytes(&first).0);
        Ok(Contribution {
            first: first.filter(|first| *first != bytes),
            bytes,
            fallback,
        })
    }

    fn form(&self, mut token: String, is_first: bool) -> Result<String, String> {
        for step in &self.token_steps {
            token = step.apply(token, is_first)?;
        }
        Ok(token)
    }

    /// Whether bytes run together until a token comes that is none.
    pub(crate) fn has_runs(&self) -> bool {
        self.spelling == Spelling::ByteFallback
    }

    fn bytes(&self, token: &str) -> (Vec<u8>, bool) {
        match self.spelling {
            Spelling::Text => (token.as_bytes().to_vec(), false),
            Spelling::ByteLevel => (self.byte_level(token), false),
            Spelling::ByteFallback => match fallback_byte(token) {
                Some(byte) => (vec![byte], true),
                None => (token.as_bytes().to_vec(), false),
            },
        }
    }

    /// A token written wholly in the byte alphabet is those bytes, any other (an added token with a space or an emoji in
    /// it) is its own UTF-8.
    fn byte_level(&self, token: &str) -> Vec<u8> {
        token
            .chars()
            .map(|character| self.byte_of.get(&character).copied())
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

impl TokenStep {
    fn depends_on_place(&self) -> bool {
        match self {
            Self::Library(DecoderWrapper::Metaspace(metaspace)) => {
                metaspace.prepend_scheme != PrependScheme::Never
            }
            Self::Library(DecoderWrapper::WordPiece(_)) | Self::Space => true,
            Self::Library(_) | Self::Strip(_) => false,
        }
    }

    fn apply(&self, token: String, is_first: bool) -> Result<String, String> {
        match self {
            Self::Space if is_first => Ok(token),
            Self::Space => Ok(format!(" {token}")),
            Self::Strip(strip) => Ok(strip_token(&token, strip).to_owned()),
            Self::Library(part) => {
                let mut tokens = vec![token];
                if !is_first {
                    tokens.insert(0, String::new());
                }
                let given = part.decode_chain(tokens);
                let given = given.map_err(|error| error.to_string())?;
                Ok(given.into_iter().last().unwrap_or_default())
            }
        }
    }
}

fn strip_token<'t>(mut token: &'t str, strip: &Strip) -> &'t str {
    for _ in 0..strip.start {
        token = token.strip_prefix(strip.content).unwrap_or(token);
    }
    for _ in 0..strip.stop {
        token = token.strip_suffix(strip.content).unwrap_or(token);
    }
    token
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The parts of a decoder in the order in which they apply; a sequence within a sequence is as if it were written out.
fn parts(decoder: &DecoderWrapper) -> Vec<&DecoderWrapper> {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            sequence.get_decoders().iter().flat_map(parts).collect()
        }
        single => vec![single],
    }
}

/// Pattern and replacement, if the pattern is a text of at least one character.
fn literal(replace: &DecoderWrapper) -> Option<(String, String)> {
    let written = serde_json::to_value(replace).ok()?;
    let pattern = written.get("pattern")?.get("String")?.as_str()?;
    let content = written.get("content").and_then(Value::as_str)?;
    (!pattern.is_empty()).then(|| (pattern.to_owned(), content.to_owned()))
}

fn name(part: &DecoderWrapper) -> &'static str {
    match part {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

fn describe(decoder: &DecoderWrapper) -> String {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            let parts: Vec<String> = sequence.get_decoders().iter().map(describe).collect();
            format!("Sequence[{}]", parts.join(", "))
        }
        single => name(single).to_owned(),
    }
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
