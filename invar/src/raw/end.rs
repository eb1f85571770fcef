//! The traits of both ends of a connection.

use std::os::fd::RawFd;
use std::time::Duration;

use invar_core::comm::{Fast, Flush, FlushBuf, RecvBuf, Request, SendBuf, Work};
use invar_core::error::{Ends, Error as CoreError};
use invar_linux::interest::Interest;

use super::keeper::{Attention, Rest};
use super::recorded::Snapshot;
use crate::Error;

/// Most time that [`End::close`] may take.
pub const CLOSE_MAX: Duration = Duration::from_millis(100);

/// The work request or socket that carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// A work request.
    Work(Work),
    /// The socket that announces every message. The bytes of a long message go over other sockets.
    Socket(RawFd),
}

/// The functions that both ends of a connection have.
pub trait End: Send {
    /// Returns the names of both ends, for messages.
    fn ends(&self) -> Ends;

    /// Returns the carriers of a pending request, in the order in which the data is cut to them. For a
    /// receive of several buffers, returns the carriers of each buffer. Returns `None` if the request
    /// waits for another send; see [`SendComm::work`](invar_core::comm::SendComm::work).
    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>>;

    /// Returns whether data moves only in calls, and from and to any memory.
    fn needs_calls(&self) -> bool {
        false
    }

    /// Arms what ends a wait for a request that was just tested in vain, or that could not start. Test once
    /// more before the sleep.
    fn arm(&mut self, interest: &mut Interest) {
        interest.blind();
    }

    /// Ends the connection. A receiving end first tells the peer of the buffers that it has posted, if
    /// that takes no longer than [`CLOSE_MAX`]. Over NICs, this end does not wait if another end of the
    /// process has waited in vain for the peer's host within the last second.
    fn close(self: Box<Self>) {}

    /// Checks whether the peer is still there, and continues a recovery. Call this now and then, more often
    /// during a recovery.
    fn look(&mut self) -> Attention {
        Attention::None
    }

    /// Returns how much attention this end needs after a call.
    #[inline(always)]
    fn attention(&self) -> Attention {
        Attention::None
    }

    /// If nothing is under way, returns what ends a rest of this end: a keeper looks less often until then, or until
    /// the program makes a call.
    fn rest(&self) -> Option<Rest<'_>> {
        None
    }

    /// Notes that the program goes to sleep in the wait for which it has armed this end, or that the wait is over.
    fn park(&mut self, _is_asleep: bool) {}

    /// Notes that the program has made a call, after [`Attention::Note`].
    fn called(&mut self) {}

    /// Returns what the flight recorder keeps of the end, if it keeps any. `counts` asks for the counters of
    /// the device too.
    fn snapshot(&self, _counts: bool) -> Option<Snapshot> {
        None
    }

    /// Whether all completions of a request have come and the program has not tested it yet. An end that cannot tell
    /// returns `false`.
    fn is_done(&mut self, _request: &Request) -> bool {
        false
    }

    /// The fast path of a test, for a request of one size; see
    /// [`SendComm::test_fast`](invar_core::comm::SendComm::test_fast).
    #[inline(always)]
    fn test_fast(&mut self, _request: &Request) -> Fast<u32> {
        Fast::Slow
    }

    /// Returns an error of this end, with everything that is known about it.
    #[cold]
    fn failed(&self, error: CoreError) -> Error {
        Error::reported(error, self.ends().report(error))
    }
}

/// The sending end of a connection; see [`comm::SendComm`](invar_core::comm::SendComm).
///
/// Somebody must call [`End::look`] now and then; a [`Keeper`](super::Keeper) does that for each end that is
/// wrapped in [`KeeperEnd`](super::KeeperEnd).
pub trait SendEnd: End {
    /// Starts to send, if the peer has posted a receive for `tag`. If it returns `None`, call again.
    ///
    /// # Errors
    /// See [`SendComm::isend`](crate::SendComm::isend).
    ///
    /// # Safety
    /// The buffer is in memory that is registered with this end's device under `buf.lkey`. The memory
    /// stays registered, and nobody writes it, until the request is done or this end is dropped.
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError>;

    /// The fast path of [`SendEnd::isend`]; see [`SendComm::isend_fast`](invar_core::comm::SendComm::isend_fast).
    ///
    /// # Safety
    /// The caller makes the promises of [`SendEnd::isend`].
    #[inline(always)]
    unsafe fn isend_fast(
        &mut self,
        _buf: &SendBuf,
        _tag: u32,
        _started: impl FnOnce(Request),
    ) -> Fast<()>
    where
        Self: Sized,
    {
        Fast::Slow
    }

    /// Begins to match a group of receives, if the peer has posted one and none has begun. Returns whether
    /// a group has begun now. [`SendEnd::isend`] does this by itself.
    fn begin_next_group(&mut self) -> bool {
        false
    }

    /// The fast path of [`SendEnd::isend`] for the next message of a group that has begun; see
    /// [`SendComm::isend_grouped_fast`](invar_core::comm::SendComm::isend_grouped_fast).
    ///
    /// # Safety
    /// The caller makes the promises of [`SendEnd::isend`].
    #[inline(always)]
    unsafe fn isend_grouped_fast(
        &mut self,
        _buf: &SendBuf,
        _tag: u32,
        _started: impl FnOnce(Request),
    ) -> Fast<()>
    where
        Self: Sized,
    {
        Fast::Slow
    }

    /// Returns the size in bytes of the receive that a send with `tag` would match now, if the peer has
    /// posted one.
    ///
    /// # Errors
    /// Fails if the connection has ended.
    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError>;

    /// Whether the peer's host has all messages whose requests are done, or the connection has ended. A NIC's
    /// requests are done no sooner.
    fn is_settled(&self) -> bool {
        true
    }

    /// Checks whether a send is done. If it is, returns the number of bytes sent, and the request is
    /// over.
    ///
    /// # Errors
    /// See [`SendComm::test`](crate::SendComm::test).
    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError>;

    /// Returns the receiving end of messages back over the same connection, if the connection allows
    /// one. Call this once, and only if the peer asks its end for the sending end.
    ///
    /// # Errors
    /// Fails if a system call fails.
    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        Ok(None)
    }
}

/// The receiving end of a connection; see [`comm::RecvComm`](invar_core::comm::RecvComm).
pub trait RecvEnd: End {
    /// Posts a receive of 1 to 8 buffers. If it returns `None`, call again.
    ///
    /// # Errors
    /// See [`RecvComm::irecv`](crate::RecvComm::irecv).
    ///
    /// # Safety
    /// Each buffer is in memory that is registered with this end's device under its `rkey`. The memory
    /// stays registered, and nobody else accesses it, until the request is done or this end is dropped.
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError>;

    /// Posts a receive of one buffer that no send waits for yet; see
    /// [`RecvComm::irecv_ahead`](invar_core::comm::RecvComm::irecv_ahead).
    ///
    /// # Errors
    /// Fails if [`RecvEnd::irecv`] fails.
    ///
    /// # Safety
    /// The caller makes the promises of [`RecvEnd::irecv`].
    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `irecv` demands.
        unsafe { self.irecv(std::slice::from_ref(buf)) }
    }

    /// The fast path of [`RecvEnd::irecv`] for one buffer; see
    /// [`RecvComm::irecv_fast`](invar_core::comm::RecvComm::irecv_fast).
    ///
    /// # Safety
    /// The caller makes the promises of [`RecvEnd::irecv`].
    #[inline(always)]
    unsafe fn irecv_fast(&mut self, _buf: &RecvBuf, _started: impl FnOnce(Request)) -> Fast<()>
    where
        Self: Sized,
    {
        Fast::Slow
    }

    /// The fast path of [`RecvEnd::irecv`] for `nreqs` buffers. `buf` returns each of them, or `None` if the
    /// slow path must refuse it.
    ///
    /// # Safety
    /// The caller makes the promises of [`RecvEnd::irecv`].
    #[inline(always)]
    unsafe fn irecv_group_fast(
        &mut self,
        _nreqs: usize,
        _buf: impl Fn(usize) -> Option<RecvBuf>,
        _started: impl FnOnce(Request),
    ) -> Fast<()>
    where
        Self: Sized,
    {
        Fast::Slow
    }

    /// The fast path of a test for a receive of several buffers that is done. If it is, writes the number of
    /// received bytes of each buffer to `sizes`, and the request is over.
    ///
    /// # Safety
    /// The caller makes the promises of [`RecvEnd::test`].
    #[inline(always)]
    unsafe fn take_group_fast(&mut self, _request: &Request, _sizes: *mut u32) -> Fast<()> {
        Fast::Slow
    }

    /// Makes received data visible to a GPU.
    ///
    /// # Errors
    /// See [`RecvComm::iflush`](crate::RecvComm::iflush).
    ///
    /// # Safety
    /// The caller makes the promises of [`RecvEnd::irecv`].
    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError>;

    /// Checks whether a receive or flush is done. If it is, returns the number of buffers (0 for a
    /// flush), and the request is over. Writes the number of received bytes of each buffer to `sizes`.
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

    /// Returns the sending end of messages back over the same connection; see [`SendEnd::way_back`].
    ///
    /// # Errors
    /// Fails if a system call fails.
    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        Ok(None)
    }
}

/// Writes the number of received bytes of each buffer to `sizes`.
///
/// # Safety
/// `sizes` is null, or has room for `received.len()` sizes.
pub(super) unsafe fn copy_sizes(received: &[u32], sizes: *mut u32) {
    if sizes.is_null() {
        return;
    }
    for (i, received) in received.iter().enumerate() {
        // SAFETY: the caller has promised that `sizes` has room for all sizes.
        unsafe { sizes.add(i).write(*received) };
    }
}
