//! The receiving end of a connection.

mod inbox;

use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use invar_core::comm::{RecvBuf, Request};
use invar_core::conn::Stream;
use invar_core::error::{Ends, Error};
use invar_core::fifo::RECVS_MAX;
use invar_core::metrics::EndNumbers;
use invar_core::nic::NicCounters;
use invar_core::socket::{
    FRAME_BYTES, LANES_MAX, Links, Posted, Receiver, RecvStep, ResumableSocket, SocketNews, Target,
    VIEW_FRAME_BYTES, ViewFrame,
};
use invar_core::stall::{Counts, OwnNetwork, Role, StallSettings, Wait, Watch};

use super::lane::{LaneDirection, Lanes};
use super::pointer::pointer;
use super::resume::{Resumption, reset};
use crate::clock::now_ns;
use crate::interest::Interest;
use crate::tcp::OobStream;
use inbox::Inbox;

/// The most view frames that one look reads. A correct sender sends one.
const VIEWS_AT_ONCE: usize = 4;

/// Room for the news of many buffers, and for the acknowledges of all sockets.
const NEWS_BYTES: usize = 2 * (LANES_MAX + 1) * FRAME_BYTES;

/// The receiving end of a connection. Dropping it closes the connection.
pub struct RecvComm {
    /// The sockets that the sender writes to; `None` once the connection has failed. This field drops
    /// first, so its threads end before anything else.
    pub(super) links: Option<Inbound>,
    receiver: Box<Receiver>,
    inbox: Inbox,
    pub(super) control: ResumableSocket<OobStream>,
    /// How lost sockets are resumed, if this end acknowledges.
    pub(super) resumption: Option<Resumption>,
    /// Buffer of the frames that are being sent over control.
    news: [u8; NEWS_BYTES],
    news_unsent: std::ops::Range<usize>,
    pub(super) ends: Ends,
    watch: Watch,
    /// Bytes of the messages that the program has found received.
    bytes: u64,
}

pub(super) struct Inbound {
    pub(super) lanes: Lanes<Target>,
    pub(super) main: ResumableSocket<OobStream>,
    /// The error that ended main or control, while main or lanes still deliver earlier bytes.
    end: Option<Error>,
    /// The peer does not know that a socket is lost, and would learn it from a reset of main.
    needs_reset: bool,
}

impl RecvComm {
    pub(super) fn new(
        links: Links<OobStream>,
        threads: u16,
        resumption: Option<Resumption>,
    ) -> Self {
        let Links { control, main, lanes, ends, shares_views, resumes } = links;
        let receiver = Box::new(Receiver::new(lanes.len() as u16).resuming(resumes));
        let lanes = Lanes::new(lanes, LaneDirection::Recv, threads);
        RecvComm {
            links: Some(Inbound { lanes, main, end: None, needs_reset: false }),
            receiver,
            inbox: Inbox::new(),
            control,
            resumption: resumption.filter(|_| resumes),
            news: [0; NEWS_BYTES],
            news_unsent: 0..0,
            ends,
            watch: Watch::new(StallSettings::default(), Role::Receiver, shares_views, true),
            bytes: 0,
        }
    }

    /// Posts a receive of 1 to 8 buffers, each for one message with the buffer's tag. On `None` no
    /// request is free: call again. Keys are ignored.
    ///
    /// # Errors
    /// [`Error::Argument`] or [`Error::TooLong`] if a buffer is invalid; the connection continues. All
    /// other errors are permanent: every later call returns the same one.
    ///
    /// # Safety
    /// Until the request is done or this end is dropped, the buffers stay valid. Nobody else accesses
    /// them, except by atomic operations on whole aligned words.
    pub unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, Error> {
        let mut posted = [Posted { len: 0, tag: 0 }; RECVS_MAX];
        let Some(posted) = posted.get_mut(..bufs.len()) else {
            return Err(Error::Argument("a receive takes 1 to 8 buffers"));
        };
        for (to, buf) in posted.iter_mut().zip(bufs) {
            pointer(buf.addr, buf.len)?;
            *to = Posted { len: buf.len, tag: buf.tag };
        }
        match self.receiver.irecv(posted) {
            Ok(None) => Ok(None),
            Ok(Some(request)) => {
                self.inbox.note(request.row(), bufs)?;
                Ok(Some(request))
            }
            Err(error) => {
                self.close_if_over();
                Err(error)
            }
        }
    }

    /// Whether a receive is done. If so, returns the length of each message in the order of the buffers,
    /// and the request is over. The call moves bytes of all requests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], or the error that ended the connection, which every call returns.
    pub fn test(&mut self, request: &Request) -> Result<Option<&[u32]>, Error> {
        if self.receiver.is_waiting(request) {
            self.progress();
        }
        let received = self.receiver.test(request)?;
        self.bytes += received.iter().copied().flatten().map(|len| u64::from(*len)).sum::<u64>();
        Ok(received)
    }

    /// Whether a receive has all its messages and is not yet tested as done.
    pub fn is_done(&mut self, request: &Request) -> bool {
        self.receiver.is_done(request)
    }

    /// Checks whether the peer's host is still alive. Main does not detect this while it also has data
    /// to send. The call costs a system call, so a waiting end makes it only now and then. A waiting end
    /// notices by itself when the peer closes.
    ///
    /// # Errors
    /// The connection has failed. Completed requests can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        let error = self.control.stream().unreachable().filter(|_| self.resumption.is_none());
        if let Some(error) = error {
            // Messages that have arrived count, whatever happened to the peer afterwards.
            self.progress();
            self.receiver.fail(Error::PeerClosed(error));
        }
        if self.resumption.is_some() {
            self.mend();
        }
        if self.links.as_ref().is_some_and(|links| links.end.is_some()) {
            // Messages that have arrived count here too.
            self.progress();
        }
        self.close_if_over();
        self.receiver.end().map_or(Ok(()), Err)
    }

    /// Whether sockets are known to be lost.
    pub fn is_recovering(&self) -> bool {
        self.resumption.as_ref().is_some_and(|resumption| !resumption.is_whole)
    }

    /// Arms what ends a wait for a receive that was just tested in vain.
    pub fn arm(&mut self, interest: &mut Interest) {
        self.receiver.will_sleep();
        self.tell();
        if self.is_recovering() {
            interest.blind();
        }
        let Self { links: Some(links), receiver, inbox, .. } = self else { return };
        if !self.news_unsent.is_empty() && self.control.is_up() {
            interest.room(self.control.stream());
        }
        links.lanes.arm(interest);
        let is_open = links.end.is_none() && links.main.is_up();
        if is_open && receiver.is_starved(inbox.staged().len()) {
            interest.bytes(links.main.stream());
        }
    }

    /// Returns the number of receives that are posted and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.receiver.outstanding()
    }

    /// Returns the socket that announces every message; the control socket once main is closed.
    pub fn main_socket(&self) -> BorrowedFd<'_> {
        let main = self.links.as_ref().map_or(&self.control, |links| &links.main);
        main.stream().as_fd()
    }

    /// The error that has ended the comm, if it has ended.
    pub fn end(&self) -> Option<Error> {
        self.receiver.end()
    }

    /// Sets how this end looks for stalls.
    #[must_use]
    pub fn watching(mut self, settings: StallSettings) -> Self {
        self.watch = self.watch.with_settings(settings);
        self
    }

    /// Looks whether the connection stands still. Asks the peer for its view, answers the peer, and warns.
    pub fn look_for_stall(&mut self, now_ns: u64) {
        self.read_views();
        let is_recovering = self.is_recovering();
        let Self { receiver, watch, control, ends, .. } = self;
        let network = || OwnNetwork::of_host(control.host_answers());
        let counts = Counts { is_recovering, ..receiver.counts() };
        let own = watch.attend(counts, now_ns, network, NicCounters::default, ends);
        self.tell();
        // News on their way tell the peer enough. A peer that still waits asks again.
        if let Some((view, asks)) = own
            && self.news_unsent.is_empty()
        {
            self.news[..VIEW_FRAME_BYTES].copy_from_slice(&ViewFrame { view, asks }.to_bytes());
            self.news_unsent = 0..VIEW_FRAME_BYTES;
            self.tell();
        }
    }

    /// Takes the views that the sender has sent. If the ends exchange views, control brings nothing else to
    /// this end. Other bytes stay: if messages go in both directions, the sending end reads them.
    fn read_views(&mut self) {
        let mut bytes = [0; VIEW_FRAME_BYTES];
        for _ in 0..VIEWS_AT_ONCE {
            let is_whole = self.watch.is_shared()
                && self.control.is_up()
                && self.control.stream().peek(&mut bytes) == VIEW_FRAME_BYTES;
            if !is_whole || !ViewFrame::is_begun(&bytes) {
                return;
            }
            // These bytes were there just now, and only this end reads them.
            if self.control.stream_mut().recv(&mut bytes) != Ok(VIEW_FRAME_BYTES) {
                return;
            }
            let ViewFrame { view, asks } = ViewFrame::parse(&bytes);
            self.watch.heard(view, asks);
        }
    }

    /// Whether the host is to note the program's next call with [`RecvComm::called`].
    #[inline(always)]
    pub fn notes_call(&self) -> bool {
        self.watch.is_armed()
    }

    /// If nothing is under way, returns the socket that is readable when the peer has something to say, or has
    /// gone, and how many nanoseconds the next look may wait. The look comes sooner if the socket is readable or the
    /// program makes a call.
    pub fn rest(&self) -> Option<(RawFd, u64)> {
        let is_calm = !self.is_recovering() && self.receiver.end().is_none();
        let rest_ns = self.watch.rest_ns().filter(|_| is_calm)?;
        Some((self.control.stream().as_fd().as_raw_fd(), rest_ns))
    }

    /// Notes that the program goes to sleep in the wait that it called last, or with `None` that the wait is over.
    pub fn park(&mut self, asleep_ns: Option<u64>) {
        self.watch.park(asleep_ns);
    }

    /// Notes a call of the program. `wait` is the call that could do nothing.
    pub fn called(&mut self, wait: Wait, now_ns: u64) {
        self.watch.called(wait, now_ns);
    }

    /// The watch over this end.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The numbers for operators; see [`metrics`](invar_core::metrics).
    pub fn numbers(&self) -> EndNumbers {
        let main = self.links.iter().map(|links| &links.main);
        let lanes = self.links.iter().flat_map(|links| links.lanes.sockets().0);
        let sockets = main.chain(lanes).chain([&self.control]);
        self.watch.numbers(self.bytes, sockets.map(ResumableSocket::resumed).sum())
    }

    /// Returns the names of both ends.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    pub(super) fn goes_both_ways(&mut self) {
        self.inbox.goes_both_ways();
        self.watch.stop_sharing();
    }

    fn progress(&mut self) {
        if self.is_recovering() {
            self.mend();
        }
        let Self { links: Some(links), receiver, inbox, control, .. } = self else { return };
        if let Err(error) = links.progress(receiver, inbox) {
            receiver.fail(error);
        }
        if !(control.is_up() && links.main.is_up() && links.lanes.are_up()) {
            self.lost();
        }
        self.tell();
        self.close_if_over();
    }

    /// Notes that a socket is lost.
    fn lost(&mut self) {
        self.resumption.iter_mut().for_each(|resumption| resumption.is_whole = false);
    }

    /// Sends the sender news about posted buffers, and acknowledges, if it is time.
    fn tell(&mut self) {
        while self.control.is_up() {
            if self.news_unsent.is_empty() {
                let filled = self.receiver.take_news(&mut self.news);
                let lanes = self.links.iter().flat_map(|links| links.lanes.positions());
                let acks = self.receiver.take_acks(lanes, &mut self.news[filled..]);
                self.news_unsent = 0..filled + acks;
            }
            if self.news_unsent.is_empty() {
                return;
            }
            match self.control.stream_mut().send(&self.news[self.news_unsent.clone()]) {
                Ok(0) => return,
                Ok(sent) => self.news_unsent.start += sent,
                Err(error) => {
                    self.news_unsent = 0..0;
                    // If the sender is gone, the other sockets show whether all its data has arrived.
                    if self.control.lose_sending(error).is_ok() {
                        self.lost();
                    }
                }
            }
        }
    }

    /// Makes lost sockets go on over new connections. An acceptor also looks whether the peer has called.
    #[cold]
    fn mend(&mut self) {
        if self.receiver.end().is_some() {
            return;
        }
        if let Err(error) = self.try_to_mend() {
            self.receiver.fail(error);
        }
    }

    fn try_to_mend(&mut self) -> Result<(), Error> {
        let Self { links: Some(links), receiver, control, resumption, ends, .. } = self else {
            return Ok(());
        };
        let Some(resumption) = resumption else { return Ok(()) };
        let now_ns = now_ns();
        let Inbound { main, lanes, end, needs_reset } = links;
        if end.is_some() {
            return Ok(());
        }
        let sockets = [&mut *control, main].into_iter().chain(lanes.sockets_mut());
        // A reset discards what main and lanes bring.
        *needs_reset |= resumption.attend(sockets, now_ns, 1)?;
        match resumption.poll(control, now_ns, ends) {
            Ok(SocketNews::None | SocketNews::Lost(_)) => {}
            Ok(SocketNews::Renewed) => {
                self.news_unsent = 0..0;
                control.resume(0);
            }
            Ok(SocketNews::Resumed(buffers)) => receiver.control_resumed(buffers)?,
            // Messages that have arrived count, whatever happened to the peer afterwards.
            Err(error) => _ = end.get_or_insert(error),
        }
        match resumption.poll(main, now_ns, ends) {
            Ok(SocketNews::None | SocketNews::Lost(_) | SocketNews::Resumed(_)) => {}
            Ok(SocketNews::Renewed) => main.resume(receiver.main_position()),
            Err(error) => _ = end.get_or_insert(error),
        }
        if let Err(error) = lanes.mend(now_ns, resumption, ends) {
            end.get_or_insert(error);
        }
        resumption.note(control.is_up() && main.is_up() && lanes.are_up(), ends);
        *needs_reset &= !resumption.is_whole;
        Ok(())
    }

    /// Closes a failed connection, so that no sender waits for it. The function first sends the news of
    /// posted buffers, which may contain the reason. It closes both directions of the sockets if both
    /// are in use.
    fn close_if_over(&mut self) {
        if self.receiver.end().is_none() || self.links.is_none() {
            return;
        }
        self.tell();
        if let Some(Inbound { lanes, main, .. }) = self.links.take() {
            main.stream().shutdown();
            lanes.sockets().0.for_each(|socket| socket.stream().shutdown());
        }
    }
}

impl Drop for RecvComm {
    /// Ends sending on control. If the other direction is still open, this tells the peer that nothing
    /// more is received.
    fn drop(&mut self) {
        // Unread bytes would reset control, and what the sender has not read yet would be lost.
        self.read_views();
        self.tell();
        self.control.stream().end_sending();
    }
}

impl Inbound {
    /// Moves available bytes to their destinations.
    fn progress(&mut self, receiver: &mut Receiver, inbox: &mut Inbox) -> Result<(), Error> {
        let is_over = self.end.is_some();
        if let Err(failed) = self.lanes.collect(None, is_over, |to| receiver.chunk_done(to)) {
            match self.end {
                Some(error) => return Err(error),
                None => self.lanes.lose(failed)?,
            }
        }
        if !receiver.is_starved(inbox.staged().len()) {
            self.settle(receiver, inbox)?;
            if !receiver.is_starved(inbox.staged().len()) {
                return Ok(());
            }
        }
        let read = match self.main.brings_bytes() {
            true => inbox.read(self.main.stream(), receiver),
            false => Ok(0),
        };
        match read {
            Ok(0) => {
                receiver.idle();
                if mem::take(&mut self.needs_reset) && self.main.is_up() {
                    reset(&mut self.main)?;
                }
            }
            Ok(read) => {
                receiver.has_read(read);
                return self.settle(receiver, inbox);
            }
            Err(error) => {
                if let Err(error) = self.main.lose(error) {
                    self.end.get_or_insert(error);
                }
            }
        }
        match self.end {
            Some(error) if self.lanes.is_idle() => Err(error),
            _ => Ok(()),
        }
    }

    /// Handles the staged bytes.
    fn settle(&mut self, receiver: &mut Receiver, inbox: &mut Inbox) -> Result<(), Error> {
        let mut is_spread = false;
        while let Some(step) = receiver.next(inbox.staged())? {
            match step {
                RecvStep::Skip(bytes) => inbox.skip(bytes),
                RecvStep::Place { to, offset, len } => {
                    receiver.placed(inbox.place(to, offset, len))
                }
                RecvStep::Spread { to, chunks } => {
                    for chunk in chunks {
                        let (start, len) = (inbox.at(to, chunk.offset), chunk.len as usize);
                        // SAFETY: The chunk is a part of a buffer or parking place that the message fits
                        // into. That memory stays until the message is complete or this end is dropped,
                        // and this end drops its lanes first.
                        unsafe { self.lanes.push(chunk.lane.into(), start, len, to) };
                    }
                    is_spread = true;
                }
                RecvStep::Park { place, len } => inbox.park(place, len)?,
                RecvStep::Unpark { place, to, len } => inbox.unpark(place, to, len),
            }
        }
        if is_spread {
            self.lanes.wake();
        }
        Ok(())
    }
}
