//! The streaming thread: detokenising, stop strings, frames.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use diptych_core::Event;

use crate::arena::{Drawn, Score};
use crate::frame::{Done, FailureKind, Timings};
use crate::messages::{Command, Problem, TextMessage, Verdict};
use crate::shared::{Shared, empty_frame, lock};
use crate::stats::Statistics;
use crate::text::stream::Stream;

/// The life of the streaming thread: until [`TextMessage::Close`].
pub(crate) fn run_text(shared: &Shared) {
    let mut texts = TextThread {
        shared,
        streams: HashMap::new(),
        touched: Vec::new(),
        acks: Vec::new(),
        scores: HashMap::new(),
    };
    let mut messages = Vec::new();
    loop {
        shared.text.signal().wait(None);
        shared.text.take(&mut messages);
        for message in messages.drain(..) {
            if !texts.handle(message) {
                return;
            }
        }
        texts.flush();
    }
}

struct TextThread<'a> {
    shared: &'a Shared,
    /// By request and choice.
    streams: HashMap<(u64, u32), Stream>,
    /// Streams with something to flush, possibly ended since.
    touched: Vec<(u64, u32)>,
    acks: Vec<Verdict>,
    /// Log probabilities of the tokens of one message.
    scores: HashMap<Drawn, Score>,
}

impl TextThread<'_> {
    fn handle(&mut self, message: TextMessage) -> bool {
        match message {
            TextMessage::Accepted(accepted) => {
                for stream in Stream::of(*accepted) {
                    self.touched.push(stream.key());
                    self.streams.insert(stream.key(), stream);
                }
            }
            TextMessage::Events {
                events,
                explanations,
                scores,
                now,
            } => {
                self.take_scores(scores);
                let shared = self.shared;
                for explanation in explanations {
                    let key = (explanation.submission, explanation.choice);
                    if let Some(stream) = self.streams.get_mut(&key) {
                        stream.explain(explanation);
                    }
                }
                let mut statistics = lock(&shared.statistics);
                let mut ended = Vec::new();
                for event in events {
                    self.event(event, now, &mut statistics, &mut ended);
                }
                drop(statistics);
                self.scores.clear();
                for (stream, done) in ended {
                    self.finish(stream, done);
                }
            }
            TextMessage::Fail { request, problem } => self.fail(request, problem),
            TextMessage::Aborted(request) => {
                if let Some(open) = self.shared.find(request) {
                    self.shared.finish_aborted(&open);
                }
            }
            TextMessage::Close => return false,
        }
        true
    }

    fn event(
        &mut self,
        event: Event,
        now: u64,
        statistics: &mut Statistics,
        ended: &mut Vec<(Stream, Done)>,
    ) {
        let key = match event {
            Event::Admitted { submission, cached } => {
                return self.admitted(submission, cached, now, statistics);
            }
            Event::Token {
                submission, choice, ..
            }
            | Event::Preempted { submission, choice }
            | Event::Requeued { submission, choice }
            | Event::Finished {
                submission, choice, ..
            } => (submission, choice),
        };
        // This side ended it before the core heard of that.
        let Some(stream) = self.streams.get_mut(&key) else {
            return;
        };
        let submission = key.0;
        if let Some(score) = take_score(&mut self.scores, key, event) {
            stream.score(score);
        }
        let panic_at = self.shared.options.test_faults.panic_at_text_of;
        let done = catch_unwind(AssertUnwindSafe(|| {
            assert!(
                panic_at != Some(submission),
                "test_faults.panic_at_text_of asked for this panic"
            );
            apply(stream, event, now, statistics)
        }));
        match done {
            Ok(None) => self.touched.push(key),
            Ok(Some(done)) if stream.is_explained() && !is_last(event) => {
                stream.end_with_explanation(done);
                self.acks.extend(stream.take_ack(true));
                self.touched.push(key);
            }
            Ok(Some(done)) => self.end(key, done, ended),
            Err(_) => {
                let problem = Problem::new(
                    FailureKind::EnginePanicked,
                    "a bug in the engine made the detokenising of this request fail",
                );
                let done = stream.failed(problem);
                // A closed engine ends the request by itself.
                let _ = self.shared.commands.push(Command::Abort(submission));
                self.end(key, done, ended);
            }
        }
    }

    /// Of the prompt to all its choices, the others to the tokens that are told next.
    fn take_scores(&mut self, scores: Vec<(Drawn, Score)>) {
        for (drawn, score) in scores {
            if drawn.choice != Drawn::PROMPT {
                self.scores.insert(drawn, score);
                continue;
            }
            for choice in 0.. {
                let Some(stream) = self.streams.get_mut(&(drawn.request, choice)) else {
                    break;
                };
                stream.score_prompt(drawn.index, &score);
            }
        }
    }

    fn admitted(&mut self, submission: u64, cached: u32, now: u64, statistics: &mut Statistics) {
        for choice in 0.. {
            let Some(stream) = self.streams.get_mut(&(submission, choice)) else {
                return;
            };
            stream.admitted(cached, now, statistics);
        }
    }

    fn end(&mut self, key: (u64, u32), done: Done, ended: &mut Vec<(Stream, Done)>) {
        let Some(mut stream) = self.streams.remove(&key) else {
            return;
        };
        if matches!(done, Done::Failed(_)) && stream.choices() > 1 {
            // A choice that fails ends its request.
            self.drop_choices(key.0, stream.choices());
            let _ = self.shared.commands.push(Command::Abort(key.0));
        }
        self.acks.extend(stream.take_ack(stream.is_cut()));
        ended.push((stream, done));
    }

    fn drop_choices(&mut self, request: u64, choices: u32) {
        for choice in 0..choices {
            self.streams.remove(&(request, choice));
        }
    }

    fn finish(&self, mut stream: Stream, mut done: Done) {
        if let Done::Failed(failure) = &mut done
            && failure.kind == FailureKind::WorkerDied
            && let Some(error) = lock(&self.shared.snapshot).last_worker_error.clone()
        {
            failure
                .details
                .insert("worker_error".to_owned(), error.into());
        }
        self.shared.finish(stream.take_frame(), done);
    }

    fn fail(&mut self, request: u64, problem: Problem) {
        let Some(open) = self.shared.find(request) else {
            return;
        };
        let choices = 0..open.params.n;
        let left: Vec<Stream> = choices
            .filter_map(|choice| self.streams.remove(&(request, choice)))
            .collect();
        let was_open = !left.is_empty();
        let mut failing = None;
        for mut stream in left {
            if let Some(done) = stream.take_ending() {
                self.finish(stream, done);
            } else {
                failing.get_or_insert(stream);
            }
        }
        if let Some(mut stream) = failing {
            let done = stream.fail(problem);
            self.finish(stream, done);
        } else if !was_open {
            let timings = Timings {
                arrived: open.arrived,
                ..Timings::default()
            };
            let done = Done::Failed(problem.failure(timings, 0, 0));
            self.shared.finish(empty_frame(request, 0), done);
        }
    }

    /// Gives the frames to their readers and the verdicts to the engine thread.
    fn flush(&mut self) {
        for key in self.touched.drain(..) {
            if let Some(stream) = self.streams.get_mut(&key) {
                self.acks.extend(stream.take_ack(false));
                stream.flush();
            }
        }
        if !self.acks.is_empty() {
            let acks = std::mem::take(&mut self.acks);
            // A closed engine wants no verdicts.
            let _ = self.shared.commands.push(Command::Acks(acks));
        }
    }
}

/// The log probabilities of the token that an event tells, where there are any.
fn take_score(scores: &mut HashMap<Drawn, Score>, key: (u64, u32), event: Event) -> Option<Score> {
    let Event::Token { index, .. } = event else {
        return None;
    };
    let (request, choice) = key;
    let drawn = Drawn {
        request,
        choice,
        index,
    };
    scores.remove(&drawn)
}

fn is_last(event: Event) -> bool {
    matches!(event, Event::Finished { .. })
}

fn apply(stream: &mut Stream, event: Event, now: u64, statistics: &mut Statistics) -> Option<Done> {
    if stream.is_ending() {
        // This side has ended it: later tokens are none of its own.
        return if is_last(event) {
            stream.take_ending()
        } else {
            None
        };
    }
    match event {
        // Of all choices at once.
        Event::Admitted { .. } => {}
        Event::Token { token, .. } => return stream.token(token, now, statistics),
        Event::Preempted { .. } => stream.preempted(now),
        Event::Requeued { .. } => stream.restarted(now),
        Event::Finished { reason, .. } => return Some(stream.ended(reason)),
    }
    None
}
