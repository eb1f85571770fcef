//! The sending end of a connection.

mod resume;

use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;

use invar_core::comm::{Request, SendBuf};
use invar_core::conn::{Stream, StreamError};
use invar_core::error::{Ends, Error};
use invar_core::fifo::DEPTH_MAX;
use invar_core::metrics::EndNumbers;
use invar_core::nic::NicCounters;
use invar_core::socket::{
    FRAME_BYTES, KEPT_BYTES, Links, Outgoing, ResumableSocket, Sender, VIEW_FRAME_BYTES, ViewFrame,
};
use invar_core::stall::{Counts, OwnNetwork, Role, StallSettings, Wait, Watch};

use super::lane::{LaneDirection, Lanes};
use super::pointer::pointer;
use super::resume::Resumption;
use crate::interest::Interest;
use crate::memory::{Gather, Scatter};
use crate::tcp::OobStream;
use resume::{SLEEP_LOOKS, copy};

/// Most reads of the control socket in a call.
const READS_AT_ONCE: usize = 8;
/// Maximum number of messages, and approximate maximum of bytes, in one system call.
const BATCH_MESSAGES: usize = 16;
const BATCH_BYTES: usize = 1 << 20;

/// Up to this length, the sender copies any message behind its frame, because the kernel takes longer for a list of two
/// pieces.
const GATHERED_BYTES: u32 = 1008;

/// Number of fruitless looks for which one read of control is enough. A read that finds nothing takes longer than they do.
const LOOKS_PER_READ: u32 = 8;

/// The sending end of a connection. Dropping it closes the connection; data already sent still arrives.
pub struct SendComm {
    // This field drops first, so its threads end before anything else.
    pub(super) lanes: Lanes<usize>,
    sender: Box<Sender>,
    pub(super) main: ResumableSocket<OobStream>,
    pub(super) control: ResumableSocket<OobStream>,
    /// How lost sockets are resumed, if the receiver acknowledges.
    pub(super) resumption: Option<Resumption>,
    /// Addresses of the messages' first bytes, by the index of their requests. `None` if the message is copied.
    starts: Box<[Option<NonNull<u8>>; DEPTH_MAX]>,
    /// Copies of messages, each behind room for its frame.
    copies: Box<[Vec<u8>; DEPTH_MAX]>,
    /// Memory for the next copies.
    spare: Vec<Vec<u8>>,
    /// Number of looks that have found no acknowledge, and number of messages that were looked at for long copies.
    idle_looks: u32,
    freed: u64,
    pub(super) ends: Ends,
    watch: Watch,
    /// Bytes of the messages that the program has found sent.
    bytes: u64,
    /// A view frame, and the range of its bytes that control has not taken.
    view: [u8; VIEW_FRAME_BYTES],
    view_unsent: Range<usize>,
}

// SAFETY: The caller of `isend` promised the memory behind the pointers, whichever thread continues.
unsafe impl Send for SendComm {}

impl SendComm {
    /// Makes a sending end; `truncates` says whether a message longer than its buffer is cut.
    pub(super) fn new(
        links: Links<OobStream>,
        threads: u16,
        truncates: bool,
        resumption: Option<Resumption>,
    ) -> Self {
        let Links { control, main, lanes, ends, shares_views, resumes } = links;
        let sender = Sender::new(lanes.len() as u16).truncating(truncates).resuming(resumes);
        let lanes = Lanes::new(lanes, LaneDirection::Send, threads);
        let starts = Box::new([None; DEPTH_MAX]);
        let copies = Box::new([const { Vec::new() }; DEPTH_MAX]);
        let watch = Watch::new(StallSettings::default(), Role::Sender, shares_views, true);
        let (view, view_unsent) = ([0; VIEW_FRAME_BYTES], 0..0);
        SendComm {
            lanes,
            sender: Box::new(sender),
            main,
            control,
            resumption: resumption.filter(|_| resumes),
            starts,
            copies,
            spare: Vec::new(),
            idle_looks: 0,
            freed: 0,
            ends,
            watch,
            bytes: 0,
            view,
            view_unsent,
        }
    }

    /// Starts to send a message, whether or not the peer has posted a buffer for it: up to 4 MiB in 256
    /// messages may go ahead. Returns `None` if that limit or the requests are used up: call again.
    ///
    /// The message moves when any request is tested. Keys are ignored.
    ///
    /// # Errors
    /// [`Error::SizeMismatch`] if the buffer is known to be shorter and messages are not cut
    /// ([`SocketSettings::truncate`](super::SocketSettings)), and [`Error::TooLong`]: the connection
    /// continues. All other errors are permanent: every later call returns the same one.
    ///
    /// # Safety
    /// The buffer stays valid, and nobody writes it, until the request is done or this end is dropped.
    pub unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        let start = pointer(buf.addr, buf.len)?;
        if self.sender.wants_news(buf.len, tag) {
            self.read_control()?;
        }
        let Some((request, chunks)) = self.sender.isend(buf.len, tag)? else {
            // A program that waits here calls no test.
            self.progress();
            return Ok(None);
        };
        // The message may be shorter than asked for, as its buffer is.
        let (len, is_kept) = self.sender.kept(&request);
        self.starts[request.row()] = match is_kept || len <= GATHERED_BYTES {
            true => {
                let to = &mut self.copies[request.row()];
                if len > KEPT_BYTES {
                    *to = self.spare.pop().unwrap_or_default();
                }
                // SAFETY: The caller promises that the buffer is valid.
                unsafe { copy(to, start, len as usize) };
                None
            }
            false => Some(start),
        };
        if chunks.clone().next().is_some() {
            for chunk in chunks {
                let (offset, len) = (chunk.offset as usize, chunk.len as usize);
                // SAFETY: The chunk is a part of the buffer, and the caller promises what `push` asks
                // for.
                unsafe {
                    let start = start.add(offset);
                    self.lanes.push(chunk.lane.into(), start, len, request.row());
                }
            }
            self.lanes.wake();
        }
        Ok(Some(request))
    }

    /// Returns the length of the buffer that the next message with `tag` would meet, or `None` if the
    /// peer has posted none.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn room(&mut self, tag: u32) -> Result<Option<u32>, Error> {
        if self.sender.room(tag).is_none() {
            self.read_control()?;
        }
        Ok(self.sender.room(tag))
    }

    /// Whether a send is done. If so, returns the number of sent bytes, and the request is over. The
    /// call moves bytes of all requests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], or the error that ended the connection, which every call returns.
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        match self.sender.test(request) {
            Ok(None) => {
                self.progress();
                self.sender.test(request)
            }
            tested => tested,
        }
        .inspect(|sent| self.bytes += u64::from(sent.unwrap_or(0)))
    }

    /// Whether a send is done and not yet tested.
    pub fn is_done(&mut self, request: &Request) -> bool {
        self.sender.is_done(request)
    }

    /// Checks whether the peer's end is still open, which an idle end does not notice by itself. The
    /// call costs a system call, so make it only now and then.
    ///
    /// # Errors
    /// The connection has failed. Completed requests can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        // Messages that the sockets have taken count, whatever the peer did afterwards.
        self.collect();
        self.read_control()?;
        if self.resumption.is_some() {
            self.mend();
            if self.sender.is_behind() {
                self.progress();
            }
        }
        self.sender.end().map_or(Ok(()), Err)
    }

    /// Whether sockets are lost, or bytes are to be written again.
    pub fn is_recovering(&self) -> bool {
        let is_behind = self.sender.is_behind() || self.lanes.is_behind();
        !self.is_whole() || self.resumption.is_some() && is_behind
    }

    /// Whether no socket is known to be lost.
    fn is_whole(&self) -> bool {
        self.resumption.as_ref().is_none_or(|resumption| resumption.is_whole)
    }

    /// Arms what ends a wait for a send that was just tested in vain, or that could not start. The call first
    /// takes the peer's news, so that only further news ends the wait.
    pub fn arm(&mut self, interest: &mut Interest) {
        // The next call returns the error.
        let _ = self.read_control();
        if self.sender.end().is_some() {
            return;
        }
        if self.awaits_ack() {
            self.idle(SLEEP_LOOKS);
        }
        if !self.is_whole() || self.awaits_ack() {
            interest.blind();
        }
        if self.sender.has_outgoing() && self.main.is_up() {
            interest.room(self.main.stream());
        }
        self.lanes.arm(interest);
        if self.control.is_up() {
            interest.bytes(self.control.stream());
        }
    }

    /// Returns the number of sends that have started and are not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// Whether the peer's host has all messages whose requests are done. A request is done once the kernel
    /// has the message. Returns true as well if the connection has ended.
    pub fn is_settled(&self) -> bool {
        let mut sockets = iter::once(&self.main).chain(self.lanes.sockets().0);
        let are_settled = match self.resumption {
            // A connection that has ended settles nothing.
            Some(_) => {
                !self.is_recovering()
                    && sockets.all(|socket| socket.stream().host_answers() == Some(true))
            }
            None => sockets.all(|socket| socket.stream().is_settled()),
        };
        self.end().is_some() || are_settled
    }

    /// Returns the socket that announces every message.
    pub fn main_socket(&self) -> BorrowedFd<'_> {
        self.main.stream().as_fd()
    }

    /// The error that has ended the comm, if it has ended.
    pub fn end(&self) -> Option<Error> {
        self.sender.end()
    }

    /// Sets how this end looks for stalls.
    #[must_use]
    pub fn watching(mut self, settings: StallSettings) -> Self {
        self.watch = self.watch.with_settings(settings);
        self
    }

    /// Looks whether the connection stands still. Asks the peer for its view, answers the peer, and warns. Call
    /// this after [`SendComm::check_peer`], which reads what the peer says.
    pub fn look_for_stall(&mut self, now_ns: u64) {
        let is_recovering = !self.is_whole();
        let Self { sender, watch, control, ends, .. } = self;
        if let Some(ViewFrame { view, asks }) = sender.take_view().filter(|_| watch.is_shared()) {
            watch.heard(view, asks);
        }
        let network = || OwnNetwork::of_host(control.host_answers());
        let counts = Counts { is_recovering, ..sender.counts() };
        let own = watch.attend(counts, now_ns, network, NicCounters::default, ends);
        // A view that is on its way tells the peer enough.
        if let Some((view, asks)) = own
            && self.view_unsent.is_empty()
        {
            self.view = ViewFrame { view, asks }.to_bytes();
            self.view_unsent = 0..VIEW_FRAME_BYTES;
        }
        while !self.view_unsent.is_empty() && self.control.is_up() {
            match self.control.stream_mut().send(&self.view[self.view_unsent.clone()]) {
                Ok(0) => return,
                Ok(sent) => self.view_unsent.start += sent,
                // The next call notices that the peer is gone.
                Err(_) => self.view_unsent = 0..0,
            }
        }
    }

    pub(super) fn goes_both_ways(&mut self) {
        self.watch.stop_sharing();
    }

    /// Whether the host is to note the program's next call with [`SendComm::called`].
    #[inline(always)]
    pub fn notes_call(&self) -> bool {
        self.watch.is_armed()
    }

    /// If nothing is under way, returns the socket that is readable when the peer has something to say, or has
    /// gone, and how many nanoseconds the next look may wait. The look comes sooner if the socket is readable or the
    /// program makes a call.
    pub fn rest(&self) -> Option<(RawFd, u64)> {
        let is_calm = !self.is_recovering() && self.sender.end().is_none();
        let rest_ns = self.watch.rest_ns().filter(|_| is_calm)?;
        Some((self.control.stream().as_fd().as_raw_fd(), rest_ns))
    }

    /// Notes that the program goes to sleep in the wait that it called last, or with `None` that the wait is over.
    pub fn park(&mut self, asleep_ns: Option<u64>) {
        self.watch.park(asleep_ns);
    }

    /// Notes a call of the program. `wait` is the call that could do nothing.
    pub fn called(&mut self, wait: Wait, now_ns: u64) {
        let Self { sender, watch, .. } = self;
        let is_done = watch.sampler().row().is_some_and(|row| sender.is_sent(row));
        watch.sample(sender.begun(), wait, is_done, now_ns);
        watch.called(wait, now_ns);
    }

    /// The watch over this end.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The numbers for operators; see [`metrics`](invar_core::metrics).
    pub fn numbers(&self) -> EndNumbers {
        let sockets = [&self.control, &self.main].into_iter().chain(self.lanes.sockets().0);
        self.watch.numbers(self.bytes, sockets.map(ResumableSocket::resumed).sum())
    }

    /// Returns the names of both ends.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    fn progress(&mut self) {
        if !self.is_whole() {
            self.mend();
        }
        if self.awaits_ack() {
            if self.idle_looks.is_multiple_of(LOOKS_PER_READ) {
                // The sender has the error.
                let _ = self.read_control();
            }
            self.idle(1);
        }
        self.collect();
        if self.main.is_up()
            && self.sender.has_outgoing()
            && let Err(error) = self.write_main()
            && self.is_peer_open()
        {
            let lost = self.main.lose_sending(error);
            self.lost(lost);
        }
    }

    /// Notes the chunks that are done.
    fn collect(&mut self) {
        let Self { lanes, sender, resumption, .. } = self;
        if !lanes.have_chunks() {
            return;
        }
        let acks = resumption.as_ref().map(|_| *sender.lane_acks());
        let collected = lanes
            .collect(acks.as_ref().map(|acks| &acks[..]), false, |index| sender.chunk_done(index));
        if let Err(failed) = collected
            && self.is_peer_open()
        {
            let lost = self.lanes.lose(failed);
            self.lost(lost);
        }
    }

    /// Writes as many frames and as much payload to main as fit.
    fn write_main(&mut self) -> Result<(), StreamError> {
        loop {
            let (sent, bytes) = match self.sender.only_outgoing() {
                Some(only) if self.starts[only.index].is_none() => self.write_copied(&only)?,
                _ => self.write_batch()?,
            };
            self.sender.wrote(sent);
            if sent < bytes || !self.sender.has_outgoing() {
                return Ok(());
            }
        }
    }

    /// Writes a copied message; returns the number of written bytes and the total.
    fn write_copied(&mut self, message: &Outgoing) -> Result<(usize, usize), StreamError> {
        let Outgoing { index, frame, frame_written, payload } = message;
        let copy = &mut self.copies[*index];
        copy[..FRAME_BYTES].copy_from_slice(frame);
        let rest = &copy[frame_written + payload.start as usize..][..message.bytes()];
        Ok((self.main.stream().send_gather(&[Gather::bytes(rest)])?, rest.len()))
    }

    /// Writes several messages or a long one; returns the number of written bytes and the total.
    fn write_batch(&mut self) -> Result<(usize, usize), StreamError> {
        let mut frames = [([0; FRAME_BYTES], 0); BATCH_MESSAGES];
        let mut payloads = [(NonNull::dangling(), 0); BATCH_MESSAGES];
        let (mut count, mut bytes) = (0, 0);
        for outgoing in self.sender.outgoing().take(BATCH_MESSAGES) {
            let offset = outgoing.payload.start as usize;
            let start = match self.starts[outgoing.index] {
                Some(start) => start,
                None => NonNull::from(&self.copies[outgoing.index][FRAME_BYTES..]).cast(),
            };
            // SAFETY: The offset lies within the message.
            let start = unsafe { start.add(offset) };
            payloads[count] = (start, outgoing.payload.len());
            frames[count] = (outgoing.frame, outgoing.frame_written);
            bytes += outgoing.bytes();
            count += 1;
            if bytes >= BATCH_BYTES {
                break;
            }
        }
        let mut pieces = [Gather::bytes(&[]); 2 * BATCH_MESSAGES];
        for (i, (frame, written)) in frames[..count].iter().enumerate() {
            pieces[2 * i] = Gather::bytes(&frame[*written..]);
            let (start, len) = payloads[i];
            // SAFETY: The range is a part of a copy, or of a message that is not done, whose memory the caller of
            // `isend` keeps.
            pieces[2 * i + 1] = unsafe { Gather::from_raw(start, len) };
        }
        Ok((self.main.stream().send_gather(&pieces[..2 * count])?, bytes))
    }

    /// Reads the peer's news about posted buffers. A peer that sends news without end must not keep the
    /// caller, so that some may stay for the next call.
    fn read_control(&mut self) -> Result<(), Error> {
        let mut bytes = [0; 256 * FRAME_BYTES];
        for _ in 0..READS_AT_ONCE {
            if let Some(error) = self.sender.end() {
                return Err(error);
            }
            if !self.control.brings_bytes() {
                break;
            }
            match self.control.stream().recv_scatter(&mut [Scatter::bytes(&mut bytes)]) {
                Ok(received) => {
                    self.sender.take_control(&bytes[..received])?;
                    self.free_copies();
                    if received < bytes.len() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    let lost = self.control.lose(error);
                    self.lost(lost);
                    break;
                }
            }
        }
        self.sender.end().map_or(Ok(()), Err)
    }
}

impl Drop for SendComm {
    /// Ends sending. If the other direction is still open, this tells the peer that nothing more comes.
    fn drop(&mut self) {
        // Unread bytes would reset control.
        let _ = self.read_control();
        self.main.stream().end_sending();
        self.lanes.sockets().0.for_each(|socket| socket.stream().end_sending());
    }
}
