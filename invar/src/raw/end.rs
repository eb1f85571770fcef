//! What both ends of a connection can do, and which ends there are.

use std::os::fd::RawFd;
use std::time::Duration;

use invar_core::comm::{Fast, Flush, FlushBuf, RecvBuf, Request, SendBuf, Work};
use invar_core::error::{Ends, Error as CoreError};
use invar_linux::soft::SoftNic;
use invar_verbs::VerbsNic;

use super::{RecvOn, SendOn, SocketRecv, SocketSend};
use crate::Error;

/// How long [`End::close`] may take.
pub const CLOSE_MAX: Duration = Duration::from_millis(100);

/// What carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// A work request.
    Work(Work),
    /// The socket that announces every message. The bytes of a long one go over others.
    Socket(RawFd),
}

/// What both ends of a connection have.
pub trait End: Send {
    /// Both ends, for messages.
    fn ends(&self) -> &Ends;

    /// What carries a request that is under way, in the order in which it is cut to them: of a receive
    /// of several buffers, each of these. `None` where that waits for another send; see
    /// [`SendComm::work`](invar_core::comm::SendComm::work).
    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>>;

    /// Whether bytes move only in calls, and from and to any memory.
    fn needs_calls(&self) -> bool {
        false
    }

    /// Ends it. A receiving end lets the peer still learn of the buffers that it has posted, if
    /// that takes no longer than [`CLOSE_MAX`].
    fn close(self: Box<Self>) {}

    /// The fast path of a test, for a request of one size: gives its bytes.
    #[inline(always)]
    fn test_fast(&mut self, _request: &Request) -> Fast<u32> {
        Fast::Slow
    }

    /// An error of this end, with all that is known about it.
    #[cold]
    fn failed(&self, error: CoreError) -> Error {
        Error::reported(error, self.ends().report(error))
    }
}

/// The sending end of a connection; see [`comm::SendComm`](invar_core::comm::SendComm).
///
/// Calls that find nothing to do look now and then whether the peer is still there.
pub trait SendEnd: End {
    /// Starts to send, if the peer has posted a receive for `tag`; `None`: call again.
    ///
    /// # Errors
    /// See [`SendComm::isend`](crate::SendComm::isend).
    ///
    /// # Safety
    /// The buffer lies in memory that is registered with this end's device under `buf.lkey`, and
    /// stays so, not written by anyone, until the request is done or this end is dropped.
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError>;

    /// The fast path of [`SendEnd::isend`].
    ///
    /// # Safety
    /// As of [`SendEnd::isend`].
    #[inline(always)]
    unsafe fn isend_fast(&mut self, _buf: &SendBuf, _tag: u32) -> Fast<Request> {
        Fast::Slow
    }

    /// The bytes of the receive that a send with `tag` would meet now, if the peer has posted one.
    ///
    /// # Errors
    /// What ended the connection.
    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError>;

    /// Whether a send is done, and then how many bytes it sent; the request is then over.
    ///
    /// # Errors
    /// See [`SendComm::test`](crate::SendComm::test).
    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError>;

    /// The receiving end of messages back over the same connection, where there can be one: once,
    /// and only if the peer asks its end for the sending one.
    ///
    /// # Errors
    /// What the system says.
    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        Ok(None)
    }
}

/// The receiving end of a connection; see [`comm::RecvComm`](invar_core::comm::RecvComm).
pub trait RecvEnd: End {
    /// Posts a receive of 1 to 8 buffers; `None`: call again.
    ///
    /// # Errors
    /// See [`RecvComm::irecv`](crate::RecvComm::irecv).
    ///
    /// # Safety
    /// Each buffer lies in memory that is registered with this end's device under its `rkey`, and
    /// stays so, not accessed by anyone else, until the request is done or this end is dropped.
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError>;

    /// The same of one buffer that no send waits for yet; see
    /// [`RecvComm::irecv_ahead`](invar_core::comm::RecvComm::irecv_ahead).
    ///
    /// # Errors
    /// As of [`RecvEnd::irecv`].
    ///
    /// # Safety
    /// As of [`RecvEnd::irecv`].
    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller's promise.
        unsafe { self.irecv(std::slice::from_ref(buf)) }
    }

    /// The fast path of [`RecvEnd::irecv`], for one buffer.
    ///
    /// # Safety
    /// As of [`RecvEnd::irecv`].
    #[inline(always)]
    unsafe fn irecv_fast(&mut self, _buf: &RecvBuf) -> Fast<Request> {
        Fast::Slow
    }

    /// Makes received data visible to a GPU.
    ///
    /// # Errors
    /// See [`RecvComm::iflush`](crate::RecvComm::iflush).
    ///
    /// # Safety
    /// As of [`RecvEnd::irecv`].
    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError>;

    /// Whether a receive or flush is done, and then how many buffers it had (a flush: none); the
    /// request is then over. What came into each of them, in bytes, is written to `sizes`.
    ///
    /// # Errors
    /// See [`RecvComm::test`](crate::RecvComm::test).
    ///
    /// # Safety
    /// `sizes` is null, or has room for as many sizes as the receive has buffers.
    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError>;

    /// The sending end of messages back over the same connection; see [`SendEnd::way_back`].
    ///
    /// # Errors
    /// What the system says.
    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        Ok(None)
    }
}

/// A sending end on any NIC.
#[non_exhaustive]
pub enum AnySend {
    /// On an RDMA device.
    Verbs(Box<SendOn<VerbsNic>>),
    /// Over TCP.
    Socket(Box<SocketSend>),
    /// On the NIC in software.
    Soft(Box<SendOn<SoftNic>>),
    /// On a NIC that the caller brought.
    Custom(Box<dyn SendEnd>),
}

/// A receiving end on any NIC.
#[non_exhaustive]
pub enum AnyRecv {
    /// On an RDMA device.
    Verbs(Box<RecvOn<VerbsNic>>),
    /// Over TCP.
    Socket(Box<SocketRecv>),
    /// On the NIC in software.
    Soft(Box<RecvOn<SoftNic>>),
    /// On a NIC that the caller brought.
    Custom(Box<dyn RecvEnd>),
}

impl AnySend {
    /// For who does not care which it is.
    pub fn boxed(self) -> Box<dyn SendEnd> {
        match self {
            AnySend::Verbs(end) => end,
            AnySend::Socket(end) => end,
            AnySend::Soft(end) => end,
            AnySend::Custom(end) => end,
        }
    }
}

impl AnyRecv {
    /// For who does not care which it is.
    pub fn boxed(self) -> Box<dyn RecvEnd> {
        match self {
            AnyRecv::Verbs(end) => end,
            AnyRecv::Socket(end) => end,
            AnyRecv::Soft(end) => end,
            AnyRecv::Custom(end) => end,
        }
    }
}

/// Writes down what came into the buffers of a receive.
///
/// # Safety
/// `sizes` is null, or has room for as many.
pub(super) unsafe fn copy_sizes(received: &[u32], sizes: *mut u32) {
    if sizes.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { sizes.copy_from_nonoverlapping(received.as_ptr(), received.len()) };
}
