//! A worker without a model.

use crate::worker::{Port, PortError};

/// The whole life of a scripted worker.
///
/// # Errors
/// [`PortError`] as soon as the host breaks the protocol.
pub fn run_scripted(port: &Port) -> Result<(), PortError> {
    port.fail(
        "NotImplementedError",
        "the scripted worker is under construction",
    )
}
