//! One interface for all NICs of a host.

mod attempt;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use invar_core::conn::stage::Side;
use invar_core::conn::{self, Handle};
use invar_core::nic::{Access, MemoryKeys, NicError};
use invar_core::param::PortRange;
use invar_cuda::gdr::NicReach;
use invar_linux::memory::HostMemory;

pub(crate) use attempt::{Attempt, Listen, Poll};

use super::kind::{AnySend, NicKind};
use super::nic::{GpuRange, SharedNic};
use super::queue_pair::{self, QueuePair};
use crate::Error;
use crate::error::Kind;
use crate::memory_numbers::REGISTRATIONS;
use crate::raw::Session;

/// An open device.
pub(crate) trait Adapter: Send + Sync {
    fn alloc(&self, len: usize) -> Result<HostMemory, NicError>;
    fn reg_mr(&self, memory: &HostMemory, access: Access) -> Result<Registration, NicError>;
    fn gpu_reach(&self) -> NicReach;
    /// # Safety
    /// The caller makes the promises of [`GpuNic::reg_gpu_mr`](super::GpuNic::reg_gpu_mr).
    unsafe fn reg_gpu_mr(
        &self,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Registration, NicError>;
    /// Starts to listen. If the device's connections are arranged outside the device, listens at
    /// `addr`.
    fn listen(
        &self,
        addr: SocketAddr,
        ports: PortRange,
        settings: conn::CommSettings,
    ) -> Result<Box<dyn Listen>, Error>;
    /// Starts to connect to the listener of a handle. If the device's connections are arranged outside the
    /// device, calls the listener at its address as `reached` gives it.
    fn connect(
        &self,
        handle: &Handle,
        reached: Reached<'_>,
        settings: conn::CommSettings,
    ) -> Result<Attempt<AnySend>, Error>;
    /// Creates a queue pair without a comm, over `bytes` of memory.
    fn queue_pair(
        &self,
        us: (Side, Session),
        peer: IpAddr,
        settings: conn::CommSettings,
        bytes: usize,
    ) -> Result<Box<dyn QueuePair>, Error>;
}

/// Returns the address of a listener as this host reaches it.
pub(crate) type Reached<'a> = &'a dyn Fn(SocketAddr) -> Result<SocketAddr, Error>;

/// A registration, which ends when it is dropped.
pub(crate) type Registration = Box<dyn MemoryKeys + Send + Sync>;

/// A NIC, and the protection domain that all its memory and comms share.
struct Opened<N: SharedNic> {
    pd: N::Pd,
    nic: N,
    kind: NicKind<N>,
}

/// Opens a device on a NIC of a kind, in an existing protection domain.
pub(crate) fn adapt<N: SharedNic>(nic: N, pd: N::Pd, kind: NicKind<N>) -> Arc<dyn Adapter> {
    Arc::new(Opened { pd, nic, kind })
}

impl<N: SharedNic> Adapter for Opened<N> {
    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        self.nic.alloc(len)
    }

    fn reg_mr(&self, memory: &HostMemory, access: Access) -> Result<Registration, NicError> {
        let region = self.nic.reg_mr(&self.pd, memory, access)?;
        REGISTRATIONS.add(1);
        Ok(Box::new(region))
    }

    fn gpu_reach(&self) -> NicReach {
        self.kind.gpu_reach(&self.nic, &self.pd)
    }

    unsafe fn reg_gpu_mr(
        &self,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Registration, NicError> {
        // SAFETY: the caller has promised what `GpuNic::reg_gpu_mr` demands.
        let region = unsafe { self.kind.reg_gpu_mr(&self.nic, &self.pd, memory, access) }?;
        REGISTRATIONS.add(1);
        Ok(Box::new(region))
    }

    fn listen(
        &self,
        addr: SocketAddr,
        ports: PortRange,
        settings: conn::CommSettings,
    ) -> Result<Box<dyn Listen>, Error> {
        attempt::listen((&self.nic, &self.pd), self.kind.recv, addr, ports, settings)
    }

    fn connect(
        &self,
        handle: &Handle,
        reached: Reached<'_>,
        settings: conn::CommSettings,
    ) -> Result<Attempt<AnySend>, Error> {
        let listener = reached(handle.addr(settings.wire).map_err(Kind::Handle)?)?;
        attempt::connect((&self.nic, &self.pd), self.kind.send, (handle, listener), settings)
    }

    fn queue_pair(
        &self,
        us: (Side, Session),
        peer: IpAddr,
        settings: conn::CommSettings,
        bytes: usize,
    ) -> Result<Box<dyn QueuePair>, Error> {
        queue_pair::create((&self.nic, &self.pd), us, peer, settings, bytes)
    }
}
