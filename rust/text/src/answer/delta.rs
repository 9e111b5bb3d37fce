//! What is new of an answer.

/// What one step, or several merged ones, adds to an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerDelta {
    /// What the user is meant to read.
    pub text: String,
    /// What the model thought before, without the tags around it.
    pub reasoning: String,
    /// Tool calls, by their index. An index may come again in a later delta, with more arguments.
    pub calls: Vec<CallDelta>,
}

/// What is new of one tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDelta {
    /// From 0, in the order in which the model made them.
    pub index: u32,
    /// The tool's name, when the call begins and never again.
    pub name: Option<String>,
    /// The next piece of the arguments, which are JSON as the model wrote it.
    pub arguments: String,
}

/// Adds what came after `calls` to them.
pub fn merge_calls(calls: &mut Vec<CallDelta>, next: Vec<CallDelta>) {
    for call in next {
        match calls.iter_mut().find(|own| own.index == call.index) {
            Some(own) => own.arguments.push_str(&call.arguments),
            None => calls.push(call),
        }
    }
}

impl AnswerDelta {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Adds what came after this.
    pub fn merge(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.reasoning.push_str(&next.reasoning);
        merge_calls(&mut self.calls, next.calls);
    }

    pub(super) fn begin_call(&mut self, index: u32, name: String) {
        self.calls.push(CallDelta {
            index,
            name: Some(name),
            arguments: String::new(),
        });
    }

    pub(super) fn add_arguments(&mut self, index: u32, piece: &str) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.index == index) {
            call.arguments.push_str(piece);
        } else {
            self.calls.push(CallDelta {
                index,
                name: None,
                arguments: piece.to_owned(),
            });
        }
    }
}
