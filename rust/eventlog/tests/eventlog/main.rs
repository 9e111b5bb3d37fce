//! The event log: files that are whole, torn, full or damaged, and golden traces.

mod driver;
mod files;
mod golden;
