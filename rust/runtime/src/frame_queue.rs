//! Where one event loop finds its frames.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Weak;
use std::time::Duration;

use diptych_text::merge_calls;

use crate::EngineError;
use crate::coalesce::Coalescer;
use crate::frame::Frame;
use crate::os::EventFd;
use crate::params::MAX_CHOICES;
use crate::shared::{Owner, Shared};

/// Frames of the requests of one reader, at most one per choice at a time.
///
/// A slow reader costs no more than its requests' own output: what it has not drained is merged. [`FrameQueue::fd`] is readable if and only if
/// there is something to drain.
#[derive(Debug)]
pub struct FrameQueue {
    id: u64,
    owner: Owner,
    frames: Coalescer<Frame>,
    engine: Weak<Shared>,
}

impl FrameQueue {
    pub(crate) fn new(id: u64, owner: Owner, engine: Weak<Shared>) -> Result<Self, EngineError> {
        let signal = EventFd::new().map_err(|error| EngineError::system("eventfd", error))?;
        Ok(Self {
            id,
            owner,
            frames: Coalescer::new(signal),
            engine,
        })
    }

    /// A descriptor to watch; it stays open as long as the queue.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.frames.signal().as_raw_fd()
    }

    /// Moves all frames to the end of `into`.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn drain(&self, into: &mut Vec<Frame>) -> Result<(), EngineError> {
        self.owner.check()?;
        self.frames.drain(into);
        Ok(())
    }

    /// Whether there is something to drain, after waiting at most `timeout` for it.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn wait(&self, timeout: Duration) -> Result<bool, EngineError> {
        self.owner.check()?;
        Ok(self.frames.signal().wait(Some(timeout)))
    }

    /// Aborts the requests that were submitted with this queue and drops their frames. In a forked child nothing happens.
    pub fn close(&self) {
        if self.owner.check().is_ok()
            && self.frames.close()
            && let Some(engine) = self.engine.upgrade()
        {
            engine.abort_queue(self.id);
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn add(&self, frame: Frame) {
        let key = frame.request * u64::from(MAX_CHOICES) + u64::from(frame.choice);
        self.frames.add(key, frame, merge);
    }
}

fn merge(waiting: &mut Frame, next: Frame) {
    debug_assert!(
        waiting.done.is_none(),
        "request {} has a frame after its last",
        waiting.request
    );
    waiting.accepted = waiting.accepted.take().or(next.accepted);
    waiting.text.push_str(&next.text);
    waiting.reasoning.push_str(&next.reasoning);
    merge_calls(&mut waiting.calls, next.calls);
    waiting.token_ids.extend_from_slice(&next.token_ids);
    waiting.logprobs.extend(next.logprobs);
    waiting.prompt_logprobs.extend(next.prompt_logprobs);
    waiting.done = next.done;
    waiting.explanation = waiting.explanation.take().or(next.explanation);
}
