//! What an address is to CUDA.

use std::ffi::c_int;

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute as Attribute};

use crate::api::{Api, INVALID_VALUE};
use crate::{CudaError, Driver};

/// What lies at an address that CUDA knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Whose memory it is.
    pub kind: PointerKind,
    /// The GPU that it was allocated on.
    pub gpu: u32,
    /// The allocation's number, which no other allocation of this process ever has
    /// (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub buffer_id: u64,
    /// First byte of the allocation.
    pub base: u64,
    /// Bytes of the allocation.
    pub len: usize,
}

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// A GPU's.
    Device,
    /// The host's, pinned by CUDA.
    Host,
    /// Managed: it moves between GPU and host. No NIC can be given it.
    Managed,
}

impl Pointer {
    /// Asks the driver; `None` where CUDA does not know the address, as of ordinary host memory.
    pub fn query(driver: Driver, addr: u64) -> Result<Option<Pointer>, CudaError> {
        let api = driver.api();
        let kind: u32 = match attribute(api, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) {
            Ok(kind) => kind,
            Err(error) if error.code() == Some(INVALID_VALUE) => return Ok(None),
            Err(error) => return Err(error),
        };
        let managed: c_int = attribute(api, Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, addr)?;
        let kind = if managed != 0 {
            PointerKind::Managed
        } else if kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
            PointerKind::Host
        } else {
            PointerKind::Device
        };
        let gpu: c_int = attribute(api, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr)?;
        Ok(Some(Pointer {
            kind,
            gpu: u32::try_from(gpu).unwrap_or(0),
            buffer_id: attribute(api, Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, addr)?,
            base: attribute(api, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, addr)?,
            len: attribute(api, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, addr)?,
        }))
    }
}

/// An attribute whose value is of type `T`: cuda.h names the type of each.
fn attribute<T: Integer>(api: &Api, attribute: Attribute, addr: u64) -> Result<T, CudaError> {
    let mut value = T::default();
    let to = (&raw mut value).cast();
    // SAFETY: the driver writes at most 8 bytes, of the attribute's type, and `Integer` says of
    // which; it does not follow `addr`.
    unsafe { api.cuPointerGetAttribute(to, attribute as u32, addr) }?;
    Ok(value)
}

/// A type that attributes have.
trait Integer: Default {}
impl Integer for c_int {}
impl Integer for u32 {}
impl Integer for u64 {}
impl Integer for usize {}
