//! Plan data as a Python buffer, without a copy.

use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use runtime::worker::Item;

/// A one-dimensional array: a view into a step's arenas, readable until the step is published, or a result.
///
/// A consumer that asks for a writable buffer gets one (`torch.frombuffer` asks, and warns when refused): a plan
/// belongs to the worker that received it, and the host never reads it back. Everyone else gets a read-only one.
#[pyclass(frozen, module = "diptych_core.worker")]
pub(crate) struct Array {
    items: Items,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

/// Where an array's items are.
enum Items {
    View(runtime::worker::Array),
    I32(Vec<i32>),
    F32(Vec<f32>),
}

impl Items {
    fn len(&self) -> usize {
        match self {
            Self::View(view) => view.len(),
            Self::I32(items) => items.len(),
            Self::F32(items) => items.len(),
        }
    }

    fn item(&self) -> Item {
        match self {
            Self::View(view) => view.item(),
            Self::I32(_) => Item::I32,
            Self::F32(_) => Item::F32,
        }
    }

    /// Consumers may write a view of a plan; a result belongs to them as well.
    fn address(&self) -> *mut c_void {
        match self {
            Self::View(view) => view.address().cast(),
            Self::I32(items) => items.as_ptr().cast_mut().cast(),
            Self::F32(items) => items.as_ptr().cast_mut().cast(),
        }
    }
}

impl From<Items> for Array {
    fn from(items: Items) -> Self {
        let shape = [items.len() as ffi::Py_ssize_t];
        let strides = [items.item().size() as ffi::Py_ssize_t];
        Self {
            items,
            shape,
            strides,
        }
    }
}

impl From<runtime::worker::Array> for Array {
    fn from(array: runtime::worker::Array) -> Self {
        Items::View(array).into()
    }
}

impl From<Vec<i32>> for Array {
    fn from(items: Vec<i32>) -> Self {
        Items::I32(items).into()
    }
}

impl From<Vec<f32>> for Array {
    fn from(items: Vec<f32>) -> Self {
        Items::F32(items).into()
    }
}

#[pymethods]
impl Array {
    fn __len__(&self) -> usize {
        self.items.len()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        match self.items.item() {
            Item::I32 => "int32",
            Item::I64 => "int64",
            Item::U32 => "uint32",
            Item::F32 => "float32",
        }
    }

    fn __repr__(&self) -> String {
        format!("Array({}[{}])", self.dtype(), self.items.len())
    }

    /// # Safety
    /// Called by `CPython` with a `view` to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let array = slf.get();
        let asked = |flag: c_int| flags & flag == flag;
        let format = if asked(ffi::PyBUF_FORMAT) {
            array.items.item().format().as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        };
        // The consumer only reads shape and strides, whose type in `Py_buffer` is a mutable pointer all the same.
        let shape = if asked(ffi::PyBUF_ND) {
            array.shape.as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        };
        let strides = if asked(ffi::PyBUF_STRIDES) {
            array.strides.as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        };
        let mut filled = ffi::Py_buffer {
            buf: array.items.address(),
            obj: ptr::null_mut(),
            len: array.shape[0] * array.strides[0],
            itemsize: array.strides[0],
            readonly: c_int::from(!asked(ffi::PyBUF_WRITABLE)),
            ndim: 1,
            format,
            shape,
            strides,
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        };
        filled.obj = slf.into_ptr();
        // SAFETY: `view` is not null and CPython passes one that may be written. `obj` holds a reference to this object,
        // which keeps the mapping, `shape` and `strides` alive for as long as the view.
        unsafe { view.write(filled) };
        Ok(())
    }
}
