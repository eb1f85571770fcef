//! A NIC, a stream and a memory that have nothing: what matters is the code that is made for them.

use core::net::SocketAddr;
use core::sync::atomic::AtomicU64;

use invar_core::conn::{Stream, StreamError};
use invar_core::nic::{
    Access, Memory, MemoryKeys, Nic, NicError, PollError, PortAttr, QpCap, QpTransition, RecvWr,
    SendWr, Verb, Wc,
};
use invar_core::roce::qp::{AccessFault, Env, QpSide, Queue, Region};
use spin::Mutex;

pub struct Nothing;

/// The registers of the NIC, in the place of real ones. The contexts that share the NIC write them one at
/// a time.
struct Registers {
    sends: usize,
    recvs: usize,
}

static REGISTERS: Mutex<Registers> = Mutex::new(Registers { sends: 0, recvs: 0 });

#[derive(Clone)]
pub struct NoMemory;

fn refused<T>(verb: Verb) -> Result<T, NicError> {
    Err(NicError::new(verb, 38, "there is no device"))
}

impl Memory for NoMemory {
    fn addr(&self) -> u64 {
        0
    }

    fn len(&self) -> usize {
        0
    }

    fn words(&self) -> &[AtomicU64] {
        &[]
    }
}

impl MemoryKeys for Nothing {
    fn lkey(&self) -> u32 {
        0
    }

    fn rkey(&self) -> u32 {
        0
    }
}

impl Nic for Nothing {
    type Memory = NoMemory;
    type Pd = ();
    type Mr = Nothing;
    type Cq = ();
    type Qp = ();

    fn name(&self) -> &str {
        "none"
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        refused(Verb::QueryPort)
    }

    fn alloc(&self, _: usize) -> Result<NoMemory, NicError> {
        refused(Verb::AllocMemory)
    }

    fn alloc_pd(&self) -> Result<(), NicError> {
        refused(Verb::AllocPd)
    }

    fn reg_mr(&self, _: &(), _: &NoMemory, _: Access) -> Result<Nothing, NicError> {
        refused(Verb::RegMr)
    }

    fn create_cq(&self, _: usize) -> Result<(), NicError> {
        refused(Verb::CreateCq)
    }

    fn create_qp(&self, _: &(), _: &(), _: &QpCap) -> Result<(), NicError> {
        refused(Verb::CreateQp)
    }

    fn qp_num(&self, _: &()) -> u32 {
        0
    }

    fn modify_qp(&self, _: &(), _: &QpTransition) -> Result<(), NicError> {
        refused(Verb::ModifyQp)
    }

    fn post_send(&self, _: &(), wrs: &[SendWr]) -> Result<(), NicError> {
        REGISTERS.lock().sends += wrs.len();
        refused(Verb::PostSend)
    }

    fn post_recv(&self, _: &(), _: &RecvWr) -> Result<(), NicError> {
        REGISTERS.lock().recvs += 1;
        refused(Verb::PostRecv)
    }

    fn poll(&self, _: &(), _: &mut [Wc]) -> Result<u32, PollError> {
        Err(PollError { errno: 38 })
    }
}

impl Stream for Nothing {
    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Err(StreamError::Closed)
    }

    fn send(&mut self, _: &[u8]) -> Result<usize, StreamError> {
        Err(StreamError::Closed)
    }

    fn recv(&mut self, _: &mut [u8]) -> Result<usize, StreamError> {
        Err(StreamError::Closed)
    }
}

impl Env for Nothing {
    fn resolve(
        &mut self,
        _: u32,
        _: u64,
        _: u32,
        _: Access,
        _: QpSide,
    ) -> Result<Region, AccessFault> {
        Err(AccessFault)
    }

    fn place(&mut self, _: Region, _: &[u8]) {}

    fn complete(&mut self, _: Queue, _: Wc, _: bool) {}
}
