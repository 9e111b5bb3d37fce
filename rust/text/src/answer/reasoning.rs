//! Reasoning between tags, apart from the answer.

use super::markers::MarkerSearch;

/// How a family of models marks its reasoning.
#[derive(Debug)]
pub(crate) struct ReasoningTags {
    pub(crate) open: &'static str,
    /// One mark, as the search wants it.
    pub(crate) close: &'static [&'static str],
}

/// Splits an answer. Reasoning is what stands between the tags where the answer begins with the first one, or where the
/// prompt ended with it; line ends next to the tags belong to neither side.
#[derive(Clone, Debug)]
pub(super) struct ReasoningReader {
    tags: &'static ReasoningTags,
    place: Place,
    close: MarkerSearch,
    /// The beginning of the answer, or line ends that may stand before the closing tag.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    /// After the opening tag, and nothing but line ends since.
    Opened,
    Inside,
    /// After the closing tag, and nothing but line ends since.
    Closed,
    After,
}

impl ReasoningReader {
    /// `is_inside`: the prompt ends within reasoning.
    pub(super) fn new(tags: &'static ReasoningTags, is_inside: bool) -> Self {
        Self {
            tags,
            place: if is_inside {
                Place::Opened
            } else {
                Place::Start
            },
            close: MarkerSearch::new(tags.close),
            held: String::new(),
        }
    }

    /// Whether the model is thinking.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.place, Place::Opened | Place::Inside)
    }

    /// Appends to `reasoning` and to `answer` what is sure to belong there.
    pub(super) fn push(&mut self, text: &str, reasoning: &mut String, answer: &mut String) {
        match self.place {
            Place::Start => self.begin(text, reasoning, answer),
            Place::Opened | Place::Inside => self.think(text, reasoning, answer),
            Place::Closed => {
                let text = text.trim_start_matches('\n');
                if !text.is_empty() {
                    self.place = Place::After;
                    answer.push_str(text);
                }
            }
            Place::After => answer.push_str(text),
        }
    }

    /// The answer ends: appends what was held back.
    pub(super) fn finish(&mut self, reasoning: &mut String, answer: &mut String) {
        if self.is_inside() {
            reasoning.push_str(&self.held);
            self.close.flush(reasoning);
        } else {
            answer.push_str(&self.held);
        }
        self.held.clear();
    }

    fn begin(&mut self, text: &str, reasoning: &mut String, answer: &mut String) {
        self.held.push_str(text);
        let begun = self.held.trim_start();
        if let Some(rest) = begun.strip_prefix(self.tags.open) {
            let rest = rest.to_owned();
            self.held.clear();
            self.place = Place::Opened;
            self.think(&rest, reasoning, answer);
        } else if !self.tags.open.starts_with(begun) {
            self.place = Place::After;
            answer.push_str(&self.held);
            self.held.clear();
        }
    }

    fn think(&mut self, text: &str, reasoning: &mut String, answer: &mut String) {
        let mut before = std::mem::take(&mut self.held);
        let found = self.close.push(text, &mut before);
        let mut new = before.as_str();
        if self.place == Place::Opened {
            new = new.trim_start_matches('\n');
            if !new.is_empty() {
                self.place = Place::Inside;
            }
        }
        let sure = new.trim_end_matches('\n');
        reasoning.push_str(sure);
        if let Some((_, rest)) = found {
            self.place = Place::Closed;
            self.push(&rest, reasoning, answer);
        } else {
            new[sure.len()..].clone_into(&mut self.held);
        }
    }
}
