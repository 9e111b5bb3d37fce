//! Chat templates, rendered as transformers renders them.

mod environment;
mod folder;
mod generation;
mod python;
mod request;

use std::path::Path;

use minijinja::{Environment, Value};

use crate::error::TextError;
use environment::template_error;
use request::RenderRequest;

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
        for (name, source) in files.templates {
            environment
                .add_template_owned(name.clone(), generation::as_plain_blocks(&source))
                .map_err(|error| TextError::TemplateSyntax {
                    path: files.path.clone(),
                    reason: format!("{error:#}"),
                })?;
            names.push(name);
        }
        let mut template = Self {
            environment,
            names,
            special_tokens: files.special_tokens,
            handles_parts: false,
        };
        template.handles_parts = template.probe_parts();
        Ok(Some(template))
    }

    /// Renders a conversation to the prompt's text.
    ///
    /// `request_json` is an object with `messages`, and optionally `add_generation_prompt`, `continue_final_message`,
    /// `tools` and `chat_template_kwargs`. The result usually begins with the template's own BOS token, so encode it
    /// without adding special tokens.
    ///
    /// # Errors
    /// If the JSON is not valid (an escaped unpaired surrogate is not) or not of this shape, if the template refuses the
    /// conversation, fails, or exceeds its limit of instructions.
    pub fn render(&self, request_json: &str) -> Result<String, TextError> {
        let mut request = RenderRequest::parse(request_json)?;
        if !self.handles_parts {
            request.join_text_parts();
        }
        let continued = request.mark_continued()?;
        let text = self.render_values(&request)?;
        match continued {
            Some(continued) => continued.cut(text),
            None => Ok(text),
        }
    }

    fn render_values(&self, request: &RenderRequest) -> Result<String, TextError> {
        let template = self
            .environment
            .get_template(self.choose(request.tools.is_some())?)
            .map_err(|error| template_error(&error))?;
        let tokens = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())));
        let context = Value::from_pairs(tokens.chain(request.variables()));
        template
            .render(context)
            .map_err(|error| template_error(&error))
    }

    fn choose(&self, has_tools: bool) -> Result<&str, TextError> {
        let wanted: &[&str] = if has_tools {
            &["tool_use", "default"]
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
            .and_then(|request| self.render_values(&request))
            .ok()
        };
        let parts = render(r#"[{"type":"text","text":"probe"}]"#);
        parts.is_some() && parts == render(r#""probe""#)
    }
}
