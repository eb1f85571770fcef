//! The allocations of a GPU in which a range lies.

use std::sync::atomic::{AtomicU64, Ordering};

use invar_cuda::{Driver, Pointer, PointerKind};

use crate::Error;
use crate::error::Kind;

/// The next number for a part of a range that CUDA does not know. No allocation has such a number, since CUDA counts from
/// 1.
static NEXT_UNKNOWN: AtomicU64 = AtomicU64::new(1 << 63);

/// Returns CUDA's numbers of the allocations that have `len` bytes at `addr` on a GPU, in order.
///
/// The first byte must be in an allocation. A DMA-BUF may have more bytes than CUDA knows, and the kernel checks that
/// the range is within it. The list then ends with a number that no other list has.
///
/// # Errors
/// Fails if there is no CUDA, or if the first byte is not in an allocation of a GPU.
pub(super) fn gpu_buffers(addr: u64, len: usize) -> Result<Vec<u64>, Error> {
    let first = allocation_at(addr)?;
    let (mut buffer_ids, mut from) = (vec![first.buffer_id], bytes_from(addr, &first));
    while from < len {
        let at = addr + from as u64;
        let Ok(next) = allocation_at(at) else {
            buffer_ids.push(NEXT_UNKNOWN.fetch_add(1, Ordering::Relaxed));
            break;
        };
        buffer_ids.push(next.buffer_id);
        from += bytes_from(at, &next);
    }
    Ok(buffer_ids)
}

/// Returns CUDA's facts about the allocation that has `len` bytes at `addr` on a GPU.
///
/// # Errors
/// Fails if there is no CUDA, or if the bytes are not in one allocation of a GPU.
pub(crate) fn gpu_allocation(addr: u64, len: usize) -> Result<Pointer, Error> {
    let pointer = allocation_at(addr)?;
    let Pointer { base, len: room, .. } = pointer;
    // A registration by address notes only the number of the first allocation. Another one could be replaced unnoticed.
    if len > bytes_from(addr, &pointer) {
        let text = format!(
            "{len} bytes at {addr:#x} end beyond their allocation, {room} bytes of GPU memory at \
             {base:#x}: each allocation is registered by itself"
        );
        return Err(Kind::Usage(text).into());
    }
    Ok(pointer)
}

/// Returns the number of bytes of an allocation from `addr` on.
fn bytes_from(addr: u64, of: &Pointer) -> usize {
    of.len - (addr - of.base) as usize
}

/// Returns CUDA's facts about the allocation at `addr` on a GPU.
fn allocation_at(addr: u64) -> Result<Pointer, Error> {
    let driver = Driver::open().map_err(Kind::NoCuda)?;
    let pointer = Pointer::query(driver, addr).map_err(|error| Kind::Gpu(error.into()))?;
    let refuse = |what| Err(Kind::Usage(format!("at {addr:#x} there is {what}")).into());
    match pointer {
        Some(pointer) if pointer.kind == PointerKind::Device => Ok(pointer),
        Some(Pointer { kind: PointerKind::Managed, .. }) => {
            refuse("managed memory, which leaves the GPU")
        }
        Some(_) => refuse("memory of the host, not of a GPU"),
        None => refuse("no memory that CUDA knows"),
    }
}
