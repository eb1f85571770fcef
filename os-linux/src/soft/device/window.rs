//! Memory windows: keys for a part of a region that a program gives and takes back by work requests
//! (IBTA §10.6.7.2).
//!
//! A window has all keys with the same upper 24 bits, its *index*. The program chooses the lower eight bits
//! at each bind, so a key that the peer keeps from an earlier bind names nothing. Windows of type 1 belong
//! to a protection domain, those of type 2 to the queue pair that binds them (type 2B).

use invar_core::nic::{Access, LocalOp, Memory, NicError, SendFlags, Verb, WcStatus};
use invar_core::roce::qp::{AccessFault, Region};

use super::Device;
use super::region::Regions;
use super::table::{Names, Table};

/// Maximum number of windows of a device.
pub const WINDOWS_MAX: usize = 1 << 16;

/// The type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Every queue pair of the protection domain serves the window (type 1).
    Domain,
    /// Only the queue pair that bound the window serves it (type 2B).
    QueuePair,
}

/// A bind of a window to a part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The key of the window from now on. It has the window's index.
    pub key: u32,
    /// The key of the region.
    pub region: u32,
    /// Address of the first byte, as the region names it.
    pub addr: u64,
    /// Length in bytes. 0 ends a bind of type 1.
    pub len: u64,
    /// The rights of the peer.
    pub access: Access,
    /// The peer names the first byte by 0, and not by its address.
    pub zero_based: bool,
}

/// A local operation as the program posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalWork {
    /// Binds a window.
    Bind(Bind),
    /// Invalidates the key of a window of type 2.
    Invalidate(u32),
}

impl LocalWork {
    fn operation(&self) -> LocalOp {
        match self {
            LocalWork::Bind(_) => LocalOp::BindWindow,
            LocalWork::Invalidate(_) => LocalOp::Invalidate,
        }
    }
}

struct Window {
    pd: u32,
    kind: WindowType,
    key: u32,
    bound: Option<Bound>,
}

/// The part of a region that a window shows.
struct Bound {
    /// The queue pair that bound the window.
    qpn: u32,
    region: u32,
    /// Offset of the first byte in the region.
    offset: u64,
    /// The address by which the peer names the first byte.
    addr: u64,
    len: u64,
    access: Access,
}

/// The user of a window: protection domain and number of a queue pair.
pub(super) type User = (u32, u32);

/// All windows of a device, by index.
pub(super) struct Windows(Table<Window>);

const fn index(key: u32) -> u32 {
    key >> 8
}

impl Windows {
    /// Makes a table without windows. The indices come from `names`, of 24 bits.
    pub(super) fn new(names: Names) -> Self {
        Windows(Table::new(WINDOWS_MAX, names))
    }

    /// Whether a key would be one of a window.
    pub(super) fn has_index_of(&self, key: u32) -> bool {
        self.0.get(index(key)).is_some()
    }

    /// Whether a window shows a part of a region.
    fn use_region(&self, key: u32) -> bool {
        let uses = |window: &Window| window.bound.as_ref().is_some_and(|bound| bound.region == key);
        self.0.iter().any(uses)
    }

    /// Ends the binds of a queue pair that ends.
    pub(super) fn forget_qp(&mut self, qpn: u32) {
        for window in self.0.iter_mut() {
            let of_qp = |bound: &mut Bound| bound.qpn == qpn;
            if window.kind == WindowType::QueuePair {
                window.bound.take_if(of_qp);
            }
        }
    }

    /// Finds the bytes that a key and an address of the peer mean to a queue pair.
    pub(super) fn resolve(
        &self,
        regions: &Regions,
        (pd, qpn): User,
        key: u32,
        (addr, len): (u64, u32),
        need: Access,
    ) -> Result<Region, AccessFault> {
        let window = self.0.get(index(key)).filter(|window| window.key == key && window.pd == pd);
        let window = window.ok_or(AccessFault)?;
        let bound = window.bound.as_ref().ok_or(AccessFault)?;
        let is_served = window.kind == WindowType::Domain || bound.qpn == qpn;
        // An address below the window wraps to an offset far above the window's end.
        let offset = addr.wrapping_sub(bound.addr);
        let is_inside = offset <= bound.len && u64::from(len) <= bound.len - offset;
        let is_alive = regions.table.get(bound.region).is_some();
        if is_served && is_inside && is_alive && bound.access.contains(need) {
            return Ok(Region { index: bound.region, offset: bound.offset + offset });
        }
        Err(AccessFault)
    }

    /// Carries out a local operation of a queue pair.
    ///
    /// # Errors
    /// The status with which the request fails.
    pub(super) fn carry_out(
        &mut self,
        regions: &Regions,
        user: User,
        work: &LocalWork,
    ) -> Result<(), WcStatus> {
        match work {
            LocalWork::Bind(bind) => self.bind(regions, user, bind).ok_or(WcStatus::MW_BIND_ERR),
            LocalWork::Invalidate(key) => {
                self.invalidate(user, *key).map_err(|_| WcStatus::LOC_QP_OP_ERR)
            }
        }
    }

    /// Binds a window. Returns `None` if the standard forbids the bind (IBTA C10-72 to C10-75).
    fn bind(&mut self, regions: &Regions, (pd, qpn): User, bind: &Bind) -> Option<()> {
        let window = self.0.get_mut(index(bind.key)).filter(|window| window.pd == pd)?;
        if window.kind == WindowType::QueuePair && (window.bound.is_some() || bind.len == 0) {
            return None;
        }
        let bound = match bind.len {
            0 => None,
            len => {
                let region = regions.table.get(bind.region).filter(|region| region.pd == pd)?;
                let offset = bind.addr.wrapping_sub(region.addr);
                let size = region.memory.len() as u64;
                let is_inside = offset <= size && len <= size - offset;
                let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                let is_allowed = region.access.contains(Access::MW_BIND)
                    && (!writes || region.access.contains(Access::LOCAL_WRITE));
                if !is_inside || !is_allowed {
                    return None;
                }
                let addr = if bind.zero_based { 0 } else { bind.addr };
                Some(Bound { qpn, region: bind.region, offset, addr, len, access: bind.access })
            }
        };
        (window.key, window.bound) = (bind.key, bound);
        Some(())
    }

    /// Ends the bind of a window of type 2, for the queue pair that bound it.
    pub(super) fn invalidate(&mut self, (pd, qpn): User, key: u32) -> Result<(), AccessFault> {
        let window = self.0.get_mut(index(key)).ok_or(AccessFault)?;
        let is_bound_here = window.bound.as_ref().is_some_and(|bound| bound.qpn == qpn);
        let may = window.kind == WindowType::QueuePair && window.key == key && window.pd == pd;
        if !may || !is_bound_here {
            return Err(AccessFault);
        }
        window.bound = None;
        Ok(())
    }
}

impl Device {
    /// Allocates a memory window (`ibv_alloc_mw`) and returns its first key, which names nothing yet.
    ///
    /// # Errors
    /// `ENOMEM`: the device has [`WINDOWS_MAX`] windows.
    pub fn alloc_window(&mut self, pd: u32, kind: WindowType) -> Result<u32, NicError> {
        let Device { windows, regions, .. } = self;
        let is_of_region =
            |index: u32| (0..=0xff).any(|low| regions.table.get(index << 8 | low).is_some());
        let make =
            |index: u32| Ok::<_, NicError>(Window { pd, kind, key: index << 8, bound: None });
        match windows.0.insert(is_of_region, make) {
            Some(index) => Ok(index? << 8),
            None => Err(NicError::new(Verb::RegMr, libc::ENOMEM, "too many memory windows")),
        }
    }

    /// Frees a memory window (`ibv_dealloc_mw`). `key` is any key of the window.
    pub fn dealloc_window(&mut self, key: u32) {
        self.windows.0.remove(index(key));
    }

    /// Whether a memory window is bound to a region, which must not end before.
    pub fn is_bound(&self, key: u32) -> bool {
        self.windows.use_region(key)
    }

    /// Posts one local operation.
    ///
    /// # Errors
    /// The errors of [`Device::post_send`]. `EINVAL`: the queue pair is no reliable connection.
    pub fn post_local(
        &mut self,
        qpn: u32,
        (wr_id, flags): (u64, SendFlags),
        work: LocalWork,
    ) -> Result<(), NicError> {
        let operation = work.operation();
        self.with_sender(qpn, |qp, env| qp.post_local((wr_id, flags), operation, work, env))
    }
}

#[cfg(test)]
mod tests;
