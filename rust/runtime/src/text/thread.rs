//! The streaming thread: detokenising, stop strings, frames.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use diptych_core::Event;

use crate::frame::{Done, FailureKind, Timings};
use crate::messages::{Command, Problem, TextMessage};
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
    streams: HashMap<u64, Stream>,
    /// Streams with something to flush, possibly ended since.
    touched: Vec<u64>,
    acks: Vec<(u64, u32, Option<u32>)>,
}

impl TextThread<'_> {
    fn handle(&mut self, message: TextMessage) -> bool {
        match message {
            TextMessage::Accepted(accepted) => {
                let stream = Stream::new(*accepted);
                self.touched.push(stream.request());
                self.streams.insert(stream.request(), stream);
            }
            TextMessage::Events {
                events,
                explanations,
                now,
            } => {
                let shared = self.shared;
                for explanation in explanations {
                    if let Some(stream) = self.streams.get_mut(&explanation.submission) {
                        stream.explain(explanation);
                    }
                }
                let mut statistics = lock(&shared.statistics);
                let mut ended = Vec::new();
                for event in events {
                    self.event(event, now, &mut statistics, &mut ended);
                }
                drop(statistics);
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
        let submission = match event {
            Event::Admitted { submission, .. }
            | Event::Token { submission, .. }
            | Event::Preempted { submission }
            | Event::Requeued { submission }
            | Event::Finished { submission, .. } => submission,
        };
        // A stop string ended it before the core heard of that.
        let Some(stream) = self.streams.get_mut(&submission) else {
            return;
        };
        let panic_at = self.shared.options.test_faults.panic_at_text_of;
        let done = catch_unwind(AssertUnwindSafe(|| {
            assert!(
                panic_at != Some(submission),
                "test_faults.panic_at_text_of asked for this panic"
            );
            apply(stream, event, now, statistics)
        }));
        match done {
            Ok(None) => self.touched.push(submission),
            Ok(Some(done)) if stream.is_explained() && !is_last(event) => {
                stream.end_with_explanation(done);
                self.acks.extend(stream.take_ack(true));
                self.touched.push(submission);
            }
            Ok(Some(done)) => self.end(submission, done, ended),
            Err(_) => {
                let problem = Problem::new(
                    FailureKind::EnginePanicked,
                    "a bug in the engine made the detokenising of this request fail",
                );
                let done = stream.failed(problem);
                // A closed engine ends the request by itself.
                let _ = self.shared.commands.push(Command::Abort(submission));
                self.end(submission, done, ended);
            }
        }
    }

    fn end(&mut self, submission: u64, done: Done, ended: &mut Vec<(Stream, Done)>) {
        let Some(mut stream) = self.streams.remove(&submission) else {
            return;
        };
        let stop_string =
            matches!(&done, Done::Finished(finished) if finished.stop_string.is_some());
        self.acks.extend(stream.take_ack(stop_string));
        ended.push((stream, done));
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
        if let Some(mut stream) = self.streams.remove(&request) {
            let done = stream.take_ending();
            let done = done.unwrap_or_else(|| stream.fail(problem));
            self.finish(stream, done);
        } else if let Some(open) = self.shared.find(request) {
            let timings = Timings {
                arrived: open.arrived,
                ..Timings::default()
            };
            let done = Done::Failed(problem.failure(timings, 0, 0));
            self.shared.finish(empty_frame(request), done);
        }
    }

    /// Gives the frames to their readers and the verdicts to the engine thread.
    fn flush(&mut self) {
        for request in self.touched.drain(..) {
            if let Some(stream) = self.streams.get_mut(&request) {
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

fn is_last(event: Event) -> bool {
    matches!(event, Event::Finished { .. })
}

fn apply(stream: &mut Stream, event: Event, now: u64, statistics: &mut Statistics) -> Option<Done> {
    if stream.is_ending() {
        // A stop string has ended it: later tokens are none of its own.
        return if is_last(event) {
            stream.take_ending()
        } else {
            None
        };
    }
    match event {
        Event::Admitted { cached, .. } => stream.admitted(cached, now, statistics),
        Event::Token { token, .. } => return stream.token(token, now, statistics),
        Event::Preempted { .. } => stream.preempted(now),
        Event::Requeued { .. } => stream.restarted(now),
        Event::Finished { reason, .. } => return Some(stream.ended(reason)),
    }
    None
}
