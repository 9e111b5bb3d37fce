//! The chunks of one stream. What they repeat is built once per request; each adds what is new.

use std::ops::Range;
use std::sync::Arc;

use super::DONE;
use super::json::{push_number, push_numbers, push_string, push_value};

/// Whose shapes the chunks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The role of each choice first, then text in `delta.content`, reasoning and tool calls beside it; the finish reason with an empty delta.
    Chat,
    /// Text in `text`; the finish reason comes with the last of it. Neither reasoning nor tool calls.
    Completions,
}

/// What all chunks repeat. `created` in seconds since 1970.
#[derive(Clone, Debug)]
pub struct Identity {
    pub id: String,
    pub created: u64,
    pub model: String,
}

/// What a client asked to see.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a client asks for each by itself"
)]
pub struct View {
    /// Every chunk but the last has a null usage; without, none has the key.
    pub include_usage: bool,
    /// Every chunk of a choice has the usage so far.
    pub continuous_usage: bool,
    /// Ids of the prompt once, and of the output with the chunk that is sent after them.
    pub token_ids: bool,
    pub reasoning: bool,
}

/// What is new of a choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta<'a> {
    pub text: &'a str,
    pub reasoning: &'a str,
    pub calls: &'a [ToolCall<'a>],
    pub token_ids: &'a [u32],
    /// JSON: the value of `logprobs` in the first chunk that this makes. Where nothing else makes one, it makes one.
    pub logprobs: Option<&'a [u8]>,
}

/// What is new of one tool call. Clients add up all deltas, so id and name come once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCall<'a> {
    pub index: u32,
    pub id: Option<&'a str>,
    pub name: Option<&'a str>,
    pub arguments: &'a str,
}

/// The end of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// As it is told.
    pub reason: &'a str,
    pub stop: Option<StopReason<'a>>,
    pub cached_tokens: u32,
}

/// The stop string or the token that ended a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason<'a> {
    Text(&'a str),
    Token(u32),
}

#[derive(Clone, Debug, Default)]
struct Choice {
    prompt_tokens: u32,
    prompt_ids: Option<Arc<[u32]>>,
    completion_tokens: u64,
    /// Known at the end.
    cached_tokens: Option<u32>,
    pending_ids: Vec<u32>,
}

/// What a chunk carries.
#[derive(Clone, Copy)]
enum Part<'a> {
    Nothing,
    Text(&'a str),
    Reasoning(&'a str),
    Calls(&'a [ToolCall<'a>]),
}

/// The events of one stream with any number of choices.
#[derive(Debug)]
pub struct Chunks {
    endpoint: Endpoint,
    view: View,
    /// `data: ` and the fields that all chunks repeat, without the closing brace.
    start: Vec<u8>,
    /// As `start`, up to the number of a choice.
    head: Vec<u8>,
    choices: Vec<Choice>,
    /// Whether the chunks with the roles have been sent.
    opened: bool,
}

impl Chunks {
    #[must_use]
    pub fn new(endpoint: Endpoint, identity: &Identity, view: View, choices: usize) -> Self {
        let object: &[u8] = match endpoint {
            Endpoint::Chat => br#","object":"chat.completion.chunk","created":"#,
            Endpoint::Completions => br#","object":"text_completion","created":"#,
        };
        let mut start = br#"data: {"id":"#.to_vec();
        push_string(&mut start, &identity.id);
        start.extend_from_slice(object);
        push_number(&mut start, identity.created);
        start.extend_from_slice(br#","model":"#);
        push_string(&mut start, &identity.model);
        let head = [&start, &br#","choices":[{"index":"#[..]].concat();
        Self {
            endpoint,
            view,
            start,
            head,
            choices: vec![Choice::default(); choices],
            opened: endpoint == Endpoint::Completions,
        }
    }

    #[must_use]
    pub fn num_choices(&self) -> usize {
        self.choices.len()
    }

    /// The prompt of `choices` has so many tokens; `prompt_ids` are shown once for each of them.
    ///
    /// # Panics
    /// If `choices` are more than there are.
    pub fn accept(
        &mut self,
        choices: Range<usize>,
        prompt_tokens: u32,
        prompt_ids: Option<Vec<u32>>,
    ) {
        let prompt_ids: Option<Arc<[u32]>> = prompt_ids.map(Arc::from);
        for choice in &mut self.choices[choices] {
            choice.prompt_tokens = prompt_tokens;
            choice.prompt_ids.clone_from(&prompt_ids);
        }
    }

    /// Appends the chunks for what is new of a choice: none while its text is held back.
    ///
    /// # Panics
    /// If there is no such choice.
    pub fn push(
        &mut self,
        index: usize,
        delta: &Delta<'_>,
        finish: Option<&Finish<'_>>,
        out: &mut Vec<u8>,
    ) {
        let choice = &mut self.choices[index];
        choice.completion_tokens += delta.token_ids.len() as u64;
        if self.view.token_ids {
            choice.pending_ids.extend_from_slice(delta.token_ids);
        }
        choice.cached_tokens = finish.map(|finish| finish.cached_tokens);
        let mut logprobs = delta.logprobs;
        let last = match self.endpoint {
            Endpoint::Completions if delta.text.is_empty() => Part::Nothing,
            Endpoint::Completions => Part::Text(delta.text),
            Endpoint::Chat => {
                for part in self.parts(delta).into_iter().flatten() {
                    self.chunk(index, part, logprobs.take(), None, out);
                }
                Part::Nothing
            }
        };
        if finish.is_some() || logprobs.is_some() || matches!(last, Part::Text(_)) {
            self.chunk(index, last, logprobs, finish, out);
        }
    }

    /// Appends what ends the stream: the chunk with the usage, which is JSON, where the client asked for it.
    pub fn close(&self, usage: Option<&[u8]>, out: &mut Vec<u8>) {
        if let Some(usage) = usage {
            out.extend_from_slice(&self.start);
            out.extend_from_slice(br#","choices":[],"usage":"#);
            push_value(out, usage);
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(DONE);
    }

    /// What a delta of a chat shows, in this order.
    fn parts<'a>(&self, delta: &Delta<'a>) -> [Option<Part<'a>>; 3] {
        let reasoning = self.view.reasoning && !delta.reasoning.is_empty();
        [
            reasoning.then_some(Part::Reasoning(delta.reasoning)),
            (!delta.text.is_empty()).then_some(Part::Text(delta.text)),
            (!delta.calls.is_empty()).then_some(Part::Calls(delta.calls)),
        ]
    }

    fn chunk(
        &mut self,
        index: usize,
        part: Part<'_>,
        logprobs: Option<&[u8]>,
        finish: Option<&Finish<'_>>,
        out: &mut Vec<u8>,
    ) {
        if !self.opened {
            self.opened = true;
            (0..self.choices.len()).for_each(|index| self.opening(index, out));
        }
        let choice = &mut self.choices[index];
        out.extend_from_slice(&self.head);
        push_number(out, index as u64);
        match self.endpoint {
            Endpoint::Chat => push_delta(out, part),
            Endpoint::Completions => push_completion(out, part),
        }
        out.extend_from_slice(br#","logprobs":"#);
        push_value(out, logprobs.unwrap_or(b"null"));
        push_finish(out, finish);
        if self.view.token_ids {
            out.extend_from_slice(br#","token_ids":"#);
            push_numbers(out, &choice.pending_ids);
            choice.pending_ids.clear();
            if self.endpoint == Endpoint::Completions {
                push_prompt_ids(out, choice);
            }
        }
        out.extend_from_slice(b"}]");
        self.end(
            &self.choices[index],
            self.choices[index].completion_tokens,
            out,
        );
    }

    /// The chunk with the role. Those of all choices come first, in order: clients put a choice at the end of a list.
    fn opening(&mut self, index: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        push_number(out, index as u64);
        out.extend_from_slice(
            br#","delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#,
        );
        if self.view.token_ids {
            push_prompt_ids(out, &mut self.choices[index]);
        }
        self.end(&self.choices[index], 0, out);
    }

    /// What follows the choices of a chunk.
    fn end(&self, choice: &Choice, completion_tokens: u64, out: &mut Vec<u8>) {
        if self.view.continuous_usage {
            push_usage(out, choice, completion_tokens);
        } else if self.view.include_usage {
            out.extend_from_slice(br#","usage":null"#);
        }
        out.extend_from_slice(b"}\n\n");
    }
}

fn push_completion(out: &mut Vec<u8>, part: Part<'_>) {
    out.extend_from_slice(br#","text":"#);
    push_string(
        out,
        if let Part::Text(text) = part {
            text
        } else {
            ""
        },
    );
}

fn push_delta(out: &mut Vec<u8>, part: Part<'_>) {
    out.extend_from_slice(br#","delta":{"#);
    match part {
        Part::Nothing => {}
        Part::Text(text) => {
            out.extend_from_slice(br#""content":"#);
            push_string(out, text);
        }
        Part::Reasoning(text) => {
            out.extend_from_slice(br#""reasoning_content":"#);
            push_string(out, text);
        }
        Part::Calls(calls) => {
            for (position, call) in calls.iter().enumerate() {
                out.extend_from_slice(if position == 0 {
                    br#""tool_calls":["#
                } else {
                    b","
                });
                push_call(out, call);
            }
            out.push(b']');
        }
    }
    out.push(b'}');
}

fn push_call(out: &mut Vec<u8>, call: &ToolCall<'_>) {
    out.extend_from_slice(br#"{"index":"#);
    push_number(out, call.index);
    if let Some(id) = call.id {
        out.extend_from_slice(br#","id":"#);
        push_string(out, id);
        out.extend_from_slice(br#","type":"function""#);
    }
    out.extend_from_slice(br#","function":{"#);
    if let Some(name) = call.name {
        out.extend_from_slice(br#""name":"#);
        push_string(out, name);
        out.push(b',');
    }
    out.extend_from_slice(br#""arguments":"#);
    push_string(out, call.arguments);
    out.extend_from_slice(b"}}");
}

fn push_finish(out: &mut Vec<u8>, finish: Option<&Finish<'_>>) {
    out.extend_from_slice(br#","finish_reason":"#);
    let Some(finish) = finish else {
        out.extend_from_slice(b"null");
        return;
    };
    push_string(out, finish.reason);
    out.extend_from_slice(br#","stop_reason":"#);
    match finish.stop {
        None => out.extend_from_slice(b"null"),
        Some(StopReason::Text(text)) => push_string(out, text),
        Some(StopReason::Token(id)) => push_number(out, id),
    }
}

fn push_prompt_ids(out: &mut Vec<u8>, choice: &mut Choice) {
    if let Some(ids) = choice.prompt_ids.take() {
        out.extend_from_slice(br#","prompt_token_ids":"#);
        push_numbers(out, &ids);
    }
}

fn push_usage(out: &mut Vec<u8>, choice: &Choice, completion_tokens: u64) {
    let prompt = u64::from(choice.prompt_tokens);
    for (name, tokens) in [
        (&br#","usage":{"prompt_tokens":"#[..], prompt),
        (br#","completion_tokens":"#, completion_tokens),
        (br#","total_tokens":"#, prompt + completion_tokens),
    ] {
        out.extend_from_slice(name);
        push_number(out, tokens);
    }
    if let Some(cached) = choice.cached_tokens {
        out.extend_from_slice(br#","prompt_tokens_details":{"cached_tokens":"#);
        push_number(out, cached);
        out.push(b'}');
    }
    out.push(b'}');
}
