//! Where comms are: NCCL holds numbers, each the place of a comm and which of the comms it is
//! that were there.
//!
//! ```text
//! comm       31 … 22  generation, not 0    21 … 6  place            5 … 0  zero
//! request    63 … 32  its comm             31 … 0  its token
//! ```
//!
//! A place is a cache line, and the number has the place where it already is an offset: finding a
//! comm and what to call takes a few instructions and no lock. As everywhere in NCCL's interface,
//! calls on one comm must not overlap with its end; one that comes after it is found out.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use static_assertions::const_assert_eq;

use crate::comm::Comm;

/// Comms there can be.
pub(crate) const PLACES: usize = 1 << 16;

const PLACE_SHIFT: u32 = 6;
const GENERATION_SHIFT: u32 = 22;
const GENERATIONS: u16 = 1 << (u32::BITS - GENERATION_SHIFT);

static PLACE: [Place; PLACES] = [const { Place::empty() }; PLACES];

static ALLOCATION: Mutex<Allocation> =
    Mutex::new(Allocation { free: Vec::new(), generations: Vec::new() });

/// Room for a comm.
#[repr(C, align(64))]
pub(crate) struct Place {
    /// Of the comm that is here; 0 for none.
    name: AtomicU32,
    /// Written while there is no name.
    comm: UnsafeCell<MaybeUninit<Comm>>,
}

const_assert_eq!(size_of::<Place>(), 1 << PLACE_SHIFT);

// SAFETY: `comm` is written under the lock of `ALLOCATION`, before a name is stored and after it
// is taken away; between that it is only read.
unsafe impl Sync for Place {}

struct Allocation {
    free: Vec<u16>,
    /// Of each place that was ever taken, the generation that is or was last there.
    generations: Vec<u16>,
}

/// How NCCL names a comm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Name(u32);

impl Name {
    /// As NCCL gets it.
    pub(crate) fn to_ptr(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0 as usize)
    }

    #[inline(always)]
    fn place(self) -> &'static Place {
        &PLACE[self.index()]
    }

    #[inline(always)]
    fn index(self) -> usize {
        (self.0 >> PLACE_SHIFT) as usize % PLACES
    }
}

impl Place {
    const fn empty() -> Self {
        Place { name: AtomicU32::new(0), comm: UnsafeCell::new(MaybeUninit::zeroed()) }
    }

    /// What is here.
    ///
    /// # Safety
    /// It was found, and is not removed while the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn comm(&self) -> &Comm {
        // SAFETY: it is written before it can be found, and not again before it is removed.
        unsafe { (*self.comm.get()).assume_init_ref() }
    }

    /// A request of the comm that is here, as NCCL gets it.
    #[inline(always)]
    pub(crate) fn request(&self, token: u32) -> *mut c_void {
        let name = u64::from(self.name.load(Ordering::Relaxed));
        ptr::without_provenance_mut((name << 32 | u64::from(token)) as usize)
    }
}

/// Finds the comm that NCCL names so.
#[inline(always)]
pub(crate) fn find(name: *mut c_void) -> Option<&'static Place> {
    let place = Name(name.addr() as u32).place();
    // All of it: what has more bits is no name.
    (place.name.load(Ordering::Acquire) as usize == name.addr() && !name.is_null()).then_some(place)
}

/// Finds the comm of a request.
#[inline(always)]
pub(crate) fn find_by_request(request: *mut c_void) -> Option<&'static Place> {
    find(ptr::without_provenance_mut(request.addr() >> 32))
}

/// The token of a request.
#[inline(always)]
pub(crate) fn token(request: *mut c_void) -> u32 {
    request.addr() as u32
}

/// Puts a comm where it can be found; gives it back where there is no place left.
pub(crate) fn put(comm: Comm) -> Result<Name, Comm> {
    let mut allocation = allocation();
    let index = match allocation.free.pop() {
        Some(index) => index,
        None => match u16::try_from(allocation.generations.len()) {
            Ok(index) => {
                allocation.generations.push(0);
                index
            }
            Err(_) => return Err(comm),
        },
    };
    let generation = &mut allocation.generations[usize::from(index)];
    *generation = if *generation + 1 < GENERATIONS { *generation + 1 } else { 1 };
    let number = u32::from(*generation) << GENERATION_SHIFT | u32::from(index) << PLACE_SHIFT;
    let name = Name(number);
    let place = name.place();
    // SAFETY: under the lock, and nobody finds what has no name.
    unsafe { (*place.comm.get()).write(comm) };
    place.name.store(number, Ordering::Release);
    Ok(name)
}

/// Takes a comm away.
///
/// # Safety
/// `place` was found, and nobody else is at work on its comm.
pub(crate) unsafe fn remove(place: &Place) -> Option<Comm> {
    let mut allocation = allocation();
    let name = Name(place.name.swap(0, Ordering::AcqRel));
    if name.0 == 0 {
        return None;
    }
    allocation.free.push(name.index() as u16);
    // SAFETY: it had a name, which nobody finds any more, and the lock is held.
    Some(unsafe { (*place.comm.get()).assume_init_read() })
}

fn allocation() -> MutexGuard<'static, Allocation> {
    ALLOCATION.lock().unwrap_or_else(PoisonError::into_inner)
}
