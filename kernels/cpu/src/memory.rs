//! Memory in huge pages, where the system grants them.

use std::io;

/// Size of a huge page on every platform served.
pub const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory of its own mapping, aligned to a huge page.
#[derive(Debug)]
pub struct Region {
    address: *mut u8,
    bytes: usize,
    mapped: (*mut u8, usize),
}

// SAFETY: a region is plain memory; whoever writes through its pointer answers for races.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` of zeros; with `huge`, asks the system for huge pages.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: usize, huge: bool) -> io::Result<Self> {
        let length = bytes.max(1).next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        // SAFETY: the aligned part lies within the mapping, which is one huge page longer.
        let address = unsafe { start.add(start.align_offset(HUGE_PAGE)) };
        let advice = if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // A kernel without huge pages refuses: small pages then serve.
        // SAFETY: the range is ours.
        unsafe { libc::madvise(address.cast(), length - HUGE_PAGE, advice) };
        Ok(Self {
            address,
            bytes,
            mapped: (start, length),
        })
    }

    /// Its first byte, aligned to [`HUGE_PAGE`].
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, made by `new`, which nobody borrows any more.
        unsafe { libc::munmap(self.mapped.0.cast(), self.mapped.1) };
    }
}
