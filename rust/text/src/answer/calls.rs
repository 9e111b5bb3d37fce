//! Tool calls in the text of an answer.

use super::delta::AnswerDelta;
use super::markers::MarkerSearch;
use super::object::{CallObject, Progress};
use super::value::{Step, ValueEnd};

/// Longest head of a call that is written as `name{…}`, in bytes: names have at most 64, as OpenAI's API takes them.
const MAX_HEAD: usize = 256;

/// How a family of models writes tool calls.
#[derive(Debug)]
pub(crate) struct CallSyntax {
    /// What begins a call, or several.
    pub(crate) open: &'static [&'static str],
    /// What ends one; none where nothing does. Marks of `open` among them begin the next: models forget to end one.
    pub(crate) close: &'static [&'static str],
    /// Whether an answer may be a call from its first character on. Then only names of tools that were given count.
    pub(crate) is_bare: bool,
    /// Whether calls may stand in a JSON list.
    pub(crate) has_lists: bool,
    /// What may stand between two calls, beside white space.
    pub(crate) separators: &'static [char],
    /// Marks that end a name where calls are written as `name{…}`; `None` where they are not.
    pub(crate) after_name: Option<&'static [&'static str]>,
}

/// Finds the calls in an answer and passes all else on as text. What turns out to be no call comes back as it was written;
/// between calls, and between a call and the mark that ends it, nothing but the calls is passed on.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent marks of what was read"
)]
pub(super) struct CallReader {
    syntax: &'static CallSyntax,
    tools: Vec<String>,
    place: Place,
    search: MarkerSearch,
    close: MarkerSearch,
    /// What was read since the last text or call: it is text if no call comes of it.
    raw: String,
    /// Whether `raw` begins with a mark that was found, or with the answer.
    is_opened: bool,
    /// Whether this began without a mark.
    is_bare: bool,
    in_list: bool,
    /// Whether white space is the gap after a call.
    in_gap: bool,
    num_calls: u32,
    /// Whether the arguments of a call end before they are complete.
    has_broken: bool,
    /// After so many calls nothing is passed on any more.
    limit: Option<u32>,
}

#[derive(Clone, Debug)]
enum Place {
    /// The beginning of an answer that may be a call.
    Start,
    Text,
    /// A call is expected.
    Between,
    Object(Box<CallObject>),
    /// The head of `name{…}`.
    Head,
    Arguments(ValueEnd),
    /// After a call, before the mark that ends it. White space and brackets too many are read over there, and if the call
    /// broke off, all else too.
    Closing {
        is_broken: bool,
    },
}

impl CallReader {
    pub(super) fn new(syntax: &'static CallSyntax, tools: Vec<String>, limit: Option<u32>) -> Self {
        Self {
            syntax,
            tools,
            place: if syntax.is_bare {
                Place::Start
            } else {
                Place::Text
            },
            search: MarkerSearch::new(syntax.open),
            close: MarkerSearch::new(syntax.close),
            raw: String::new(),
            is_opened: false,
            is_bare: false,
            in_list: false,
            in_gap: false,
            num_calls: 0,
            has_broken: false,
            limit,
        }
    }

    /// Whether as many calls as are wanted are complete.
    pub(super) fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.num_calls >= limit)
    }

    /// Whether there are calls, and each has arguments that are complete. To be asked at the end of the answer.
    pub(super) fn are_whole(&self) -> bool {
        self.num_calls > 0 && !self.has_broken
    }

    pub(super) fn push(&mut self, text: &str, delta: &mut AnswerDelta) {
        let mut rest = text.to_owned();
        while !rest.is_empty() && !self.is_full() {
            rest = match self.place {
                Place::Text => self.push_text(&rest, delta),
                _ => self.push_characters(&rest, delta),
            };
        }
    }

    /// The answer ends: passes on as text what was held back and is no call.
    pub(super) fn finish(&mut self, delta: &mut AnswerDelta) {
        match &self.place {
            _ if self.is_full() => {}
            Place::Text => {
                let mut text = String::new();
                self.search.flush(&mut text);
                self.say(&text, delta);
            }
            Place::Object(object) if object.is_begun() => {
                self.has_broken |= object.is_within_arguments() || !object.has_arguments();
                self.num_calls += 1;
            }
            Place::Start | Place::Between | Place::Object(_) | Place::Head => {
                let raw = std::mem::take(&mut self.raw);
                self.say(&raw, delta);
            }
            Place::Arguments(_) => self.has_broken = true,
            Place::Closing { .. } => {}
        }
    }

    /// Text up to the next mark; gives back what follows that.
    fn push_text(&mut self, text: &str, delta: &mut AnswerDelta) -> String {
        let mut before = String::new();
        let found = self.search.push(text, &mut before);
        self.say(&before, delta);
        let Some((marker, rest)) = found else {
            return String::new();
        };
        self.open(marker);
        rest
    }

    fn open(&mut self, marker: &str) {
        marker.clone_into(&mut self.raw);
        self.is_opened = true;
        self.is_bare = false;
        self.in_list = false;
        self.place = Place::Between;
    }

    fn say(&mut self, text: &str, delta: &mut AnswerDelta) {
        let text = if self.in_gap { text.trim_start() } else { text };
        if !text.is_empty() {
            self.in_gap = false;
            delta.text.push_str(text);
        }
    }

    /// Everything but text, a character at a time; gives back what follows once text begins.
    fn push_characters(&mut self, text: &str, delta: &mut AnswerDelta) -> String {
        for (start, character) in text.char_indices() {
            if self.is_full() {
                break;
            }
            if matches!(self.place, Place::Text) {
                return text[start..].to_owned();
            }
            if let Some(again) = self.character(character, delta) {
                return again + &text[start + character.len_utf8()..];
            }
        }
        String::new()
    }

    /// `Some`: what is to be read again as text.
    fn character(&mut self, character: char, delta: &mut AnswerDelta) -> Option<String> {
        let index = self.num_calls;
        match &mut self.place {
            Place::Text => Some(character.to_string()),
            Place::Start => self.start(character, delta),
            Place::Between => self.between(character, delta),
            Place::Head => self.head(character, delta),
            Place::Object(object) => {
                let known = self.is_bare.then_some(self.tools.as_slice());
                let progress = object.push(character, index, known, delta);
                if object.is_begun() {
                    self.raw.clear();
                } else {
                    self.raw.push(character);
                }
                match progress {
                    Progress::More => None,
                    Progress::Complete => {
                        self.end_call();
                        None
                    }
                    Progress::Broken if object.is_begun() => {
                        object.close(index, delta);
                        self.has_broken |= object.is_within_arguments();
                        Some(self.break_off(character))
                    }
                    Progress::Broken => self.give_up(delta),
                }
            }
            Place::Arguments(end) => match end.push(character) {
                Step::Inside => {
                    delta.add_arguments(index, character.encode_utf8(&mut [0; 4]));
                    None
                }
                Step::Last => {
                    delta.add_arguments(index, character.encode_utf8(&mut [0; 4]));
                    self.end_call();
                    None
                }
                Step::Behind | Step::Invalid => {
                    self.has_broken = true;
                    Some(self.break_off(character))
                }
            },
            Place::Closing { is_broken } => {
                let is_broken = *is_broken;
                self.closing(character, is_broken)
            }
        }
    }

    fn closing(&mut self, character: char, is_broken: bool) -> Option<String> {
        let mut before = String::new();
        let found = self
            .close
            .push(character.encode_utf8(&mut [0; 4]), &mut before);
        if let Some((marker, _)) = found {
            if self.syntax.open.contains(&marker) {
                self.open(marker);
            } else {
                self.place = Place::Text;
            }
            return None;
        }
        let is_gap = |character: char| character.is_whitespace() || matches!(character, '}' | ']');
        if is_broken || before.chars().all(is_gap) {
            return None;
        }
        // The mark was forgotten: this is the text after the call.
        self.close.flush(&mut before);
        self.place = Place::Text;
        Some(before)
    }

    fn start(&mut self, character: char, delta: &mut AnswerDelta) -> Option<String> {
        self.raw.push(character);
        if character.is_whitespace() {
            return None;
        }
        if character == '{' || (character == '[' && self.syntax.has_lists) {
            self.raw.pop();
            self.is_opened = true;
            self.is_bare = true;
            self.place = Place::Between;
            return self.between(character, delta);
        }
        self.place = Place::Text;
        Some(std::mem::take(&mut self.raw))
    }

    fn between(&mut self, character: char, delta: &mut AnswerDelta) -> Option<String> {
        self.raw.push(character);
        match character {
            '{' => {
                let mut object = Box::<CallObject>::default();
                object.push(character, self.num_calls, None, delta);
                self.place = Place::Object(object);
            }
            '[' if self.syntax.has_lists && self.is_opened && !self.in_list => self.in_list = true,
            ']' if self.in_list => {
                self.in_list = false;
                self.in_gap = true;
                self.raw.clear();
                self.place = Place::Text;
            }
            ',' if self.in_list => {}
            _ if character.is_whitespace() || self.syntax.separators.contains(&character) => {}
            _ if self.syntax.after_name.is_some() && self.is_opened && !self.in_list => {
                self.place = Place::Head;
            }
            _ => return self.give_up(delta),
        }
        None
    }

    fn head(&mut self, character: char, delta: &mut AnswerDelta) -> Option<String> {
        if character != '{' {
            self.raw.push(character);
            return if self.raw.len() > MAX_HEAD {
                self.give_up(delta)
            } else {
                None
            };
        }
        let Some(name) = self.name_in_head() else {
            self.raw.push(character);
            return self.give_up(delta);
        };
        self.raw.clear();
        delta.begin_call(self.num_calls, name);
        let mut end = ValueEnd::default();
        end.push(character);
        delta.add_arguments(self.num_calls, "{");
        self.place = Place::Arguments(end);
        None
    }

    fn name_in_head(&self) -> Option<String> {
        let open = self
            .syntax
            .open
            .iter()
            .find(|open| self.raw.starts_with(**open))?;
        let head = &self.raw[open.len()..];
        let end = self
            .syntax
            .after_name
            .unwrap_or_default()
            .iter()
            .filter_map(|mark| head.find(mark))
            .min();
        let name = head[..end.unwrap_or(head.len())].trim();
        (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| name.to_owned())
    }

    fn end_call(&mut self) {
        self.num_calls += 1;
        self.raw.clear();
        self.is_opened = false;
        self.place = if self.in_list {
            Place::Between
        } else if !self.syntax.close.is_empty() {
            Place::Closing { is_broken: false }
        } else if self.syntax.separators.is_empty() {
            Place::Text
        } else {
            Place::Between
        };
        self.in_gap = true;
    }

    /// A call that was passed on is no JSON from `character` on: gives back what is to be read again.
    fn break_off(&mut self, character: char) -> String {
        self.in_list = false;
        self.end_call();
        self.place = if self.syntax.close.is_empty() {
            Place::Text
        } else {
            Place::Closing { is_broken: true }
        };
        character.to_string()
    }

    /// What was read since the last text or call is no call.
    fn give_up(&mut self, delta: &mut AnswerDelta) -> Option<String> {
        let raw = std::mem::take(&mut self.raw);
        self.place = Place::Text;
        self.in_list = false;
        if std::mem::take(&mut self.is_opened) {
            // Its mark must not be found again.
            self.say(&raw, delta);
            return None;
        }
        Some(raw)
    }
}
