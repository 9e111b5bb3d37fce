//! Ends the worker process when its host is gone.

use std::os::fd::{AsFd, OwnedFd};

use crate::os;

/// Exit status of a worker whose host is gone.
const HOST_GONE: i32 = 3;

/// Starts the thread that waits for the end of `host`, a pidfd, and then ends this process at once, whatever it is doing.
///
/// # Errors
/// The system cannot start a thread.
pub(super) fn watch_host(host: OwnedFd) -> std::io::Result<()> {
    os::spawn_thread("diptych-watch", move || {
        while !os::poll_readable(&[host.as_fd()], None)[0] {}
        os::exit_now(HOST_GONE)
    })?;
    Ok(())
}
