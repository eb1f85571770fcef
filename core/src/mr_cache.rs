//! Cache of memory registrations: a range of pages that is registered already is not registered
//! again.
//!
//! `ibv_reg_mr` pins pages and takes microseconds to milliseconds, so NCCL keeps what it
//! registered, by page, with a reference count (`net_ib.cc ncclIbRegMrDmaBuf`,
//! `ncclIbDeregMr`), in an array that it scans. Here the slots are a hash table, so that 10,000
//! registrations cost no more than ten.
//!
//! The cache never calls a NIC, so that no lock on it need be held during `ibv_reg_mr`:
//!
//! ```
//! use invar_core::mr_cache::{Lookup, MrCache, Slot};
//! use invar_core::nic::Access;
//!
//! let slots: [Slot<u32>; 4] = core::array::from_fn(|_| Slot::default());
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
//! Two callers share a registration only if they asked for the same pages. NCCL also takes a part of
//! a registration for a hit. Then the whole stays registered until the part is released, though its
//! owner has released it and unmapped the memory: a peer could still write there. Nothing can shrink
//! the registration, since whoever holds the part has its keys.
//!
//! Whoever unmaps memory must have released every handle on it first, or a later lookup of the
//! same addresses finds the pages that were there before.

#[cfg(test)]
mod tests;

use core::marker::PhantomData;

use crate::nic::Access;

/// No slot. Past the end of any storage, so that `get` answers `None`.
const NIL: u32 = u32::MAX;

/// Registrations of type `M` in caller-provided slots `S`: an array, a `Vec`, a borrowed slice.
#[derive(Debug)]
pub struct MrCache<M, S> {
    slots: S,
    page_mask: u64,
    /// First of the free slots, which hang together by their `next`.
    free: u32,
    live: u32,
    mr: PhantomData<M>,
}

/// Room for one registration.
#[derive(Debug)]
pub struct Slot<M> {
    range: PageRange,
    /// First slot of the hash bucket that has this slot's number.
    bucket: u32,
    /// Next slot of the bucket that this slot is in, or the next free one.
    next: u32,
    /// Raised whenever the slot is freed, so that old handles are known.
    generation: u32,
    refs: u64,
    mr: Option<M>,
}

/// Whole pages, with what sets registrations of the same pages apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRange {
    /// Domain and access in one word.
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

/// Answer of [`MrCache::lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a hit holds a reference"]
pub enum Lookup {
    /// Registered already; the handle is a reference of its own.
    Hit(MrHandle),
    /// These pages are to be registered and given to [`MrCache::insert`].
    Miss(PageRange),
}

/// Answer of [`MrCache::insert`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the handle is a reference, and `unused` is to be deregistered"]
pub struct Inserted<M> {
    /// A reference to the registration that now covers the pages.
    pub handle: MrHandle,
    /// The registration given, when another one came first since the lookup.
    pub unused: Option<M>,
}

/// No slot is free: [`MrCache::grow`], and insert again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("MR cache: all slots are taken")]
pub struct Full<M> {
    /// The registration, given back.
    pub mr: M,
}

/// Misuse by the caller; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MrCacheError {
    /// A page size that no machine has.
    #[error("MR cache: page size {0} is not a power of two")]
    PageSize(u64),
    /// Nothing to register.
    #[error("MR cache: range at {addr:#x} is empty")]
    EmptyRange {
        /// Where.
        addr: u64,
    },
    /// The range passes the end of the address space.
    #[error("MR cache: {len} bytes at {addr:#x} pass the end of the address space")]
    RangeOverflow {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The handle was released before, or belongs to another cache.
    #[error("MR cache: handle {index}.{generation} is not a live registration")]
    StaleHandle {
        /// Slot.
        index: u32,
        /// Its generation when the handle was made.
        generation: u32,
    },
}

impl<M, S: AsRef<[Slot<M>]> + AsMut<[Slot<M>]>> MrCache<M, S> {
    /// An empty cache. Whatever the slots held is dropped.
    ///
    /// `page_size` in bytes, a power of two.
    pub fn new(slots: S, page_size: u64) -> Result<Self, MrCacheError> {
        if !page_size.is_power_of_two() {
            return Err(MrCacheError::PageSize(page_size));
        }
        let page_mask = page_size - 1;
        let mut cache = MrCache { slots, page_mask, free: NIL, live: 0, mr: PhantomData };
        cache.free_from(0);
        Ok(cache)
    }

    /// Finds the live registration of the same `domain` and `access` of exactly the pages that hold
    /// `len` bytes at `addr`, and takes a reference to it.
    ///
    /// `domain` tells apart what addresses alone do not: 0 for ordinary memory, a number of its
    /// own for each DMA-BUF. Takes the same time for any number of registrations.
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

    /// Gives one reference back. With the last one the registration comes out, to be
    /// deregistered.
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

    /// The registration that a handle refers to; `None` when the handle is stale.
    pub fn get(&self, handle: MrHandle) -> Option<&M> {
        let slot = self.slots.as_ref().get(handle.index as usize)?;
        slot.mr.as_ref().filter(|_| slot.is_live(handle))
    }

    /// Live registrations.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Whether [`insert`](Self::insert) has no slot left.
    pub fn is_full(&self) -> bool {
        self.free == NIL
    }

    /// Every live registration with its pages and its count of references, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (PageRange, u64, &M)> {
        let slots = self.slots.as_ref().iter();
        slots.filter_map(|slot| Some((slot.range, slot.refs, slot.mr.as_ref()?)))
    }

    /// Moves into larger storage and gives back the old, emptied; handles stay good.
    ///
    /// Storage that is smaller comes back as the error. What `larger` held is dropped.
    pub fn grow(&mut self, mut larger: S) -> Result<S, S> {
        let old = self.slots.as_mut();
        let Some(head) = larger.as_mut().get_mut(..old.len()) else { return Err(larger) };
        let old_len = old.len();
        head.swap_with_slice(old);
        old.fill_with(Slot::default);
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
        let Slot { range, next, .. } = slots[index as usize];
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

    /// Puts the live ones of the first `count` slots into buckets anew, as their number changed.
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

    /// Empties the slots from `start` on and puts them before the free ones, the first first.
    fn free_from(&mut self, start: usize) {
        let slots = self.slots.as_mut();
        let count = slots.len().min(NIL as usize);
        for (index, slot) in slots.iter_mut().enumerate().take(count).skip(start).rev() {
            *slot = Slot::default();
            slot.next = self.free;
            self.free = index as u32;
        }
    }
}

impl<M> Slot<M> {
    fn is_live(&self, handle: MrHandle) -> bool {
        self.generation == handle.generation && self.mr.is_some()
    }
}

impl<M> Default for Slot<M> {
    fn default() -> Self {
        let range = PageRange::default();
        Slot { range, bucket: NIL, next: NIL, generation: 0, refs: 0, mr: None }
    }
}

impl PageRange {
    /// First byte, on a page boundary.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes, in whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.end - self.addr
    }

    /// What the registration permits.
    pub fn access(&self) -> Access {
        Access::from_bits_retain(self.class as u32)
    }

    /// The caller's number for the address space.
    pub fn domain(&self) -> u32 {
        (self.class >> 32) as u32
    }

    /// The hash bucket of these pages, of `count`.
    fn bucket(&self, count: usize) -> usize {
        // Fibonacci hashing, twice, since the addresses of pages differ in their middle bits.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.addr ^ self.class.rotate_left(17)).wrapping_mul(GOLDEN);
        let mixed = (mixed ^ mixed >> 32 ^ self.end).wrapping_mul(GOLDEN);
        // The upper half, scaled to the number of buckets, which fits 32 bits.
        (((mixed >> 32) * count as u64) >> 32) as usize
    }
}

impl From<MrHandle> for MrCacheError {
    fn from(MrHandle { index, generation }: MrHandle) -> Self {
        MrCacheError::StaleHandle { index, generation }
    }
}
