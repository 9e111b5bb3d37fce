//! The primitives under the queues. The interleaving tests put loom's in their place and compile the same queues against them.

pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use crate::os::EventFd as Signal;
