//! Chat templates, rendered as transformers renders them.

mod bounded;
mod environment;
mod folder;
mod generation;
mod numbers;
mod python;
mod request;

use std::path::Path;

use minijinja::{Environment, Value};

use crate::error::TextError;
use bounded::Bounded;
use environment::template_error;
use request::RenderRequest;

/// The named template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// A model's chat template.
///
/// Templates come with the model and are run with a limit on instructions; what a request may influence is data only.
/// The environment is transformers': its whitespace rules, `raise_exception`, `strftime_now`, `tojson`, loop controls,
/// Python's methods of strings and dictionaries, and Python's spelling of printed values.
///
/// A message whose `content` is a list of text parts is passed on as it is to a template that handles lists (found by
/// rendering a probe when the template is loaded); for all others its texts are joined by a newline.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    names: Vec<String>,
    special_tokens: Vec<(String, String)>,
    handles_parts: bool,
    /// All templates, one behind the other.
    source: String,
}

/// A prompt made of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// The byte from which on `text` belongs to the answer: its end, or where the message begins that is continued.
    pub answer_start: usize,
    /// Names of the tools that the conversation was given.
    pub tool_names: Vec<String>,
}

impl ChatTemplate {
    /// Reads the template of a model folder: `chat_template.jinja` (and `additional_chat_templates/*.jinja`), else
    /// `chat_template` in `tokenizer_config.json`, a string or a list of named ones. `None` if the model has none.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or a template does not compile.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, TextError> {
        let Some(files) = folder::read(folder)? else {
            return Ok(None);
        };
        let mut environment = environment::new();
        let mut names = Vec::new();
        let mut all = String::new();
        for (name, source) in files.templates {
            environment
                .add_template_owned(name.clone(), generation::as_plain_blocks(&source))
                .map_err(|error| TextError::TemplateSyntax {
                    path: files.path.clone(),
                    reason: format!("{error:#}"),
                })?;
            names.push(name);
            all.push_str(&source);
        }
        let mut template = Self {
            environment,
            names,
            special_tokens: files.special_tokens,
            handles_parts: false,
            source: all,
        };
        template.handles_parts = template.probe_parts();
        Ok(Some(template))
    }

    /// The source of the template, or of all where there are several.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation to the prompt's text.
    ///
    /// `request_json` is an object with `messages`, and optionally `add_generation_prompt`, `continue_final_message`,
    /// `tools`, `documents` and `chat_template_kwargs`. The result usually begins with the template's own BOS token, so
    /// encode it without adding special tokens. Numbers are printed as Python's `json` reads and writes them.
    ///
    /// # Errors
    /// If the JSON is not valid (an escaped unpaired surrogate is not) or not of this shape, if `chat_template_kwargs` names
    /// what has a field of its own, if it has tools or documents
    /// and the template does not show them, if the template refuses the conversation, fails, or exceeds its limit of
    /// instructions.
    pub fn render(&self, request_json: &str) -> Result<String, TextError> {
        self.render_within(request_json, usize::MAX)
            .map(|rendered| rendered.text)
    }

    /// As [`render`](Self::render), and stops once the text has more than `max_bytes`: a template may print a conversation
    /// any number of times.
    ///
    /// # Errors
    /// As there, and [`TextError::RenderedTooLong`].
    pub fn render_within(
        &self,
        request_json: &str,
        max_bytes: usize,
    ) -> Result<Rendered, TextError> {
        let mut request = RenderRequest::parse(request_json)?;
        for (name, is_given) in request.optional() {
            if is_given && !self.shows(name) {
                return Err(TextError::NotShown { name });
            }
        }
        if !self.handles_parts {
            request.join_text_parts();
        }
        let continued = request.mark_continued()?;
        let text = self.render_values(&request, max_bytes)?;
        let (text, answer_start) = if let Some(continued) = continued {
            continued.cut(text)?
        } else {
            let end = text.len();
            (text, end)
        };
        Ok(Rendered {
            text,
            answer_start,
            tool_names: request.tool_names(),
        })
    }

    /// Whether a variable stands in the template, or a template of its own is there for it.
    fn shows(&self, variable: &str) -> bool {
        if variable == "tools" && self.names.iter().any(|name| name == TOOL_USE) {
            return true;
        }
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        self.source
            .split(|character| !is_word(character))
            .any(|word| word == variable)
    }

    fn render_values(
        &self,
        request: &RenderRequest,
        max_bytes: usize,
    ) -> Result<String, TextError> {
        let template = self
            .environment
            .get_template(self.choose(request.tools.is_some())?)
            .map_err(|error| template_error(&error))?;
        let tokens = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())));
        let context = Value::from_pairs(tokens.chain(request.variables()));
        let mut text = Bounded::new(max_bytes);
        let rendered = template.render_captured_to(context, &mut text);
        match (text.into_text(), rendered) {
            (None, _) => Err(TextError::RenderedTooLong { limit: max_bytes }),
            (Some(text), Ok(_)) => Ok(text),
            (Some(_), Err(error)) => Err(template_error(&error)),
        }
    }

    fn choose(&self, has_tools: bool) -> Result<&str, TextError> {
        let wanted: &[&str] = if has_tools {
            &[TOOL_USE, "default"]
        } else {
            &["default"]
        };
        wanted
            .iter()
            .find(|wanted| self.names.iter().any(|name| name == *wanted))
            .copied()
            .ok_or_else(|| TextError::TemplateFailed {
                reason: format!(
                    "the model has only the named templates {:?} and no \"default\"",
                    self.names
                ),
            })
    }

    /// Whether a message made of one text part renders as the same text given as a string does.
    fn probe_parts(&self) -> bool {
        let render = |content: &str| {
            RenderRequest::parse(&format!(
                r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#
            ))
            .and_then(|request| self.render_values(&request, usize::MAX))
            .ok()
        };
        let parts = render(r#"[{"type":"text","text":"probe"}]"#);
        parts.is_some() && parts == render(r#""probe""#)
    }
}
