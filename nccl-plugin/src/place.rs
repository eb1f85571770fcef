//! Where comms are: NCCL holds numbers, each the place of a comm and which of the comms it is
//! that were there.
//!
//! ```text
//! comm       63 … 32  zero      31 … 22  generation, not 0   21 … 6  place   5 … 0  zero
//! request    63 … 32  its token                    31 … 0  its comm, with REQUEST
//! ```
//!
//! A place is a cache line, and a comm has the place where it already is an offset: finding it and
//! what to call takes a few instructions and no lock. As everywhere in NCCL's interface, calls on
//! one comm must not overlap with its end; one that comes after it is found out.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use static_assertions::const_assert_eq;

use crate::comm::Comm;

/// Comms there can be.
pub(crate) const PLACES: usize = 1 << 16;

const PLACE_SHIFT: u32 = 6;
const GENERATION_SHIFT: u32 = 22;
const GENERATIONS: u16 = 1 << (u32::BITS - GENERATION_SHIFT);

/// Tells the comm in a request from a comm.
const REQUEST: usize = 16;

static PLACE: [Place; PLACES] = [const { Place::empty() }; PLACES];

static ALLOCATION: Mutex<Allocation> =
    Mutex::new(Allocation { free: Vec::new(), generations: Vec::new() });

/// Room for a comm.
#[repr(C, align(64))]
pub(crate) struct Place {
    /// The [`key`] of the comm that is here; 0 for none.
    key: AtomicUsize,
    /// Written while there is no key.
    comm: UnsafeCell<MaybeUninit<Comm>>,
}

const_assert_eq!(size_of::<Place>(), 1 << PLACE_SHIFT);

// SAFETY: `comm` is written under the lock of `ALLOCATION`, before a key is stored and after it
// is taken away; between that it is only read.
unsafe impl Sync for Place {}

struct Allocation {
    free: Vec<u16>,
    /// Of each place that was ever taken, the generation that is or was last there.
    generations: Vec<u16>,
}

impl Place {
    const fn empty() -> Self {
        Place { key: AtomicUsize::new(0), comm: UnsafeCell::new(MaybeUninit::zeroed()) }
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
}

/// What stands at the place of a comm: never 0, so that no number names an empty place, null
/// neither.
const fn key(comm: usize) -> usize {
    !(2 * comm)
}

/// Whether a key is that of a comm. A sum, which takes fewer registers than the key.
#[inline(always)]
const fn is_key(key: usize, comm: usize) -> bool {
    key.wrapping_add(comm.wrapping_mul(2)) == usize::MAX
}

/// The place of a comm.
#[inline(always)]
fn place(comm: usize) -> &'static Place {
    &PLACE[(comm >> PLACE_SHIFT) % PLACES]
}

/// Finds a comm.
#[inline(always)]
pub(crate) fn find(comm: *mut c_void) -> Option<&'static Place> {
    let place = place(comm.addr());
    is_key(place.key.load(Ordering::Acquire), comm.addr()).then_some(place)
}

/// Finds the comm of a request.
#[inline(always)]
pub(crate) fn find_by_request(request: *mut c_void) -> Option<&'static Place> {
    let comm = request.addr() as u32 as usize;
    let place = place(comm);
    is_key(place.key.load(Ordering::Acquire), comm.wrapping_sub(REQUEST)).then_some(place)
}

/// What the requests of a comm have beside their tokens.
pub(crate) fn requests(comm: *mut c_void) -> usize {
    comm.addr() | REQUEST
}

/// The token of a request.
#[inline(always)]
pub(crate) fn token(request: *mut c_void) -> u32 {
    (request.addr() >> 32) as u32
}

/// The comm of a request.
pub(crate) fn comm(request: *mut c_void) -> *mut c_void {
    request.map_addr(|request| request as u32 as usize & !REQUEST)
}

/// Puts a comm where it can be found, and gives it as NCCL gets it; back where there is no place
/// left.
pub(crate) fn put(comm: Comm) -> Result<*mut c_void, Comm> {
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
    let number = usize::from(*generation) << GENERATION_SHIFT | usize::from(index) << PLACE_SHIFT;
    let place = place(number);
    // SAFETY: under the lock, and nobody finds what has no key.
    unsafe { (*place.comm.get()).write(comm) };
    place.key.store(key(number), Ordering::Release);
    Ok(ptr::without_provenance_mut(number))
}

/// Takes a comm away.
///
/// # Safety
/// `place` was found, and nobody else is at work on its comm.
pub(crate) unsafe fn remove(place: &Place) -> Option<Comm> {
    let mut allocation = allocation();
    let key = place.key.swap(0, Ordering::AcqRel);
    if key == 0 {
        return None;
    }
    allocation.free.push(((!key / 2) >> PLACE_SHIFT) as u16);
    // SAFETY: it had a key, which nobody finds any more, and the lock is held.
    Some(unsafe { (*place.comm.get()).assume_init_read() })
}

fn allocation() -> MutexGuard<'static, Allocation> {
    ALLOCATION.lock().unwrap_or_else(PoisonError::into_inner)
}
