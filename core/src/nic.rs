//! The interface between the protocol and a NIC: all that a NIC must do for the protocol.
//!
//! [`Nic`] is the only trait between protocol and hardware. The trait uses the terms of the verbs
//! (`ibv_alloc_pd`, `ibv_reg_mr`, `ibv_create_cq`, `ibv_create_qp`, `ibv_modify_qp`, `ibv_post_send`,
//! `ibv_post_recv`, `ibv_poll_cq`). Numbers that cross the wire or a C boundary have the values of
//! `infiniband/verbs.h`. Test every implementation with the conformance kit,
//! `invar_testkit::nic_conformance`.
//!
//! Handles ([`Nic::Pd`], [`Nic::Cq`], [`Nic::Qp`], [`Nic::Mr`]) release their resource when they are
//! dropped. The protocol drops queue pairs before their completion queue, and memory regions before
//! their protection domain.

mod attr;
mod counters;
mod error;
mod list;
mod notices;
mod wr;

use core::ffi::c_int;
use core::net::IpAddr;
use core::sync::atomic::AtomicU64;

use crate::conn::RAILS_MAX;

pub use attr::{
    AddressVector, Ece, Gid, LinkLayer, Mtu, PacketKeys, PortAttr, PortState, QpCap, QpOptions,
    QpState, QpTransition, QpType, Resolution, RtrAttr, RtsAttr, SourcePorts,
};
pub use counters::NicCounters;
pub use error::{NicError, PollError, Refusal, Refused, Verb};
pub use list::{Listed, SendList};
pub use notices::PortNotices;
pub use wr::{
    Atomic, Link, LocalOp, Nought, NumSge, RecvWr, SendFlags, SendOpcode, SendWr, Sge, Wc, WcFlags,
    WcOpcode, WcStatus,
};

bitflags::bitflags! {
    /// Permissions of a memory region or queue pair; the values are those of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Access: u32 {
        /// The local NIC may write, for receives and as the target of READs.
        const LOCAL_WRITE = 1;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// A peer may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may use atomics. No part of Invar asks for this permission.
        const REMOTE_ATOMIC = 1 << 3;
        /// PCIe relaxed ordering (`IBV_ACCESS_RELAXED_ORDERING`). A NIC may ignore this hint.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Memory that can be registered with a NIC. All clones share the same memory.
///
/// An adapter owns the bytes, or borrows them by an `unsafe` constructor of its own. The protocol uses
/// the memory's address for descriptors. The protocol reads the content only of its own small regions
/// (FIFO slots, sizes). A NIC may change these at any time, so the protocol reads them as atomic words.
pub trait Memory: Clone {
    /// Address of the first byte, in the address space that work requests use.
    fn addr(&self) -> u64;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Returns whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The content as 8-byte words in native byte order, without a last partial word. The slice is
    /// empty if the CPU cannot reach the memory (GPU memory).
    fn words(&self) -> &[AtomicU64];
}

/// The keys by which work requests name a registered range.
pub trait MemoryKeys {
    /// The key that names the range in a local [`Sge`].
    fn lkey(&self) -> u32;
    /// The key that names the range in a peer's work request.
    fn rkey(&self) -> u32;
}

/// A NIC port, as the protocol uses it. The [module](self) documentation states the rules.
///
/// No method waits for the peer, except [`Nic::modify_qp`] of a NIC that implements [`Nic::resolve`].
/// [`Nic::poll`] may also drive a NIC that has no hardware.
pub trait Nic {
    /// Memory that this NIC can reach.
    type Memory: Memory;
    /// A protection domain (`struct ibv_pd`). Clones name the same domain, which exists until the last
    /// clone is dropped.
    type Pd: Clone;
    /// A registered memory region (`struct ibv_mr`).
    type Mr: MemoryKeys;
    /// A completion queue (`struct ibv_cq`).
    type Cq;
    /// A queue pair for a reliable connection (`struct ibv_qp`).
    type Qp;

    /// Name of the device for people: `mlx5_0`, `soft0`.
    fn name(&self) -> &str;
    /// Queries the port and its GID (`ibv_query_port` and `ibv_query_gid`).
    fn query_port(&self) -> Result<PortAttr, NicError>;
    /// Returns the NIC for connections with the peer whose out-of-band address is `_peer`. A port with
    /// several GIDs may then choose one in the peer's subnet.
    #[must_use]
    fn towards(&self, _peer: IpAddr) -> Self
    where
        Self: Clone,
    {
        self.clone()
    }
    /// Queries an entry of the port's GID table (`ibv_query_gid`). The default implementation knows one
    /// GID.
    fn query_gid(&self, _index: u8) -> Result<Gid, NicError> {
        Ok(self.query_port()?.gid)
    }
    /// The most rails of such a NIC. A NIC with several rails carries each connection over several
    /// ports; a NIC of one port has one.
    const RAILS_MAX: usize = 1;
    /// The number of rails, from 1 to [`Nic::RAILS_MAX`]. Rails are numbered from 0.
    fn rails(&self) -> usize {
        1
    }
    /// Whether a rail is a standby: it carries data only while no other rail works.
    fn is_standby(&self, _rail: usize) -> bool {
        false
    }
    /// Whether a rail is a software NIC: processors carry its data through the operating system. A connection
    /// that also has other rails warns while only such rails carry data.
    fn is_software(&self, _rail: usize) -> bool {
        false
    }
    /// Queries the port of a rail as [`Nic::query_port`] does.
    ///
    /// # Errors
    /// The device does not answer.
    fn query_rail(&self, _rail: usize) -> Result<PortAttr, NicError> {
        self.query_port()
    }
    /// Looks for the way from a rail's port to a peer's GID, without waiting. Over Ethernet the kernel needs the
    /// peer's MAC address to start a queue pair, and [`Nic::modify_qp`] may wait a second for it. Once the call
    /// has returned another answer than [`Resolution::Pending`], the next one looks anew.
    fn resolve(&self, _rail: usize, _gid: &Gid) -> Resolution {
        Resolution::Done
    }
    /// Name of a rail's device for people.
    fn rail_name(&self, _rail: usize) -> &str {
        self.name()
    }
    /// The rail on which a queue pair lies.
    #[inline(always)]
    fn rail_of(&self, _qp: &Self::Qp) -> usize {
        0
    }
    /// The local key of a range on a rail; `lkey` is the key of the range here. The buffers of work requests
    /// have the local key of their queue pair's rail.
    #[inline(always)]
    fn rail_lkey(&self, _rail: usize, lkey: u32) -> u32 {
        lkey
    }
    /// The keys by which a peer on each rail names the range whose key is `rkey` here. A NIC with several
    /// rails has one key for a range, and each of its devices has another one. Rails that do not exist have
    /// the key 0.
    #[inline(always)]
    fn rail_rkeys(&self, rkey: u32) -> [u32; RAILS_MAX] {
        [rkey; RAILS_MAX]
    }
    /// Allocates zeroed, page-aligned memory.
    fn alloc(&self, len: usize) -> Result<Self::Memory, NicError>;
    /// Allocates a protection domain (`ibv_alloc_pd`).
    fn alloc_pd(&self) -> Result<Self::Pd, NicError>;
    /// Whether [`Nic::grant`] has an effect.
    const GRANTS: bool = false;
    /// Creates the protection domain for the queue pairs of one connection. `pd` is the domain whose
    /// memory all connections share. The peer reaches all memory registered in the new domain, and
    /// memory of `pd` that it was [granted](Nic::grant). A NIC without such domains returns `pd`: there
    /// a peer reaches all memory whose key it knows.
    ///
    /// # Errors
    /// The device refuses to create the domain.
    fn connection_pd(&self, pd: &Self::Pd) -> Result<Self::Pd, NicError> {
        Ok(pd.clone())
    }
    /// Lets the peer of the connection with the domain `pd` use the key `rkey`.
    fn grant(&self, _pd: &Self::Pd, _rkey: u32) {}
    /// Registers a whole memory object (`ibv_reg_mr`). The handle keeps the memory alive.
    fn reg_mr(
        &self,
        pd: &Self::Pd,
        memory: &Self::Memory,
        access: Access,
    ) -> Result<Self::Mr, NicError>;
    /// The most completions for which a completion queue can be created (`ibv_device_attr.max_cqe`).
    fn cq_depth_max(&self) -> usize {
        usize::MAX
    }
    /// Creates a completion queue for `depth` completions (`ibv_create_cq`).
    fn create_cq(&self, depth: usize) -> Result<Self::Cq, NicError>;
    /// Creates a reliable connection's queue pair in state RESET (`ibv_create_qp`). Both its queues
    /// complete on `cq`. Only signaled work requests complete (`sq_sig_all = 0`).
    fn create_qp(&self, pd: &Self::Pd, cq: &Self::Cq, cap: &QpCap) -> Result<Self::Qp, NicError>;
    /// Creates a queue pair as [`Nic::create_qp`] does, on a rail.
    ///
    /// # Errors
    /// The device refuses to create the queue pair.
    fn create_rail_qp(
        &self,
        _rail: usize,
        pd: &Self::Pd,
        cq: &Self::Cq,
        cap: &QpCap,
    ) -> Result<Self::Qp, NicError> {
        self.create_qp(pd, cq, cap)
    }
    /// The 24-bit number by which the peer names this queue pair. A NIC with several rails adds the
    /// number of the rail above these bits, here and in completions.
    fn qp_num(&self, qp: &Self::Qp) -> u32;
    /// Makes one move of the queue pair's state machine (`ibv_modify_qp`).
    ///
    /// After a move to ERR the protocol posts a last request to each queue. Once both have completed as
    /// flushed, packets for this queue pair must change no memory, although the peer may still send some.
    /// From then on the program may use the memory of messages that have arrived, and a late packet would
    /// damage it. If a flush does not come within a second, the protocol drops the queue pair. So packets
    /// for a dropped queue pair must change no memory either.
    fn modify_qp(&self, qp: &Self::Qp, transition: &QpTransition) -> Result<(), NicError>;
    /// Queries the ECE options of this queue pair (`ibv_query_ece`). In INIT these are the driver's
    /// offer, in RTR the agreed options. `None` if the driver or the firmware does not know ECE, or if nothing
    /// is agreed.
    fn query_ece(&self, _qp: &Self::Qp) -> Option<Ece> {
        None
    }
    /// Sets the ECE options for the next move to RTR (`ibv_set_ece`): the offer of the peer's driver,
    /// or the agreed options. Call this only for queue pairs for which [`Nic::query_ece`] returns
    /// options.
    ///
    /// # Errors
    /// The driver refuses the options.
    fn set_ece(&self, _qp: &Self::Qp, _ece: &Ece) -> Result<(), NicError> {
        Err(NicError::new(Verb::SetEce, 0, "a NIC without ECE"))
    }
    /// Posts send work requests in order (`ibv_post_send`). On error, the requests before
    /// [`NicError::index`] are posted.
    fn post_send(&self, qp: &Self::Qp, wrs: &[SendWr]) -> Result<(), NicError>;
    /// Posts the work requests of a reusable list, from number `from` on.
    ///
    /// # Errors
    /// `refusal` has the error of [`Nic::post_send`], or [`Nic::explain`] makes it.
    #[inline(always)]
    fn post_list<const L: usize>(
        &self,
        qp: &Self::Qp,
        list: &mut SendList<L>,
        from: usize,
        refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        self.post_send(qp, list.wrs_from(from)).map_err(|error| refusal.because(error))
    }
    /// Posts a list as [`Nic::post_list`] does, for requests whose effect nobody waits for. A NIC whose
    /// sends are system calls may send these together with the requests posted next, or in the next
    /// poll.
    ///
    /// # Errors
    /// The errors are those of [`Nic::post_list`].
    #[inline(always)]
    fn post_list_ahead<const L: usize>(
        &self,
        qp: &Self::Qp,
        list: &mut SendList<L>,
        from: usize,
        refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        self.post_list(qp, list, from, refusal)
    }
    /// Posts one receive work request (`ibv_post_recv`).
    fn post_recv(&self, qp: &Self::Qp, wr: &RecvWr) -> Result<(), NicError>;
    /// Posts one receive work request that has no buffer.
    ///
    /// # Errors
    /// `refusal` has the error of [`Nic::post_recv`], or [`Nic::explain`] makes it.
    #[inline(always)]
    fn post_empty_recv(
        &self,
        qp: &Self::Qp,
        wr: &RecvWr,
        refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        self.post_recv(qp, wr).map_err(|error| refusal.because(error))
    }
    /// Makes the error of a refused post whose [`Refusal`] is empty. `wrs` are the work requests of the
    /// post, from the first of its list on; a receive has none.
    fn explain(&self, _qp: &Self::Qp, wrs: &[SendWr], refused: Refused) -> NicError {
        let verb = if wrs.is_empty() { Verb::PostRecv } else { Verb::PostSend };
        NicError::new(verb, refused.errno, "the adapter gives no reason")
    }
    /// Takes up to `wcs.len()` completions, oldest first, and returns their number (`ibv_poll_cq`).
    fn poll(&self, cq: &Self::Cq, wcs: &mut [Wc]) -> Result<u32, PollError>;
    /// Takes completions as [`Nic::poll`] does, but only those of a rail. A NIC with several rails may have a
    /// queue on each, and a caller that awaits nothing of the others saves their polls.
    ///
    /// # Errors
    /// The errors are those of [`Nic::poll`].
    #[inline(always)]
    fn poll_rail(&self, _rail: usize, cq: &Self::Cq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        self.poll(cq, wcs)
    }
    /// Destroys a queue pair whose last completions have come (`ibv_destroy_qp`). The call does not wait: the queue
    /// pair may end a little later.
    fn retire(&self, _qp: Self::Qp) {}
    /// Lets the next completion of a queue make descriptors of the operating system readable
    /// (`ibv_req_notify_cq`), for a caller that wants to sleep. `writes` asks that a peer's write to memory
    /// over a queue pair of the queue does so too. Calls `ready` for each descriptor. The descriptors stay
    /// open as long as the queue exists.
    ///
    /// The caller polls once more before it sleeps. Returns whether the descriptors tell of all that was
    /// asked for; if not, the caller must look now and then.
    fn arm(&self, _cq: &Self::Cq, _writes: bool, _ready: &mut dyn FnMut(c_int)) -> bool {
        false
    }
    /// Checks that the device and this queue pair still work, according to the device's reports beside
    /// completions (`ibv_get_async_event`). A waiting caller calls this from time to time.
    ///
    /// # Errors
    /// [`Verb::QpEvent`] if only this queue pair is of no more use, and a new one may work.
    /// [`Verb::AsyncEvent`] if the device is.
    fn check(&self, _qp: &Self::Qp) -> Result<(), NicError> {
        Ok(())
    }
    /// Counts the reports of the device after which queue pairs may carry nothing any more: the port went
    /// down, or its GIDs changed. After a report the protocol looks at the port, and replaces the queue
    /// pairs if they are of no more use.
    fn port_changes(&self) -> u32 {
        0
    }
    /// Recent reports of the device about the port. The protocol asks for them when a connection has
    /// ended.
    fn notices(&self) -> PortNotices {
        PortNotices::default()
    }
    /// The NIC's counters, for people. The call may take a lock or read files.
    fn counters(&self) -> NicCounters {
        NicCounters::default()
    }
    /// Drives a NIC that has no hardware, for a caller that waits for a peer's write and so for no
    /// completion. Hardware needs no such call.
    #[inline]
    fn progress(&self) {}
}
