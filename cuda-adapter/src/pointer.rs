//! CUDA's facts about an address.

use std::ffi::c_int;

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute as Attribute};

use crate::api::{Api, INVALID_VALUE};
use crate::{CudaError, Driver};

/// The allocation at an address that CUDA knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The GPU on which the memory was allocated.
    pub gpu: u32,
    /// Number of the allocation; no other allocation of this process ever gets it
    /// (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub buffer_id: u64,
    /// Address of the allocation's first byte. In reserved addresses (`cuMemMap`), each mapping is an allocation;
    /// a driver before CUDA 11.7 reports the whole reservation instead.
    pub base: u64,
    /// Length of the allocation in bytes.
    pub len: usize,
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Memory of a GPU.
    Device,
    /// Host memory that CUDA has pinned.
    Host,
    /// Managed memory, which moves between GPU and host. A NIC cannot use it.
    Managed,
}

impl Pointer {
    /// Asks the driver about an address. Returns `None` if CUDA does not know the address, as with
    /// ordinary host memory.
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
        let (base, len) = bounds(api, addr)?;
        Ok(Some(Pointer {
            kind,
            gpu: u32::try_from(gpu).unwrap_or(0),
            buffer_id: attribute(api, Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, addr)?,
            base,
            len,
        }))
    }
}

/// Returns the first address and the length of the allocation at `addr`.
fn bounds(api: &Api, addr: u64) -> Result<(u64, usize), CudaError> {
    let base: u64 = attribute(api, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, addr)?;
    let len: usize = attribute(api, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, addr)?;
    // The range of memory from `cuMemMap` is the whole reservation of addresses, which may have other mappings and
    // holes. The mapping of memory from `cuMemAlloc` may be larger than the allocation. So the allocation is the part
    // that range and mapping share.
    let mapping: Result<(u64, usize), CudaError> =
        attribute(api, Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, addr).and_then(|start| {
            Ok((start, attribute(api, Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, addr)?))
        });
    // A driver before CUDA 11.7 does not know mappings.
    let Ok((start, room)) = mapping else { return Ok((base, len)) };
    let (first, last) = (base.max(start), (base + len as u64).min(start + room as u64));
    Ok(if (first..last).contains(&addr) { (first, (last - first) as usize) } else { (base, len) })
}

/// Reads an attribute whose value has the type `T`; cuda.h names the type of each attribute.
pub(crate) fn attribute<T: Integer>(
    api: &Api,
    attribute: Attribute,
    addr: u64,
) -> Result<T, CudaError> {
    let mut value = T::default();
    let to = (&raw mut value).cast();
    // SAFETY: The driver writes at most 8 bytes, a value of the attribute's type, which is the `Integer`
    // type `T`. The driver does not dereference `addr`.
    unsafe { api.cuPointerGetAttribute(to, attribute as u32, addr) }?;
    Ok(value)
}

/// A type that a pointer attribute can have.
pub(crate) trait Integer: Default {}
impl Integer for c_int {}
impl Integer for u32 {}
impl Integer for u64 {}
impl Integer for usize {}
