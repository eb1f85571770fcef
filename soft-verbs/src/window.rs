//! Memory windows: allocation, and the binds of both types.

use std::ffi::c_int;
use std::sync::Arc;

use invar_core::nic::{Access, SendFlags};
use invar_linux::soft::device::{Bind, LocalWork, WindowType};
use invar_linux::soft::{self};
use invar_verbs::sys::provider::{
    IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_pd, ibv_qp, ibv_wr_bind_mw,
};

use crate::errno;
use crate::memory::{Mr, Pd};
use crate::object::{self, Kind, Object};
use crate::queue_pair::Qp;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    base: ibv_mw,
    window: soft::Window,
    _domain: Arc<soft::Pd>,
}

// SAFETY: `base` is the first field.
unsafe impl Object for Mw {
    type Base = ibv_mw;
    const KIND: Kind = Kind::Mw;
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    let alloc = || {
        let domain = object::get::<Pd>(pd)?;
        let window_type = match kind {
            IBV_MW_TYPE_1 => WindowType::Domain,
            IBV_MW_TYPE_2 => WindowType::QueuePair,
            _ => return Err(libc::EINVAL),
        };
        let window = domain.nic.alloc_window(&domain.domain, window_type).map_err(errno::of)?;
        let (context, rkey) = (domain.context(), window.first_key());
        let base = ibv_mw { context, pd, rkey, handle: 0, kind };
        Ok(object::give(Mw { base, window, _domain: Arc::clone(&domain.domain) }))
    };
    alloc().unwrap_or_else(errno::null)
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    errno::status(object::take::<Mw>(mw, |_| Ok(())).map(drop))
}

/// Binds a window of type 1, and gives it its next key.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    errno::status(object::get::<Qp>(qp.cast()).and_then(|qp| {
        object::get::<Mw>(mw)?;
        // SAFETY: the window lives, and the caller gives a valid bind.
        let (kind, rkey, ibv_mw_bind { wr_id, send_flags, bind_info }) =
            unsafe { ((*mw).kind, (*mw).rkey, bind.read()) };
        if kind != IBV_MW_TYPE_1 || bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
            return Err(libc::EINVAL);
        }
        let rkey = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
        let work = work(mw, rkey, &bind_info)?;
        let mut flags = SendFlags::from_bits(send_flags).ok_or(libc::EINVAL)?;
        flags.set(SendFlags::SIGNALED, qp.signals_all || flags.contains(SendFlags::SIGNALED));
        let posted =
            qp.nic.post_sends(&qp.pair, |device, qpn| device.post_local(qpn, (wr_id, flags), work));
        posted.map_err(errno::of)?;
        // SAFETY: the window lives, and the program does not use it elsewhere meanwhile.
        unsafe { (&raw mut (*mw).rkey).write(rkey) };
        Ok(())
    }))
}

/// The bind that a work request of a window of type 2 asks for.
///
/// # Errors
/// `EINVAL`: an object does not exist, the window is of type 1, or the key is of another window.
pub(crate) fn work_of(asked: &ibv_wr_bind_mw) -> Result<LocalWork, c_int> {
    let ibv_wr_bind_mw { mw, rkey, bind_info } = asked;
    object::get::<Mw>(*mw)?;
    // SAFETY: the window lives.
    if unsafe { (**mw).kind } != IBV_MW_TYPE_2 {
        return Err(libc::EINVAL);
    }
    work(*mw, *rkey, bind_info)
}

fn work(mw: *mut ibv_mw, key: u32, info: &ibv_mw_bind_info) -> Result<LocalWork, c_int> {
    let ibv_mw_bind_info { mr, addr, length: len, mw_access_flags: flags } = *info;
    if object::get::<Mw>(mw)?.window.first_key() >> 8 != key >> 8 {
        return Err(libc::EINVAL);
    }
    let region = match len {
        0 => 0,
        _ => object::get::<Mr>(mr)?.key(),
    };
    let known = Access::all() | Access::from_bits_retain(IBV_ACCESS_ZERO_BASED);
    if flags & !known.bits() != 0 {
        return Err(libc::EINVAL);
    }
    let access = Access::from_bits_truncate(flags);
    let zero_based = flags & IBV_ACCESS_ZERO_BASED != 0;
    Ok(LocalWork::Bind(Bind { key, region, addr, len, access, zero_based }))
}
