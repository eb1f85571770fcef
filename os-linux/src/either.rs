//! One of two kinds of NICs as one type, so that an RDMA device and a software NIC can be [rails](crate::rails) of
//! the same connection.

use std::ffi::c_int;

use invar_core::nic::{
    Access, Ece, Gid, MemoryKeys, Nic, NicCounters, NicError, PollError, PortAttr, PortNotices,
    QpCap, QpTransition, RecvWr, Resolution, SendWr, Verb, Wc,
};

/// A NIC of one of two kinds, or one of its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first kind.
    First(A),
    /// The second kind.
    Second(B),
}

/// The reason why a handle of one kind is no handle of the other.
const ALIEN: &str = "the handle belongs to a NIC of another kind";

/// Calls a method of whichever NIC it is.
macro_rules! either {
    ($nic:expr, |$it:ident| $call:expr) => {
        match $nic {
            Either::First($it) => $call,
            Either::Second($it) => $call,
        }
    };
}

/// Calls a method of whichever NIC it is with a handle of that NIC.
macro_rules! with {
    ($nic:expr, $handle:expr, |$it:ident, $own:ident| $call:expr, else $none:expr) => {
        match ($nic, $handle) {
            (Either::First($it), Either::First($own)) => $call,
            (Either::Second($it), Either::Second($own)) => $call,
            _ => $none,
        }
    };
}

/// Calls a method that makes a handle of whichever NIC it is.
macro_rules! make {
    ($nic:expr, |$it:ident| $call:expr) => {
        match $nic {
            Either::First($it) => $call.map(Either::First),
            Either::Second($it) => $call.map(Either::Second),
        }
    };
    ($all:expr, |$($it:ident),+| $call:expr, else $none:expr) => {
        match $all {
            ($(Either::First($it)),+) => $call.map(Either::First),
            ($(Either::Second($it)),+) => $call.map(Either::Second),
            _ => $none,
        }
    };
}

fn alien<T>(verb: Verb) -> Result<T, NicError> {
    Err(NicError::new(verb, 0, ALIEN))
}

impl<A: MemoryKeys, B: MemoryKeys> MemoryKeys for Either<A, B> {
    fn lkey(&self) -> u32 {
        either!(self, |mr| mr.lkey())
    }

    fn rkey(&self) -> u32 {
        either!(self, |mr| mr.rkey())
    }
}

impl<A: Nic, B: Nic<Memory = A::Memory>> Nic for Either<A, B> {
    type Memory = A::Memory;
    type Pd = Either<A::Pd, B::Pd>;
    type Mr = Either<A::Mr, B::Mr>;
    type Cq = Either<A::Cq, B::Cq>;
    type Qp = Either<A::Qp, B::Qp>;

    const GRANTS: bool = A::GRANTS || B::GRANTS;

    fn name(&self) -> &str {
        either!(self, |nic| nic.name())
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        either!(self, |nic| nic.query_port())
    }

    fn is_software(&self, rail: usize) -> bool {
        either!(self, |nic| nic.is_software(rail))
    }

    fn resolve(&self, rail: usize, gid: &Gid) -> Resolution {
        either!(self, |nic| nic.resolve(rail, gid))
    }

    fn query_gid(&self, index: u8) -> Result<Gid, NicError> {
        either!(self, |nic| nic.query_gid(index))
    }

    fn alloc(&self, len: usize) -> Result<Self::Memory, NicError> {
        either!(self, |nic| nic.alloc(len))
    }

    fn alloc_pd(&self) -> Result<Self::Pd, NicError> {
        make!(self, |nic| nic.alloc_pd())
    }

    fn connection_pd(&self, pd: &Self::Pd) -> Result<Self::Pd, NicError> {
        make!((self, pd), |nic, pd| nic.connection_pd(pd), else alien(Verb::AllocPd))
    }

    fn grant(&self, pd: &Self::Pd, rkey: u32) {
        with!(self, pd, |nic, pd| nic.grant(pd, rkey), else ());
    }

    fn reg_mr(
        &self,
        pd: &Self::Pd,
        memory: &Self::Memory,
        access: Access,
    ) -> Result<Self::Mr, NicError> {
        make!((self, pd), |nic, pd| nic.reg_mr(pd, memory, access), else alien(Verb::RegMr))
    }

    fn cq_depth_max(&self) -> usize {
        either!(self, |nic| nic.cq_depth_max())
    }

    fn create_cq(&self, depth: usize) -> Result<Self::Cq, NicError> {
        make!(self, |nic| nic.create_cq(depth))
    }

    fn create_qp(&self, pd: &Self::Pd, cq: &Self::Cq, cap: &QpCap) -> Result<Self::Qp, NicError> {
        make!((self, pd, cq), |nic, pd, cq| nic.create_qp(pd, cq, cap), else alien(Verb::CreateQp))
    }

    fn qp_num(&self, qp: &Self::Qp) -> u32 {
        with!(self, qp, |nic, qp| nic.qp_num(qp), else 0)
    }

    fn modify_qp(&self, qp: &Self::Qp, transition: &QpTransition) -> Result<(), NicError> {
        with!(self, qp, |nic, qp| nic.modify_qp(qp, transition), else alien(Verb::ModifyQp))
    }

    fn query_ece(&self, qp: &Self::Qp) -> Option<Ece> {
        with!(self, qp, |nic, qp| nic.query_ece(qp), else None)
    }

    fn set_ece(&self, qp: &Self::Qp, ece: &Ece) -> Result<(), NicError> {
        with!(self, qp, |nic, qp| nic.set_ece(qp, ece), else alien(Verb::SetEce))
    }

    fn post_send(&self, qp: &Self::Qp, wrs: &[SendWr]) -> Result<(), NicError> {
        with!(self, qp, |nic, qp| nic.post_send(qp, wrs), else alien(Verb::PostSend))
    }

    fn post_recv(&self, qp: &Self::Qp, wr: &RecvWr) -> Result<(), NicError> {
        with!(self, qp, |nic, qp| nic.post_recv(qp, wr), else alien(Verb::PostRecv))
    }

    fn poll(&self, cq: &Self::Cq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let alien = PollError { errno: libc::EINVAL as u16 };
        with!(self, cq, |nic, cq| nic.poll(cq, wcs), else Err(alien))
    }

    fn retire(&self, qp: Self::Qp) {
        with!(self, qp, |nic, qp| nic.retire(qp), else ());
    }

    fn arm(&self, cq: &Self::Cq, writes: bool, ready: &mut dyn FnMut(c_int)) -> bool {
        with!(self, cq, |nic, cq| nic.arm(cq, writes, ready), else false)
    }

    fn check(&self, qp: &Self::Qp) -> Result<(), NicError> {
        with!(self, qp, |nic, qp| nic.check(qp), else alien(Verb::AsyncEvent))
    }

    fn port_changes(&self) -> u32 {
        either!(self, |nic| nic.port_changes())
    }

    fn notices(&self) -> PortNotices {
        either!(self, |nic| nic.notices())
    }

    fn counters(&self) -> NicCounters {
        either!(self, |nic| nic.counters())
    }

    fn progress(&self) {
        either!(self, |nic| nic.progress());
    }
}
