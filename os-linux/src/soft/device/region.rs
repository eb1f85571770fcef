//! Registered memory and the checks that bound accesses of work requests and peers.

use std::collections::{HashMap, HashSet};

use invar_core::nic::{Access, Atomic, Memory, NicError, Verb};
use invar_core::roce::qp::{AccessFault, QpSide, Region};

use super::Device;
use super::table::Table;
use crate::memory::HostMemory;

/// A registered region; its name in the table is both lkey and rkey.
pub(super) struct MemoryRegion {
    pub(super) memory: HostMemory,
    /// The address by which work requests and peers name the first byte.
    pub(super) addr: u64,
    pub(super) access: Access,
    pub(super) pd: u32,
}

/// A change of a registered region. `None` leaves what it is.
#[derive(Clone, Copy, Default)]
pub struct MrChange<'a> {
    /// The memory, and the address by which work requests and peers name its first byte.
    pub memory: Option<(&'a HostMemory, u64)>,
    /// The rights of the device and of peers.
    pub access: Option<Access>,
}

/// All regions of a device and their protection domains.
pub(super) struct Regions {
    pub(super) table: Table<MemoryRegion>,
    /// Number of the last allocated domain.
    pds: u32,
    /// The state of each connection's protection domain.
    connections: HashMap<u32, ConnectionPd>,
}

/// The domain of one connection; the local end also has access to the regions of `parent`.
struct ConnectionPd {
    parent: u32,
    /// Keys of the regions of `parent` that the peer has been told of.
    granted: HashSet<u32>,
}

impl Regions {
    /// Makes a table without regions and domains.
    pub(super) fn new(table: Table<MemoryRegion>) -> Self {
        Regions { table, pds: 0, connections: HashMap::new() }
    }

    /// Allocates a domain with a number that no earlier domain had.
    pub(super) fn alloc_pd(&mut self) -> u32 {
        self.pds += 1;
        self.pds
    }

    /// Allocates the domain of one connection.
    pub(super) fn alloc_connection_pd(&mut self, parent: u32) -> u32 {
        let pd = self.alloc_pd();
        self.connections.insert(pd, ConnectionPd { parent, granted: HashSet::new() });
        pd
    }

    pub(super) fn dealloc_pd(&mut self, pd: u32) {
        self.connections.remove(&pd);
    }

    /// Lets the peer of a connection access a region of the parent domain.
    pub(super) fn grant(&mut self, pd: u32, key: u32) {
        if let Some(connection) = self.connections.get_mut(&pd) {
            connection.granted.insert(key);
        }
    }

    /// Removes and returns the region of a key.
    pub(super) fn remove(&mut self, key: u32) -> Option<MemoryRegion> {
        let region = self.table.remove(key)?;
        for connection in self.connections.values_mut() {
            connection.granted.remove(&key);
        }
        Some(region)
    }

    /// Whether a queue pair of domain `pd` may use a region, for its own work or for its peer's.
    #[inline]
    fn permits(&self, pd: u32, key: u32, region: &MemoryRegion, side: QpSide) -> bool {
        if region.pd == pd {
            return true;
        }
        let Some(connection) = self.connections.get(&pd) else { return false };
        region.pd == connection.parent
            && (side != QpSide::Remote || connection.granted.contains(&key))
    }

    /// Finds the bytes that a key and an address mean to a queue pair of domain `pd`. The check is exact
    /// to the byte, whatever the page size.
    #[inline]
    pub(super) fn resolve(
        &self,
        (pd, side): (u32, QpSide),
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
    ) -> Result<Region, AccessFault> {
        let region = self.table.get(key).ok_or(AccessFault)?;
        let offset = addr.wrapping_sub(region.addr);
        let size = region.memory.len() as u64;
        // An address below the region wraps to an offset far above the region's end.
        if region.access.contains(need)
            && offset <= size
            && u64::from(len) <= size - offset
            && self.permits(pd, key, region, side)
        {
            Ok(Region { index: key, offset })
        } else {
            Err(AccessFault)
        }
    }

    /// Copies `bytes` to a resolved range. Does nothing if the region has ended or got smaller since.
    #[inline]
    pub(super) fn place(&self, to: Region, bytes: &[u8]) {
        if let Some(region) = self.table.get(to.index) {
            let _ = region.memory.write_at(to.offset as usize, bytes);
        }
    }

    /// Carries out an atomic on a resolved word and returns the word before.
    ///
    /// # Errors
    /// The word is not aligned in memory, or the region has ended since.
    pub(super) fn update(&self, at: Region, atomic: Atomic) -> Result<u64, AccessFault> {
        let region = self.table.get(at.index).ok_or(AccessFault)?;
        let update = |word| atomic.apply(word);
        region.memory.update_at(at.offset as usize, update).ok_or(AccessFault)
    }

    /// Returns the memory, offset and length of a resolved range, or `None` if the region has ended
    /// since.
    #[inline]
    pub(super) fn range(&self, at: Region, len: usize) -> Option<(&HostMemory, usize, usize)> {
        Some((&self.table.get(at.index)?.memory, at.offset as usize, len))
    }

    /// Copies bytes out of a resolved range; returns false if the region has ended since.
    #[inline]
    pub(super) fn fetch(&self, from: Region, bytes: &mut [u8]) -> bool {
        match self.table.get(from.index) {
            Some(region) => region.memory.read_at(from.offset as usize, bytes).is_ok(),
            None => false,
        }
    }
}

impl Device {
    /// Changes a memory region (`ibv_rereg_mr`): its domain, its memory or its access. Its key stays the same.
    /// Transfers under way find the region as it is now; what lies outside it is an access error or is dropped.
    /// Returns the memory that the region had, if it has another one now, so the caller decides where it is freed.
    ///
    /// # Errors
    /// `EINVAL`: no such region, or the access flags allow remote writes but no local writes. `EBUSY`: a memory
    /// window is bound to the region. Nothing has changed.
    pub fn rereg_mr(
        &mut self,
        key: u32,
        pd: Option<u32>,
        change: &MrChange<'_>,
    ) -> Result<Option<HostMemory>, NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::RegMr, errno, cause));
        check_access(change.access.unwrap_or_default())?;
        if self.is_bound(key) {
            return refuse(libc::EBUSY, "a memory window is bound to the region");
        }
        let Some(region) = self.regions.table.get_mut(key) else {
            return refuse(libc::EINVAL, "no such memory region");
        };
        region.access = change.access.unwrap_or(region.access);
        if let Some(pd) = pd.filter(|pd| *pd != region.pd) {
            region.pd = pd;
            self.regions.connections.values_mut().for_each(|of| _ = of.granted.remove(&key));
        }
        Ok(change.memory.map(|(memory, addr)| {
            region.addr = addr;
            std::mem::replace(&mut region.memory, memory.clone())
        }))
    }
}

/// Checks the access of a region.
pub(super) fn check_access(access: Access) -> Result<(), NicError> {
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        let cause = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE";
        return Err(NicError::new(Verb::RegMr, libc::EINVAL, cause));
    }
    Ok(())
}
