//! How a request stands to others: its class, its tenant, and until when it is of use.

use crate::now_ns;

/// Longest time that a request may be given, in seconds: some thirty years, which clocks can hold.
const LONGEST: f64 = 1e9;

/// Whether a number of seconds is a time that somebody can wait.
pub(crate) fn is_time(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= LONGEST
}

/// The moment `seconds` after `since` in nanoseconds.
pub(crate) fn after(since: u64, seconds: f64) -> u64 {
    since.saturating_add((seconds * 1e9) as u64)
}

/// The number by which the core knows a tenant; 0 is nobody.
pub(crate) fn tenant_number(name: Option<&str>) -> u64 {
    name.map_or(0, |name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()).max(1))
}

/// Nanoseconds until `moment`.
pub(crate) fn until(moment: u64) -> std::time::Duration {
    std::time::Duration::from_nanos(moment.saturating_sub(now_ns()))
}
