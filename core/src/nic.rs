//! The seam: what a NIC must do for the protocol to run on it.
//!
//! [`Nic`] is the one trait between protocol and hardware. Its terms are the verbs' own
//! (`ibv_alloc_pd`, `ibv_reg_mr`, `ibv_create_cq`, `ibv_create_qp`, `ibv_modify_qp`,
//! `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq`); numbers that cross the wire or a C boundary
//! have the values of `infiniband/verbs.h`. Whoever implements it runs the conformance kit,
//! `invar_testkit::nic_conformance`, on the result.
//!
//! Handles ([`Nic::Pd`], [`Nic::Cq`], [`Nic::Qp`], [`Nic::Mr`]) release their resource when they
//! are dropped. The protocol drops queue pairs before their completion queue, and memory regions
//! before their protection domain.

mod attr;
mod error;
mod list;
mod notices;
mod wr;

use core::sync::atomic::AtomicU64;

pub use attr::{
    AddressVector, Ece, Gid, LinkLayer, Mtu, PacketKeys, PortAttr, PortState, QpCap, QpOptions,
    QpState, QpTransition, RtrAttr, RtsAttr, SourcePorts,
};
pub use error::{NicError, PollError, Verb};
pub use list::{Listed, SendList};
pub use notices::PortNotices;
pub use wr::{
    Link, Nought, NumSge, RecvWr, SendFlags, SendOpcode, SendWr, Sge, Wc, WcFlags, WcOpcode,
    WcStatus,
};

bitflags::bitflags! {
    /// What a memory region or queue pair permits; the values are `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Access: u32 {
        /// The local NIC may write: receives, and the target of READs.
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may use atomics. No part of Invar asks for it.
        const REMOTE_ATOMIC = 1 << 3;
        /// PCIe relaxed ordering (`IBV_ACCESS_RELAXED_ORDERING`); a hint that a NIC may ignore.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Memory that a NIC may be given, shared by whoever holds a clone.
///
/// An adapter owns the bytes (or borrows them by an `unsafe` constructor of its own); the
/// protocol sees their address for descriptors, and, for the small regions that it keeps itself
/// (FIFO slots, sizes), their content as atomic words that a NIC may change at any time.
pub trait Memory: Clone {
    /// First byte, in the address space that work requests use.
    fn addr(&self) -> u64;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The content as 8-byte words, in native order, the last partial word left out. Empty where
    /// the CPU cannot reach it (GPU memory).
    fn words(&self) -> &[AtomicU64];
}

/// A registered range: the keys by which work requests name it.
pub trait MemoryKeys {
    /// Names the range in the local [`Sge`].
    fn lkey(&self) -> u32;
    /// Names the range in a peer's work request.
    fn rkey(&self) -> u32;
}

/// A NIC port, as the protocol uses it. See the [module](self) for the rules.
///
/// Every method answers at once. [`Nic::poll`] may also drive a NIC that has no hardware.
pub trait Nic {
    /// Memory that this NIC can reach.
    type Memory: Memory;
    /// `struct ibv_pd`; clones are the same domain, which lives as long as one of them.
    type Pd: Clone;
    /// `struct ibv_mr`.
    type Mr: MemoryKeys;
    /// `struct ibv_cq`.
    type Cq;
    /// `struct ibv_qp`, reliable connection.
    type Qp;

    /// Name for people: `mlx5_0`, `soft0`.
    fn name(&self) -> &str;
    /// `ibv_query_port` and `ibv_query_gid` in one.
    fn query_port(&self) -> Result<PortAttr, NicError>;
    /// `ibv_query_gid`: an entry of the port's table. A NIC that overrides nothing has one.
    fn query_gid(&self, _index: u8) -> Result<Gid, NicError> {
        Ok(self.query_port()?.gid)
    }
    /// Zeroed, page-aligned memory.
    fn alloc(&self, len: usize) -> Result<Self::Memory, NicError>;
    /// `ibv_alloc_pd`.
    fn alloc_pd(&self) -> Result<Self::Pd, NicError>;
    /// Whether [`Nic::grant`] does anything.
    const GRANTS: bool = false;
    /// The domain for the queue pairs of one connection, of memory that connections share in `pd`.
    /// Its peer reaches what is registered in the new domain, and of `pd` what it is
    /// [granted](Nic::grant). A NIC without such domains gives `pd`: there a peer reaches all whose
    /// key it knows.
    ///
    /// # Errors
    /// What the device says.
    fn connection_pd(&self, pd: &Self::Pd) -> Result<Self::Pd, NicError> {
        Ok(pd.clone())
    }
    /// Lets the peer of a connection, which has the domain `pd`, use a key.
    fn grant(&self, _pd: &Self::Pd, _rkey: u32) {}
    /// `ibv_reg_mr` of a whole memory object. The handle keeps the memory alive.
    fn reg_mr(
        &self,
        pd: &Self::Pd,
        memory: &Self::Memory,
        access: Access,
    ) -> Result<Self::Mr, NicError>;
    /// `ibv_create_cq` with room for `depth` completions.
    fn create_cq(&self, depth: usize) -> Result<Self::Cq, NicError>;
    /// `ibv_create_qp`: a reliable connection in state RESET, both queues on `cq`, only signaled
    /// work requests completing (`sq_sig_all = 0`).
    fn create_qp(&self, pd: &Self::Pd, cq: &Self::Cq, cap: &QpCap) -> Result<Self::Qp, NicError>;
    /// The 24-bit number by which the peer names this queue pair.
    fn qp_num(&self, qp: &Self::Qp) -> u32;
    /// `ibv_modify_qp`: one move of the queue pair's state machine.
    fn modify_qp(&self, qp: &Self::Qp, transition: &QpTransition) -> Result<(), NicError>;
    /// `ibv_query_ece`: what the driver offers for this queue pair, in INIT; or what it has agreed
    /// to, in RTR. `None` where it knows nothing of it.
    fn query_ece(&self, _qp: &Self::Qp) -> Option<Ece> {
        None
    }
    /// `ibv_set_ece`: what the peer's driver offers, or has agreed to, for the next move to RTR.
    /// Only for queue pairs that [`Nic::query_ece`] says something of.
    ///
    /// # Errors
    /// What the driver does not take.
    fn set_ece(&self, _qp: &Self::Qp, _ece: &Ece) -> Result<(), NicError> {
        Err(NicError::new(Verb::SetEce, 0, "a NIC without ECE"))
    }
    /// `ibv_post_send`: the requests in order. On error those before [`NicError::index`] are
    /// posted.
    fn post_send(&self, qp: &Self::Qp, wrs: &[SendWr]) -> Result<(), NicError>;
    /// The same for a list that is posted time and again, from its request number `from` on.
    #[inline(always)]
    fn post_list<const L: usize>(
        &self,
        qp: &Self::Qp,
        list: &mut SendList<L>,
        from: usize,
    ) -> Result<(), NicError> {
        self.post_send(qp, list.wrs_from(from))
    }
    /// The same where nobody waits for what the requests do: a NIC whose sends are system calls may
    /// let them leave together with what is posted next, or in the next poll.
    #[inline(always)]
    fn post_list_ahead<const L: usize>(
        &self,
        qp: &Self::Qp,
        list: &mut SendList<L>,
        from: usize,
    ) -> Result<(), NicError> {
        self.post_list(qp, list, from)
    }
    /// `ibv_post_recv` of one request.
    fn post_recv(&self, qp: &Self::Qp, wr: &RecvWr) -> Result<(), NicError>;
    /// The same of one without a buffer.
    #[inline(always)]
    fn post_empty_recv(&self, qp: &Self::Qp, wr: &RecvWr) -> Result<(), NicError> {
        self.post_recv(qp, wr)
    }
    /// `ibv_poll_cq`: takes up to `wcs.len()` completions, oldest first, and says how many.
    fn poll(&self, cq: &Self::Cq, wcs: &mut [Wc]) -> Result<u32, PollError>;
    /// Whether the device and this queue pair are still of use, as far as the device reports that
    /// beside completions (`ibv_get_async_event`). Asked now and then by who waits.
    fn check(&self, _qp: &Self::Qp) -> Result<(), NicError> {
        Ok(())
    }
    /// What the device has lately reported of the port. Asked when a connection has ended.
    fn notices(&self) -> PortNotices {
        PortNotices::default()
    }
    /// Moves a NIC that has no hardware, for whoever waits for a peer's write and so for no
    /// completion. Nothing to do where hardware does it.
    #[inline]
    fn progress(&self) {}
}
