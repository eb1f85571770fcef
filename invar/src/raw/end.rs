//! What both ends of a connection can do, and which ends there are.

use std::os::fd::RawFd;
use std::time::Duration;

use invar_core::comm::{Flush, FlushBuf, Matched, Polled, RecvBuf, Request, SendBuf, Usual, Work};
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

    /// The start of a test, where it pays to make that apart, of a request that has one size: gives
    /// it if the request is done by the completions that were taken before.
    #[inline(always)]
    fn test_booked(&mut self, _request: &Request) -> Usual<u32> {
        Usual::Unusual
    }

    /// What follows on [`End::test_booked`] where that gives [`Usual::NotYet`], as a rule: takes the
    /// completions that are there.
    #[inline(always)]
    fn test_polled(&mut self, _request: &Request) -> Polled {
        Polled::NotYet
    }

    /// What follows on [`Polled::Other`] of several completions, at once: ends the request if they are
    /// all that it awaits, and then gives the bytes.
    #[inline(always)]
    fn take_polled(&mut self, _request: &Request, _polled: u32) -> Option<u32> {
        None
    }

    /// What follows on that, or on [`Polled::Other`], at once.
    fn test_other(&mut self, _request: &Request, _polled: u32) -> Usual<u32> {
        Usual::Unusual
    }

    /// What follows on [`Polled::NotYet`]: [`Usual::Unusual`] now and then, to look whether the peer
    /// is still there.
    #[inline(always)]
    fn idle(&mut self) -> Usual<()> {
        Usual::Unusual
    }

    /// An error of this end, with all that is known about it.
    #[cold]
    fn failed(&self, error: CoreError) -> Error {
        Error::reported(error, self.ends().report(error))
    }
}

/// The sending end of a connection; see [`comm::SendComm`](invar_core::comm::SendComm).
///
/// Calls that find nothing to do look now and then whether the peer is still there. For some of them
/// there is a start of their own, which does what is usual; see [`Usual`].
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

    /// The start of [`SendEnd::isend`], of `len` bytes, however many, where it pays to make that
    /// apart.
    ///
    /// # Safety
    /// As of [`SendEnd::isend`].
    #[inline(always)]
    unsafe fn match_usual(
        &mut self,
        _addr: u64,
        _len: u64,
        _lkey: u32,
        _tag: u32,
    ) -> Usual<Matched> {
        Usual::Unusual
    }

    /// The bytes of the receive that a send with `tag` would meet now, if the peer has posted one.
    ///
    /// # Errors
    /// What ended the connection.
    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError>;

    /// Sends the message that [`SendEnd::match_usual`] has found alone.
    ///
    /// # Errors
    /// See [`SendComm::post_matched`](invar_core::comm::SendComm::post_matched).
    ///
    /// # Safety
    /// It did so in the call before this.
    unsafe fn post_matched(&mut self) -> Result<(), CoreError>;

    /// Begins with the group that [`SendEnd::match_usual`] has found.
    #[inline(always)]
    fn begin_group(&mut self) -> Usual<()> {
        Usual::Unusual
    }

    /// Looks for a place in a group that has begun.
    ///
    /// # Safety
    /// As of [`SendEnd::isend`].
    #[inline(always)]
    unsafe fn match_in_group(
        &mut self,
        _addr: u64,
        _len: u64,
        _lkey: u32,
        _tag: u32,
    ) -> Usual<Request> {
        Usual::Unusual
    }

    /// Whether that has made it complete: then [`SendEnd::post_group`] must be called next.
    #[inline(always)]
    fn is_group_complete(&self) -> bool {
        false
    }

    /// Sends it.
    ///
    /// # Errors
    /// See [`SendComm::post_group`](invar_core::comm::SendComm::post_group).
    #[inline(always)]
    fn post_group(&mut self) -> Result<(), CoreError> {
        Ok(())
    }

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

    /// The start of [`RecvEnd::irecv`], of one buffer, where it pays to make that apart.
    ///
    /// # Safety
    /// As of [`RecvEnd::irecv`].
    #[inline(always)]
    unsafe fn fill_usual(&mut self, _buf: &RecvBuf) -> Usual<Request> {
        Usual::Unusual
    }

    /// The same of several buffers, `n` of them, of which `buf` gives each.
    ///
    /// # Safety
    /// As of [`RecvEnd::irecv`].
    #[inline(always)]
    unsafe fn fill_group(&mut self, _n: usize, _buf: impl FnMut(usize) -> RecvBuf) -> Usual<Request>
    where
        Self: Sized,
    {
        Usual::Unusual
    }

    /// Posts the receive that [`RecvEnd::fill_usual`] or [`RecvEnd::fill_group`] has begun with.
    ///
    /// # Errors
    /// See [`RecvComm::post_filled`](invar_core::comm::RecvComm::post_filled).
    ///
    /// # Safety
    /// It did so in the call before this.
    unsafe fn post_filled(&mut self) -> Result<(), CoreError>;

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

    /// What follows on [`End::test_other`] where that gives [`Usual::Unusual`], at once: whether the
    /// request was a receive of several buffers, and is done. What came into each of them is written
    /// to `sizes`, as by [`RecvEnd::test`].
    ///
    /// # Safety
    /// As of [`RecvEnd::test`].
    #[inline(always)]
    unsafe fn take_group(&mut self, _request: &Request, _sizes: *mut u32) -> bool {
        false
    }

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
