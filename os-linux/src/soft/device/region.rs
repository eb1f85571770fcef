//! Registered memory: the bounds within which work requests and peers may touch it.

use invar_core::nic::{Access, Memory};
use invar_core::roce::qp::{AccessFault, Region};

use super::slab::Slab;
use crate::memory::HostMemory;

/// One registration; its name is both keys.
pub(super) struct MemoryRegion {
    pub(super) memory: HostMemory,
    pub(super) access: Access,
    pub(super) pd: u32,
}

/// All registrations of a device.
pub(super) struct Regions(pub(super) Slab<MemoryRegion>);

impl Regions {
    /// The bytes that a key and an address mean to a queue pair of domain `pd`. The range is
    /// exact: not a byte around it, whatever the page size.
    #[inline]
    pub(super) fn resolve(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
    ) -> Result<Region, AccessFault> {
        let region = self.0.get(key).ok_or(AccessFault)?;
        let offset = addr.wrapping_sub(region.memory.addr());
        let size = region.memory.len() as u64;
        // An address below the region wraps to far above it.
        if region.pd == pd
            && region.access.contains(need)
            && offset <= size
            && u64::from(len) <= size - offset
        {
            Ok(Region { index: key, offset })
        } else {
            Err(AccessFault)
        }
    }

    /// Copies `bytes` to a place that was resolved. Nothing where the region has ended since.
    #[inline]
    pub(super) fn place(&self, to: Region, bytes: &[u8]) {
        if let Some(region) = self.0.get(to.index) {
            let placed = region.memory.write_at(to.offset as usize, bytes);
            debug_assert_eq!(placed, Ok(()), "resolved");
        }
    }

    /// `len` bytes at a place that was resolved: the memory, and where in it they begin. `None`
    /// where the region has ended since.
    #[inline]
    pub(super) fn range(&self, at: Region, len: usize) -> Option<(&HostMemory, usize, usize)> {
        Some((&self.0.get(at.index)?.memory, at.offset as usize, len))
    }

    /// Copies bytes out of a place that was resolved; false where the region has ended since.
    #[inline]
    pub(super) fn fetch(&self, from: Region, bytes: &mut [u8]) -> bool {
        match self.0.get(from.index) {
            Some(region) => region.memory.read_at(from.offset as usize, bytes).is_ok(),
            None => false,
        }
    }
}
