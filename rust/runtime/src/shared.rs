//! What the threads of one engine share.

use crate::EngineError;

/// The process that started the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn this_process() -> Self {
        Self(std::process::id())
    }

    /// # Errors
    /// [`EngineError::Forked`] in any other process.
    pub(crate) fn check(self) -> Result<(), EngineError> {
        let pid = std::process::id();
        if pid == self.0 {
            return Ok(());
        }
        Err(EngineError::Forked { pid, owner: self.0 })
    }
}

#[derive(Debug)]
pub(crate) struct Shared {}

impl Shared {
    pub(crate) fn abort_queue(&self, queue: u64) {
        let _ = (self, queue);
    }
}
