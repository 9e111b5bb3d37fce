//! Typed access to shared memory. Nobody gets a reference to bytes that the other side may be writing: words are atomics, arrays are copied.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::os::SharedMemory;

mod sealed {
    pub(crate) trait Plain: Copy {}
    impl Plain for i32 {}
    impl Plain for i64 {}
    impl Plain for u32 {}
    impl Plain for f32 {}
    impl Plain for u8 {}
}

pub(crate) use sealed::Plain;

impl SharedMemory {
    /// The address of `items` values of type `T` at `offset`, after checking that they lie inside.
    pub(crate) fn at<T: Plain>(&self, offset: usize, items: usize) -> *mut T {
        let bytes = items * size_of::<T>();
        assert!(
            offset.is_multiple_of(align_of::<T>())
                && offset
                    .checked_add(bytes)
                    .is_some_and(|end| end <= self.length()),
            "{bytes} bytes at {offset} in {} bytes of shared memory",
            self.length()
        );
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.address().add(offset) }.cast()
    }

    /// The `index`-th `u64` from `offset`.
    pub(crate) fn word(&self, offset: usize, index: usize) -> &AtomicU64 {
        let address = self.at::<i64>(offset + index * 8, 1).cast::<u64>();
        // SAFETY: inside the mapping, aligned, alive as long as `self`, and both sides access these words as atomics only.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// The `u32` at `offset`.
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        let address = self.at::<u32>(offset, 1);
        // SAFETY: inside the mapping, aligned, alive as long as `self`, and while the other side may write it both sides access it as an
        // atomic only.
        unsafe { AtomicU32::from_ptr(address) }
    }

    /// Copies `values` to `offset`.
    pub(crate) fn write<T: Plain>(&self, offset: usize, values: &[T]) {
        let target = self.at::<T>(offset, values.len());
        // SAFETY: `at` checked the range; `values` is private memory, so they do not overlap.
        unsafe { target.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }

    /// Copies the values of an iterator to `offset`.
    pub(crate) fn write_each<T: Plain>(
        &self,
        offset: usize,
        values: impl ExactSizeIterator<Item = T>,
    ) {
        let items = values.len();
        let target = self.at::<T>(offset, items);
        for (index, value) in values.take(items).enumerate() {
            // SAFETY: `at` checked the range of `items` values.
            unsafe { target.add(index).write(value) };
        }
    }

    /// Copies `items` words from `offset` to the end of `into`, each read once.
    pub(crate) fn read_u32(&self, offset: usize, items: usize, into: &mut Vec<u32>) {
        let first = self.at::<u32>(offset, items);
        into.extend((0..items).map(|index| {
            // SAFETY: `at` checked the range. Atomic, so a misbehaving writer at the other end gives a wrong value and nothing worse.
            unsafe { AtomicU32::from_ptr(first.add(index)) }.load(Ordering::Relaxed)
        }));
    }

    /// Copies `length` bytes from `offset`; `length` is a multiple of 4 or the range is followed by padding within the mapping.
    pub(crate) fn read_bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut words = Vec::new();
        self.read_u32(offset, length.div_ceil(4), &mut words);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(length);
        bytes
    }
}
