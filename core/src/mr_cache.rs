//! Cache of memory registrations: pages that are already registered are not registered again.
//!
//! `ibv_reg_mr` pins pages and takes microseconds to milliseconds. So NCCL keeps its registrations in
//! an array, by page and with a reference count, and scans this array (`net_ib.cc ncclIbRegMrDmaBuf`,
//! `ncclIbDeregMr`). Here the slots form a hash table, so 10,000 registrations cost no more than ten.
//!
//! The cache never calls a NIC, so the caller need not hold a lock on the cache during `ibv_reg_mr`:
//!
//! ```
//! use invar_core::mr_cache::{Lookup, MrCache, MrSlot};
//! use invar_core::nic::Access;
//!
//! let slots: [MrSlot<u32>; 4] = core::array::from_fn(|_| MrSlot::default());
//! let mut cache = MrCache::new(slots, 4096)?;
//! let handle = match cache.lookup(0, Access::LOCAL_WRITE, 0x1234, 100)? {
//!     Lookup::Hit(handle) => handle,
//!     Lookup::Miss(pages) => {
//!         assert_eq!((pages.addr(), pages.len()), (0x1000, 4096));
//!         let mr = 17; // ibv_reg_mr(pages.addr(), pages.len()); on failure nothing is left over
//!         let inserted = cache.insert(pages, mr).expect("a free slot");
//!         assert_eq!(inserted.unused, None); // else another thread was faster: deregister it
//!         inserted.handle
//!     }
//! };
//! assert_eq!(cache.get(handle), Some(&17));
//! assert_eq!(cache.release(handle)?, Some(17)); // the last reference: deregister it
//! # Ok::<(), invar_core::mr_cache::MrCacheError>(())
//! ```
//!
//! Two callers share a registration only if they asked for the same pages. In releases of
//! NCCL after 2.14 a part of a registration is a hit too. Then the whole registration stays until the part is
//! released, even if its owner has released it and unmapped the memory. A peer could still write to that memory.
//! Nothing can shrink the registration, since the holder of the part uses its keys.
//!
//! Before memory is unmapped, every handle on it must be released. Otherwise a later lookup of the same
//! addresses finds the old pages.

#[cfg(test)]
mod tests;

use core::marker::PhantomData;

use crate::nic::Access;

/// The index of no slot. This index lies past the end of any storage, so `get` returns `None`.
const NIL: u32 = u32::MAX;

/// Registrations of type `M` in slots `S` that the caller provides: an array, a `Vec`, or a borrowed
/// slice.
#[derive(Debug)]
pub struct MrCache<M, S> {
    slots: S,
    page_mask: u64,
    /// First of the free slots, which are linked by `next`.
    free: u32,
    live: u32,
    mr: PhantomData<M>,
}

/// Room for one registration.
#[derive(Debug)]
pub struct MrSlot<M> {
    range: PageRange,
    /// First slot of the hash bucket that has this slot's number.
    bucket: u32,
    /// Next slot in this slot's bucket, or next free slot.
    next: u32,
    /// Counter that grows whenever the slot is freed, so that old handles are recognised.
    generation: u32,
    refs: u64,
    mr: Option<M>,
}

/// A range of whole pages, with the domain and access flags of its registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRange {
    /// Domain and access flags in one word.
    class: u64,
    addr: u64,
    end: u64,
}

/// One reference to one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MrHandle {
    index: u32,
    generation: u32,
}

/// Result of [`MrCache::lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a hit holds a reference"]
pub enum Lookup {
    /// The pages are registered already. The handle is a reference of its own.
    Hit(MrHandle),
    /// The pages are not registered: register them and pass them to [`MrCache::insert`].
    Miss(PageRange),
}

/// Result of [`MrCache::insert`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the handle is a reference, and `unused` is to be deregistered"]
pub struct Inserted<M> {
    /// A reference to the registration that now covers the pages.
    pub handle: MrHandle,
    /// The caller's registration, if another thread has inserted one since the lookup.
    pub unused: Option<M>,
}

/// No slot is free: call [`MrCache::grow`] and insert again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("MR cache: all slots are taken")]
pub struct Full<M> {
    /// The registration that could not be inserted.
    pub mr: M,
}

/// A wrong call; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MrCacheError {
    /// The page size is not a power of two.
    #[error("MR cache: page size {0} is not a power of two")]
    PageSize(u64),
    /// The range has no bytes to register.
    #[error("MR cache: range at {addr:#x} is empty")]
    EmptyRange {
        /// Address of the range.
        addr: u64,
    },
    /// The range passes the end of the address space.
    #[error("MR cache: {len} bytes at {addr:#x} pass the end of the address space")]
    RangeOverflow {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The handle was released before, or belongs to another cache.
    #[error("MR cache: handle {index}.{generation} is not a live registration")]
    StaleHandle {
        /// Index of the slot.
        index: u32,
        /// Generation of the slot when the handle was made.
        generation: u32,
    },
}

impl<M, S: AsRef<[MrSlot<M>]> + AsMut<[MrSlot<M>]>> MrCache<M, S> {
    /// Creates an empty cache, and drops the previous content of the slots.
    ///
    /// `page_size` is in bytes and a power of two.
    pub fn new(slots: S, page_size: u64) -> Result<Self, MrCacheError> {
        if !page_size.is_power_of_two() {
            return Err(MrCacheError::PageSize(page_size));
        }
        let page_mask = page_size - 1;
        let mut cache = MrCache { slots, page_mask, free: NIL, live: 0, mr: PhantomData };
        cache.free_from(0);
        Ok(cache)
    }

    /// Finds the live registration of exactly the pages that contain `len` bytes at `addr`, and takes a
    /// reference. The `domain` and `access` must be equal too.
    ///
    /// `domain` separates address spaces: 0 for ordinary memory, a number of its own for each DMA-BUF.
    /// The lookup takes the same time for any number of registrations.
    pub fn lookup(
        &mut self,
        domain: u32,
        access: Access,
        addr: u64,
        len: u64,
    ) -> Result<Lookup, MrCacheError> {
        let pages = self.pages(domain, access, addr, len)?;
        Ok(self.acquire(&pages).map_or(Lookup::Miss(pages), Lookup::Hit))
    }

    /// Adds the registration `mr` of `pages`, which came from [`Lookup::Miss`].
    pub fn insert(&mut self, pages: PageRange, mr: M) -> Result<Inserted<M>, Full<M>> {
        if let Some(handle) = self.acquire(&pages) {
            return Ok(Inserted { handle, unused: Some(mr) });
        }
        let index = self.free;
        let Some(slot) = self.slots.as_mut().get_mut(index as usize) else {
            return Err(Full { mr });
        };
        self.free = slot.next;
        self.live += 1;
        slot.range = pages;
        slot.refs = 1;
        slot.mr = Some(mr);
        let handle = MrHandle { index, generation: slot.generation };
        self.chain(index);
        Ok(Inserted { handle, unused: None })
    }

    /// Releases one reference. With the last reference it returns the registration, which the caller
    /// must deregister.
    pub fn release(&mut self, handle: MrHandle) -> Result<Option<M>, MrCacheError> {
        let slots = self.slots.as_mut();
        let slot = slots
            .get_mut(handle.index as usize)
            .filter(|slot| slot.is_live(handle))
            .ok_or(MrCacheError::from(handle))?;
        slot.refs -= 1;
        if slot.refs > 0 {
            return Ok(None);
        }
        let mr = slot.mr.take();
        slot.generation = slot.generation.wrapping_add(1);
        self.unchain(handle.index);
        self.slots.as_mut()[handle.index as usize].next = self.free;
        self.free = handle.index;
        self.live -= 1;
        Ok(mr)
    }

    /// The registration to which a handle refers; `None` if the handle is stale.
    pub fn get(&self, handle: MrHandle) -> Option<&M> {
        let slot = self.slots.as_ref().get(handle.index as usize)?;
        slot.mr.as_ref().filter(|_| slot.is_live(handle))
    }

    /// The number of live registrations.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Returns whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns whether [`insert`](Self::insert) has no slot left.
    pub fn is_full(&self) -> bool {
        self.free == NIL
    }

    /// Every live registration with its pages and its number of references, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (PageRange, u64, &M)> {
        let slots = self.slots.as_ref().iter();
        slots.filter_map(|slot| Some((slot.range, slot.refs, slot.mr.as_ref()?)))
    }

    /// Moves the registrations to larger storage, and returns the old storage, emptied. Handles stay
    /// valid.
    ///
    /// If `larger` is smaller than the old storage, it comes back as the error. The previous content of
    /// `larger` is dropped.
    pub fn grow(&mut self, mut larger: S) -> Result<S, S> {
        let old = self.slots.as_mut();
        let Some(head) = larger.as_mut().get_mut(..old.len()) else { return Err(larger) };
        let old_len = old.len();
        head.swap_with_slice(old);
        old.fill_with(MrSlot::default);
        core::mem::swap(&mut self.slots, &mut larger);
        self.free_from(old_len);
        self.rehash(old_len);
        Ok(larger)
    }

    fn pages(
        &self,
        domain: u32,
        access: Access,
        addr: u64,
        len: u64,
    ) -> Result<PageRange, MrCacheError> {
        if len == 0 {
            return Err(MrCacheError::EmptyRange { addr });
        }
        let end = addr.checked_add(len).and_then(|end| end.checked_add(self.page_mask));
        let end = end.ok_or(MrCacheError::RangeOverflow { addr, len })? & !self.page_mask;
        let class = u64::from(domain) << 32 | u64::from(access.bits());
        Ok(PageRange { class, addr: addr & !self.page_mask, end })
    }

    fn acquire(&mut self, pages: &PageRange) -> Option<MrHandle> {
        let slots = self.slots.as_mut();
        let mut index = slots.get(pages.bucket(slots.len()))?.bucket;
        loop {
            let slot = slots.get_mut(index as usize)?;
            if slot.range == *pages {
                slot.refs += 1;
                return Some(MrHandle { index, generation: slot.generation });
            }
            index = slot.next;
        }
    }

    /// Puts a slot whose range is set into its bucket.
    fn chain(&mut self, index: u32) {
        let slots = self.slots.as_mut();
        let bucket = slots[index as usize].range.bucket(slots.len());
        slots[index as usize].next = slots[bucket].bucket;
        slots[bucket].bucket = index;
    }

    /// Takes a slot out of its bucket.
    fn unchain(&mut self, index: u32) {
        let slots = self.slots.as_mut();
        let MrSlot { range, next, .. } = slots[index as usize];
        let bucket = range.bucket(slots.len());
        let mut before = slots[bucket].bucket;
        if before == index {
            slots[bucket].bucket = next;
            return;
        }
        while slots[before as usize].next != index {
            before = slots[before as usize].next;
        }
        slots[before as usize].next = next;
    }

    /// Puts the live slots among the first `count` into buckets again, since the number of buckets has
    /// changed.
    fn rehash(&mut self, count: usize) {
        for slot in &mut self.slots.as_mut()[..count] {
            slot.bucket = NIL;
        }
        for index in 0..count {
            if self.slots.as_ref()[index].mr.is_some() {
                self.chain(index as u32);
            }
        }
    }

    /// Empties the slots from `start` on and puts them in front of the free slots, in ascending order.
    fn free_from(&mut self, start: usize) {
        let slots = self.slots.as_mut();
        let count = slots.len().min(NIL as usize);
        for (index, slot) in slots.iter_mut().enumerate().take(count).skip(start).rev() {
            *slot = MrSlot::default();
            slot.next = self.free;
            self.free = index as u32;
        }
    }
}

impl<M> MrSlot<M> {
    fn is_live(&self, handle: MrHandle) -> bool {
        self.generation == handle.generation && self.mr.is_some()
    }
}

impl<M> Default for MrSlot<M> {
    fn default() -> Self {
        let range = PageRange::default();
        MrSlot { range, bucket: NIL, next: NIL, generation: 0, refs: 0, mr: None }
    }
}

impl PageRange {
    /// Address of the first byte, on a page boundary.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes, a whole number of pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.end - self.addr
    }

    /// Access flags of the registration.
    pub fn access(&self) -> Access {
        Access::from_bits_retain(self.class as u32)
    }

    /// The caller's number for the address space.
    pub fn domain(&self) -> u32 {
        (self.class >> 32) as u32
    }

    /// The hash bucket of these pages, out of `count` buckets.
    fn bucket(&self, count: usize) -> usize {
        // Fibonacci hashing is applied twice, since the addresses of pages differ in their middle bits.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.addr ^ self.class.rotate_left(17)).wrapping_mul(GOLDEN);
        let mixed = (mixed ^ mixed >> 32 ^ self.end).wrapping_mul(GOLDEN);
        // The upper half is scaled to the number of buckets, which fits in 32 bits.
        (((mixed >> 32) * count as u64) >> 32) as usize
    }
}

impl From<MrHandle> for MrCacheError {
    fn from(MrHandle { index, generation }: MrHandle) -> Self {
        MrCacheError::StaleHandle { index, generation }
    }
}
