//! A port of an RDMA device, as the protocol uses it.

mod channel;
mod handles;
mod post;
mod resolve;
mod retire;
mod transition;

use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use invar_core::nic::{
    Access, Ece, Gid, Nic, NicCounters, NicError, PollError, PortAttr, PortNotices, QpCap,
    QpTransition, RecvWr, Refusal, Refused, Resolution, SendList, SendWr, Verb, Wc,
};
use invar_linux::memory::HostMemory;

use crate::context::Context;
use crate::events;
use crate::gid::{self, GidRules};
use crate::library::Library;
use crate::port::{Port, PortError};
use crate::{OpenError, errno, memlock, sysfs};

pub use handles::{Cq, Mr, Pd, Qp};
use resolve::Resolver;

/// The counters are read at most this often.
const COUNTED_EVERY: Duration = Duration::from_millis(900);

/// Settings to open a port with.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Name for messages: [`PortInfo::name`](crate::PortInfo::name).
    pub name: String,
    /// Name of the device in libibverbs.
    pub device: String,
    /// Number of the port, from 1.
    pub port_num: u8,
    /// Rules for choosing the GID.
    pub gid: GidRules,
    /// The kernel's sysfs tree, which has the counters (`INVAR_SYSFS`).
    pub sysfs: PathBuf,
    /// Whether completion queues have completion channels, so that [`Nic::arm`] works. Each channel takes a
    /// descriptor of the process.
    pub channels: bool,
}

impl VerbsConfig {
    /// Settings for a port by its name, [`PortInfo::name`](crate::PortInfo::name): `mlx5_0`, or
    /// `mlx5_0:2` for the second port. [`VerbsNic`] chooses the GID automatically.
    pub fn new(name: &str) -> Self {
        let number = name.rsplit_once(':').and_then(|(device, n)| Some((device, n.parse().ok()?)));
        let (device, port_num) = number.unwrap_or((name, 1));
        let (name, device) = (name.to_owned(), device.to_owned());
        let (gid, sysfs) = (GidRules::default(), "/sys".into());
        VerbsConfig { name, device, port_num, gid, sysfs, channels: true }
    }
}

/// An open port of an RDMA device; clones share the port. When the last clone and the last object of the
/// port are gone, the device closes and the thread that watches its events ends.
#[derive(Clone)]
pub struct VerbsNic(Arc<Inner>);

struct Inner {
    config: VerbsConfig,
    /// Address of the peer to reach, if one is set.
    peer: Option<IpAddr>,
    context: Arc<Context>,
    /// The counters, and when they were read. All connections of the port ask for them.
    counted: Mutex<Option<(Instant, NicCounters)>>,
    resolver: Resolver,
}

impl Inner {
    fn new(config: VerbsConfig, peer: Option<IpAddr>, context: Arc<Context>) -> Self {
        let (counted, resolver) = (Mutex::default(), Resolver::default());
        Inner { config, peer, context, counted, resolver }
    }
}

impl VerbsNic {
    /// Opens a port. The port may be up or down, but needs a usable GID.
    pub fn open(config: &VerbsConfig) -> Result<VerbsNic, OpenError> {
        Self::open_with(Library::get()?, config)
    }

    fn open_with(library: &'static Library, config: &VerbsConfig) -> Result<VerbsNic, OpenError> {
        let VerbsConfig { device, port_num, gid, .. } = config;
        let context = Context::open(library, device, *port_num)?;
        let port = Port::read(context.opened(), *port_num, gid, None)
            .map_err(|source| OpenError::Port { device: device.clone(), source })?;
        let (entry, why) = (port.gid.entry, port.gid.why);
        log::info!("{}: port {port_num}, GID {entry} ({why})", config.name);
        memlock::warn();
        Ok(VerbsNic(Arc::new(Inner::new(config.clone(), None, Arc::new(context)))))
    }

    /// Registers memory that another driver has exported, such as GPU memory (`ibv_reg_dmabuf_mr`).
    ///
    /// Work requests name the first byte of the memory by the address `iova`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if libibverbs, the driver or the kernel does not support DMA-BUF.
    pub fn reg_dmabuf_mr(
        &self,
        pd: &Pd,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, NicError> {
        self.check_owner(&pd.0.context, Verb::RegDmabufMr)?;
        handles::Mr::of_dmabuf(pd, dmabuf, offset, len, iova, access)
    }

    /// Registers memory that the CPU cannot access at its address. An example is GPU memory, where a
    /// kernel module (nvidia-peermem) knows the pages.
    ///
    /// # Errors
    /// `EFAULT` if no kernel module knows the pages.
    ///
    /// # Safety
    /// Until the region is gone, the memory stays at its address. During a transfer nobody else accesses
    /// the transferred bytes.
    pub unsafe fn reg_foreign_mr(
        &self,
        pd: &Pd,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<Mr, NicError> {
        self.check_owner(&pd.0.context, Verb::RegMr)?;
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { handles::Mr::of_foreign(pd, addr, len, access) }
    }

    /// Returns the name of the device in libibverbs.
    pub fn device(&self) -> &str {
        &self.0.config.device
    }

    /// Whether DMA-BUF memory can be registered. The function tries an invalid descriptor, and the error
    /// code tells (`net_ib.cc ncclIbDmaBufSupport`).
    pub fn has_dmabuf(&self, pd: &Pd) -> bool {
        handles::has_dmabuf(pd)
    }

    /// Returns an error if an object belongs to another device.
    fn check_owner(&self, other: &Arc<Context>, verb: Verb) -> Result<(), NicError> {
        if Arc::ptr_eq(&self.0.context, other) {
            return Ok(());
        }
        Err(NicError::new(verb, libc::EINVAL, "an object of another device"))
    }
}

impl Nic for VerbsNic {
    type Memory = HostMemory;
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Qp = Qp;

    fn name(&self) -> &str {
        &self.0.config.name
    }

    fn counters(&self) -> NicCounters {
        let Inner { config: VerbsConfig { device, port_num, sysfs, .. }, counted, .. } = &*self.0;
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = counted.filter(|(at, _)| at.elapsed() < COUNTED_EVERY);
        let read = || (Instant::now(), sysfs::counters(sysfs, device, *port_num));
        counted.insert(fresh.unwrap_or_else(read)).1
    }

    /// Reads the port and chooses its GID anew, because addresses change over time.
    fn query_port(&self) -> Result<PortAttr, NicError> {
        let Inner { config, peer, context, .. } = &*self.0;
        let VerbsConfig { name, port_num, gid, .. } = config;
        let port = Port::read(context.opened(), *port_num, gid, *peer).map_err(|error| {
            // Whoever asks names the fault; a rail whose device is gone is asked again and again.
            log::debug!("{name}: {error}");
            match error {
                PortError::Query { source, .. } => {
                    errno::of(Verb::QueryPort, source.raw_os_error().unwrap_or(0))
                }
                PortError::LinkLayer { .. } => {
                    NicError::new(Verb::QueryPort, 0, "neither InfiniBand nor Ethernet")
                }
                PortError::Gid { .. } => NicError::new(
                    Verb::QueryPort,
                    0,
                    "the port has no GID to use any more: has its interface lost its address?",
                ),
            }
        })?;
        if peer.is_some() {
            log::debug!("{name}: GID {} ({})", port.gid.entry, port.gid.why);
        }
        Ok(port.attr)
    }

    fn resolve(&self, _rail: usize, gid: &Gid) -> Resolution {
        self.0.resolver.resolve(self, gid)
    }

    fn query_gid(&self, index: u8) -> Result<Gid, NicError> {
        let Inner { config, context, .. } = &*self.0;
        let entry = gid::read(context.opened(), config.port_num, index);
        let empty = || NicError::new(Verb::QueryPort, libc::ENODATA, "the entry is empty");
        entry.map(|entry| entry.gid).ok_or_else(empty)
    }

    /// Among otherwise equal GIDs, the port then prefers one in the peer's subnet.
    fn towards(&self, peer: IpAddr) -> Self {
        let Inner { config, context, .. } = &*self.0;
        VerbsNic(Arc::new(Inner::new(config.clone(), Some(peer), Arc::clone(context))))
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        HostMemory::for_nic(len)
    }

    fn alloc_pd(&self) -> Result<Pd, NicError> {
        Pd::alloc(&self.0.context)
    }

    /// Registers memory. The call leaves out [`Access::RELAXED_ORDERING`] if libibverbs has no
    /// `ibv_reg_mr_iova2`.
    fn reg_mr(&self, pd: &Pd, memory: &HostMemory, access: Access) -> Result<Mr, NicError> {
        self.check_owner(&pd.0.context, Verb::RegMr)?;
        Mr::register(pd, memory, access)
    }

    /// A device that does not tell its limit has none here: it refuses a queue by itself.
    fn cq_depth_max(&self) -> usize {
        let attr = self.0.context.opened().query();
        let max = attr.map_or(0, |attr| usize::try_from(attr.max_cqe).unwrap_or(0));
        if max == 0 { usize::MAX } else { max }
    }

    fn create_cq(&self, depth: usize) -> Result<Cq, NicError> {
        Cq::create(&self.0.context, depth, self.0.config.channels)
    }

    fn create_qp(&self, pd: &Pd, cq: &Cq, cap: &QpCap) -> Result<Qp, NicError> {
        self.check_owner(&pd.0.context, Verb::CreateQp)?;
        self.check_owner(cq.context(), Verb::CreateQp)?;
        Qp::create(pd, cq, cap)
    }

    fn qp_num(&self, qp: &Qp) -> u32 {
        qp.qp_num()
    }

    fn modify_qp(&self, qp: &Qp, transition: &QpTransition) -> Result<(), NicError> {
        qp.modify(transition)
    }

    fn query_ece(&self, qp: &Qp) -> Option<Ece> {
        qp.ece()
    }

    fn set_ece(&self, qp: &Qp, ece: &Ece) -> Result<(), NicError> {
        qp.set_ece(ece)
    }

    #[inline(always)]
    fn post_send(&self, qp: &Qp, wrs: &[SendWr]) -> Result<(), NicError> {
        qp.post_send(wrs)
    }

    #[inline(always)]
    fn post_list<const L: usize>(
        &self,
        qp: &Qp,
        list: &mut SendList<L>,
        from: usize,
        _refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        qp.post_list(list, from)
    }

    #[inline(always)]
    fn post_recv(&self, qp: &Qp, wr: &RecvWr) -> Result<(), NicError> {
        qp.post_recv(wr)
    }

    #[inline(always)]
    fn post_empty_recv(&self, qp: &Qp, wr: &RecvWr, _refusal: &mut Refusal) -> Result<(), Refused> {
        qp.post_empty_recv(wr)
    }

    fn explain(&self, qp: &Qp, wrs: &[SendWr], refused: Refused) -> NicError {
        qp.explain(wrs, refused)
    }

    #[inline(always)]
    fn poll(&self, cq: &Cq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        cq.poll(wcs)
    }

    fn retire(&self, qp: Qp) {
        retire::retire(qp);
    }

    /// A device tells of completions alone: a peer's WRITE makes none at this end.
    fn arm(&self, cq: &Cq, writes: bool, ready: &mut dyn FnMut(c_int)) -> bool {
        let Some(event) = cq.arm() else { return false };
        ready(event);
        !writes
    }

    fn check(&self, qp: &Qp) -> Result<(), NicError> {
        let of_device = self.0.context.news().fate.event().map(|event| (Verb::AsyncEvent, event));
        let of_qp = || qp.fates().into_iter().find_map(events::Fate::event);
        match of_device.or_else(|| Some((Verb::QpEvent, of_qp()?))) {
            None => Ok(()),
            Some((verb, event)) => {
                Err(NicError::new(verb, 0, events::text(self.0.context.library(), event)))
            }
        }
    }

    fn port_changes(&self) -> u32 {
        self.0.context.news().port_changes()
    }

    fn notices(&self) -> PortNotices {
        self.0.context.news().notices()
    }
}

#[cfg(test)]
mod tests;
