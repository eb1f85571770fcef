//! The handle table: NCCL holds handles that name a comm or a request, never pointers.
//!
//! ```text
//! comm       63 … 32  zero           31 … 23  upper bits of the generation   22 … 7  slot, not 0
//!                                     6 … 2   lower bits of the generation   1 … 0  zero
//! ```
//!
//! A generation counts the comms that a slot has had, starting at 1. After its last generation a slot
//! stays empty. So the handle of a closed comm never names another comm, and a process can open about a
//! thousand million comms.
//!
//! A slot takes two cache lines, and a comm's handle contains the slot's offset. So a call finds its
//! comm in a few instructions, without a lock. NCCL must not close a comm during a call on it. The table
//! refuses a call that comes after the close.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use static_assertions::const_assert_eq;

use crate::comm::Comm;
use crate::request;

const SLOTS_MAX: usize = 1 << 16;
/// Maximum number of open comms: the first slot stays empty, so that null names no comm.
pub(crate) const COMMS_MAX: usize = SLOTS_MAX - 1;

const SLOT_SHIFT: u32 = 7;

/// Lowest bit of the generation's upper part and of its lower part in a handle.
const GENERATION_SHIFT: [u32; 2] = [23, 2];
/// Number of bits in the generation's lower part.
const GENERATION_LOW_BITS: u32 = SLOT_SHIFT - GENERATION_SHIFT[1];
/// The last generation of a slot.
const GENERATION_MAX: u16 = (1 << (u32::BITS - GENERATION_SHIFT[0] + GENERATION_LOW_BITS)) - 1;

/// A value that names neither a request nor a comm.
const NONE: usize = 0;

static SLOTS: [HandleSlot; SLOTS_MAX] = [const { HandleSlot::empty() }; SLOTS_MAX];

static ALLOCATION: Mutex<Allocation> =
    Mutex::new(Allocation { free: Vec::new(), generations: Vec::new() });

/// One entry of the handle table: room for a comm.
#[repr(C, align(128))]
pub(crate) struct HandleSlot {
    /// The handle of the comm in this slot, or [`NONE`].
    handle: AtomicUsize,
    /// The low half of the comm's requests; 0 while the slot is empty.
    requests: AtomicU32,
    /// The comm; the table writes this field only while the slot has no handle.
    comm: UnsafeCell<MaybeUninit<Comm>>,
}

const_assert_eq!(size_of::<HandleSlot>(), 1 << SLOT_SHIFT);

// SAFETY: The table writes `comm` under the lock of `ALLOCATION`, and only while the slot has no handle.
// While the slot has a handle, all threads only read the field.
unsafe impl Sync for HandleSlot {}

struct Allocation {
    free: Vec<u16>,
    /// The last generation of each slot that has ever been used.
    generations: Vec<u16>,
}

impl Allocation {
    /// Takes a free slot and returns its index and the handle of its next comm.
    fn take(&mut self) -> Option<(u16, usize)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                // The first slot stays empty.
                let index = u16::try_from(self.generations.len().max(1)).ok()?;
                self.generations.resize(usize::from(index) + 1, 0);
                index
            }
        };
        let generation = &mut self.generations[usize::from(index)];
        *generation += 1;
        let (slot, generation) = (usize::from(index), usize::from(*generation));
        let (upper, lower) =
            (generation >> GENERATION_LOW_BITS, generation & ((1 << GENERATION_LOW_BITS) - 1));
        let handle = upper << GENERATION_SHIFT[0] | slot << SLOT_SHIFT;
        Some((index, handle | lower << GENERATION_SHIFT[1]))
    }

    /// Frees the slot of a closed comm.
    fn give_back(&mut self, index: u16) {
        if self.generations[usize::from(index)] < GENERATION_MAX {
            self.free.push(index);
        }
    }
}

impl HandleSlot {
    const fn empty() -> Self {
        HandleSlot {
            handle: AtomicUsize::new(NONE),
            requests: AtomicU32::new(0),
            comm: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }

    /// Returns the comm in this slot.
    ///
    /// # Safety
    /// A lookup found this slot, and nobody removes the comm while the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn comm(&self) -> &Comm {
        // SAFETY: `put` writes the comm before a lookup can find it, and no one writes it again before
        // `remove`.
        unsafe { (*self.comm.get()).assume_init_ref() }
    }
}

/// Gives the first slot handles that no caller has, so that null names no comm. The loader calls this
/// function when it loads the library, before any lookup.
extern "C" fn prepare() {
    let HandleSlot { handle, requests, .. } = &SLOTS[0];
    handle.store(usize::MAX, Ordering::Release);
    requests.store(u32::MAX, Ordering::Release);
}

// SAFETY: The loader calls each listed function once, and `prepare` needs no initialization.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

/// Returns the slot that a comm's handle or a request names.
#[inline(always)]
fn slot(handle: usize) -> &'static HandleSlot {
    let offset = handle & (SLOTS_MAX - 1) << SLOT_SHIFT;
    // SAFETY: The mask keeps the offset within the table and on the start of a slot.
    unsafe { &*SLOTS.as_ptr().byte_add(offset) }
}

#[inline(always)]
pub(crate) fn find(comm: *mut c_void) -> Option<&'static HandleSlot> {
    let slot = slot(comm.addr());
    (slot.handle.load(Ordering::Acquire) == comm.addr()).then_some(slot)
}

/// Finds the slot of a request's comm.
#[inline(always)]
pub(crate) fn find_by_request(request: *mut c_void) -> Option<&'static HandleSlot> {
    let slot = slot(request.addr());
    (slot.requests.load(Ordering::Acquire) == request.addr() as u32).then_some(slot)
}

/// Takes a free slot, stores the comm that `make` returns for the new handle, and returns that handle.
/// Returns `None` without calling `make` if no slot is free.
pub(crate) fn put(make: impl FnOnce(*mut c_void) -> Comm) -> Option<*mut c_void> {
    let mut allocation = allocation();
    let (index, handle) = allocation.take()?;
    let (slot, handle) = (&SLOTS[usize::from(index)], ptr::without_provenance_mut(handle));
    // SAFETY: This thread holds the lock, and no lookup finds a slot without a handle.
    unsafe { (*slot.comm.get()).write(make(handle)) };
    slot.requests.store(request::low_half(handle), Ordering::Release);
    slot.handle.store(handle.addr(), Ordering::Release);
    Some(handle)
}

/// Removes a comm from the table and returns it.
///
/// # Safety
/// A lookup found `slot`, and no other call on its comm runs.
pub(crate) unsafe fn remove(slot: &HandleSlot) -> Option<Comm> {
    let mut allocation = allocation();
    let handle = slot.handle.swap(NONE, Ordering::AcqRel);
    if handle == NONE {
        return None;
    }
    slot.requests.store(0, Ordering::Release);
    allocation.give_back((handle >> SLOT_SHIFT) as u16);
    // SAFETY: The slot had a handle, so it holds a comm. No lookup finds it any more, and this thread
    // holds the lock.
    Some(unsafe { (*slot.comm.get()).assume_init_read() })
}

fn allocation() -> MutexGuard<'static, Allocation> {
    ALLOCATION.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_named_a_comm_never_names_another() {
        let mut allocation = Allocation { free: Vec::new(), generations: Vec::new() };
        let (kept, _) = allocation.take().unwrap();
        let mut handles = HashSet::new();
        for _ in 0..3 * usize::from(GENERATION_MAX) {
            let (index, handle) = allocation.take().unwrap();
            assert_ne!(index, kept);
            assert_eq!((handle >> SLOT_SHIFT) as u16, index);
            assert_eq!((handle & 3, handle >> u32::BITS), (0, 0));
            assert!(handles.insert(handle), "{handle:#x} again");
            allocation.give_back(index);
        }
        assert_eq!(allocation.generations.len(), 5, "three places are used up");
    }

    #[test]
    fn there_are_as_many_comms_as_places_but_the_first() {
        let mut allocation = Allocation { free: Vec::new(), generations: Vec::new() };
        let handles: HashSet<_> = (0..COMMS_MAX).map(|_| allocation.take().unwrap().1).collect();
        assert_eq!((handles.len(), allocation.take()), (COMMS_MAX, None));
    }

    #[test]
    fn null_names_nothing_from_the_start() {
        assert!(find(ptr::null_mut()).is_none());
        assert!(find_by_request(ptr::null_mut()).is_none());
    }
}
