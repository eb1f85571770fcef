//! Memory that a Python object lends.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use invar::DataType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use crate::dlpack::Tensor;
use crate::element::{ElementType, element_of};

/// `Py_buffer`. The structure is part of the stable interface since Python 3.11, and is the same since 3.3.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// Asks for the format, and for memory of any shape, read-only or not (`PyBUF_FULL_RO`).
const ANY: c_int = 0x011c;

// Python 3.9 and 3.10 have these functions too, but their stable interface does not name them.
unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_IsContiguous(view: *const PyBuffer, order: c_char) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// Contiguous memory that a Python object lends until this value is dropped.
pub(crate) struct Memory {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) element: ElementType,
    pub(crate) readonly: bool,
    _lender: Lender,
}

/// Memory at an address, which `owner` keeps there. Only the package's own code makes this: for tensors it
/// takes less time than DLPack.
#[pyclass(name = "_Lent", module = "invar", frozen)]
pub(crate) struct Lent {
    start: usize,
    len: usize,
    element: ElementType,
    owner: Py<PyAny>,
}

#[pymethods]
impl Lent {
    #[new]
    fn new(owner: Py<PyAny>, start: usize, len: usize, element: &str) -> Self {
        Lent { start, len, element: ElementType::named(element), owner }
    }
}

/// The object that lends, in the form that gives the memory back.
enum Lender {
    /// The view's own fields may point into it, so it stays where it is.
    Buffer(#[expect(dead_code, reason = "dropping it gives the memory back")] Box<View>),
    Tensor(#[expect(dead_code, reason = "dropping it gives the memory back")] Tensor),
    /// The memory belongs to the owner that a [`Lent`] names.
    Owner(#[expect(dead_code, reason = "dropping it lets the owner go")] Py<PyAny>),
    /// The memory is this module's own.
    Own(#[expect(dead_code, reason = "the pointer leads there")] Box<[u8]>),
}

struct View(PyBuffer);

// SAFETY: the pointers are those of an object that is held until the view is released, and the release
// takes the interpreter's lock.
unsafe impl Send for Memory {}
// SAFETY: shared references only copy the fields.
unsafe impl Sync for Memory {}

impl Memory {
    /// Borrows the memory of an object: by the buffer protocol, or else by DLPack. Arrays of ml_dtypes'
    /// `bfloat16` have neither, and are viewed as 16-bit integers.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(lent) = object.cast::<Lent>() {
            let Lent { start, len, element, owner } = lent.get();
            let start = ptr::with_exposed_provenance_mut(*start);
            let owner = Lender::Owner(owner.clone_ref(object.py()));
            return Self::checked(start, *len, *element, false, owner);
        }
        // SAFETY: the pointer is that of a live object.
        if unsafe { PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            if let Some(view) = bfloat16(object)? {
                return Self::of_buffer(&view, Some(ElementType::Number(DataType::Bf16)));
            }
            return Self::of_buffer(object, None);
        }
        match Tensor::of(object)? {
            Some(tensor) => Self::of_tensor(tensor),
            None => {
                let name = object.get_type().name()?;
                let text = format!(
                    "{name} lends no memory: pass a NumPy array, a tensor of the CPU, a bytearray or \
                     another object with the buffer protocol or DLPack"
                );
                Err(PyTypeError::new_err(text))
            }
        }
    }

    /// Memory of this module, of one byte.
    pub(crate) fn own_byte() -> Self {
        let mut bytes = vec![0].into_boxed_slice();
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        let element = ElementType::Number(DataType::U8);
        Memory { start, len, element, readonly: false, _lender: Lender::Own(bytes) }
    }

    fn of_buffer(object: &Bound<'_, PyAny>, element: Option<ElementType>) -> PyResult<Self> {
        let view = View::of(object)?;
        let PyBuffer { buf, len, itemsize, readonly, format, .. } = view.0;
        // SAFETY: the view is filled.
        if unsafe { PyBuffer_IsContiguous(&raw const view.0, b'C' as c_char) } == 0 {
            return Err(scattered());
        }
        // SAFETY: the format is null, or a string that lives as long as the view.
        let format = (!format.is_null()).then(|| unsafe { CStr::from_ptr(format) }.to_bytes());
        let element = match element {
            Some(element) => element,
            None => element_of(format.unwrap_or(b"B"), itemsize as usize)?,
        };
        let (start, len) = (buf.cast(), len as usize);
        Self::checked(start, len, element, readonly != 0, Lender::Buffer(view))
    }

    fn of_tensor(tensor: Tensor) -> PyResult<Self> {
        let (start, len, element) = (tensor.start, tensor.len, tensor.element);
        if !tensor.is_contiguous {
            return Err(scattered());
        }
        Self::checked(start, len, element, false, Lender::Tensor(tensor))
    }

    fn checked(
        start: *mut u8,
        len: usize,
        element: ElementType,
        readonly: bool,
        lender: Lender,
    ) -> PyResult<Self> {
        let align = element.data_type().bytes();
        if len > 0 && !start.addr().is_multiple_of(align) {
            let text = format!("the memory is not aligned to its elements of {align} bytes");
            return Err(PyValueError::new_err(text));
        }
        // The memory of nothing may be anywhere.
        let start = if len > 0 { start } else { ptr::without_provenance_mut(align) };
        Ok(Memory { start, len, element, readonly, _lender: lender })
    }

    /// The memory as the library takes it.
    pub(crate) fn bytes(&self) -> *mut [u8] {
        ptr::slice_from_raw_parts_mut(self.start, self.len)
    }

    pub(crate) fn overlaps(&self, other: &Memory) -> bool {
        let end = |memory: &Memory| memory.start.addr() + memory.len;
        self.len > 0
            && other.len > 0
            && self.start.addr() < end(other)
            && other.start.addr() < end(self)
    }
}

/// The view of an array of ml_dtypes' `bfloat16` as integers. Returns `None` for other objects.
fn bfloat16<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Ok(Some(dtype)) = object.getattr_opt("dtype") else { return Ok(None) };
    let is_bfloat16 = match dtype.getattr_opt("name") {
        Ok(Some(name)) => name.eq("bfloat16")?,
        _ => false,
    };
    is_bfloat16.then(|| object.call_method1("view", ("uint16",))).transpose()
}

fn scattered() -> PyErr {
    PyValueError::new_err("the elements do not lie one behind the other: pass a contiguous copy")
}

impl View {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Box<Self>> {
        let mut view = Box::new(View(PyBuffer {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        }));
        // SAFETY: the object lives, and the view is a structure to fill that stays at its address.
        match unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut view.0, ANY) } {
            0 => Ok(view),
            // `drop` releases nothing, because the failed call leaves no object in the view.
            _ => Err(PyErr::fetch(object.py())),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Without an interpreter there is nobody to give the memory back to.
        Python::try_attach(|_| {
            // SAFETY: the view is filled and not yet released, or empty; the interpreter's lock is held.
            unsafe { PyBuffer_Release(&raw mut self.0) }
        });
    }
}
