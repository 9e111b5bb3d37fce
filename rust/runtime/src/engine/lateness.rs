//! Requests whose time is over: the core ends its own, those that wait for the first worker end here.

use std::time::Duration;

use crate::engine::thread::EngineThread;
use crate::frame::FailureKind;
use crate::messages::{Problem, Submission, TextMessage};
use crate::now_ns;
use crate::urgency::until;

impl EngineThread {
    /// Ends what is too late, whether the worker runs or not.
    pub(super) fn expire(&mut self) {
        let now = now_ns();
        if let Some(core) = &mut self.core {
            core.expire(now);
        }
        let late = |submission: &Submission| {
            let request = &submission.request;
            let moments = [request.deadline, request.first_token_deadline];
            moments.into_iter().flatten().any(|moment| moment <= now)
        };
        for submission in self.early.extract_if(.., |submission| late(submission)) {
            let problem = Problem::new(
                FailureKind::Timeout,
                "the request's timeout passed before the worker was ready",
            );
            let request = submission.open.number;
            // The text thread is closed after this one.
            let _ = self
                .shared
                .text
                .push(TextMessage::Fail { request, problem });
        }
    }

    /// Until something will be too late.
    pub(super) fn until_late(&self) -> Option<Duration> {
        let core = self.core.as_ref().and_then(|core| core.next_deadline());
        let early = self.early.iter().flat_map(|submission| {
            let request = &submission.request;
            [request.deadline, request.first_token_deadline]
        });
        early.flatten().chain(core).min().map(until)
    }
}
