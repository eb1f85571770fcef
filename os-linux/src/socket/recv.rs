//! The receiving end of a connection.

mod inbox;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use invar_core::comm::{RecvBuf, Request};
use invar_core::conn::{Stream, StreamError};
use invar_core::error::{Ends, Error};
use invar_core::fifo::RECVS_MAX;
use invar_core::metrics::EndNumbers;
use invar_core::nic::NicCounters;
use invar_core::socket::{
    FRAME_BYTES, Links, Posted, Receiver, RecvStep, Target, VIEW_FRAME_BYTES, ViewFrame,
};
use invar_core::stall::{OwnNetwork, Role, StallSettings, Wait, Watch};

use super::lane::{LaneDirection, Lanes};
use super::pointer::pointer;
use crate::interest::Interest;
use crate::tcp::OobStream;
use inbox::Inbox;

/// The most view frames that one look reads. A correct sender sends one.
const VIEWS_AT_ONCE: usize = 4;

/// The receiving end of a connection. Dropping it closes the connection.
pub struct RecvComm {
    /// The sockets that the sender writes to; `None` once the connection has failed. This field drops
    /// first, so its threads end before anything else.
    pub(super) links: Option<Inbound>,
    receiver: Box<Receiver>,
    inbox: Inbox,
    pub(super) control: OobStream,
    /// Buffer of the frames that are being sent over control.
    news: [u8; 64 * FRAME_BYTES],
    news_unsent: std::ops::Range<usize>,
    pub(super) ends: Ends,
    watch: Watch,
    /// Bytes of the messages that the program has found received.
    bytes: u64,
}

pub(super) struct Inbound {
    pub(super) lanes: Lanes<Target>,
    pub(super) main: OobStream,
    /// The error that ended main, while lanes still deliver earlier bytes.
    end: Option<StreamError>,
}

impl RecvComm {
    pub(super) fn new(links: Links<OobStream>, threads: u16) -> Self {
        let Links { control, main, lanes, ends, shares_views } = links;
        let receiver = Box::new(Receiver::new(lanes.len() as u16));
        let lanes = Lanes::new(lanes, LaneDirection::Recv, threads);
        RecvComm {
            links: Some(Inbound { lanes, main, end: None }),
            receiver,
            inbox: Inbox::new(),
            control,
            news: [0; 64 * FRAME_BYTES],
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
        if let Some(error) = self.control.unreachable() {
            // Messages that have arrived count, whatever happened to the peer afterwards.
            self.progress();
            self.receiver.fail(Error::PeerClosed(error));
            self.close_if_over();
        }
        self.receiver.end().map_or(Ok(()), Err)
    }

    /// Arms what ends a wait for a receive that was just tested in vain.
    pub fn arm(&mut self, interest: &mut Interest) {
        self.receiver.will_sleep();
        self.tell();
        let Self { links: Some(links), receiver, inbox, .. } = self else { return };
        if !self.news_unsent.is_empty() {
            interest.writable(&self.control);
        }
        links.lanes.arm(interest);
        if links.end.is_none() && receiver.is_starved(inbox.staged().len()) {
            interest.readable(&links.main);
        }
    }

    /// Returns the number of receives that are posted and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.receiver.outstanding()
    }

    /// Returns the socket that announces every message; the control socket once main is closed.
    pub fn main_socket(&self) -> BorrowedFd<'_> {
        self.links.as_ref().map_or(self.control.as_fd(), |links| links.main.as_fd())
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
        let Self { receiver, watch, control, ends, .. } = self;
        let network = || OwnNetwork::of_host(control.host_answers());
        let own = watch.attend(receiver.counts(), now_ns, network, NicCounters::default, ends);
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
            let is_whole =
                self.watch.is_shared() && self.control.peek(&mut bytes) == VIEW_FRAME_BYTES;
            if !is_whole || !ViewFrame::is_begun(&bytes) {
                return;
            }
            // These bytes were there just now, and only this end reads them.
            if self.control.recv(&mut bytes) != Ok(VIEW_FRAME_BYTES) {
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
        let rest_ns = self.watch.rest_ns().filter(|_| self.receiver.end().is_none())?;
        Some((self.control.as_fd().as_raw_fd(), rest_ns))
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
        self.watch.numbers(self.bytes, 0)
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
        let Self { links: Some(links), receiver, inbox, .. } = self else { return };
        if let Err(error) = links.progress(receiver, inbox) {
            receiver.fail(error);
        }
        self.tell();
        self.close_if_over();
    }

    /// Sends the sender news about posted buffers, if it is time.
    fn tell(&mut self) {
        loop {
            if self.news_unsent.is_empty() {
                self.news_unsent = 0..self.receiver.take_news(&mut self.news);
            }
            if self.news_unsent.is_empty() {
                return;
            }
            match self.control.send(&self.news[self.news_unsent.clone()]) {
                Ok(0) => return,
                Ok(sent) => self.news_unsent.start += sent,
                // The sender is gone; the other sockets show whether all its data has arrived.
                Err(_) => self.news_unsent = 0..0,
            }
        }
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
            main.shutdown();
            lanes.streams().0.for_each(OobStream::shutdown);
        }
    }
}

impl Drop for RecvComm {
    /// Ends sending on control. If the other direction is still open, this tells the peer that nothing
    /// more is received.
    fn drop(&mut self) {
        // Unread bytes would reset control, and what the sender has not read yet would be lost.
        self.read_views();
        self.control.end_sending();
    }
}

impl Inbound {
    /// Moves available bytes to their destinations.
    fn progress(&mut self, receiver: &mut Receiver, inbox: &mut Inbox) -> Result<(), Error> {
        self.lanes.collect(|to| receiver.chunk_done(to)).map_err(Error::PeerClosed)?;
        if !receiver.is_starved(inbox.staged().len()) {
            self.settle(receiver, inbox)?;
            if !receiver.is_starved(inbox.staged().len()) {
                return Ok(());
            }
        }
        let read = match self.end {
            None => inbox.read(&self.main, receiver),
            Some(_) => Ok(0),
        };
        match read {
            Ok(0) => receiver.idle(),
            Ok(_) => self.settle(receiver, inbox)?,
            Err(error) => self.end = Some(error),
        }
        match self.end {
            Some(error) if self.lanes.is_idle() => Err(Error::PeerClosed(error)),
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
