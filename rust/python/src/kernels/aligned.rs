//! Bytes that begin on a cache line.

/// Zeros at first.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub(super) fn new(length: usize) -> Self {
        let bytes = vec![0; length + 64];
        let start = bytes.as_ptr().align_offset(64);
        Self {
            bytes,
            start,
            length,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}
