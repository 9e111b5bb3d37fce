use std::path::PathBuf;

/// Everything that can go wrong with text. Texts name the offending value and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("{} is not a usable tokenizer: {reason}", path.display())]
    InvalidTokenizer { path: PathBuf, reason: String },

    #[error(
        "the tokenizer's decoder is {found}, whose {part} is not supported where it stands: first come any of Replace, \
         Metaspace, WordPiece and Strip, then one of ByteLevel, ByteFallback, BPEDecoder and Fuse, then any of Fuse, Strip, \
         Metaspace and Replace of a text"
    )]
    UnsupportedDecoder { found: String, part: &'static str },

    #[error("the tokenizer's decoder failed on one of its tokens: {reason}")]
    Decode { reason: String },

    #[error("the tokenizer failed on this text: {reason}")]
    Encode { reason: String },

    #[error("{} is not valid: {reason}", path.display())]
    InvalidConfig { path: PathBuf, reason: String },

    #[error("the chat template in {} does not compile: {reason}", path.display())]
    TemplateSyntax { path: PathBuf, reason: String },

    /// The template called `raise_exception`: the conversation does not suit the model.
    #[error("the model's chat template refused the conversation: {message}")]
    TemplateRefused { message: String },

    #[error("the model's chat template failed: {reason}")]
    TemplateFailed { reason: String },

    #[error(
        "rendering the chat template took more than {limit} instructions and was stopped: send fewer or shorter messages"
    )]
    TemplateTooExpensive { limit: u64 },

    #[error(
        "the rendered conversation has more than {limit} bytes, so the rendering was stopped: send fewer or shorter messages"
    )]
    RenderedTooLong { limit: usize },

    #[error(
        "{name}: the model's chat template does not show them, so the model would never see them: leave `{name}` out"
    )]
    NotShown { name: &'static str },

    #[error(
        "chat_template_kwargs: `{name}` is no variable of the client's: leave it out, and use the request's own field where \
         there is one"
    )]
    OwnVariable { name: &'static str },

    #[error("{what}: there is no format '{name}'; there are {known}, and `auto` and `none`")]
    UnknownFormat {
        what: &'static str,
        name: String,
        known: String,
    },

    #[error("invalid chat request: {reason}")]
    InvalidChat { reason: String },

    #[error("the {kind} has {bytes} bytes, at most {limit} are compiled")]
    GrammarTooLarge {
        kind: &'static str,
        bytes: usize,
        limit: usize,
    },

    /// Not a grammar of its kind, or one that takes more work or memory than the limits.
    #[error("the {kind} cannot be compiled: {reason}")]
    InvalidGrammar { kind: &'static str, reason: String },

    /// The arguments of a tool, of which there are others, follow no schema that can be compiled.
    #[error("the schema of the arguments of {name:?} cannot be compiled: {reason}")]
    InvalidFunction {
        name: String,
        index: usize,
        reason: String,
    },

    #[error("this model cannot follow grammars: {reason}")]
    NoGrammars { reason: String },

    /// A mask took more than the limits, or its request was given up.
    #[error("the output cannot follow its grammar any further: {reason}")]
    GrammarFailed { reason: String },

    #[error("stop string {index} is empty: leave it out, or give at least one character")]
    EmptyStop { index: usize },

    #[error("{count} stop strings were given, at most {limit} are allowed")]
    TooManyStops { count: usize, limit: usize },

    #[error("the stop strings have {bytes} bytes of UTF-8 together, at most {limit} are allowed")]
    StopsTooLong { bytes: usize, limit: usize },
}
