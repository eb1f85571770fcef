//! Registers the program's own memory with a device, each range of pages once.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use invar_core::mr_cache::{Full, Inserted, Lookup, MrCache, MrHandle, MrSlot, PageRange};
use invar_core::nic::Access;
use invar_cuda::BufferDomains;
use invar_linux::env::page_size;
use invar_linux::memory::HostMemory;
use rustc_hash::FxHashMap;

use super::Device;
use super::gpu_buffers::{gpu_allocation, gpu_buffers};
use crate::Error;
use crate::error::Kind;
use crate::memory_numbers::REGISTRATION_HITS;
use crate::raw::{GpuRange, Registration};

/// The keys by which work requests name registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// The key in the local end's work requests.
    pub lkey: u32,
    /// The key in the peer's work requests.
    pub rkey: u32,
}

/// Registers the pages that hold `len` bytes at `start`. If exactly these pages are registered already,
/// the call takes a reference to that registration. Each call needs its own [`deregister`]. A part of a
/// registration is registered separately, so that each registration ends with its owner.
///
/// # Errors
/// Fails if `len` is 0, if the bytes exceed the address space, or if the device refuses the pages.
///
/// # Safety
/// Until the pages are deregistered, all of this holds:
/// - The pages stay mapped, readable and writable.
/// - While a transfer writes bytes of the pages, nobody else accesses these bytes.
/// - While a transfer reads bytes of the pages, nobody writes these bytes, except by atomic operations
///   on whole aligned words.
pub unsafe fn register(device: &Device, start: NonNull<u8>, len: usize) -> Result<Keys, Error> {
    cached(device, None, start.as_ptr().addr() as u64, len, |pages, access| {
        let first = start.as_ptr().with_addr(pages.addr() as usize);
        let first = NonNull::new(first).ok_or_else(|| Kind::Usage("memory at page 0".into()))?;
        // SAFETY: the caller's promise covers all bytes of these pages.
        let memory = unsafe { HostMemory::from_raw(first, pages.len() as usize, ()) };
        device.adapter().reg_mr(&memory, access).map_err(|error| device.failed(error))
    })
}

/// Registers the pages that hold a range of a GPU's memory, like [`register`]. If memory is freed and
/// allocated again at the same address, it is registered again.
///
/// If a registration of the same allocation has all of the pages, the call takes a reference to that registration.
/// The larger registration then lasts at least as long as the part's. NCCL 2.20 to 2.23 register a part of a buffer
/// for each operation (`net.cc sendProxyProgress`), and their own transport takes such a part for a hit
/// (`net_ib.cc ncclIbRegMrDmaBufInternal`). A range with a DMA-BUF may be in several allocations. Such a range
/// shares a registration that has all of its pages and is of the same list of allocations.
///
/// # Errors
/// Fails if [`register`] would fail, or if there is no CUDA. Fails if CUDA does not know the memory, or if the range
/// has no DMA-BUF and is in more than one allocation.
///
/// # Safety
/// Until the range is deregistered, nobody else accesses bytes while a transfer writes them, and nobody
/// writes bytes while a transfer reads them. Memory that is registered by its address stays allocated.
pub unsafe fn register_gpu(device: &Device, range: &GpuRange<'_>) -> Result<Keys, Error> {
    let GpuRange { addr, len, dma_buf } = *range;
    let buffer_ids = match dma_buf {
        Some(_) => gpu_buffers(addr, len)?,
        None => vec![gpu_allocation(addr, len)?.buffer_id],
    };
    cached(device, Some(&buffer_ids), addr, len, |pages, access| {
        // The range's first page may begin before the range does.
        let before = addr - pages.addr();
        let dma_buf = match dma_buf {
            Some((_, offset)) if offset < before => {
                let text = format!("offset {offset} in a DMA-BUF is not as far into a page");
                return Err(Kind::Usage(text).into());
            }
            Some((fd, offset)) => Some((fd, offset - before)),
            None => None,
        };
        let pages = GpuRange { addr: pages.addr(), len: pages.len() as usize, dma_buf };
        // SAFETY: the caller has promised that the memory stays until it is deregistered.
        let registration = unsafe { device.adapter().reg_gpu_mr(&pages, access) };
        registration.map_err(|error| device.failed(error))
    })
}

/// Returns the keys of pages that are registered, or registers them with `register`.
fn cached(
    device: &Device,
    buffer_ids: Option<&[u64]>,
    addr: u64,
    len: usize,
    register: impl FnOnce(&PageRange, Access) -> Result<Registration, Error>,
) -> Result<Keys, Error> {
    let access = device.data_access();
    let mut cache = device.registrations().lock();
    let domain = buffer_ids.map_or(0, |buffer_ids| cache.gpu_buffers.acquire(buffer_ids));
    let found = cache.lookup(domain, access, addr, len as u64);
    if found.is_err() {
        cache.gpu_buffers.release(domain);
    }
    let pages = match found? {
        Lookup::Hit(handle) => {
            REGISTRATION_HITS.add(1);
            return cache.keys(handle);
        }
        Lookup::Miss(pages) => pages,
    };
    // To pin pages takes time, so other threads need not wait for it.
    drop(cache);
    let registration = register(&pages, access);
    let mut cache = device.registrations().lock();
    let inserted = registration.and_then(|mr| cache.insert(pages, mr));
    if inserted.is_err() {
        cache.gpu_buffers.release(domain);
    }
    drop(cache);
    // If another call was faster, its keys are used, and this registration ends here without the lock.
    Ok(inserted?.0)
}

/// Gives back one reference to a registration. The registration ends with the last reference. After
/// that no transfer reaches its pages, except pages that are also registered in another range.
///
/// # Errors
/// Fails if the device has no registration with these keys.
pub fn deregister(device: &Device, keys: Keys) -> Result<(), Error> {
    let ended = device.registrations().lock().release(keys)?;
    // The registration ends here, without the lock.
    drop(ended);
    Ok(())
}

/// The registrations of a device.
pub(crate) struct Registrations(Mutex<Cache>);

struct Cache {
    pages: MrCache<Entry, Vec<MrSlot<Entry>>>,
    /// Domain, start and end of the pages that are registered of each allocation on a GPU. Only those are listed that
    /// no others of the allocation contain, so ends ascend with starts.
    gpu_pages: BTreeSet<(u32, u64, u64)>,
    by_lkey: FxHashMap<u32, (Keys, MrHandle)>,
    gpu_buffers: BufferDomains,
}

struct Entry {
    keys: Keys,
    pages: PageRange,
    _registration: Registration,
}

impl Registrations {
    pub(crate) fn new() -> Self {
        let pages = MrCache::new(Vec::new(), page_size() as u64);
        let pages = pages.expect("a page size is a power of two");
        let (gpu_pages, by_lkey, gpu_buffers) = Default::default();
        Registrations(Mutex::new(Cache { pages, gpu_pages, by_lkey, gpu_buffers }))
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Looks up the pages and takes a reference if they are registered.
    fn lookup(
        &mut self,
        domain: u32,
        access: Access,
        addr: u64,
        len: u64,
    ) -> Result<Lookup, Error> {
        let mut found = self.pages.lookup(domain, access, addr, len);
        if let Ok(Lookup::Miss(pages)) = &found
            && let Some((start, end)) = self.covering(pages)
        {
            found = self.pages.lookup(domain, access, start, end - start);
        }
        Ok(found.map_err(Kind::MrCache)?)
    }

    /// Finds a registration of the same allocation on a GPU that has all of these pages. Returns its start and end.
    fn covering(&self, pages: &PageRange) -> Option<(u64, u64)> {
        let (domain, addr, end) = bounds(pages);
        let mut before = self.gpu_pages.range(..=(domain, addr, u64::MAX));
        let &(of, start, last) = before.next_back()?;
        (of == domain && end <= last).then_some((start, last))
    }

    /// Lists new pages of a GPU instead of those that they contain.
    fn list_gpu_pages(&mut self, pages: &PageRange) {
        // Another thread may have registered more since the lookup.
        if self.covering(pages).is_some() {
            return;
        }
        let (domain, addr, end) = bounds(pages);
        while let Some(&next) = self.gpu_pages.range((domain, addr, 0)..).next()
            && next.0 == domain
            && next.2 <= end
        {
            self.gpu_pages.remove(&next);
        }
        self.gpu_pages.insert((domain, addr, end));
    }

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
        let mut entry = Entry { keys, pages, _registration: registration };
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
            if pages.domain() != 0 {
                self.list_gpu_pages(&pages);
            }
        }
        Ok((keys, unused))
    }

    fn grow(&mut self) {
        let slots = (2 * self.pages.len()).max(64);
        let larger = (0..slots).map(|_| MrSlot::default()).collect();
        let grown = self.pages.grow(larger);
        debug_assert!(grown.is_ok(), "it is larger");
    }

    fn release(&mut self, keys: Keys) -> Result<Option<Entry>, Error> {
        let Some((_, handle)) = self.by_lkey.get(&keys.lkey).filter(|(known, _)| *known == keys)
        else {
            let text = format!("keys {:#x} and {:#x} of no registration", keys.lkey, keys.rkey);
            return Err(Kind::Usage(text).into());
        };
        let handle = *handle;
        let domain = self.pages.get(handle).map_or(0, |entry| entry.pages.domain());
        let ended = self.pages.release(handle).map_err(Kind::MrCache)?;
        self.gpu_buffers.release(domain);
        if let Some(Entry { pages, .. }) = &ended {
            self.by_lkey.remove(&keys.lkey);
            self.gpu_pages.remove(&bounds(pages));
        }
        Ok(ended)
    }
}

/// Returns domain, start and end of pages.
fn bounds(pages: &PageRange) -> (u32, u64, u64) {
    (pages.domain(), pages.addr(), pages.addr() + pages.len())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::slice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use invar_core::nic::MemoryKeys;

    use super::*;

    /// A registration whose key is its number. It counts the live registrations.
    struct Numbered(u32, Arc<AtomicU32>);

    impl Drop for Numbered {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl MemoryKeys for Numbered {
        fn lkey(&self) -> u32 {
            self.0
        }

        fn rkey(&self) -> u32 {
            self.0 + 1000
        }
    }

    /// A device, and the memory that it has registered.
    struct Registrar {
        device: Device,
        count: Cell<u32>,
        live: Arc<AtomicU32>,
    }

    impl Registrar {
        fn new() -> Self {
            let device = Device::open_at("127.0.0.1:0".parse().unwrap()).unwrap();
            Registrar { device, count: Cell::new(0), live: Arc::default() }
        }

        fn live(&self) -> u32 {
            self.live.load(Ordering::Relaxed)
        }

        fn register(&self, buffer_id: Option<u64>, addr: u64) -> Keys {
            self.register_range(buffer_id, addr, 4096)
        }

        fn register_range(&self, buffer_id: Option<u64>, addr: u64, len: usize) -> Keys {
            self.register_buffers(buffer_id.as_ref().map(slice::from_ref), addr, len)
        }

        fn register_buffers(&self, buffer_ids: Option<&[u64]>, addr: u64, len: usize) -> Keys {
            let number = |_: &PageRange, _: Access| -> Result<Registration, Error> {
                self.count.update(|count| count + 1);
                self.live.fetch_add(1, Ordering::Relaxed);
                Ok(Box::new(Numbered(self.count.get(), self.live.clone())))
            };
            cached(&self.device, buffer_ids, addr, len, number).unwrap()
        }
    }

    #[test]
    fn an_address_of_another_allocation_is_registered_anew() {
        let registrar = Registrar::new();
        let host = registrar.register(None, 1 << 40);
        let first = registrar.register(Some(71), 1 << 40);
        assert_eq!(registrar.register(Some(71), 1 << 40), first);
        // The memory was freed without a call of `deregister`, and allocated again.
        let second = registrar.register(Some(72), 1 << 40);
        assert_eq!([host.lkey, first.lkey, second.lkey], [1, 2, 3]);
        for keys in [first, second, first, host] {
            deregister(&registrar.device, keys).unwrap();
        }
        deregister(&registrar.device, first).unwrap_err();
        assert!(registrar.device.registrations().lock().pages.is_empty());
        assert_eq!(registrar.register(Some(71), 1 << 40).lkey, 4);
    }

    const BASE: u64 = 1 << 40;

    #[test]
    fn a_registration_of_host_memory_ends_with_its_owner_while_others_hold_parts_of_it() {
        let registrar = Registrar::new();
        let whole = registrar.register_range(None, BASE, 64 << 10);
        let part = registrar.register_range(None, BASE + 8192, 4096);
        let same = registrar.register_range(None, BASE + 1, (64 << 10) - 1);
        assert_eq!((same, part == whole, registrar.live()), (whole, false, 2));
        for (keys, live) in [(whole, 2), (same, 1), (part, 0)] {
            deregister(&registrar.device, keys).unwrap();
            assert_eq!(registrar.live(), live);
        }
    }

    #[test]
    fn a_part_of_registered_memory_of_a_gpu_is_not_registered_again_until_the_last_part_ends() {
        let registrar = Registrar::new();
        let whole = registrar.register_range(Some(71), BASE, 64 << 10);
        let parts = [0, 8192, 60 << 10].map(|at| {
            let part = registrar.register_range(Some(71), BASE + at, 4096);
            assert_eq!(part, whole, "at {at}");
            part
        });
        let others = [(Some(71), 62 << 10), (Some(72), 8192), (None, 8192)];
        let others = others.map(|(buffer_id, at)| {
            let other = registrar.register_range(buffer_id, BASE + at, 4096);
            assert_ne!(other, whole, "{buffer_id:?} at {at}");
            other
        });
        assert_eq!(registrar.live(), 4);
        for keys in others.into_iter().chain([whole]) {
            deregister(&registrar.device, keys).unwrap();
        }
        for part in parts {
            assert_eq!(registrar.live(), 1);
            deregister(&registrar.device, part).unwrap();
        }
        assert_eq!(registrar.live(), 0);
        let part = registrar.register_range(Some(71), BASE, 4096);
        assert_ne!(part, whole);
        deregister(&registrar.device, part).unwrap();
        let cache = registrar.device.registrations().lock();
        assert!(cache.gpu_pages.is_empty() && cache.gpu_buffers.is_empty());
    }

    #[test]
    fn a_part_of_gpu_memory_finds_what_has_all_of_it_among_many_registrations_of_the_allocation() {
        let registrar = Registrar::new();
        let register = |at, len| registrar.register_range(Some(71), BASE + at, len);
        let small: Vec<_> = (0..64).map(|page| register(page * 4096, 4096)).collect();
        // Two larger ones, of which each has pages that the other lacks.
        let [low, high] = [register(0, 40 * 4096), register(24 * 4096, 40 * 4096)];
        let other = registrar.register(Some(72), BASE + 8192);
        for (at, of) in [(0, low), (20, low), (23, low), (24, high), (62, high)] {
            assert_eq!(register(at * 4096, 8192), of, "page {at}");
            deregister(&registrar.device, of).unwrap();
        }
        assert_eq!(register(8192, 4096), small[2], "the same pages");
        assert_eq!(registrar.live(), 67);
        for keys in small.into_iter().chain([low, high, other, Keys { lkey: 3, rkey: 1003 }]) {
            deregister(&registrar.device, keys).unwrap();
        }
        assert_eq!(registrar.live(), 0);
        assert!(registrar.device.registrations().lock().gpu_pages.is_empty());
    }

    #[test]
    fn a_range_of_several_allocations_shares_a_registration_until_one_of_them_is_another() {
        let registrar = Registrar::new();
        let register =
            |buffer_ids: &[u64]| registrar.register_buffers(Some(buffer_ids), BASE, 64 << 10);
        let first = register(&[71, 72]);
        assert_eq!(register(&[71, 72]), first);
        let others = [&[71, 73][..], &[73, 72], &[72, 71], &[71], &[71, 72, 73]].map(register);
        assert!(!others.contains(&first), "{others:?}");
        assert_eq!(registrar.live(), 6);
        for keys in others.into_iter().chain([first, first]) {
            deregister(&registrar.device, keys).unwrap();
        }
        assert_eq!(registrar.live(), 0);
        assert!(registrar.device.registrations().lock().gpu_buffers.is_empty());
    }

    #[test]
    fn a_registration_that_fails_leaves_nothing() {
        let registrar = Registrar::new();
        let fail = |_: &PageRange, _: Access| Err(Kind::Usage("no".to_owned()).into());
        cached(&registrar.device, Some(&[71]), 1 << 40, 4096, fail).unwrap_err();
        cached(&registrar.device, Some(&[71, 72]), u64::MAX, 4096, fail).unwrap_err();
        let cache = registrar.device.registrations().lock();
        assert!(cache.pages.is_empty() && cache.gpu_buffers.is_empty());
    }
}
