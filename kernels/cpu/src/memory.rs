//! Memory in huge pages, where the system grants them.

use std::io;
use std::ops::Range;

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

    /// Brings the pages of `range`, bytes from the start, into memory; what stands there stays, so that others may read
    /// and write meanwhile.
    ///
    /// # Errors
    /// What the system says: `EINVAL` before Linux 5.14, `ENOMEM` without memory.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        const PAGE: usize = 4096;
        let start = range.start / PAGE * PAGE;
        let end = range.end.min(self.bytes).next_multiple_of(PAGE);
        if start >= end {
            return Ok(());
        }
        // SAFETY: whole pages of the region, whose mapping is a huge page longer.
        let code = unsafe {
            let address = self.address.add(start).cast();
            libc::madvise(address, end - start, libc::MADV_POPULATE_WRITE)
        };
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, made by `new`, which nobody borrows any more.
        unsafe { libc::munmap(self.mapped.0.cast(), self.mapped.1) };
    }
}

/// How many bytes of these ranges huge pages back, as /proc/self/smaps says; 0 where the system does not say.
///
/// Ranges of one mapping share what the mapping has, each at most its own length.
#[must_use]
pub fn huge_bytes(ranges: &[Range<*const u8>]) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut total = 0;
    for (mapping, huge) in huge_mappings(&smaps) {
        let inside = ranges.iter().map(|range| {
            let (start, end) = (range.start.addr(), range.end.addr());
            end.min(mapping.end)
                .saturating_sub(start.max(mapping.start))
        });
        total += inside.sum::<usize>().min(huge);
    }
    total
}

/// Address range and bytes in huge pages of every mapping that has some.
fn huge_mappings(smaps: &str) -> Vec<(Range<usize>, usize)> {
    let mut found = Vec::new();
    let mut mapping = 0..0;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (address(start), address(end)) {
                mapping = start..end;
            }
        }
        // Anonymous memory, and files that the page cache holds in huge pages.
        if ["AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:"].contains(&first) {
            let kilobytes = line
                .split_whitespace()
                .nth(1)
                .and_then(|text| text.parse().ok());
            let bytes = kilobytes.unwrap_or(0) * 1024;
            if bytes > 0 {
                found.push((mapping.clone(), bytes));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_read() {
        let smaps = "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 \nSize: 8192 kB\nAnonHugePages:      4096 kB\n\
                     FilePmdMapped:         0 kB\n7f0000900000-7f0000901000 r--p 00000000 08:01 12 /a-b\n";
        let found = huge_mappings(smaps);
        assert_eq!(found, [(0x7f00_0000_0000..0x7f00_0080_0000, 4 << 20)]);
    }

    #[test]
    fn memory_without_huge_pages_reports_none() {
        let region = Region::new(8 << 20, false).unwrap();
        // SAFETY: the whole region.
        unsafe { std::ptr::write_bytes(region.address(), 1, region.bytes()) };
        let start = region.address().cast_const();
        assert_eq!(huge_bytes(&[start..start.wrapping_add(region.bytes())]), 0);
    }

    #[test]
    fn memory_in_huge_pages_reports_no_more_than_it_has() {
        let region = Region::new(8 << 20, true).unwrap();
        // SAFETY: the whole region.
        unsafe { std::ptr::write_bytes(region.address(), 1, region.bytes()) };
        let start = region.address().cast_const();
        assert!(huge_bytes(&[start..start.wrapping_add(region.bytes())]) <= region.bytes());
    }
}
