//! How the ids of an answer become what its reader gets.

use diptych_text::{AnswerDelta, AnswerParser, StopMatch, TextStream};

use crate::frame::Frame;

/// The text of one choice, taken apart where it has tool calls or reasoning in it.
#[derive(Debug)]
pub(crate) struct Answer {
    stream: TextStream,
    /// `None` where all is text.
    parser: Option<AnswerParser>,
    /// Text that is not taken apart yet.
    text: String,
    reasoning_tokens: u32,
}

impl Answer {
    pub(crate) fn new(stream: TextStream, parser: Option<AnswerParser>) -> Self {
        Self {
            stream,
            parser,
            text: String::new(),
            reasoning_tokens: 0,
        }
    }

    /// Adds what a token gives to the frame. `Some`: a stop string is complete.
    pub(super) fn push(&mut self, token: u32, frame: &mut Frame) -> Option<StopMatch> {
        let Some(parser) = &mut self.parser else {
            return self.stream.push(token, &mut frame.text);
        };
        self.text.clear();
        let was_reasoning = parser.is_reasoning();
        let stop = self.stream.push(token, &mut self.text);
        let mut delta = AnswerDelta::default();
        parser.push(&self.text, &mut delta);
        frame.add(delta);
        self.reasoning_tokens += u32::from(was_reasoning || parser.is_reasoning());
        stop
    }

    /// Takes a token that counts but gives no text.
    pub(super) fn push_hidden(&mut self, token: u32) {
        self.stream.push_hidden(token);
    }

    /// Nothing more comes: adds what was held back to the frame.
    pub(super) fn finish(&mut self, frame: &mut Frame) -> Option<StopMatch> {
        let Some(parser) = &mut self.parser else {
            return self.stream.finish(&mut frame.text);
        };
        self.text.clear();
        let stop = self.stream.finish(&mut self.text);
        let mut delta = AnswerDelta::default();
        parser.push(&self.text, &mut delta);
        parser.finish(&mut delta);
        frame.add(delta);
        stop
    }

    /// The bytes of a token that others precede; none for an id that names none.
    pub(super) fn bytes_of(&self, id: u32) -> &[u8] {
        self.stream.table().bytes(id).unwrap_or_default()
    }

    /// Whole characters of the text that wait for what comes next.
    pub(super) fn num_held_back(&self) -> usize {
        self.stream.held_back().chars().count()
    }

    /// Whether the last tool call that was asked for is there.
    pub(super) fn is_complete(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::is_complete)
    }

    /// Whether the answer, which has ended, has tool calls, and all of them complete.
    pub(super) fn has_whole_calls(&self) -> bool {
        let parser = self.parser.as_ref();
        parser.is_some_and(AnswerParser::has_whole_calls)
    }

    /// Tokens so far that were reasoning, its tags included, where that is told apart.
    pub(super) fn reasoning_tokens(&self) -> Option<u32> {
        let parser = self.parser.as_ref()?;
        parser.knows_reasoning().then_some(self.reasoning_tokens)
    }
}
