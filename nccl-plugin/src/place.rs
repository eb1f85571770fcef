//! Where comms are: NCCL holds numbers, each the place of a comm and which of the comms it is
//! that were there.
//!
//! ```text
//! comm       63 … 32  0             31 … 16  generation, not 0     15 … 0  place
//! request    63 … 32  its comm      31 …  0  its token
//! ```
//!
//! Finding a comm takes no lock. As everywhere in NCCL's interface, calls on one comm must not
//! overlap with its end; one that comes after it is found out.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::comm::Comm;

/// Comms there can be.
pub(crate) const PLACES: usize = 1 << 16;

static COMMS: [AtomicPtr<Comm>; PLACES] = [const { AtomicPtr::new(ptr::null_mut()) }; PLACES];

static ALLOCATION: Mutex<Allocation> =
    Mutex::new(Allocation { free: Vec::new(), generations: Vec::new() });

struct Allocation {
    free: Vec<u16>,
    /// Of each place that was ever taken, the generation that is or was last there.
    generations: Vec<u16>,
}

/// How NCCL names a comm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Name(u64);

impl Name {
    /// As NCCL gives it back.
    #[inline(always)]
    pub(crate) fn from_ptr(name: *mut c_void) -> Self {
        Name(name.addr() as u64)
    }

    /// As NCCL gets it.
    pub(crate) fn to_ptr(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0 as usize)
    }

    /// A request of this comm.
    #[inline(always)]
    pub(crate) fn request(self, token: u32) -> *mut c_void {
        ptr::without_provenance_mut((self.0 << 32 | u64::from(token)) as usize)
    }

    /// The comm of a request, and its token.
    #[inline(always)]
    pub(crate) fn of_request(request: *mut c_void) -> (Self, u32) {
        let request = request.addr() as u64;
        (Name(request >> 32), request as u32)
    }

    #[inline(always)]
    fn place(self) -> usize {
        usize::from(self.0 as u16)
    }
}

/// Finds a comm.
///
/// # Safety
/// It is not removed while the reference lives.
#[inline(always)]
pub(crate) unsafe fn find<'a>(name: Name) -> Option<&'a Comm> {
    let comm = COMMS[name.place()].load(Ordering::Acquire);
    // SAFETY: what is there lives until it is removed, which the caller rules out.
    let comm = unsafe { comm.as_ref() }?;
    (comm.name == name).then_some(comm)
}

/// Puts a comm where it can be found; `None` where there is no place left.
pub(crate) fn put(comm: impl FnOnce(Name) -> Comm) -> Option<Name> {
    let mut allocation = allocation();
    let place = match allocation.free.pop() {
        Some(place) => place,
        None => {
            let place = u16::try_from(allocation.generations.len()).ok()?;
            allocation.generations.push(0);
            place
        }
    };
    let generation = &mut allocation.generations[usize::from(place)];
    *generation = generation.wrapping_add(1).max(1);
    let name = Name(u64::from(*generation) << 16 | u64::from(place));
    let comm = Box::into_raw(Box::new(comm(name)));
    COMMS[name.place()].store(comm, Ordering::Release);
    Some(name)
}

/// Takes a comm away.
pub(crate) fn remove(name: Name) -> Option<Box<Comm>> {
    let mut allocation = allocation();
    // SAFETY: comms are removed under this lock only.
    unsafe { find(name) }?;
    let comm = COMMS[name.place()].swap(ptr::null_mut(), Ordering::AcqRel);
    allocation.free.push(name.place() as u16);
    // SAFETY: `put` made it of a box, and nobody else finds it any more.
    Some(unsafe { Box::from_raw(comm) })
}

fn allocation() -> MutexGuard<'static, Allocation> {
    ALLOCATION.lock().unwrap_or_else(PoisonError::into_inner)
}
