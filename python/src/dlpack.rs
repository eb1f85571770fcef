//! Memory that a tensor lends by DLPack 0.x, which has one structure for all libraries.

use std::ffi::{CStr, c_void};
use std::slice;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::element::ElementType;

/// The name of a capsule with a tensor, and of one whose tensor has been taken.
const NAME: &CStr = c"dltensor";
const USED_NAME: &CStr = c"used_dltensor";

/// Devices whose memory the processor reads: the processor's own, and pinned memory of CUDA and ROCm.
const HOST_DEVICES: [i32; 3] = [1, 3, 11];

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// Null if the tensor is contiguous.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// A tensor whose memory is borrowed until this value is dropped.
pub(crate) struct Tensor {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) element: ElementType,
    pub(crate) is_contiguous: bool,
    managed: *mut DlManagedTensor,
}

impl Tensor {
    /// Borrows the memory of an object. Returns `None` if the object has no DLPack.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Some(export) = object.getattr_opt("__dlpack__")? else { return Ok(None) };
        let (device, _): (i32, i64) = object.call_method0("__dlpack_device__")?.extract()?;
        if !HOST_DEVICES.contains(&device) {
            let text = format!(
                "the tensor is on a device of DLPack's type {device}: collectives work on memory of the \
                 host; copy it there"
            );
            return Err(PyTypeError::new_err(text));
        }
        let capsule = export.call0()?;
        // SAFETY: the object is alive; the function checks that it is a capsule with this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
        if managed.is_null() {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: the capsule has the expected name, so that it holds a tensor that nobody has taken. From
        // here on the tensor belongs to this value, and the capsule's own destructor leaves it alone.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), USED_NAME.as_ptr()) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let managed: *mut DlManagedTensor = managed.cast();
        // SAFETY: the structure is valid until the deleter is called.
        let tensor = unsafe { &(*managed).tensor };
        let mut taken = Tensor {
            start: tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize),
            len: 0,
            element: tensor.element(),
            is_contiguous: true,
            managed,
        };
        let ndim = usize::try_from(tensor.ndim).unwrap_or(0);
        let shape = match ndim {
            0 => &[][..],
            // SAFETY: a tensor has as many lengths as dimensions.
            _ => unsafe { slice::from_raw_parts(tensor.shape, ndim) },
        };
        let strides = match tensor.strides.is_null() || ndim == 0 {
            true => None,
            // SAFETY: a tensor has as many strides as dimensions, or none.
            false => Some(unsafe { slice::from_raw_parts(tensor.strides, ndim) }),
        };
        let bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
        let elements = shape
            .iter()
            .try_fold(1, |all: usize, len| all.checked_mul(usize::try_from(*len).ok()?));
        let len = elements.and_then(|elements| elements.checked_mul(bits / 8));
        match len.filter(|_| bits.is_multiple_of(8)) {
            Some(len) => taken.len = len,
            None => return Err(PyBufferError::new_err("the tensor has no valid shape")),
        }
        taken.is_contiguous = strides.is_none_or(|strides| is_contiguous(shape, strides));
        Ok(Some(taken))
    }
}

impl DlTensor {
    fn element(&self) -> ElementType {
        let bytes = usize::from(self.bits) / 8;
        match (self.code, self.lanes) {
            (0, 1) => ElementType::number(false, true, bytes),
            (1, 1) => ElementType::number(false, false, bytes),
            (2, 1) => ElementType::number(true, true, bytes),
            (4, 1) if bytes == 2 => ElementType::Number(invar::DataType::Bf16),
            (6, 1) if bytes == 1 => ElementType::Bool,
            _ => ElementType::Opaque,
        }
    }
}

/// Whether the elements lie one behind the other, the last dimension's first.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(len, stride)| {
            let is_next = *len == 1 || *stride == expected;
            expected *= len;
            is_next
        })
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // The deleter of a library for Python may release objects of Python.
        Python::try_attach(|_| {
            // SAFETY: the tensor belongs to this value, which ends here. The interpreter's lock is held.
            unsafe {
                if let Some(deleter) = (*self.managed).deleter {
                    deleter(self.managed);
                }
            }
        });
    }
}
