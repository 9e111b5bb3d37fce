//! The worker's side of the protocol: a [`Port`] gives it steps and takes its results, in a process of its own or on a thread of the host.

mod port;
mod scripted;
mod step;
mod watch;

pub use crate::layout::{Item, LAYOUT_VERSION};
pub use port::{Control, Port, PortError, Work};
pub use scripted::run_scripted;
#[cfg(test)]
pub(crate) use step::WorkerArenas;
pub use step::{Array, Mark, RowMask, Step};
