//! The receiving end of a connection (`net_socket.cc ncclNetSocketIrecv`, `ncclNetSocketTest`).

mod acks;
mod parked;
mod status;
mod told;

use core::ops::Range;

use heapless::Deque;

use super::layout::is_long;
use super::tag_queue::TagQueue;
use super::wire::{FRAME_BYTES, Frame, FrameKind, SocketFrameError};
use super::{AHEAD_BYTES, AHEAD_MESSAGES, BUFFERS_MAX, CHUNK_BYTES_MIN, Chunks};
use crate::comm::Request;
use crate::error::Error;
use crate::fifo::{DEPTH_MAX, RECVS_MAX};
use crate::request::RequestRing;
use acks::Acks;
use parked::Parked;
use told::Told;

/// A quarter of the limits on what a sender may send ahead. When the unannounced buffers reach one of
/// these limits, the receiver announces them at once, so the sender never has to stop. The receiver
/// assumes messages as long as the last one. So a sender of short messages does not get frequent news
/// of long buffers. Each such packet would cost both ends as much as a message.
const NEWS_MESSAGES: usize = AHEAD_MESSAGES / 4;
const NEWS_BYTES: u64 = AHEAD_BYTES as u64 / 4;

/// Number of fruitless looks in a row after which the receiver announces even few buffers. The sender
/// may wait for them by then. A busy sender is spared the packet.
const IDLE_LOOKS: u32 = 128;

/// Length and tag of a posted buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Length in bytes, at most 2³¹ − 1.
    pub len: u32,
    /// The buffer takes only a message with this tag.
    pub tag: u32,
}

/// Destination of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A buffer of a receive.
    Buffer {
        /// [`Request::index`] of the receive.
        index: u8,
        /// Number of the buffer in the receive.
        member: u8,
    },
    /// The place of this number, where the message is parked until its buffer is posted.
    Parked(u8),
}

/// The next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvStep {
    /// Skip this many bytes: a frame, or the part of a message that its buffer has no room for.
    Skip(usize),
    /// Move the next bytes, as many as have arrived up to `len`, to `offset` of `to`. Then report them
    /// to [`Receiver::placed`].
    Place {
        /// Destination of the message.
        to: Target,
        /// Offset of the first byte in the destination.
        offset: u32,
        /// Number of bytes left of the message, not 0.
        len: u32,
    },
    /// Receive these chunks over the lanes. Each lane carries its chunks in this order, behind those
    /// of earlier messages.
    Spread {
        /// Destination of the whole message.
        to: Target,
        /// Chunks of the message.
        chunks: Chunks,
    },
    /// Make a place of `len` bytes for a parked message.
    Park {
        /// Number of the place.
        place: u8,
        /// Length in bytes.
        len: u32,
    },
    /// Move `len` bytes from a place to their buffer, and free the place.
    Unpark {
        /// Number of the place.
        place: u8,
        /// The buffer to which the bytes move.
        to: Target,
        /// Length in bytes.
        len: u32,
    },
}

/// State of a receive that the request itself does not hold.
#[derive(Debug, Default)]
struct Receiving {
    nreqs: usize,
    /// Length of each posted buffer. Once a message has met the buffer, the received length.
    sizes: [u32; RECVS_MAX],
    /// Number of chunks that are still to arrive over the lanes, for each buffer.
    chunks: [u8; RECVS_MAX],
}

/// The bytes that come next on the main socket.
#[derive(Clone, Copy, Debug)]
enum Main {
    Frame,
    /// The message of the last frame. Its place is reserved and not made yet.
    Park {
        place: u8,
        len: u32,
    },
    /// The message of the last frame, and its destination.
    Message {
        to: Target,
        len: u32,
    },
    Payload {
        to: Target,
        offset: u32,
        len: u32,
    },
    /// Remaining bytes of a message for which its buffer has no room.
    Excess(u32),
}

/// Says where arriving bytes belong, and tracks each receive until it is done.
#[derive(Debug)]
pub struct Receiver {
    reqs: RequestRing<Receiving>,
    /// Buffers that no message has met.
    buffers: TagQueue<(u8, u8), BUFFERS_MAX>,
    /// Messages that were taken from the socket before their buffers were posted.
    parked: Parked,
    /// Buffers that the sender has not been told of.
    news: Deque<Posted, BUFFERS_MAX>,
    /// One of the buffers in `news` may be for a message too long to be sent ahead. Its sender waits
    /// for the news.
    news_awaited: bool,
    /// Buffers that the sender was told of, as far as it may not know them.
    told: Told,
    acks: Acks,
    idle_looks: u32,
    main: Main,
    /// Number of bytes of the arriving message for which its buffer has no room.
    excess: u32,
    /// Length of the latest message.
    last_len: u32,
    frame_seq: u32,
    lanes: u16,
    next_lane: u16,
    /// Number of buffers that were posted, and number of those that are filled.
    posted: u64,
    filled: u64,
    end: Option<Error>,
}

impl Receiver {
    /// Creates the receiver of an open connection with this many lanes.
    pub fn new(lanes: u16) -> Self {
        Receiver {
            reqs: RequestRing::new(DEPTH_MAX, |_| Receiving::default()),
            buffers: TagQueue::new(),
            parked: Parked::new(),
            news: Deque::new(),
            news_awaited: false,
            told: Told::new(),
            acks: Acks::new(),
            idle_looks: 0,
            main: Main::Frame,
            excess: 0,
            // No message has arrived. The first one may have any length.
            last_len: u32::MAX,
            frame_seq: 0,
            lanes,
            next_lane: 0,
            posted: 0,
            filled: 0,
            end: None,
        }
    }

    /// Posts a receive of 1 to 8 buffers. `None` means that no request is free, or no room for the
    /// buffers: call again.
    ///
    /// # Errors
    /// [`Error::Argument`] or [`Error::TooLong`]: a buffer is not valid, and the connection goes on.
    /// [`Error::SizeMismatch`]: a parked message is longer than its buffer, which ends the connection.
    /// After the end, each call returns the error that ended the connection.
    pub fn irecv(&mut self, bufs: &[Posted]) -> Result<Option<Request>, Error> {
        if let Some(error) = self.end {
            return Err(error);
        }
        if !(1..=RECVS_MAX).contains(&bufs.len()) {
            return Err(Error::Argument("a receive takes 1 to 8 buffers"));
        }
        if let Some(buf) = bufs.iter().find(|buf| buf.len > i32::MAX as u32) {
            return Err(Error::TooLong(buf.len));
        }
        let room = self.buffers.room().min(self.news.capacity() - self.news.len());
        let Some((request, entry)) = self.reqs.next_free().filter(|_| room >= bufs.len()) else {
            return Ok(None);
        };
        entry.arm(request.raw(), bufs.len() as u32);
        entry.value.nreqs = bufs.len();
        for (to, buf) in entry.value.sizes.iter_mut().zip(bufs) {
            *to = buf.len;
        }
        self.reqs.advance();
        self.posted += bufs.len() as u64;
        for (member, buf) in (0..).zip(bufs) {
            self.tell(*buf);
            self.meet(request.row() as u8, member, *buf)?;
        }
        Ok(Some(request))
    }

    /// Returns the length of each received message once the receive is done, in the order of the
    /// posted buffers. `request` is over then. `None` means that the receive is not done.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], or the error that ended the connection, the same on every call.
    pub fn test(&mut self, request: &Request) -> Result<Option<&[u32]>, Error> {
        let token = request.raw();
        let end = self.end;
        let entry = self.reqs.at(token);
        if entry.end_if_done(token) {
            return Ok(Some(&entry.value.sizes[..entry.value.nreqs]));
        }
        if entry.is_pending(token) {
            return Ok(None);
        }
        let is_cut_short = entry.is_cut_short(token);
        Err(end.filter(|_| is_cut_short).unwrap_or(Error::UnknownRequest(token)))
    }

    /// Returns the next action for `staged`: the bytes that main has brought and that are neither
    /// placed nor skipped. `None` means that there is nothing to do yet. Call again when a buffer is
    /// posted, or when more bytes arrive if [`Receiver::is_starved`].
    ///
    /// # Errors
    /// A frame is not valid, or a message is longer than its buffer. Either error ends the connection.
    pub fn next(&mut self, staged: &[u8]) -> Result<Option<RecvStep>, Error> {
        if let Some(error) = self.end {
            return Err(error);
        }
        if let Some((place, (index, member))) = self.parked.leave() {
            let to = Target::Buffer { index, member };
            let len = self.reqs.at(index.into()).value.sizes[usize::from(member)];
            self.book(to);
            return Ok(Some(RecvStep::Unpark { place, to, len }));
        }
        loop {
            match self.main {
                Main::Frame => {
                    let Some(frame) = staged.first_chunk() else { return Ok(None) };
                    return self.admit(frame).map_err(|error| self.fail(error));
                }
                Main::Park { place, len } => {
                    self.main = Main::Message { to: Target::Parked(place), len };
                    return Ok(Some(RecvStep::Park { place, len }));
                }
                Main::Message { to, len } if is_long(len, self.lanes) => {
                    self.main = Main::Frame;
                    return Ok(Some(self.spread(to, len)));
                }
                Main::Message { to, len: 0 } => {
                    self.main = self.behind_payload();
                    self.arrived(to, self.last_len);
                }
                Main::Message { to, len } => self.main = Main::Payload { to, offset: 0, len },
                Main::Payload { .. } if staged.is_empty() => return Ok(None),
                Main::Payload { to, offset, len } => {
                    return Ok(Some(RecvStep::Place { to, offset, len }));
                }
                Main::Excess(0) => self.main = Main::Frame,
                Main::Excess(_) if staged.is_empty() => return Ok(None),
                Main::Excess(len) => {
                    let skipped = staged.len().min(len as usize);
                    self.main = Main::Excess(len - skipped as u32);
                    self.acks.is_awaited_for(self.last_len);
                    return Ok(Some(RecvStep::Skip(skipped)));
                }
            }
        }
    }

    /// Destination and range of the payload that main brings next. The caller may read it right to its
    /// destination, but only while no bytes are staged.
    pub fn awaited(&self) -> Option<(Target, Range<u32>)> {
        match self.main {
            Main::Payload { to, offset, len } => Some((to, offset..offset + len)),
            _ => None,
        }
    }

    /// Notes that this many bytes of payload were placed, at most as many as were awaited.
    pub fn placed(&mut self, bytes: u32) {
        let Main::Payload { to, offset, len } = self.main else { return };
        if bytes < len {
            self.main = Main::Payload { to, offset: offset + bytes, len: len - bytes };
        } else {
            self.main = self.behind_payload();
            self.arrived(to, self.last_len);
        }
    }

    /// State behind the part of the payload that fits into its buffer.
    fn behind_payload(&mut self) -> Main {
        Main::Excess(core::mem::take(&mut self.excess))
    }

    /// Returns whether the receiver needs more bytes from main than the `staged` ones.
    pub fn is_starved(&self, staged: usize) -> bool {
        if self.parked.is_leaving() {
            return false;
        }
        match self.main {
            Main::Frame => staged < FRAME_BYTES,
            Main::Park { .. } | Main::Message { .. } => false,
            Main::Excess(0) => staged < FRAME_BYTES,
            Main::Payload { .. } | Main::Excess(_) => staged == 0,
        }
    }

    /// Notes that a chunk has arrived over its lane.
    pub fn chunk_done(&mut self, to: Target) {
        let Some(left) = self.chunks(to) else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.arrived(to, u32::MAX);
        }
    }

    /// Notes a look at main that found nothing.
    pub fn idle(&mut self) {
        self.acks.idle();
        self.idle_looks = self.idle_looks.saturating_add(1);
    }

    /// Notes that the caller is about to sleep. The sender may not send a long message ahead of its buffer, and
    /// no look that finds nothing follows by which the buffer would be announced in time.
    pub fn will_sleep(&mut self) {
        self.news_awaited |= self.news.iter().any(|buf| buf.len > CHUNK_BYTES_MIN);
    }

    /// Fills `frames` with the frames to send over control, and returns their length in bytes. The
    /// length is 0 if it is not yet time to announce buffers.
    pub fn take_news(&mut self, frames: &mut [u8]) -> usize {
        let bytes_ahead = self.news.len() as u64 * u64::from(self.last_len);
        let is_time = self.news.len() >= NEWS_MESSAGES
            || bytes_ahead >= NEWS_BYTES
            || self.idle_looks >= IDLE_LOOKS
            || self.news_awaited
            || self.told.has_untold()
            || self.end.is_some();
        if !is_time {
            return 0;
        }
        let mut filled = 0;
        for to in frames.as_chunks_mut().0 {
            let Some(frame) = self.told.next(&mut self.news) else { break };
            *to = frame.to_bytes();
            filled += FRAME_BYTES;
        }
        if self.news.is_empty() {
            (self.idle_looks, self.news_awaited) = (0, false);
        }
        filled
    }

    /// Ends the connection. The first error stays and is returned. The caller can still test receives
    /// that are done.
    pub fn fail(&mut self, error: Error) -> Error {
        if self.end.is_none() {
            self.reqs.cut_short();
        }
        *self.end.get_or_insert(error)
    }

    fn tell(&mut self, buf: Posted) {
        let has_room = self.news.push_back(buf).is_ok();
        debug_assert!(has_room, "looked at before");
        self.news_awaited |= buf.len > AHEAD_BYTES;
        self.idle_looks = 0;
    }

    /// Matches a buffer with a parked message, or keeps it for a later message.
    fn meet(&mut self, index: u8, member: u8, buf: Posted) -> Result<(), Error> {
        let Some((len, to_fit)) = self.parked.claim(buf.tag, index, member) else {
            let has_room = self.buffers.push(buf.tag, (index, member));
            debug_assert!(has_room, "looked at before");
            return Ok(());
        };
        let to = Target::Buffer { index, member };
        let filled = self.fill(to, len, buf.tag, to_fit);
        filled.map(drop).map_err(|error| self.fail(error))
    }

    /// Notes the length of the message that a buffer has met, and returns how many bytes the buffer
    /// takes.
    fn fill(&mut self, to: Target, len: u32, tag: u32, to_fit: bool) -> Result<u32, Error> {
        let Target::Buffer { index, member } = to else { return Ok(len) };
        let size = &mut self.reqs.at(index.into()).value.sizes[usize::from(member)];
        if len > *size && !to_fit {
            return Err(Error::SizeMismatch { local: len, remote: *size, tag });
        }
        *size = len.min(*size);
        Ok(*size)
    }

    /// Handles a frame on main. Its message goes to its buffer if one is posted. Without one, it is
    /// parked if other buffers wait. Otherwise it stays in the socket.
    fn admit(&mut self, bytes: &[u8; FRAME_BYTES]) -> Result<Option<RecvStep>, Error> {
        let frame = Frame::parse_message(bytes, self.frame_seq).map_err(Error::Frame)?;
        let Frame { len, tag, kind, .. } = frame;
        let to_fit = kind == FrameKind::MessageToFit;
        (self.last_len, self.idle_looks) = (len, 0);
        if let Some((index, member)) = self.buffers.take(tag) {
            let to = Target::Buffer { index, member };
            // A message over the lanes is never cut.
            let kept = self.fill(to, len, tag, to_fit && !is_long(len, self.lanes))?;
            self.excess = len - kept;
            return Ok(Some(self.begin(Main::Message { to, len: kept })));
        }
        if self.buffers.is_empty() {
            return Ok(None);
        }
        if !self.parked.may_come(len) {
            let waiting = self.parked.bytes();
            return Err(Error::Frame(SocketFrameError::Ahead { len, waiting }));
        }
        let Some(place) = self.parked.enter(len, tag, to_fit) else { return Ok(None) };
        Ok(Some(self.begin(Main::Park { place, len })))
    }

    /// Steps from a frame to its message.
    fn begin(&mut self, message: Main) -> RecvStep {
        self.main = message;
        self.frame_seq = self.frame_seq.wrapping_add(1);
        RecvStep::Skip(FRAME_BYTES)
    }

    /// Returns the chunks of a message that comes over the lanes.
    fn spread(&mut self, to: Target, len: u32) -> RecvStep {
        let chunks = Chunks::new(len, self.lanes, self.next_lane);
        self.next_lane = chunks.lane_after();
        if let Some(left) = self.chunks(to) {
            *left = chunks.left() as u8;
        }
        RecvStep::Spread { to, chunks }
    }

    /// Number of chunks of a message that are still to arrive.
    fn chunks(&mut self, of: Target) -> Option<&mut u8> {
        match of {
            Target::Buffer { index, member } => {
                self.reqs.at(index.into()).value.chunks.get_mut(usize::from(member))
            }
            Target::Parked(place) => self.parked.chunks(place),
        }
    }

    /// Notes that a whole message is at its destination. Its sender has sent `len` bytes, or more if `len` is above any
    /// copied message.
    fn arrived(&mut self, to: Target, len: u32) {
        self.acks.arrived(len);
        self.book(to);
    }

    /// Counts a message at its destination.
    fn book(&mut self, to: Target) {
        match to {
            Target::Buffer { index, .. } => {
                self.filled += 1;
                self.reqs.at(index.into()).book();
            }
            Target::Parked(place) => self.parked.arrived(place),
        }
    }
}

#[cfg(test)]
mod tests;
