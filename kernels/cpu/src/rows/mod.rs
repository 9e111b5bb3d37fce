//! Rows of activations in the form that a product reads, written once and read by every panel.

mod int8;
#[cfg(test)]
mod tests;

use std::io;
use std::marker::PhantomData;

use crate::matrix::Form;
use crate::memory::{HUGE_PAGE, Region};
use crate::simd::{InstructionSet, Isa, Kernel, LANES};

pub(crate) use int8::{Halved, Int8Group, Whole};

/// Columns that are written at once: a group of the forms in bytes.
pub const GROUP: usize = 32;

/// Activation rows in one form. Threads may write different rows, or different groups of a row, at once.
#[derive(Debug)]
pub struct RowBuffer {
    memory: Region,
    form: Form,
    inputs: usize,
    rows: usize,
}

/// Bytes from one row to the next: an odd number of cache lines, so that the rows of a block lie in different sets of
/// the cache.
fn stride(form: Form, inputs: usize) -> usize {
    let columns = inputs.next_multiple_of(GROUP);
    let bytes = match form {
        Form::F32 => columns * 4,
        Form::Bf16 => columns * 2,
        Form::Int8 => columns / GROUP * size_of::<Whole>(),
        Form::Int8Halves => columns / GROUP * size_of::<Halved>(),
    };
    (bytes.div_ceil(64) | 1) * 64
}

impl RowBuffer {
    /// Room for `rows` rows of `inputs` zeros.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(form: Form, inputs: usize, rows: usize) -> io::Result<Self> {
        let bytes = Self::bytes(form, inputs, rows);
        Ok(Self {
            memory: Region::new(bytes, bytes >= HUGE_PAGE)?,
            form,
            inputs,
            rows,
        })
    }

    /// Bytes of such a buffer.
    #[must_use]
    pub fn bytes(form: Form, inputs: usize, rows: usize) -> usize {
        rows * stride(form, inputs)
    }

    /// Writes a whole row.
    ///
    /// # Panics
    /// If there is no such row, or the values are not as many as its columns.
    pub fn write(&mut self, set: InstructionSet, row: usize, values: &[f32]) {
        assert_eq!(values.len(), self.inputs);
        set.run(WriteRow(self, row, values));
    }

    /// Writes `count` values of row `row` from column `column` on.
    ///
    /// # Safety
    /// `values` can be read for `count` values, and nobody else reads or writes these columns meanwhile.
    ///
    /// # Panics
    /// If the row or the columns are not there, `column` is no multiple of 32, or `count` is none and the values do not
    /// reach the end of the row.
    #[inline(always)]
    pub unsafe fn put<I: Isa>(
        &self,
        isa: I,
        row: usize,
        column: usize,
        values: *const f32,
        count: usize,
    ) {
        assert!(row < self.rows && column + count <= self.inputs);
        assert!(column.is_multiple_of(GROUP));
        assert!(count.is_multiple_of(GROUP) || column + count == self.inputs);
        let line = self
            .memory
            .address()
            .add(row * stride(self.form, self.inputs));
        let whole = count / GROUP * GROUP;
        let mut done = 0;
        while done < whole {
            self.put_group(isa, line, column + done, values.add(done));
            done += GROUP;
        }
        if done < count {
            let mut group = [0.0; GROUP];
            std::ptr::copy_nonoverlapping(values.add(done), group.as_mut_ptr(), count - done);
            self.put_group(isa, line, column + done, group.as_ptr());
        }
    }

    /// Writes 32 values of a row that begins at `line`.
    #[inline(always)]
    unsafe fn put_group<I: Isa>(&self, isa: I, line: *mut u8, column: usize, values: *const f32) {
        match self.form {
            Form::F32 => {
                let to = line.cast::<f32>().add(column);
                isa.store(to, isa.load(values));
                isa.store(to.add(LANES), isa.load(values.add(LANES)));
            }
            Form::Bf16 => {
                let to = line.cast::<u16>().add(column);
                isa.store_bf16(to, isa.load(values));
                isa.store_bf16(to.add(LANES), isa.load(values.add(LANES)));
            }
            Form::Int8 => Whole::put(isa, line.cast::<Whole>().add(column / GROUP), values),
            Form::Int8Halves => Halved::put(isa, line.cast::<Halved>().add(column / GROUP), values),
        }
    }

    /// All rows, to be read. Whoever runs a product answers that nobody writes them meanwhile.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        Rows {
            form: self.form,
            inputs: self.inputs,
            count: self.rows,
            stride: stride(self.form, self.inputs),
            start: self.memory.address(),
            buffer: PhantomData,
        }
    }
}

struct WriteRow<'a>(&'a mut RowBuffer, usize, &'a [f32]);

impl Kernel for WriteRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self(buffer, row, values) = self;
        // SAFETY: the values are a slice, and the buffer is borrowed by nobody else.
        unsafe { buffer.put(isa, row, 0, values.as_ptr(), values.len()) };
    }
}

/// Rows of a [`RowBuffer`], borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    form: Form,
    inputs: usize,
    count: usize,
    stride: usize,
    start: *const u8,
    buffer: PhantomData<&'a RowBuffer>,
}

// SAFETY: plain memory; whoever reads it answers for races.
unsafe impl Send for Rows<'_> {}
// SAFETY: as above.
unsafe impl Sync for Rows<'_> {}

impl Rows<'_> {
    /// The form they are in.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Columns of a row.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Rows there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes from one row to the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The first byte of all.
    pub(crate) fn start(&self) -> *const u8 {
        self.start
    }

    /// The first byte of a row, aligned to 64.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> *const u8 {
        assert!(row < self.count, "row {row} of {}", self.count);
        self.start.wrapping_add(row * self.stride)
    }
}
