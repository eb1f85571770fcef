//! A queue pair without a comm, on any NIC.

use std::net::IpAddr;
use std::ops::Range;

use invar_core::conn::stage::Side;
use invar_core::conn::{self, QUEUE_PAIR_INFO_BYTES};
use invar_core::error::Error as CoreError;
use invar_core::nic::{SendOpcode, Wc};
use invar_linux::memory::HostMemory;

use super::nic::SharedNic;
use crate::Error;
use crate::error::Kind;
use crate::raw::Session;

/// A queue pair over memory of its own, for programs that measure a NIC by itself.
///
/// Each end carries its [info](QueuePair::info) to the other, which connects. Then the peer may read and
/// write all the memory. At most 256 requests and 256 receives may be posted and not complete.
pub trait QueuePair: Send {
    /// The description of this end for the peer.
    fn info(&self) -> [u8; QUEUE_PAIR_INFO_BYTES];
    /// Connects with the peer that has this info.
    ///
    /// # Errors
    /// The bytes are no info of a peer, the two ends do not fit, or the device refuses.
    fn connect(&mut self, peer_info: &[u8]) -> Result<(), Error>;
    /// Posts a request, which completes under `wr_id`. `at` are bytes of this end's memory: the source,
    /// or the target of a READ. A WRITE or READ meets the peer's memory at the offset `peer_at`.
    ///
    /// # Errors
    /// The bytes are outside of the memory, or the device refuses.
    fn post(
        &self,
        opcode: SendOpcode,
        wr_id: u64,
        at: Range<usize>,
        peer_at: usize,
    ) -> Result<(), Error>;
    /// Posts a receive, which completes under `wr_id`.
    ///
    /// # Errors
    /// The bytes are outside of the memory, or the device refuses.
    fn post_recv(&self, wr_id: u64, at: Range<usize>) -> Result<(), Error>;
    /// Takes completions, oldest first, and returns their number. The software NIC moves packets only
    /// in this call.
    ///
    /// # Errors
    /// A request ended in error, or the device has failed.
    fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error>;
    /// Checks that the device still works. A program that waits long calls this now and then.
    ///
    /// # Errors
    /// The device has failed.
    fn check(&self) -> Result<(), Error>;
    /// Copies bytes from the memory; see [`MemoryRegion::read_at`](crate::MemoryRegion::read_at).
    ///
    /// # Errors
    /// The bytes are outside of the memory.
    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error>;
    /// Copies bytes into the memory; see [`MemoryRegion::write_at`](crate::MemoryRegion::write_at).
    ///
    /// # Errors
    /// The bytes are outside of the memory.
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error>;
}

/// A queue pair on one kind of NIC.
pub(super) fn create<N: SharedNic>(
    (nic, pd): (&N, &N::Pd),
    us: (Side, Session),
    peer: IpAddr,
    settings: conn::CommSettings,
    bytes: usize,
) -> Result<Box<dyn QueuePair>, Error> {
    let created = conn::QueuePair::create(nic.towards(peer), pd.clone(), us, settings, bytes);
    let failed = |error| match error {
        CoreError::Nic(source) => Kind::Nic { device: nic.name().to_owned(), source },
        error => Kind::Usage(format!("{}: {error}", nic.name())),
    };
    Ok(Box::new(created.map_err(failed)?))
}

impl<N: SharedNic> QueuePair for conn::QueuePair<N> {
    fn info(&self) -> [u8; QUEUE_PAIR_INFO_BYTES] {
        self.info()
    }

    fn connect(&mut self, peer_info: &[u8]) -> Result<(), Error> {
        self.connect(peer_info).map_err(|error| failed(self, error))
    }

    #[inline]
    fn post(
        &self,
        opcode: SendOpcode,
        wr_id: u64,
        at: Range<usize>,
        peer_at: usize,
    ) -> Result<(), Error> {
        self.post(opcode, wr_id, at, peer_at as u64).map_err(|error| failed(self, error))
    }

    #[inline]
    fn post_recv(&self, wr_id: u64, at: Range<usize>) -> Result<(), Error> {
        self.post_recv(wr_id, at).map_err(|error| failed(self, error))
    }

    #[inline]
    fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        self.poll(wcs).map_err(|error| failed(self, error))
    }

    fn check(&self) -> Result<(), Error> {
        self.check().map_err(|error| failed(self, error))
    }

    #[inline]
    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let memory: &HostMemory = self.memory();
        Ok(memory.read_at(offset, bytes).map_err(Kind::Range)?)
    }

    #[inline]
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let memory: &HostMemory = self.memory();
        Ok(memory.write_at(offset, bytes).map_err(Kind::Range)?)
    }
}

#[cold]
fn failed<N: SharedNic>(pair: &conn::QueuePair<N>, error: CoreError) -> Error {
    Error::reported(error, pair.report(error))
}
