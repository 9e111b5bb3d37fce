//! A tool call as a JSON object with a name and arguments.

use super::delta::AnswerDelta;
use super::value::{Step, ValueEnd};

/// Reads `{"name": …, "arguments": {…}}`, in any order of its members; `parameters` is another word for `arguments`. As
/// soon as the name is known the arguments are passed on as they come. Other members are read over.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent marks of how far the object was read"
)]
pub(super) struct CallObject {
    place: Place,
    key: String,
    escaped: bool,
    end: ValueEnd,
    /// The member that is being read, if it is not passed on as it comes.
    value: String,
    is_streamed: bool,
    is_begun: bool,
    has_arguments: bool,
    /// Arguments that came before the name.
    early: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Open,
    Key,
    InKey,
    Colon,
    Value,
    AfterValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    /// This character was the last one of a call.
    Complete,
    /// This is no call, or breaks off as one.
    Broken,
}

impl CallObject {
    /// Whether the name is known, and the call passed on.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    pub(super) fn has_arguments(&self) -> bool {
        self.has_arguments
    }

    /// Whether arguments that are passed on have not come to their end.
    pub(super) fn is_within_arguments(&self) -> bool {
        self.place == Place::Value && self.is_streamed
    }

    /// Takes the next character. `known`: the only names that make it a call; `None` lets any.
    pub(super) fn push(
        &mut self,
        character: char,
        index: u32,
        known: Option<&[String]>,
        delta: &mut AnswerDelta,
    ) -> Progress {
        let is_space = matches!(character, ' ' | '\t' | '\n' | '\r');
        match (self.place, character) {
            (Place::Open, '{') | (Place::AfterValue, ',') => self.place = Place::Key,
            (Place::Key, '"') => {
                self.key.clear();
                self.place = Place::InKey;
            }
            (Place::InKey, _) => self.push_key(character),
            (Place::Colon, ':') => {
                self.value.clear();
                self.is_streamed = false;
                self.end = ValueEnd::default();
                self.place = Place::Value;
            }
            (Place::Value, _) if !(is_space && self.end.is_unbegun()) => {
                return self.push_value(character, index, known, delta);
            }
            (Place::AfterValue, '}') => return self.complete(index, delta),
            (Place::Open, _) => return Progress::Broken,
            _ if is_space => {}
            _ => return Progress::Broken,
        }
        Progress::More
    }

    /// Ends a call that breaks off: one that has no arguments yet has none.
    pub(super) fn close(&mut self, index: u32, delta: &mut AnswerDelta) {
        if self.is_begun && !self.has_arguments {
            delta.add_arguments(index, "{}");
        }
    }

    fn complete(&mut self, index: u32, delta: &mut AnswerDelta) -> Progress {
        if !self.is_begun {
            return Progress::Broken;
        }
        self.close(index, delta);
        Progress::Complete
    }

    fn push_key(&mut self, character: char) {
        match character {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.place = Place::Colon;
                return;
            }
            _ => {}
        }
        self.key.push(character);
    }

    fn push_value(
        &mut self,
        character: char,
        index: u32,
        known: Option<&[String]>,
        delta: &mut AnswerDelta,
    ) -> Progress {
        let step = self.end.push(character);
        match step {
            Step::Inside | Step::Last => self.keep(character, index, delta),
            Step::Behind => {}
            Step::Invalid => return Progress::Broken,
        }
        if step == Step::Inside {
            return Progress::More;
        }
        self.place = Place::AfterValue;
        if !self.end_member(index, known, delta) {
            return Progress::Broken;
        }
        match step {
            Step::Behind => self.push(character, index, known, delta),
            _ => Progress::More,
        }
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    /// Passes on what belongs to arguments, and keeps what must be seen whole.
    fn keep(&mut self, character: char, index: u32, delta: &mut AnswerDelta) {
        let is_first = self.value.is_empty();
        let can_stream = self.is_arguments() && self.is_begun && !self.has_arguments;
        if can_stream && is_first && matches!(character, '{' | '[') {
            self.is_streamed = true;
            self.has_arguments = true;
        }
        if self.is_streamed {
            delta.add_arguments(index, character.encode_utf8(&mut [0; 4]));
        } else {
            self.value.push(character);
        }
    }

    /// Uses a member that has ended; false if it makes this no call.
    fn end_member(
        &mut self,
        index: u32,
        known: Option<&[String]>,
        delta: &mut AnswerDelta,
    ) -> bool {
        if self.is_streamed {
            return true;
        }
        if self.key == "name" && !self.is_begun {
            let Ok(name) = serde_json::from_str::<String>(&self.value) else {
                return false;
            };
            if name.is_empty() || known.is_some_and(|known| !known.contains(&name)) {
                return false;
            }
            self.is_begun = true;
            delta.begin_call(index, name);
        } else if self.is_arguments() && !self.has_arguments && self.early.is_none() {
            self.early = Some(whole_arguments(&self.value));
        }
        if self.is_begun
            && let Some(early) = self.early.take()
        {
            self.has_arguments = true;
            delta.add_arguments(index, &early);
        }
        true
    }
}

/// Arguments as clients take them: some models write them as JSON within a string, or null for none.
fn whole_arguments(value: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Null) => "{}".to_owned(),
        _ => value.to_owned(),
    }
}
