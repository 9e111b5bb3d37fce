//! Which template and special tokens a model folder holds.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::TextError;

const DEFAULT: &str = "default";
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

pub(super) struct TemplateFiles {
    /// Where the templates were found.
    pub(super) path: PathBuf,
    /// `(name, source)`; the model's only or main one is called "default".
    pub(super) templates: Vec<(String, String)>,
    /// `(variable, token)` as templates see them, such as `("bos_token", "<s>")`.
    pub(super) special_tokens: Vec<(String, String)>,
}

pub(super) fn read(folder: &Path) -> Result<Option<TemplateFiles>, TextError> {
    let config_path = folder.join("tokenizer_config.json");
    let config = read_object(&config_path)?;
    let map = read_object(&folder.join("special_tokens_map.json"))?;
    let (path, templates) = match jinja_files(folder)? {
        Some(found) => found,
        None => match config_templates(&config, &config_path)? {
            Some(templates) => (config_path, templates),
            None => return Ok(None),
        },
    };
    Ok(Some(TemplateFiles {
        path,
        templates,
        special_tokens: special_tokens(&config, &map),
    }))
}

type Templates = Vec<(String, String)>;

fn jinja_files(folder: &Path) -> Result<Option<(PathBuf, Templates)>, TextError> {
    let path = folder.join("chat_template.jinja");
    let mut templates = Vec::new();
    if let Some(source) = read_optional(&path)? {
        templates.push((DEFAULT.to_owned(), source));
    }
    let additional = folder.join("additional_chat_templates");
    if additional.is_dir() {
        let unreadable = |source| TextError::Read {
            path: additional.clone(),
            source,
        };
        for entry in fs::read_dir(&additional).map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "jinja")
                && let Some(name) = file.file_stem().and_then(|stem| stem.to_str())
                && let Some(source) = read_optional(&file)?
            {
                templates.push((name.to_owned(), source));
            }
        }
    }
    Ok((!templates.is_empty()).then_some((path, templates)))
}

fn config_templates(
    config: &Map<String, Value>,
    path: &Path,
) -> Result<Option<Templates>, TextError> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(vec![(DEFAULT.to_owned(), source.clone())])),
        Some(Value::Array(named)) => named
            .iter()
            .map(|entry| {
                let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name").zip(text("template"))
            })
            .collect::<Option<Templates>>()
            .filter(|templates| !templates.is_empty())
            .map(Some)
            .ok_or_else(|| {
                invalid(
                    path,
                    "each entry of `chat_template` must have a `name` and a `template`",
                )
            }),
        Some(_) => Err(invalid(
            path,
            "`chat_template` must be a string or a list of named templates",
        )),
    }
}

/// As in transformers, the tokenizer's configuration wins over the older map.
fn special_tokens(config: &Map<String, Value>, map: &Map<String, Value>) -> Vec<(String, String)> {
    SPECIAL_TOKENS
        .iter()
        .filter_map(|&name| {
            let token = config
                .get(name)
                .and_then(content)
                .or_else(|| map.get(name).and_then(content))?;
            Some((name.to_owned(), token.to_owned()))
        })
        .collect()
}

/// A token is written as a string or as an added-token object.
fn content(token: &Value) -> Option<&str> {
    token
        .as_str()
        .or_else(|| token.get("content").and_then(Value::as_str))
}

fn read_object(path: &Path) -> Result<Map<String, Value>, TextError> {
    match read_optional(path)? {
        None => Ok(Map::new()),
        Some(json) => {
            serde_json::from_str(&json).map_err(|error| invalid(path, &error.to_string()))
        }
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, TextError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn invalid(path: &Path, reason: &str) -> TextError {
    TextError::InvalidConfig {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}
