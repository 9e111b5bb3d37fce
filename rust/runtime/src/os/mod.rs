//! The operating system: one file per system, everything else is portable.
#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub use linux::now_ns;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;
