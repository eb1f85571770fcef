//! A protection domain: the memory that work requests may name.

use std::collections::HashMap;
use std::io;

use invar_core::nic::{Access, Memory};
use invar_core::roce::qp::Region;
use invar_linux::memory::HostMemory;
use invar_linux::random::random;

/// The memory regions of a protection domain, by key.
///
/// The lock is held for a look-up or a copy, and never during a system call. So a lock that spins
/// suffices.
#[derive(Default)]
pub struct Domain(spin::Mutex<HashMap<u32, (HostMemory, Access)>>);

impl Domain {
    /// Registers memory under a key that nobody can guess.
    pub(crate) fn add(&self, memory: &HostMemory, access: Access) -> io::Result<u32> {
        loop {
            let key = u32::from_ne_bytes(random()?);
            let mut regions = self.0.lock();
            if key != 0 && !regions.contains_key(&key) {
                regions.insert(key, (memory.clone(), access));
                return Ok(key);
            }
        }
    }

    pub(crate) fn remove(&self, key: u32) {
        self.0.lock().remove(&key);
    }

    /// Finds a range, if all of it is in the region and the region gives the rights `need`.
    pub(crate) fn find(&self, key: u32, addr: u64, len: u32, need: Access) -> Option<Region> {
        let regions = self.0.lock();
        let (memory, _) = regions.get(&key).filter(|(_, access)| access.contains(need))?;
        Some(Region { index: key, offset: offset_in(memory, addr, len)? })
    }

    pub(crate) fn write(&self, to: Region, bytes: &[u8]) {
        // Who deregisters memory during a transfer wants nothing written there.
        if let Some((memory, _)) = self.0.lock().get(&to.index) {
            let _ = memory.write_at(to.offset as usize, bytes);
        }
    }

    pub(crate) fn read(&self, from: Region, bytes: &mut [u8]) {
        if let Some((memory, _)) = self.0.lock().get(&from.index) {
            let _ = memory.read_at(from.offset as usize, bytes);
        }
    }

    /// Copies the bytes of an inline request. They need no key, but must be registered.
    pub(crate) fn inline(&self, addr: u64, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.0.lock().values().find_map(|(memory, _)| {
            memory.read_at(offset_in(memory, addr, len)? as usize, &mut bytes).ok()
        })?;
        Some(bytes)
    }
}

fn offset_in(memory: &HostMemory, addr: u64, len: u32) -> Option<u64> {
    let offset = addr.checked_sub(memory.addr())?;
    (offset.checked_add(len.into())? <= memory.len() as u64).then_some(offset)
}
