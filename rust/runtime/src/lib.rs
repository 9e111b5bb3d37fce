//! Everything around the core that touches the machine: threads, shared memory, clocks, worker supervision.
//!
//! An [`Engine`] owns one [`diptych_core::Core`] on a thread of its own, one worker behind a control socket and three shared-memory arenas,
//! a thread that turns token ids into text, and a small pool that turns prompts into token ids. [`worker`] is the other end of the socket.
#[cfg(not(target_os = "linux"))]
compile_error!("diptych runs on Linux only: another system needs a sibling of src/os/linux.rs");

mod arena;
mod coalesce;
mod control;
mod engine;
mod error;
mod frame;
mod frame_queue;
mod grammar;
mod layout;
mod mailbox;
mod memory;
mod messages;
mod namespaces;
mod options;
mod os;
mod params;
mod prompts;
mod shared;
mod stats;
mod sync;
mod text;
mod urgency;
pub mod worker;

pub use crate::engine::{Engine, Ready};
pub use crate::error::EngineError;
pub use crate::frame::{
    Accepted, Done, Failure, FailureKind, FinishReason, Finished, Frame, NamedLogprob, Timings,
    TokenLogprobs,
};
pub use crate::frame_queue::FrameQueue;
pub use crate::grammar::Delay;
pub use crate::options::{
    EngineOptions, EventLogOptions, Limits, Prompt, TestFaults, WorkerKind, WorkerOptions,
};
pub use crate::os::now_ns;
pub use diptych_text::CallDelta;
