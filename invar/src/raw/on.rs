//! Ends of connections on NICs.

use invar_core::comm::{self, Fast, Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::conn::Stream;
use invar_core::error::{Ends, Error as CoreError};
use invar_linux::clock;
use invar_linux::tcp::OobStream;

use super::end::{CLOSE_MAX, Carrier, End, RecvEnd, SendEnd, copy_sizes};
use super::nic::SharedNic;
use super::watch::PeerWatch;

/// A comm on its NIC. The NIC outlives the comm.
pub struct On<C, N> {
    pub(super) comm: C,
    pub(super) watch: PeerWatch,
    nic: N,
    clock: Option<Clock>,
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
        On { comm, watch: PeerWatch::default(), nic: nic.clone(), clock: None }
    }

    /// Wraps a connected comm on a network that has a time of its own, such as a simulated network.
    pub fn with_clock(comm: C, nic: &N, clock: impl Fn() -> u64 + Send + 'static) -> Self {
        On { clock: Some(Box::new(clock)), ..Self::new(comm, nic) }
    }
}

/// The functions of both kinds of comms that the watch needs.
trait Watched {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError>;
    fn is_recovering(&self) -> bool;
}

impl<N: SharedNic, S: Stream> Watched for comm::SendComm<N, S> {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        comm::SendComm::check_peer(self, now_ns)
    }

    fn is_recovering(&self) -> bool {
        self.recovery_stage().is_some()
    }
}

impl<N: SharedNic, S: Stream> Watched for comm::RecvComm<N, S> {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        comm::RecvComm::check_peer(self, now_ns)
    }

    fn is_recovering(&self) -> bool {
        self.recovery_stage().is_some()
    }
}

/// Checks the peer now and then, after a call that found nothing to do. During a recovery every such
/// call continues the recovery.
fn idle<C: Watched, N>(end: &mut On<C, N>) -> Result<(), CoreError> {
    let On { comm, watch, clock, .. } = end;
    if comm.is_recovering() {
        watch.hasten();
    }
    watch.idle(|| now_ns(clock), |now_ns| comm.check_peer(now_ns))?;
    if comm.is_recovering() {
        watch.hasten();
    }
    Ok(())
}

/// Returns the time of an end's clock, by default that of the system.
fn now_ns(clock: &Option<Clock>) -> u64 {
    clock.as_ref().map_or_else(clock::now_ns, |now_ns| now_ns())
}

impl<N: SharedNic, S: Stream + Send> End for On<comm::SendComm<N, S>, N> {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.comm.work(request)?.map(Carrier::Work).collect())
    }

    #[inline(always)]
    fn take_fast(&mut self, request: &Request) -> Fast<u32> {
        self.comm.take_fast(request)
    }

    #[inline(always)]
    fn poll_fast(&mut self, request: &Request) -> Fast<u32> {
        match self.comm.poll_fast(request) {
            Fast::Pending if self.watch.is_due() => Fast::Slow,
            tested => tested,
        }
    }
}

impl<N: SharedNic, S: Stream + Send> SendEnd for On<comm::SendComm<N, S>, N> {
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        let request = self.comm.isend(buf, tag)?;
        if request.is_none() {
            // The peer's slot may still be in a socket's buffer.
            self.nic.progress();
            idle(self)?;
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
                if self.watch.is_due() { Fast::Slow } else { Fast::Pending }
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
            idle(self)?;
        }
        Ok(room)
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.comm.test(request)?;
        if sent.is_none() {
            idle(self)?;
        }
        Ok(sent)
    }
}

impl<N: SharedNic, S: Stream + Send> End for On<comm::RecvComm<N, S>, N> {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.comm.work(request).map(Carrier::Work).collect())
    }

    #[inline(always)]
    fn take_fast(&mut self, request: &Request) -> Fast<u32> {
        self.comm.take_fast(request)
    }

    #[inline(always)]
    fn poll_fast(&mut self, request: &Request) -> Fast<u32> {
        match self.comm.poll_fast(request) {
            Fast::Pending if self.watch.is_due() => Fast::Slow,
            tested => tested,
        }
    }

    fn close(self: Box<Self>) {
        let On { comm, nic, .. } = *self;
        let deadline_ns = clock::now_ns() + CLOSE_MAX.as_nanos() as u64;
        let mut closing = comm.close();
        while !closing.poll() && clock::now_ns() < deadline_ns {
            nic.progress();
            std::thread::yield_now();
        }
    }
}

impl<N: SharedNic, S: Stream + Send> RecvEnd for On<comm::RecvComm<N, S>, N> {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv(bufs)?;
        if request.is_none() {
            idle(self)?;
        }
        Ok(request)
    }

    #[inline(always)]
    unsafe fn irecv_fast(&mut self, buf: &RecvBuf, started: impl FnOnce(Request)) -> Fast<()> {
        self.comm.irecv_fast(buf, started)
    }

    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv_ahead(buf)?;
        if request.is_none() {
            idle(self)?;
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
        if !request.is_flush() || self.comm.recovery_stage().is_some() {
            idle(self)?;
        }
        Ok(None)
    }
}
