//! Memory of the program's own, registered with a device, each page once.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use invar_core::mr_cache::{Full, Inserted, Lookup, MrCache, MrHandle, PageRange, Slot};
use invar_linux::env::page_size;
use invar_linux::memory::HostMemory;

use super::Registration;
use crate::error::Kind;
use crate::{Device, Error};

/// By what work requests name registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// In the local end's work requests.
    pub lkey: u32,
    /// In the peer's.
    pub rkey: u32,
}

/// Registers the pages that hold `len` bytes at `start`. Pages that are registered already are
/// not registered again: each call takes a reference, for a [`deregister`] of its own.
///
/// # Errors
/// No bytes, bytes beyond the end of the address space, or what the device says.
///
/// # Safety
/// Until it is deregistered: the pages stay mapped, readable and writable; and of their bytes,
/// those that a transfer writes are not accessed by anyone else meanwhile, and those that it
/// reads not written, but by atomic operations on whole aligned words.
pub unsafe fn register(device: &Device, start: NonNull<u8>, len: usize) -> Result<Keys, Error> {
    let access = device.data_access();
    let mut cache = device.registrations().lock();
    let addr = start.as_ptr().addr() as u64;
    let pages = match cache.pages.lookup(0, access, addr, len as u64).map_err(Kind::MrCache)? {
        Lookup::Hit(handle) => return cache.keys(handle),
        Lookup::Miss(pages) => pages,
    };
    // Pinning pages takes its time; others need not wait for it.
    drop(cache);
    let first = start.as_ptr().with_addr(pages.addr() as usize);
    let first = NonNull::new(first).ok_or_else(|| Kind::Usage("memory at page 0".into()))?;
    // SAFETY: the caller's promise is about all bytes of these pages.
    let memory = unsafe { HostMemory::from_raw(first, pages.len() as usize, ()) };
    let registration =
        device.adapter().reg_mr(&memory, access).map_err(|error| device.failed(error))?;
    let (keys, unused) = device.registrations().lock().insert(pages, registration)?;
    // Another call was faster: ended without the lock.
    drop(unused);
    Ok(keys)
}

/// Gives back one reference to a registration. It ends with the last.
///
/// # Errors
/// Keys of no registration of this device.
pub fn deregister(device: &Device, keys: Keys) -> Result<(), Error> {
    let ended = device.registrations().lock().release(keys)?;
    // Without the lock.
    drop(ended);
    Ok(())
}

/// The registrations of a device.
pub(crate) struct Registrations(Mutex<Cache>);

struct Cache {
    pages: MrCache<Entry, Vec<Slot<Entry>>>,
    by_lkey: HashMap<u32, (Keys, MrHandle)>,
}

struct Entry {
    keys: Keys,
    _registration: Registration,
}

impl Registrations {
    pub(crate) fn new() -> Self {
        let pages = MrCache::new(Vec::new(), page_size() as u64);
        let pages = pages.expect("a page size is a power of two");
        Registrations(Mutex::new(Cache { pages, by_lkey: HashMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn keys(&self, handle: MrHandle) -> Result<Keys, Error> {
        let entry = self.pages.get(handle).ok_or_else(|| Kind::MrCache(handle.into()))?;
        Ok(entry.keys)
    }

    fn insert(
        &mut self,
        pages: PageRange,
        registration: Registration,
    ) -> Result<(Keys, Option<Entry>), Error> {
        let keys = Keys { lkey: registration.lkey(), rkey: registration.rkey() };
        let mut entry = Entry { keys, _registration: registration };
        let Inserted { handle, unused } = loop {
            match self.pages.insert(pages, entry) {
                Ok(inserted) => break inserted,
                Err(Full { mr }) => {
                    entry = mr;
                    self.grow();
                }
            }
        };
        let keys = self.keys(handle)?;
        if unused.is_none() {
            self.by_lkey.insert(keys.lkey, (keys, handle));
        }
        Ok((keys, unused))
    }

    fn grow(&mut self) {
        let slots = (2 * self.pages.len()).max(64);
        let larger = (0..slots).map(|_| Slot::default()).collect();
        let grown = self.pages.grow(larger);
        debug_assert!(grown.is_ok(), "it is larger");
    }

    fn release(&mut self, keys: Keys) -> Result<Option<Entry>, Error> {
        let Some((_, handle)) = self.by_lkey.get(&keys.lkey).filter(|(known, _)| *known == keys)
        else {
            let text = format!("keys {:#x} and {:#x} of no registration", keys.lkey, keys.rkey);
            return Err(Kind::Usage(text).into());
        };
        let ended = self.pages.release(*handle).map_err(Kind::MrCache)?;
        if ended.is_some() {
            self.by_lkey.remove(&keys.lkey);
        }
        Ok(ended)
    }
}
