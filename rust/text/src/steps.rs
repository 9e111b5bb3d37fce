//! Decoders that look at neighbours, over text that comes in parts: what each gives for the parts, joined, is what it
//! gives for the whole, and only what a later part may still change waits.

use std::mem;

use crate::detokenizer::Detokenizer;

/// What a decoder sees: tokens, each as the text that it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Begin,
    Text(String),
    End,
}

/// One decoder of a sequence.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Makes one token of all.
    Fuse {
        begun: bool,
    },
    /// Replaces a text by another within each token, from left to right.
    Replace {
        pattern: String,
        content: String,
        /// The last of the token's text, if it begins the pattern.
        held: String,
    },
    /// Replaces a character by a space, or by nothing in the first token.
    Metaspace {
        replacement: char,
        drops: bool,
    },
    Strip(Strip),
    EndOfWord(EndOfWord),
}

/// Takes up to `start` times `content` from the head of each token and up to `stop` times from its tail.
#[derive(Debug, Clone)]
pub(crate) struct Strip {
    content: char,
    start: usize,
    stop: usize,
    /// How many may still be taken from the head.
    left: usize,
    /// How many at the end of the text so far may be the tail.
    held: usize,
}

/// Replaces a suffix by a space, or by nothing in the very last token.
#[derive(Debug, Clone)]
pub(crate) struct EndOfWord {
    suffix: String,
    held: String,
    /// What the token gives from its first suffix on: if another token follows, and if none does.
    undecided: Option<(String, String)>,
}

impl Step {
    pub(crate) fn fuse() -> Self {
        Self::Fuse { begun: false }
    }

    pub(crate) fn replace(pattern: &str, content: &str) -> Self {
        Self::Replace {
            pattern: pattern.to_owned(),
            content: content.to_owned(),
            held: String::new(),
        }
    }

    pub(crate) fn metaspace(replacement: char, drops_first: bool) -> Self {
        Self::Metaspace {
            replacement,
            drops: drops_first,
        }
    }

    pub(crate) fn strip(content: char, start: usize, stop: usize) -> Self {
        Self::Strip(Strip {
            content,
            start,
            stop,
            left: start,
            held: 0,
        })
    }

    pub(crate) fn end_of_word(suffix: &str) -> Self {
        Self::EndOfWord(EndOfWord {
            suffix: suffix.to_owned(),
            held: String::new(),
            undecided: None,
        })
    }

    /// Whether it will leave all further text of one token as it is.
    fn is_done(&self) -> bool {
        matches!(self, Self::Strip(strip) if strip.left == 0 && strip.stop == 0)
    }

    fn take(&mut self, part: Part, out: &mut Vec<Part>) {
        match self {
            Self::Fuse { begun } => match part {
                Part::Begin if !mem::replace(begun, true) => out.push(Part::Begin),
                Part::Begin | Part::End => {}
                text @ Part::Text(_) => out.push(text),
            },
            Self::Replace {
                pattern,
                content,
                held,
            } => match part {
                Part::Text(text) => {
                    held.push_str(&text);
                    give(out, replace_settled(held, pattern, content));
                }
                Part::End => {
                    give(out, mem::take(held));
                    out.push(Part::End);
                }
                Part::Begin => out.push(Part::Begin),
            },
            Self::Metaspace { replacement, drops } => match part {
                Part::Text(text) => {
                    let space = if *drops { "" } else { " " };
                    give(out, text.replace(*replacement, space));
                }
                Part::End => {
                    *drops = false;
                    out.push(Part::End);
                }
                Part::Begin => out.push(Part::Begin),
            },
            Self::Strip(strip) => strip.take(part, out),
            Self::EndOfWord(suffix) => suffix.take(part, out),
        }
    }

    /// No token follows.
    fn finish(&mut self, out: &mut Vec<Part>) {
        match self {
            Self::Fuse { begun: true } => out.push(Part::End),
            Self::EndOfWord(suffix) => {
                if let Some((_, last)) = suffix.undecided.take() {
                    give(out, last);
                    out.push(Part::End);
                }
            }
            // They are done with a token at its end.
            Self::Fuse { begun: false }
            | Self::Replace { .. }
            | Self::Metaspace { .. }
            | Self::Strip(_) => {}
        }
    }
}

impl Strip {
    fn take(&mut self, part: Part, out: &mut Vec<Part>) {
        match part {
            Part::Begin => {
                self.left = self.start;
                out.push(Part::Begin);
            }
            Part::Text(text) => give(out, self.settled(&text)),
            Part::End => {
                self.held = 0;
                out.push(Part::End);
            }
        }
    }

    fn settled(&mut self, mut text: &str) -> String {
        while self.left > 0 && !text.is_empty() {
            match text.strip_prefix(self.content) {
                Some(rest) => {
                    text = rest;
                    self.left -= 1;
                }
                None => self.left = 0,
            }
        }
        let body = text.trim_end_matches(self.content);
        let ends = (text.len() - body.len()) / self.content.len_utf8();
        let before = mem::take(&mut self.held);
        // If there is nothing else in this text, it only lengthens what was held.
        let run = if body.is_empty() { before + ends } else { ends };
        self.held = run.min(self.stop);
        let repeated = |times| std::iter::repeat_n(self.content, times).collect::<String>();
        if body.is_empty() {
            repeated(run - self.held)
        } else {
            repeated(before) + body + &repeated(run - self.held)
        }
    }
}

impl EndOfWord {
    fn take(&mut self, part: Part, out: &mut Vec<Part>) {
        match part {
            Part::Begin => {
                if let Some((followed, _)) = self.undecided.take() {
                    give(out, followed);
                    out.push(Part::End);
                }
                out.push(Part::Begin);
            }
            Part::Text(text) => {
                self.held.push_str(&text);
                while let Some(at) = self.held.find(&self.suffix) {
                    let after = self.held.split_off(at + self.suffix.len());
                    let before = mem::replace(&mut self.held, after);
                    self.add(&before[..at], out);
                    let undecided = self.undecided.get_or_insert_default();
                    undecided.0.push(' ');
                }
                let kept = overlap(&self.held, &self.suffix);
                let kept = self.held.split_off(self.held.len() - kept);
                let settled = mem::replace(&mut self.held, kept);
                self.add(&settled, out);
            }
            Part::End => {
                let rest = mem::take(&mut self.held);
                self.add(&rest, out);
                if self.undecided.is_none() {
                    out.push(Part::End);
                }
            }
        }
    }

    fn add(&mut self, text: &str, out: &mut Vec<Part>) {
        match &mut self.undecided {
            Some((followed, last)) => {
                followed.push_str(text);
                last.push_str(text);
            }
            None => give(out, text.to_owned()),
        }
    }
}

fn give(out: &mut Vec<Part>, text: String) {
    if !text.is_empty() {
        out.push(Part::Text(text));
    }
}

/// Takes from `held` all but an end that begins `pattern`, with every `pattern` replaced.
fn replace_settled(held: &mut String, pattern: &str, content: &str) -> String {
    let mut settled = String::new();
    let mut from = 0;
    while let Some(at) = held[from..].find(pattern) {
        settled.push_str(&held[from..from + at]);
        settled.push_str(content);
        from += at + pattern.len();
    }
    let rest = &held[from..];
    let kept = overlap(rest, pattern);
    settled.push_str(&rest[..rest.len() - kept]);
    *held = rest[rest.len() - kept..].to_owned();
    settled
}

/// Bytes of the longest end of `text` that begins `pattern` and is not all of it.
fn overlap(text: &str, pattern: &str) -> usize {
    let longest = text.len().min(pattern.len() - 1);
    (1..=longest)
        .rev()
        .find(|&length| text.as_bytes().ends_with(&pattern.as_bytes()[..length]))
        .unwrap_or(0)
}

/// The decoders of one answer that follow its table of bytes, with what they hold.
#[derive(Debug, Clone)]
pub(crate) struct TextSteps {
    steps: Vec<Step>,
    fused: bool,
    /// Whether a token without text ends a run of byte tokens.
    has_runs: bool,
    within: Within,
}

/// The token that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    None,
    Token,
    /// Bytes of byte tokens: one token, with those that follow.
    Run,
}

impl TextSteps {
    pub(crate) fn new(steps: Vec<Step>, fused: bool, has_runs: bool) -> Self {
        Self {
            steps,
            fused,
            has_runs,
            within: Within::None,
        }
    }

    /// Whether nothing is left to do: the table's bytes are the text.
    #[inline]
    pub(crate) fn are_done(&self) -> bool {
        self.steps.is_empty()
    }

    /// Decodes one token's bytes, appending to `out` what no later token can change.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        fallback: bool,
        detokenizer: &mut Detokenizer,
        out: &mut String,
    ) {
        let mut parts = Vec::new();
        let goes_on = self.fused || (self.within == Within::Run && fallback);
        if self.within != Within::None && !goes_on {
            self.close(detokenizer, &mut parts);
        }
        if self.within == Within::None {
            parts.push(Part::Begin);
        }
        self.within = if fallback { Within::Run } else { Within::Token };
        let mut text = String::new();
        if bytes.is_empty() && self.has_runs {
            detokenizer.flush(&mut text);
        } else {
            detokenizer.push_bytes(bytes, &mut text);
        }
        give(&mut parts, text);
        if !self.fused && !fallback {
            self.close(detokenizer, &mut parts);
        }
        self.run(parts, false, out);
        if self.fused && self.steps.iter().all(Step::is_done) {
            self.steps.clear();
        }
    }

    /// Ends the text and appends what was waiting.
    pub(crate) fn finish(&mut self, detokenizer: &mut Detokenizer, out: &mut String) {
        let mut parts = Vec::new();
        if self.within != Within::None {
            self.close(detokenizer, &mut parts);
        }
        self.run(parts, true, out);
    }

    fn close(&mut self, detokenizer: &mut Detokenizer, parts: &mut Vec<Part>) {
        let mut text = String::new();
        detokenizer.flush(&mut text);
        give(parts, text);
        parts.push(Part::End);
        self.within = Within::None;
    }

    fn run(&mut self, mut parts: Vec<Part>, is_last: bool, out: &mut String) {
        for step in &mut self.steps {
            let mut next = Vec::with_capacity(parts.len());
            for part in parts {
                step.take(part, &mut next);
            }
            if is_last {
                step.finish(&mut next);
            }
            parts = next;
        }
        for part in parts {
            if let Part::Text(text) = part {
                out.push_str(&text);
            }
        }
    }
}
