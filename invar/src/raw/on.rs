//! Ends of connections on NICs.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use invar_core::comm::{self, Fast, Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::conn::Stream;
use invar_core::error::{Ends, Error as CoreError};
use invar_core::stall::Wait;
use invar_linux::clock;
use invar_linux::interest::Interest;
use invar_linux::tcp::OobStream;

use super::end::{Carrier, End, RecvEnd, SendEnd, copy_sizes};
use super::hooks::CommHooks;
use super::keeper::{Attention, Rest};
use super::nic::SharedNic;
use super::peer::PeerState;
use super::recorded::Snapshot;

/// A comm on its NIC. The NIC outlives the comm.
#[repr(C)]
pub struct On<C, N> {
    /// The comm comes first, so that its address needs no addition.
    pub(super) comm: C,
    nic: N,
    /// The clock of a network that has a time of its own.
    clock: Option<Clock>,
    peer: PeerState,
}

/// Returns the time of a network in nanoseconds.
type Clock = Box<dyn Fn() -> u64 + Send>;

/// A sending end on a NIC of one kind.
pub type SendOn<N> = On<comm::SendComm<N, OobStream>, N>;
/// A receiving end on a NIC of one kind.
pub type RecvOn<N> = On<comm::RecvComm<N, OobStream>, N>;

impl<C, N: Clone> On<C, N> {
    /// Wraps a connected comm.
    pub fn new(comm: C, nic: &N) -> Self {
        On { comm, nic: nic.clone(), clock: None, peer: PeerState::default() }
    }

    /// Wraps a connected comm on a network that has a time of its own, such as a simulated network.
    pub fn with_clock(comm: C, nic: &N, clock: impl Fn() -> u64 + Send + 'static) -> Self {
        On { clock: Some(Box::new(clock)), ..Self::new(comm, nic) }
    }
}

#[expect(private_bounds, reason = "these are the four kinds of comms")]
impl<C: CommHooks<N> + Send, N: Send> On<C, N> {
    /// Continues a recovery, or returns the error of an end whose peer has gone. Call this after a call
    /// that found nothing to do. `wait` is that call.
    #[inline(always)]
    pub(super) fn idle(&mut self, wait: Wait) -> Result<(), CoreError> {
        if self.attention() == Attention::None { Ok(()) } else { self.idle_with_attention(wait) }
    }

    #[cold]
    #[inline(never)]
    fn idle_with_attention(&mut self, wait: Wait) -> Result<(), CoreError> {
        match self.attention() {
            Attention::Note => {
                self.note(wait);
                Ok(())
            }
            _ => self.check_peer(),
        }
    }

    /// Notes a call of the program.
    fn note(&mut self, wait: Wait) {
        let now_ns = self.now_ns();
        self.comm.called(wait, now_ns);
    }

    fn now_ns(&self) -> u64 {
        self.clock.as_ref().map_or_else(clock::now_ns, |now_ns| now_ns())
    }

    /// Checks whether the peer is still there, and continues a recovery.
    #[cold]
    #[inline(never)]
    fn check_peer(&mut self) -> Result<(), CoreError> {
        let now_ns = self.now_ns();
        let checked = self.comm.check_peer(now_ns);
        checked.or_else(|error| self.peer.failed(error, now_ns))
    }
}

impl<C: CommHooks<N> + Send, N: Send> End for On<C, N> {
    fn ends(&self) -> Ends {
        self.comm.ends().clone()
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        self.comm.carriers(request)
    }

    fn needs_calls(&self) -> bool {
        C::NEEDS_CALLS
    }

    fn arm(&mut self, interest: &mut Interest) {
        self.comm.arm(interest);
        if let Some(line) = self.comm.line().filter(|_| self.peer == PeerState::Open) {
            // SAFETY: the descriptor is one of the comm's, which is borrowed meanwhile.
            interest.hang_up(unsafe { BorrowedFd::borrow_raw(line) });
        }
    }

    fn close(self: Box<Self>) {
        let On { comm, nic, .. } = *self;
        comm.close(&nic);
    }

    fn look(&mut self) -> Attention {
        // The program's next call returns the error.
        let _ = self.check_peer();
        self.attention()
    }

    #[inline(always)]
    fn attention(&self) -> Attention {
        if self.comm.is_recovering() {
            Attention::Recovery
        } else if self.peer == PeerState::Closed {
            Attention::Closed
        } else if self.comm.notes_call() {
            Attention::Note
        } else {
            Attention::None
        }
    }

    fn rest(&self) -> Option<Rest<'_>> {
        let (descriptor, within_ns) = self.comm.rest().filter(|_| self.peer == PeerState::Open)?;
        // SAFETY: the descriptor is one of the comm's, and the result borrows the comm.
        let news = unsafe { BorrowedFd::borrow_raw(descriptor) };
        Some(Rest { news, within: Duration::from_nanos(within_ns) })
    }

    fn park(&mut self, is_asleep: bool) {
        let asleep_ns = is_asleep.then(|| self.now_ns());
        self.comm.park(asleep_ns);
    }

    fn called(&mut self) {
        self.note(Wait::None);
    }

    fn snapshot(&self, counts: bool) -> Option<Snapshot> {
        self.comm.snapshot(&self.nic, counts, self.now_ns())
    }

    fn is_done(&mut self, request: &Request) -> bool {
        self.comm.is_done(request)
    }

    #[inline(always)]
    fn test_fast(&mut self, request: &Request) -> Fast<u32> {
        self.comm.test_fast(request)
    }
}

impl<N: SharedNic, S: Stream + Send> SendEnd for On<comm::SendComm<N, S>, N> {
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        let request = self.comm.isend(buf, tag)?;
        if request.is_none() {
            // The peer's slot may still be in a socket's buffer.
            self.nic.progress();
            self.idle(Wait::Send { tag, len: buf.len })?;
        }
        Ok(request)
    }

    #[inline(always)]
    unsafe fn isend_fast(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        match self.comm.isend_fast(buf, tag, started) {
            Fast::Pending => {
                self.nic.progress();
                Fast::Pending
            }
            ended => ended,
        }
    }

    #[inline(always)]
    fn begin_next_group(&mut self) -> bool {
        self.comm.begin_next_group()
    }

    #[inline(always)]
    unsafe fn isend_grouped_fast(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        self.comm.isend_grouped_fast(buf, tag, started)
    }

    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        let room = self.comm.room(tag)?;
        if room.is_none() {
            self.nic.progress();
            self.idle(Wait::Send { tag, len: 0 })?;
        }
        Ok(room)
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.comm.test(request)?;
        if sent.is_none() {
            self.idle(Wait::Test)?;
        }
        Ok(sent)
    }
}

impl<N: SharedNic, S: Stream + Send> RecvEnd for On<comm::RecvComm<N, S>, N> {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv(bufs)?;
        if request.is_none() {
            self.idle(Wait::Recv)?;
        }
        Ok(request)
    }

    #[inline(always)]
    unsafe fn irecv_fast(&mut self, buf: &RecvBuf, started: impl FnOnce(Request)) -> Fast<()> {
        self.comm.irecv_fast(buf, started)
    }

    #[inline(always)]
    unsafe fn irecv_group_fast(
        &mut self,
        nreqs: usize,
        buf: impl Fn(usize) -> Option<RecvBuf>,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        self.comm.irecv_group_fast(nreqs, buf, started)
    }

    #[inline(always)]
    unsafe fn take_group_fast(&mut self, request: &Request, sizes: *mut u32) -> Fast<()> {
        let Some(received) = self.comm.take_group_fast(request) else { return Fast::Slow };
        // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
        unsafe { copy_sizes(received, sizes) };
        Fast::Done(())
    }

    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv_ahead(buf)?;
        if request.is_none() {
            self.idle(Wait::Recv)?;
        }
        Ok(request)
    }

    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        self.comm.iflush(bufs)
    }

    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        if let Some(received) = self.comm.test(request)? {
            // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
            unsafe { copy_sizes(received, sizes) };
            return Ok(Some(received.len()));
        }
        // A flush does not depend on the peer, but it may wait for a new queue pair.
        if !request.is_flush() {
            self.idle(Wait::Test)?;
        } else if self.comm.recovery_stage().is_some() {
            self.idle(Wait::None)?;
        }
        Ok(None)
    }
}
