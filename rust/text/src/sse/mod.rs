//! Answers as server-sent events, in the shapes of the `OpenAI` API.
//!
//! An event is one `data:` line of JSON and a blank line. Nothing within an event is the end of a line to any parser: some
//! split at U+2028, U+2029 and U+0085 too, which JSON allows bare in strings, so these are escaped as control characters are.

mod chunks;
mod json;

pub use chunks::{Chunks, Delta, Endpoint, Finish, Identity, StopReason, ToolCall, View};

/// An event without data, for a stream that is silent: clients skip it, proxies see that the connection lives.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// What ends a stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// Appends an error in place of what was still to come, and the end of the stream. `error` is JSON.
pub fn push_failure(out: &mut Vec<u8>, error: &[u8]) {
    out.extend_from_slice(b"data: ");
    json::push_value(out, error);
    out.extend_from_slice(b"\n\n");
    out.extend_from_slice(DONE);
}
