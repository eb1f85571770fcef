//! The receiving end (`net_ib.cc ncclIbIrecv`, `ncclIbPostFifo`, `ncclIbTest`).

mod buf;
mod post;
mod rails;
mod repost;
mod settle;
mod stall;

use core::hint::cold_path;

use buf::set_slots;
use rails::awaited_on_rails;

use super::base::{Base, Failed, Gate};
use super::closing::Closing;
use super::control::Control;
use super::fast::Fast;
use super::flush::Flushes;
use super::post::{only_qp, qps_of};
use super::rails::RailWork;
use super::route::{Arrivals, Receiving};
use super::row_keys::RailKeys;
use super::sizes::{Sizes, sizes_offset};
use super::{Flush, FlushBuf, Request};
use crate::conn::{Parts, RAILS_MAX, Stream, Verbs, Wire, is_ready};
use crate::error::Error;
use crate::fifo::{LEN_MAX, RECVS_MAX, ROW_BYTES, Row};
use crate::nic::{Memory, Nic, NumSge, RecvWr, SendFlags, SendList, SendWr, Sge};
use crate::request::{ROWS, RequestRing};
use crate::stall::Role;

pub use buf::RecvBuf;

/// The number of granted keys that a comm remembers.
const GRANTED: usize = 8;

/// The receiving end of a connection.
pub struct RecvComm<N: Nic, S> {
    pub(super) base: Base<N, S, Arrivals<N>, Receiving, ROWS>,
    /// The receive work request of a row, posted on each queue pair. The work request has no buffer,
    /// since the data comes by WRITE_WITH_IMM.
    recv_wr: RecvWr,
    /// Bytes received into each buffer of the receive that was last found done.
    received: Sizes,
    /// The number of buffers of that receive, if it had several.
    received_len: usize,
    /// `idx` of the next receive: the number of posted receives, plus one.
    idx: u64,
    /// The number of rows of the FIFO.
    depth: usize,
    /// The keys that were granted to the peer last, indexed by the key's low bits.
    granted: [u32; GRANTED],
    /// The key of the buffer that was posted last, and its keys on all rails.
    rail_keys: (u32, RailKeys),
    /// The largest number of buffers that one receive may group. The FIFO has at least this number of
    /// rows: a peer with one request for each message could not have more messages under way.
    group_max: usize,
}

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Offset in the control memory of the sizes that the peer writes.
    pub(crate) const fn sizes_offset(depth: usize) -> u64 {
        sizes_offset(depth) as u64
    }

    pub(crate) fn new(parts: Parts<N, S>) -> Result<Self, Error> {
        let settings = parts.verbs.settings;
        let depth = usize::from(settings.depth());
        let flushes = Flushes::create(&parts.verbs)?;
        let flags = if settings.use_inline { SendFlags::INLINE } else { SendFlags::empty() };
        let events = u32::from(parts.verbs.qp_count());
        let (shadow_addr, lkey) = (parts.verbs.control_addr(), parts.verbs.control_lkey());
        let length = parts.verbs.row_bytes(1);
        let fifo = parts.peer.as_ref().map(|peer| (peer.info.fifo_addr, peer.info.fifo_rkey));
        let (fifo_addr, rkey) = fifo.unwrap_or_default();
        let receiving = |row| {
            let offset = (row * ROW_BYTES) as u64;
            let addr = shadow_addr.wrapping_add(offset);
            let slots_wr = SendWr {
                wr_id: row as u64,
                remote_addr: fifo_addr.wrapping_add(offset),
                rkey,
                sge: Sge { addr, length, lkey },
                num_sge: NumSge::One,
                flags,
                ..SendWr::default()
            };
            let slots = SendList::new([slots_wr]);
            Receiving { slots, events, imm: 0, sizes: [0; RECVS_MAX] }
        };
        let mut rows = RequestRing::new(depth, receiving);
        // One write in each turn of the ring asks for a completion, because otherwise the send queue
        // never drains. The request of row 0 awaits that completion too.
        let Receiving { slots, events, .. } = &mut rows.at(0).value;
        slots.set_flags(0, flags | SendFlags::SIGNALED);
        *events += 1;
        let arrivals = Arrivals { flushes, turns_written: 0, rail_work: RailWork::NONE };
        let base = Base::new(parts, Role::Receiver, rows, arrivals);
        Ok(RecvComm {
            base,
            recv_wr: RecvWr::default(),
            received: [0; RECVS_MAX],
            received_len: 0,
            idx: 1,
            depth,
            granted: [0; GRANTED],
            rail_keys: (0, [0; RAILS_MAX]),
            group_max: depth.min(RECVS_MAX),
        })
    }

    /// Posts a receive of 1 to 8 buffers and tells the peer of them. Returns `None` if no request is
    /// free: call again.
    ///
    /// The buffers belong to the NIC until `test` says that the request is done.
    ///
    /// # Errors
    /// Unusable buffers give [`Error::Argument`] or [`Error::TooLong`], and the comm stays usable. Any
    /// other error is final: every later call returns the same error.
    #[inline(always)]
    pub fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, Error> {
        let [buf] = bufs else {
            return self.irecv_slow(bufs).map_err(|failed| self.base.error(failed));
        };
        self.irecv_one::<false>(buf)
    }

    /// The fast path of [`RecvComm::irecv`], for one buffer. `started` gets the request before the receive is
    /// posted; see [`SendComm::isend_fast`](super::SendComm::isend_fast).
    #[inline(always)]
    pub fn irecv_fast(&mut self, buf: &RecvBuf, started: impl FnOnce(Request)) -> Fast<()> {
        self.irecv_one_fast::<false>(buf, started)
    }

    /// The fast path of [`RecvComm::irecv`], for `nreqs` buffers. `buf` returns each of them, or `None` if the
    /// slow path must refuse it. `started` gets the request before the receive is posted.
    #[inline(always)]
    pub fn irecv_group_fast(
        &mut self,
        nreqs: usize,
        buf: impl Fn(usize) -> Option<RecvBuf>,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        let is_group = (2..=self.group_max).contains(&nreqs);
        if N::RAILS_MAX > 1 || self.base.gate != Gate::Open || !is_group {
            return Fast::Slow;
        }
        let Some(request) = self.lay_out(nreqs, buf) else { return Fast::Slow };
        started(request);
        self.post_row::<false>();
        Fast::Done(())
    }

    /// Posts a receive of one buffer ahead of need: no send waits for this buffer yet, since other
    /// buffers come before it. A software NIC may tell the peer of this buffer a little later, together
    /// with other news.
    ///
    /// # Errors
    /// This call fails with the same errors as [`RecvComm::irecv`].
    pub fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, Error> {
        self.irecv_one::<true>(buf)
    }

    /// Posts a receive of one buffer by the fast path, or else by the slow path.
    #[inline(always)]
    fn irecv_one<const AHEAD: bool>(&mut self, buf: &RecvBuf) -> Result<Option<Request>, Error> {
        let mut started = None;
        match self.irecv_one_fast::<AHEAD>(buf, |request| started = Some(request)) {
            Fast::Done(()) if self.base.gate == Gate::Failed => Err(self.base.error(Failed)),
            Fast::Done(()) => Ok(started),
            _ => {
                let posted = self.irecv_slow(core::slice::from_ref(buf));
                posted.map_err(|failed| self.base.error(failed))
            }
        }
    }

    #[inline(always)]
    fn irecv_one_fast<const AHEAD: bool>(
        &mut self,
        buf: &RecvBuf,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        if self.base.gate != Gate::Open {
            cold_path();
            return Fast::Slow;
        }
        // Without the hint, LLVM joins these checks into one, which takes more registers.
        if !buf.is_sound() {
            cold_path();
            return Fast::Slow;
        }
        let only = only_qp(&self.base.verbs, self.idx - 1, 1, buf.len);
        if self.base.has_rails() && only.is_none() {
            return Fast::Slow;
        }
        let Base { reqs, verbs, .. } = &mut self.base;
        let Some((request, entry)) = reqs.next_free() else { return Fast::Slow };
        let row = Row::of(verbs.control.words(), request.row() as u8);
        let Some(row) = row else { return Fast::Slow };
        grant(verbs, &mut self.granted, buf.rkey);
        entry.value.sizes[0] = buf.len;
        let events = match only {
            Some(_) => awaited_on_rails(request.row(), 1),
            None => entry.value.events,
        };
        entry.arm(request.raw(), events);
        let at = request.row();
        self.recv_wr.wr_id = at as u64;
        started(request);
        // By now the request needs no register any more.
        verbs.store_slot((&row, at), (1, 0), buf, self.idx, &mut self.rail_keys);
        match only {
            Some(only) => self.post_on_one_rail(only),
            None => self.post_row::<AHEAD>(),
        }
        Fast::Done(())
    }

    /// Makes received data visible to a reader that may not yet see the NIC's writes, such as a GPU.
    /// The flush reads one byte of the last buffer that has bytes, through a queue pair of the comm's
    /// own.
    ///
    /// # Errors
    /// The errors are those of [`RecvComm::irecv`]. A closed peer is no error here: the comm still
    /// flushes data that the peer sent before it closed.
    pub fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, Error> {
        self.flush(bufs).map_err(|failed| self.base.error(failed))
    }

    /// Tests whether a receive or flush is done. If it is done, `test` returns the bytes of each buffer
    /// in posting order, and `request` is over. For a flush the slice is empty.
    ///
    /// On the wire of NCCL 2.14 the sizes of a grouped receive are only 0 or 1: empty or not empty.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], or the error that ended the connection, which every call repeats.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<&[u32]>, Error> {
        match self.base.test(request) {
            Fast::Done(size) => {
                self.received[0] = size;
                Ok(Some(&self.received[..1]))
            }
            Fast::Pending => Ok(None),
            Fast::Slow => match self.test_slow(request.raw()) {
                Ok(true) => Ok(Some(&self.received[..self.received_len.min(RECVS_MAX)])),
                Ok(false) => Ok(None),
                Err(failed) => Err(self.base.error(failed)),
            },
        }
    }

    /// The fast path of [`RecvComm::test`], for a request of one size, with at most one poll of each rail.
    /// [`Fast::Done`] gives the bytes received, and `request` is over.
    #[inline(always)]
    pub fn test_fast(&mut self, request: &Request) -> Fast<u32> {
        self.base.test_fast(request)
    }

    /// The fast path of [`RecvComm::test`] for a request of several buffers that is done. Returns the bytes
    /// received into each buffer.
    #[inline(always)]
    pub fn take_group_fast(&mut self, request: &Request) -> Option<&[u32]> {
        let token = request.raw();
        if !self.base.reqs.at(token).end_if_done(token) || self.read_sizes(token).is_err() {
            return None;
        }
        Some(&self.received[..self.received_len.min(RECVS_MAX)])
    }

    /// Closes the comm and tells the peer which messages have arrived (not on the wire of NCCL 2.14).
    /// Poll the returned [`Closing`] until the announced slots have arrived at the peer. Dropping a
    /// comm does none of this.
    pub fn close(mut self) -> Closing<N, S> {
        let may_tell = |gate| matches!(gate, Gate::Open | Gate::Recovering);
        if may_tell(self.base.gate) && self.base.verbs.settings.wire == Wire::Invar {
            while may_tell(self.base.gate) && self.base.poll() {}
            let rows_done = self.rows_arrived();
            self.base.line.send(&Control::Close { rows_done });
        }
        // If a receive is done, its slots had arrived.
        let is_waiting = self.base.gate == Gate::Open && self.base.reqs.live() > 0;
        let [slots] = *self.base.reqs.at(0).value.slots.wrs();
        let Base { route: Arrivals { flushes, .. }, verbs, line, .. } = self.base;
        Closing::new(flushes, verbs, line.into_stream(), is_waiting.then_some(&slots))
    }

    /// The number of receives and flushes that have started and were not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live() + self.base.route.flushes.outstanding()
    }

    /// The number of receives that have arrived, whether or not they were tested.
    fn rows_arrived(&mut self) -> u64 {
        let (posted, depth) = (self.rows_posted(), self.depth as u64);
        let Base { reqs, route, .. } = &mut self.base;
        route.rows_arrived(reqs, posted.saturating_sub(depth)..posted, depth)
    }

    /// The number of receives posted.
    pub fn rows_posted(&self) -> u64 {
        self.idx - 1
    }
}

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// The slow path of [`RecvComm::irecv`].
    #[inline(never)]
    fn irecv_slow(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, Failed> {
        if self.base.gate != Gate::Open && !self.pass()? {
            return Ok(None);
        }
        if !(1..=self.group_max).contains(&bufs.len()) {
            return self.refuse(match bufs.len() {
                1..=RECVS_MAX => TOO_FEW_ROWS,
                _ => "a receive takes 1 to 8 buffers",
            });
        }
        let Some(request) = self.lay_out(bufs.len(), |r| bufs.get(r).copied()) else {
            return match bufs.iter().find(|buf| !buf.is_sound()) {
                Some(buf) => self.refuse_buf(buf),
                None if self.base.reqs.come_around() => self.irecv_slow(bufs),
                None => Ok(None),
            };
        };
        if N::RAILS_MAX > 1 {
            let Base { reqs, verbs, .. } = &mut self.base;
            let only = only_qp(verbs, self.idx - 1, bufs.len(), bufs[0].len);
            let events = awaited_on_rails(request.row(), qps_of(verbs, only));
            reqs.at(request.raw()).rearm(events);
            self.post_on_rails(only)?;
            return Ok(Some(request));
        }
        self.post_row::<false>();
        if self.base.gate == Gate::Failed { Err(Failed) } else { Ok(Some(request)) }
    }

    /// Lays out a receive of `nreqs` buffers in the next row, and arms its request. Returns `None`, and
    /// changes nothing that counts, if the row's request is not free or if a buffer is not sound.
    #[inline(always)]
    fn lay_out(&mut self, nreqs: usize, buf: impl Fn(usize) -> Option<RecvBuf>) -> Option<Request> {
        let Base { reqs, verbs, .. } = &mut self.base;
        let (request, entry) = reqs.next_free()?;
        let row = Row::of(verbs.control.words(), request.row() as u8)?;
        let Receiving { slots, events, sizes, .. } = &mut entry.value;
        let (events, idx) = (*events, self.idx);
        // An absent buffer takes any size.
        *sizes = [u32::MAX; RECVS_MAX];
        for (r, size) in sizes.iter_mut().enumerate().take(nreqs) {
            let buf = buf(r).filter(RecvBuf::is_sound)?;
            *size = buf.len;
            grant(verbs, &mut self.granted, buf.rkey);
            verbs.store_slot((&row, request.row()), (nreqs, r), &buf, idx, &mut self.rail_keys);
        }
        let wr_id = request.row() as u64 | (nreqs as u64 - 1) << 32;
        if verbs.settings.use_inline && nreqs > 1 {
            // A row of several slots may be longer than the NIC can send inline.
            slots.set_flags(0, slots.wrs()[0].flags - SendFlags::INLINE);
        }
        set_slots(slots, wr_id, verbs.row_bytes(nreqs));
        self.recv_wr.wr_id = wr_id;
        entry.arm(request.raw(), events);
        Some(request)
    }

    /// Refuses a receive because of one of its buffers.
    #[cold]
    #[inline(never)]
    fn refuse_buf(&mut self, buf: &RecvBuf) -> Result<Option<Request>, Failed> {
        if buf.len > LEN_MAX {
            return Err(self.base.fail(Error::TooLong(buf.len)));
        }
        self.refuse("a receive buffer's address and rkey must not be 0")
    }

    #[cold]
    #[inline(never)]
    fn refuse(&mut self, why: &'static str) -> Result<Option<Request>, Failed> {
        Err(self.base.fail(Error::Argument(why)))
    }

    fn flush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, Failed> {
        match self.base.gate {
            // Data that a peer sent before it closed has arrived, and is flushed as usual.
            Gate::Open | Gate::Closed | Gate::Recovering => {}
            Gate::Pending => return Err(self.base.fail(Error::Argument(FLUSH_TOO_EARLY))),
            Gate::Group | Gate::Failed => return Err(self.base.refuse()),
        }
        let Base { route: Arrivals { flushes, .. }, verbs, .. } = &mut self.base;
        match flushes.start(&verbs.nic, bufs) {
            Ok(flush) => Ok(flush),
            Err((request, error)) => {
                self.base.rail_refused(error)?;
                Ok(Flush::Started(request))
            }
        }
    }

    /// Handles a call when the gate is not open. On the wire of NCCL 2.14 this waits for the ready word
    /// (`net_ib.cc ncclRecvCheck`). Returns whether the gate is now open.
    #[cold]
    fn pass(&mut self) -> Result<bool, Failed> {
        match self.base.gate {
            Gate::Pending => {}
            Gate::Recovering => return Ok(false),
            _ => return Err(self.base.refuse()),
        }
        self.exchange().map_err(|error| self.base.fail(error))
    }

    /// Continues the exchange of connection data. Returns whether it is over.
    pub(in crate::comm) fn exchange(&mut self) -> Result<bool, Error> {
        let Base { line, pending, .. } = &mut self.base;
        if let Some(exchange) = pending
            && !is_ready(line.stream_mut(), exchange)?
        {
            return Ok(false);
        }
        self.base.pending = None;
        self.base.gate = Gate::Open;
        Ok(true)
    }
}

const TOO_FEW_ROWS: &str =
    "a receive of more buffers than FIFO rows: set INVAR_FIFO_DEPTH to 8 or more at both ends";

const FLUSH_TOO_EARLY: &str = "iflush in stage PendingReady: nothing was received yet, since the peer's ready word has not come";

/// Grants the peer a key, unless the comm remembers that it did so.
#[inline(always)]
fn grant<N: Nic>(verbs: &Verbs<N>, granted: &mut [u32; GRANTED], rkey: u32) {
    let last = &mut granted[rkey as usize % GRANTED];
    if N::GRANTS && *last != rkey {
        *last = rkey;
        verbs.nic.grant(&verbs.pd, rkey);
    }
}
