//! Rendered text that may not grow beyond a limit.

use std::io;

pub(super) struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    is_exceeded: bool,
}

impl Bounded {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            is_exceeded: false,
        }
    }

    /// The text; `None` if more was written than the limit.
    pub(super) fn into_text(self) -> Option<String> {
        if self.is_exceeded {
            return None;
        }
        Some(String::from_utf8(self.bytes).expect("templates write text, whole strings at a time"))
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.is_exceeded = true;
            return Err(io::Error::other("the rendered text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
