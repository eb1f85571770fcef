//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use invar_core::nic::{Access, MemoryKeys, Nic};
use invar_linux::memory::HostMemory;
use invar_linux::soft::{self, MrChange, SoftNic};
use invar_verbs::sys::provider::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_ZERO_BASED,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_INPUT, ibv_pd,
};
use invar_verbs::sys::{ibv_context, ibv_mr};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::device::Context;
use crate::errno;
use crate::object::{self, Kind, Object};

versions! {
    "IBVERBS_1.1":
        ibv_alloc_pd ibv_dealloc_pd ibv_dereg_mr ibv_reg_mr ibv_rereg_mr;
    "IBVERBS_1.7":
        ibv_reg_mr_iova;
    "IBVERBS_1.8":
        ibv_reg_mr_iova2;
}

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    base: ibv_pd,
    pub(crate) nic: SoftNic,
    /// Regions and queue pairs share this.
    pub(crate) domain: Arc<soft::Pd>,
}

impl Mr {
    pub(crate) fn key(&self) -> u32 {
        self.region.rkey()
    }
}

impl Pd {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.base.context
    }
}

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    base: ibv_mr,
    nic: SoftNic,
    /// Ends the region before the domain may end.
    region: soft::Mr,
    current: Mutex<Current>,
}

/// The attributes that `ibv_rereg_mr` changes.
#[derive(Clone)]
struct Current {
    domain: Arc<soft::Pd>,
    addr: *mut c_void,
    length: usize,
    access: Access,
}

// SAFETY: `base` is the first field.
unsafe impl Object for Pd {
    type Base = ibv_pd;
    const KIND: Kind = Kind::Pd;
}

// SAFETY: `base` is the first field.
unsafe impl Object for Mr {
    type Base = ibv_mr;
    const KIND: Kind = Kind::Mr;
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let alloc = || {
        let nic = object::get::<Context>(context)?.nic.clone();
        let domain = Arc::new(nic.alloc_pd().map_err(errno::of)?);
        Ok(object::give(Pd { base: ibv_pd { context, handle: 0 }, nic, domain }))
    };
    alloc().unwrap_or_else(errno::null)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    errno::status(object::take(pd, |pd: &Pd| object::unused(&pd.domain)).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access as u32)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ibv_reg_mr_iova2(pd, addr, length, iova, access as u32)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    register(pd, addr, length, iova, access).unwrap_or_else(errno::null)
}

fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut ibv_mr, c_int> {
    let domain = object::get::<Pd>(pd)?;
    let access = access_of(flags)?;
    let iova = if flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    let memory = memory(addr, length, access)?;
    let region = domain.nic.reg_mr_at(&domain.domain, &memory, iova, access).map_err(errno::of)?;
    let (lkey, rkey) = (region.lkey(), region.rkey());
    let context = domain.base.context;
    let base = ibv_mr { context, pd: pd.cast(), addr, length, handle: 0, lkey, rkey };
    Ok(object::give(Mr {
        base,
        nic: domain.nic.clone(),
        region,
        current: Mutex::new(Current { domain: Arc::clone(&domain.domain), addr, length, access }),
    }))
}

/// # Errors
/// `EOPNOTSUPP`: a flag is unknown.
fn access_of(flags: u32) -> Result<Access, c_int> {
    let ignored = IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
    let known = Access::all().bits() | IBV_ACCESS_ZERO_BASED | ignored;
    if flags & !known != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(Access::from_bits_truncate(flags & !ignored))
}

/// The program's memory.
///
/// # Errors
/// `EINVAL`: it has bytes and no address. `EFAULT`: not all of it is memory with the rights.
fn memory(addr: *mut c_void, length: usize, access: Access) -> Result<HostMemory, c_int> {
    let start = match length {
        // A region without bytes may have any address. Nothing ever accesses it.
        0 => NonNull::<u64>::dangling().cast::<u8>(),
        _ => NonNull::new(addr.cast::<u8>()).ok_or(libc::EINVAL)?,
    };
    if length > 0 {
        populate(addr, length, access)?;
    }
    // SAFETY: the memory is mapped and accessible, as `populate` found. The program keeps it so until
    // it deregisters the region, and heeds the verbs' rules on memory that is in use.
    Ok(unsafe { HostMemory::from_raw(start, length, ()) })
}

/// Changes a region, which keeps its keys. Work requests and peers name the first byte of new memory by its
/// address. If the call fails, nothing has changed.
#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    match reregister(mr, flags, pd, (addr, length), access as u32) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            IBV_REREG_MR_ERR_INPUT
        }
    }
}

fn reregister(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    (addr, length): (*mut c_void, usize),
    access: u32,
) -> Result<(), c_int> {
    let has = |flag| flags & flag != 0;
    let known =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if flags & known != flags || flags == 0 || has(IBV_REREG_MR_CHANGE_TRANSLATION) && length == 0 {
        return Err(libc::EINVAL);
    }
    let region = object::get::<Mr>(mr)?;
    let domain = has(IBV_REREG_MR_CHANGE_PD).then(|| object::get::<Pd>(pd)).transpose()?;
    let mut current = region.current.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut new, mut change) = (current.clone(), MrChange::default());
    if has(IBV_REREG_MR_CHANGE_ACCESS) {
        new.access = access_of(access)?;
        change.access = Some(new.access);
    }
    if let Some(domain) = domain {
        new.domain = Arc::clone(&domain.domain);
    }
    if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
        (new.addr, new.length) = (addr, length);
    }
    let memory = memory(new.addr, new.length, new.access)?;
    if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
        change.memory = Some((&memory, addr.addr() as u64));
    }
    let domain = domain.map(|domain| &*domain.domain);
    region.nic.rereg_mr(&region.region, domain, &change).map_err(errno::of)?;
    *current = new;
    // SAFETY: the region lives, and the program does not change it elsewhere meanwhile.
    unsafe {
        (&raw mut (*mr).addr).write(current.addr);
        (&raw mut (*mr).length).write(current.length);
        if has(IBV_REREG_MR_CHANGE_PD) {
            (&raw mut (*mr).pd).write(pd.cast());
        }
    }
    Ok(())
}

/// Makes the kernel map the pages with the rights that transfers need, so that no transfer faults.
///
/// # Errors
/// `EFAULT`: not all of the range is memory with these rights.
fn populate(addr: *mut c_void, length: usize, access: Access) -> Result<(), c_int> {
    let page = invar_linux::env::page_size();
    let start = addr.addr() / page * page;
    let end = addr.addr().checked_add(length).ok_or(libc::EINVAL)?;
    let len = end.checked_next_multiple_of(page).ok_or(libc::EINVAL)? - start;
    let advice = match access.contains(Access::LOCAL_WRITE) {
        true => Advice::LinuxPopulateWrite,
        false => Advice::LinuxPopulateRead,
    };
    // SAFETY: to populate pages changes no content.
    match unsafe { madvise(addr.with_addr(start), len, advice) } {
        Ok(()) => Ok(()),
        // A part of the range is not mapped, or lacks the rights.
        Err(Errno::NOMEM) => Err(libc::EFAULT),
        Err(Errno::INVAL) if can_populate() => Err(libc::EFAULT),
        // Linux before 5.14 does not know this advice.
        Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.raw_os_error()),
    }
}

/// Whether the kernel takes the advice for memory that surely has the rights.
fn can_populate() -> bool {
    let byte = 0u8;
    let here = ptr::from_ref(&byte).cast_mut().cast::<c_void>();
    let page = invar_linux::env::page_size();
    let start = here.with_addr(here.addr() / page * page);
    // SAFETY: to populate pages changes no content.
    unsafe { madvise(start, page, Advice::LinuxPopulateRead) }.is_ok()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let unused = object::get::<Mr>(mr).and_then(|mr| match mr.nic.is_bound(&mr.region) {
        false => Ok(()),
        true => Err(libc::EBUSY),
    });
    errno::status(unused.and_then(|()| object::take::<Mr>(mr, |_| Ok(())).map(drop)))
}
