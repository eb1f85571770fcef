//! Where comms are: NCCL holds numbers, each the place of a comm and which of the comms it is
//! that were there.
//!
//! ```text
//! comm       63 … 32  zero           31 … 23  upper bits of the generation   22 … 7  place, not 0
//!                                     6 … 2   lower bits of the generation   1 … 0  zero
//! request    63 … 34  its token   33 … 32  zero           31 … 0  its comm, with REQUEST
//! ```
//!
//! A generation is 1 or more, and the place has a comm of it just once: after the last one the place
//! stays empty. So what named a comm that is closed never names another, and there is room for a
//! thousand million comms in the life of a process.
//!
//! A place is two cache lines, and a comm has the place where it already is an offset: finding it and
//! what to call takes a few instructions and no lock. As everywhere in NCCL's interface, calls on
//! one comm must not overlap with its end; one that comes after it is found out.
//!
//! NCCL tests what waits time and again. So a place also says where tests of its comm go on: as long
//! as the last poll was for a request that still waits, in a function that takes one comparison to
//! know it, and polls.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use static_assertions::const_assert_eq;

use crate::comm::{Comm, Test};

const PLACES: usize = 1 << 16;
/// Comms there can be: none is at the first place, so that null names no other.
pub(crate) const COMMS_MAX: usize = PLACES - 1;

const PLACE_SHIFT: u32 = 7;
/// Of a token, in a request.
const TOKEN_SHIFT: u32 = 34;

/// Of the upper bits of a generation, and of the lower ones.
const GENERATION_SHIFT: [u32; 2] = [23, 2];
/// Bits of the lower part.
const GENERATION_LOW_BITS: u32 = PLACE_SHIFT - GENERATION_SHIFT[1];
/// The last generation that a place has.
const GENERATION_MAX: u16 = (1 << (u32::BITS - GENERATION_SHIFT[0] + GENERATION_LOW_BITS)) - 1;

/// Tells the comm in a request from a comm. The bit below is the profiler's.
const REQUEST: usize = 2;
/// No request, and no comm.
const NONE: usize = 0;

static PLACE: [Place; PLACES] = [const { Place::empty() }; PLACES];

static ALLOCATION: Mutex<Allocation> =
    Mutex::new(Allocation { free: Vec::new(), generations: Vec::new() });

/// Room for a comm.
#[repr(C, align(128))]
pub(crate) struct Place {
    /// The comm that is here, or [`NONE`].
    number: AtomicUsize,
    /// What its requests have beside their tokens; 0 where there is no comm.
    requests: AtomicU32,
    /// The [`Test`] that tests of its requests go on with.
    test: AtomicPtr<()>,
    /// Written while there is none.
    comm: UnsafeCell<MaybeUninit<Comm>>,
}

const_assert_eq!(size_of::<Place>(), 1 << PLACE_SHIFT);

// SAFETY: `comm` is written under the lock of `ALLOCATION`, before a number is stored and after it
// is taken away; between that it is only read.
unsafe impl Sync for Place {}

struct Allocation {
    free: Vec<u16>,
    /// Of each place that was ever taken, the generation that is or was last there.
    generations: Vec<u16>,
}

impl Allocation {
    /// A place that nothing is at, and the number of the comm that is to be there.
    fn take(&mut self) -> Option<(u16, usize)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                // The first place stays empty.
                let index = u16::try_from(self.generations.len().max(1)).ok()?;
                self.generations.resize(usize::from(index) + 1, 0);
                index
            }
        };
        let generation = &mut self.generations[usize::from(index)];
        *generation += 1;
        let (place, generation) = (usize::from(index), usize::from(*generation));
        let (upper, lower) =
            (generation >> GENERATION_LOW_BITS, generation & ((1 << GENERATION_LOW_BITS) - 1));
        let number = upper << GENERATION_SHIFT[0] | place << PLACE_SHIFT;
        Some((index, number | lower << GENERATION_SHIFT[1]))
    }

    /// The comm of a place is gone.
    fn give_back(&mut self, index: u16) {
        if self.generations[usize::from(index)] < GENERATION_MAX {
            self.free.push(index);
        }
    }
}

impl Place {
    const fn empty() -> Self {
        Place {
            number: AtomicUsize::new(NONE),
            requests: AtomicU32::new(0),
            test: AtomicPtr::new(ptr::null_mut()),
            comm: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }

    /// Has tests of its requests go on with that.
    #[inline(always)]
    pub(crate) fn set_test(&self, test: Test) {
        self.test.store(test as *mut (), Ordering::Relaxed);
    }

    /// What a test of its requests goes on with.
    ///
    /// # Safety
    /// As of [`Place::comm`].
    #[inline(always)]
    pub(crate) unsafe fn test(&self) -> Test {
        // SAFETY: nothing else is stored, and something is before it can be found.
        unsafe { mem::transmute::<*mut (), Test>(self.test.load(Ordering::Relaxed)) }
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

/// Makes the first place one that nothing is at: null names it. It is called when the library is
/// loaded, before anything can be looked for.
extern "C" fn prepare() {
    let Place { number, requests, .. } = &PLACE[0];
    // What this names is at the last place.
    number.store(usize::MAX, Ordering::Release);
    requests.store(u32::MAX, Ordering::Release);
}

// SAFETY: the loader calls what is listed here, once, and this needs nothing to be prepared.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

/// The place that a comm or a request names.
#[inline(always)]
fn place(number: usize) -> &'static Place {
    let offset = number & (PLACES - 1) << PLACE_SHIFT;
    // SAFETY: the offset of one of the places.
    unsafe { &*PLACE.as_ptr().byte_add(offset) }
}

/// Finds a comm.
#[inline(always)]
pub(crate) fn find(comm: *mut c_void) -> Option<&'static Place> {
    let place = place(comm.addr());
    (place.number.load(Ordering::Acquire) == comm.addr()).then_some(place)
}

/// Finds the comm of a request.
#[inline(always)]
pub(crate) fn find_by_request(request: *mut c_void) -> Option<&'static Place> {
    let place = place(request.addr());
    (place.requests.load(Ordering::Acquire) == request.addr() as u32).then_some(place)
}

/// What the requests of a comm have beside their tokens.
pub(crate) fn requests(comm: *mut c_void) -> u32 {
    (comm.addr() | REQUEST) as u32
}

/// The request of a token.
#[inline(always)]
pub(crate) fn request(token: u32, requests: u32) -> *mut c_void {
    ptr::without_provenance_mut((token as usize) << TOKEN_SHIFT | requests as usize)
}

/// The token of a request.
#[inline(always)]
pub(crate) fn token(request: *mut c_void) -> u32 {
    (request.addr() >> TOKEN_SHIFT) as u32
}

/// The comm of a request.
pub(crate) fn comm(request: *mut c_void) -> *mut c_void {
    request.map_addr(|request| request as u32 as usize & !REQUEST)
}

/// Puts a comm where it can be found; gives it as NCCL gets it, and its place; or back where there is
/// no place left.
pub(crate) fn put(comm: Comm) -> Result<(*mut c_void, &'static Place), Comm> {
    let mut allocation = allocation();
    let Some((index, number)) = allocation.take() else { return Err(comm) };
    let (place, number) = (&PLACE[usize::from(index)], ptr::without_provenance_mut(number));
    place.set_test(comm.calls.test);
    // SAFETY: under the lock, and nobody finds what has no number.
    unsafe { (*place.comm.get()).write(comm) };
    place.requests.store(requests(number), Ordering::Release);
    place.number.store(number.addr(), Ordering::Release);
    Ok((number, place))
}

/// Takes a comm away.
///
/// # Safety
/// `place` was found, and nobody else is at work on its comm.
pub(crate) unsafe fn remove(place: &Place) -> Option<Comm> {
    let mut allocation = allocation();
    let number = place.number.swap(NONE, Ordering::AcqRel);
    if number == NONE {
        return None;
    }
    place.requests.store(0, Ordering::Release);
    allocation.give_back((number >> PLACE_SHIFT) as u16);
    // SAFETY: it had a number, which nobody finds any more, and the lock is held.
    Some(unsafe { (*place.comm.get()).assume_init_read() })
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
        let mut numbers = HashSet::new();
        for _ in 0..3 * usize::from(GENERATION_MAX) {
            let (index, number) = allocation.take().unwrap();
            assert_ne!(index, kept);
            assert_eq!((number >> PLACE_SHIFT) as u16, index);
            assert_eq!((number & 3, number >> u32::BITS), (0, 0));
            assert!(numbers.insert(number), "{number:#x} again");
            allocation.give_back(index);
        }
        assert_eq!(allocation.generations.len(), 5, "three places are used up");
    }

    #[test]
    fn there_are_as_many_comms_as_places_but_the_first() {
        let mut allocation = Allocation { free: Vec::new(), generations: Vec::new() };
        let numbers: HashSet<_> = (0..COMMS_MAX).map(|_| allocation.take().unwrap().1).collect();
        assert_eq!((numbers.len(), allocation.take()), (COMMS_MAX, None));
    }

    #[test]
    fn null_names_nothing_from_the_start() {
        assert!(find(ptr::null_mut()).is_none());
        assert!(find_by_request(ptr::null_mut()).is_none());
    }
}
