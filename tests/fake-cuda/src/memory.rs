//! Memory of the stand-in's GPUs, and pinned host memory.

use std::collections::BTreeMap;
use std::{mem, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::param::page_size;

use crate::{Code, INVALID_VALUE, OUT_OF_MEMORY};

/// The size of the address range that stands for GPU memory. It is reserved, and the CPU cannot access
/// it.
const ADDRESSES: usize = 16 << 30;
/// The driver's allocator rounds lengths to a multiple of this.
pub(crate) const GRANULE: u64 = 2 << 20;

#[derive(Default)]
pub(crate) struct Memory {
    start: Option<u64>,
    /// The allocations, by first address.
    allocations: BTreeMap<u64, Allocation>,
    last_id: u64,
}

pub(crate) struct Allocation {
    pub(crate) gpu: usize,
    pub(crate) buffer_id: u64,
    pub(crate) len: usize,
    pub(crate) is_host: bool,
    pub(crate) sync_memops: bool,
    /// For a GPU's memory, its content in whole pages. For pinned memory, the memory itself.
    content: Box<[u8]>,
    /// Whether a NIC may reach the content. Such content is never freed.
    is_exposed: bool,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.is_exposed {
            mem::forget(mem::take(&mut self.content));
        }
    }
}

impl Memory {
    /// Allocates at the lowest address with enough room, as the driver does.
    pub(crate) fn alloc(&mut self, gpu: usize, len: usize) -> Result<u64, Code> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let start = self.start()?;
        let room = (len as u64).next_multiple_of(GRANULE);
        let mut addr = start;
        for (taken, allocation) in self.allocations.range(start..start + ADDRESSES as u64) {
            if addr + room <= *taken {
                break;
            }
            addr = (taken + allocation.len as u64).next_multiple_of(GRANULE);
        }
        if addr + room > start + ADDRESSES as u64 {
            return Err(OUT_OF_MEMORY);
        }
        let whole_pages = len.next_multiple_of(page_size());
        self.add(addr, gpu, len, vec![0xee; whole_pages].into(), false);
        Ok(addr)
    }

    pub(crate) fn alloc_host(&mut self, gpu: usize, len: usize) -> Result<*mut u8, Code> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let mut content: Box<[u8]> = vec![0xdd; len].into();
        let start = content.as_mut_ptr();
        self.add(start.addr() as u64, gpu, len, content, true);
        Ok(start)
    }

    pub(crate) fn free(&mut self, addr: u64, is_host: bool) -> Result<(), Code> {
        self.allocations
            .get(&addr)
            .filter(|allocation| allocation.is_host == is_host)
            .ok_or(INVALID_VALUE)?;
        self.allocations.remove(&addr);
        Ok(())
    }

    /// The number of pinned bytes of host memory.
    pub(crate) fn pinned(&self) -> usize {
        let of_host = self.allocations.values().filter(|allocation| allocation.is_host);
        of_host.map(|allocation| allocation.len).sum()
    }

    /// The first address of the allocation that contains `addr`, and that allocation.
    pub(crate) fn find(&mut self, addr: u64) -> Result<(u64, &mut Allocation), Code> {
        let (base, allocation) =
            self.allocations.range_mut(..=addr).next_back().ok_or(INVALID_VALUE)?;
        if addr - base < allocation.len as u64 {
            Ok((*base, allocation))
        } else {
            Err(INVALID_VALUE)
        }
    }

    /// The address where the CPU finds a range of GPU memory.
    pub(crate) fn content(&mut self, addr: u64, len: usize) -> Result<*mut u8, Code> {
        let (base, allocation) = self.find(addr)?;
        let offset = (addr - base) as usize;
        if allocation.is_host || offset + len > allocation.len {
            return Err(INVALID_VALUE);
        }
        Ok(allocation.content[offset..].as_mut_ptr())
    }

    /// The address where a NIC finds a range of GPU memory. The range may extend to the end of the last
    /// page.
    pub(crate) fn pages(&mut self, addr: u64, len: usize) -> Result<*mut u8, Code> {
        let (base, allocation) = self.find(addr)?;
        let offset = (addr - base) as usize;
        let end = offset.checked_add(len).ok_or(INVALID_VALUE)?;
        if allocation.is_host || end > allocation.content.len() {
            return Err(INVALID_VALUE);
        }
        allocation.is_exposed = true;
        Ok(allocation.content[offset..].as_mut_ptr())
    }

    fn add(&mut self, addr: u64, gpu: usize, len: usize, content: Box<[u8]>, is_host: bool) {
        self.last_id += 1;
        let (buffer_id, sync_memops, is_exposed) = (self.last_id, false, false);
        let allocation =
            Allocation { gpu, buffer_id, len, is_host, sync_memops, content, is_exposed };
        self.allocations.insert(addr, allocation);
    }

    fn start(&mut self) -> Result<u64, Code> {
        if let Some(start) = self.start {
            return Ok(start);
        }
        let (protection, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: this is a new mapping at an address that the kernel chooses, so it touches no other
        // memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), ADDRESSES, protection, flags) };
        let start = (start.map_err(|_| OUT_OF_MEMORY)?.addr() as u64).next_multiple_of(GRANULE);
        self.start = Some(start);
        Ok(start)
    }
}
