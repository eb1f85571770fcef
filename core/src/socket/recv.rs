//! The receiving end (`net_socket.cc ncclNetSocketIrecv`, `ncclNetSocketTest`).

mod parked;

use core::ops::Range;

use heapless::Deque;

use super::layout::is_long;
use super::tag_queue::TagQueue;
use super::wire::{FRAME_BYTES, Frame, FrameError, FrameKind};
use super::{AHEAD_BYTES, AHEAD_MESSAGES, BUFFERS_MAX, Chunks};
use crate::comm::Request;
use crate::error::Error;
use crate::fifo::{DEPTH_MAX, RECVS_MAX};
use crate::request::Ring;
use parked::Parked;

/// A quarter of what a sender may be ahead: from there on it is told of buffers at once, so that
/// it never has to stop. Messages are taken to be as long as the last one: a sender of short ones
/// is not told of long buffers, of which each packet would cost both as much as a message.
const NEWS_MESSAGES: usize = AHEAD_MESSAGES / 4;
const NEWS_BYTES: u64 = AHEAD_BYTES as u64 / 4;

/// Looks in a row that find nothing before a sender is told of few buffers: by then it may wait for
/// them, and a sender that does not is spared the packet.
const IDLE_LOOKS: u32 = 128;

/// A buffer that is posted: how long it is and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Bytes, at most 2³¹ − 1.
    pub len: u32,
    /// Only a message with this tag goes there.
    pub tag: u32,
}

/// Where payload belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// In a buffer of a receive.
    Buffer {
        /// [`Request::index`] of the receive.
        index: u8,
        /// Which of its buffers.
        member: u8,
    },
    /// Out of the way, at a place of this number, until its buffer is posted.
    Parked(u8),
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Skip so many bytes: they were a frame, or what of a message its buffer has no room for.
    Skip(usize),
    /// The next bytes, as many as are there up to `len`, belong at `offset` of `to`: move them,
    /// and say so to [`Receiver::placed`].
    Place {
        /// Where.
        to: Target,
        /// First byte there.
        offset: u32,
        /// Bytes left of the message, not 0.
        len: u32,
    },
    /// These chunks come over the lanes: each lane's in this order, behind those before.
    Spread {
        /// Where the whole message belongs.
        to: Target,
        /// Its parts.
        chunks: Chunks,
    },
    /// Make a place of `len` bytes to park at, with this number.
    Park {
        /// The number.
        place: u8,
        /// Bytes.
        len: u32,
    },
    /// Move `len` bytes from where they are parked to their buffer, and end the place.
    Unpark {
        /// The place's number.
        place: u8,
        /// The buffer.
        to: Target,
        /// Bytes.
        len: u32,
    },
}

/// What stands beside the request of a receive.
#[derive(Debug, Default)]
struct Receiving {
    nreqs: usize,
    /// Bytes posted, then bytes of the message.
    sizes: [u32; RECVS_MAX],
    /// Chunks that are still to come over the lanes.
    chunks: [u8; RECVS_MAX],
}

/// What the main socket brings next.
#[derive(Clone, Copy, Debug)]
enum Main {
    Frame,
    /// The message of the frame before, for which there is a place that is not made yet.
    Park {
        place: u8,
        len: u32,
    },
    /// The message of the frame before, and where it belongs.
    Message {
        to: Target,
        len: u32,
    },
    Payload {
        to: Target,
        offset: u32,
        len: u32,
    },
    /// So many bytes of a message for which its buffer has no room.
    Excess(u32),
}

/// Says where the bytes that come belong, and what has become of each receive.
#[derive(Debug)]
pub struct Receiver {
    reqs: Ring<Receiving>,
    /// Buffers that no message has met.
    buffers: TagQueue<(u8, u8), BUFFERS_MAX>,
    /// Messages that no buffer has met, but those that are not yet taken from the socket.
    parked: Parked,
    /// Buffers that the sender was not told of.
    news: Deque<Posted, BUFFERS_MAX>,
    /// Among them is one whose message may be too long to be ahead: a sender of that waits for it.
    news_awaited: bool,
    news_seq: u32,
    idle_looks: u32,
    main: Main,
    /// Bytes of the message that comes for which its buffer has no room.
    excess: u32,
    /// Length of the message that came last.
    last_len: u32,
    frame_seq: u32,
    lanes: u16,
    next_lane: u16,
    end: Option<Error>,
}

impl Receiver {
    /// A connection that is up, with so many lanes.
    pub fn new(lanes: u16) -> Self {
        Receiver {
            reqs: Ring::new(DEPTH_MAX, |_| Receiving::default()),
            buffers: TagQueue::new(),
            parked: Parked::new(),
            news: Deque::new(),
            news_awaited: false,
            news_seq: 0,
            idle_looks: 0,
            main: Main::Frame,
            excess: 0,
            // None has come, and the first may be of any.
            last_len: u32::MAX,
            frame_seq: 0,
            lanes,
            next_lane: 0,
            end: None,
        }
    }

    /// Posts a receive of 1 to 8 buffers. `None`, where no request is free: call again.
    ///
    /// # Errors
    /// [`Error::Argument`] or [`Error::TooLong`] for buffers that cannot be; the connection goes
    /// on. [`Error::SizeMismatch`] with a message that has come already, which ends it; or what
    /// ended it before, the same on every call.
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
        for (member, buf) in (0..).zip(bufs) {
            self.tell(*buf);
            self.meet(request.row() as u8, member, *buf)?;
        }
        Ok(Some(request))
    }

    /// Whether a receive is done, and then the bytes of each buffer in the order in which they
    /// were posted; `request` is then over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    pub fn test(&mut self, request: &Request) -> Result<Option<&[u32]>, Error> {
        let token = request.raw();
        let end = self.end;
        let entry = self.reqs.at(token);
        if entry.end_if_done(token) {
            return Ok(Some(&entry.value.sizes[..entry.value.nreqs]));
        }
        if entry.is_live(token) {
            return Ok(None);
        }
        let is_cut_short = entry.is_cut_short(token);
        Err(end.filter(|_| is_cut_short).unwrap_or(Error::UnknownRequest(token)))
    }

    /// Whether a receive is under way, and not done.
    pub fn is_waiting(&mut self, request: &Request) -> bool {
        let entry = self.reqs.at(request.raw());
        entry.is_live(request.raw()) && !entry.is_done(request.raw())
    }

    /// What is to be done with `staged`, the bytes that main has brought and that are not yet
    /// placed or skipped. `None`: nothing, until more bytes come if [`Receiver::is_starved`], or a
    /// buffer is posted.
    ///
    /// # Errors
    /// Frames that cannot be, and a message longer than its buffer. They end the connection.
    pub fn next(&mut self, staged: &[u8]) -> Result<Option<Step>, Error> {
        if let Some(error) = self.end {
            return Err(error);
        }
        if let Some((place, (index, member))) = self.parked.leave() {
            let to = Target::Buffer { index, member };
            let len = self.reqs.at(index.into()).value.sizes[usize::from(member)];
            self.arrived(to);
            return Ok(Some(Step::Unpark { place, to, len }));
        }
        loop {
            match self.main {
                Main::Frame => {
                    let Some(frame) = staged.first_chunk() else { return Ok(None) };
                    return self.admit(frame).map_err(|error| self.fail(error));
                }
                Main::Park { place, len } => {
                    self.main = Main::Message { to: Target::Parked(place), len };
                    return Ok(Some(Step::Park { place, len }));
                }
                Main::Message { to, len } if is_long(len, self.lanes) => {
                    self.main = Main::Frame;
                    return Ok(Some(self.spread(to, len)));
                }
                Main::Message { to, len: 0 } => {
                    self.main = self.behind_payload();
                    self.arrived(to);
                }
                Main::Message { to, len } => self.main = Main::Payload { to, offset: 0, len },
                Main::Payload { .. } if staged.is_empty() => return Ok(None),
                Main::Payload { to, offset, len } => {
                    return Ok(Some(Step::Place { to, offset, len }));
                }
                Main::Excess(0) => self.main = Main::Frame,
                Main::Excess(_) if staged.is_empty() => return Ok(None),
                Main::Excess(len) => {
                    let skipped = staged.len().min(len as usize);
                    self.main = Main::Excess(len - skipped as u32);
                    return Ok(Some(Step::Skip(skipped)));
                }
            }
        }
    }

    /// Payload that is awaited from main, to be read right to where it belongs; only when nothing
    /// is staged.
    pub fn awaited(&self) -> Option<(Target, Range<u32>)> {
        match self.main {
            Main::Payload { to, offset, len } => Some((to, offset..offset + len)),
            _ => None,
        }
    }

    /// So many bytes of payload were placed, at most as many as were awaited.
    pub fn placed(&mut self, bytes: u32) {
        let Main::Payload { to, offset, len } = self.main else { return };
        if bytes < len {
            self.main = Main::Payload { to, offset: offset + bytes, len: len - bytes };
        } else {
            self.main = self.behind_payload();
            self.arrived(to);
        }
    }

    /// What follows the payload that its buffer has room for.
    fn behind_payload(&mut self) -> Main {
        Main::Excess(core::mem::take(&mut self.excess))
    }

    /// Whether it takes more bytes from main to go on than the `staged` ones.
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

    /// A chunk has come over its lane.
    pub fn chunk_done(&mut self, to: Target) {
        let Some(left) = self.chunks(to) else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.arrived(to);
        }
    }

    /// A look at main that found nothing.
    pub fn idle(&mut self) {
        self.idle_looks = self.idle_looks.saturating_add(1);
    }

    /// Fills `frames` with what is to be sent over control, if it is time that the sender hears of
    /// buffers, and says how many bytes that is.
    pub fn take_news(&mut self, frames: &mut [u8]) -> usize {
        let bytes_ahead = self.news.len() as u64 * u64::from(self.last_len);
        let is_time = self.news.len() >= NEWS_MESSAGES
            || bytes_ahead >= NEWS_BYTES
            || self.idle_looks >= IDLE_LOOKS
            || self.news_awaited
            || self.end.is_some();
        if !is_time {
            return 0;
        }
        let mut filled = 0;
        for to in frames.as_chunks_mut().0 {
            let Some(Posted { len, tag }) = self.news.pop_front() else { break };
            *to = Frame { kind: FrameKind::Buffer, seq: self.news_seq, len, tag }.to_bytes();
            self.news_seq = self.news_seq.wrapping_add(1);
            filled += FRAME_BYTES;
        }
        if self.news.is_empty() {
            (self.idle_looks, self.news_awaited) = (0, false);
        }
        filled
    }

    /// The connection is over; the first reason stays, and is given back. Receives that are done
    /// can still be tested.
    pub fn fail(&mut self, error: Error) -> Error {
        if self.end.is_none() {
            self.reqs.cut_short();
        }
        *self.end.get_or_insert(error)
    }

    /// What ended the connection.
    pub fn end(&self) -> Option<Error> {
        self.end
    }

    /// Receives under way: posted, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.reqs.live()
    }

    fn tell(&mut self, buf: Posted) {
        let has_room = self.news.push_back(buf).is_ok();
        debug_assert!(has_room, "looked at before");
        self.news_awaited |= buf.len > AHEAD_BYTES;
        self.idle_looks = 0;
    }

    /// A buffer, for a message that is parked or for one to come.
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

    /// Notes the length of the message that a buffer has met, and says how much of it the buffer takes.
    fn fill(&mut self, to: Target, len: u32, tag: u32, to_fit: bool) -> Result<u32, Error> {
        let Target::Buffer { index, member } = to else { return Ok(len) };
        let size = &mut self.reqs.at(index.into()).value.sizes[usize::from(member)];
        if len > *size && !to_fit {
            return Err(Error::SizeMismatch { local: len, remote: *size, tag });
        }
        *size = len.min(*size);
        Ok(*size)
    }

    /// A frame of main: its message goes to its buffer; out of the way, if another buffer waits
    /// for what is behind it; or stays in the socket.
    fn admit(&mut self, bytes: &[u8; FRAME_BYTES]) -> Result<Option<Step>, Error> {
        let frame = Frame::parse_message(bytes, self.frame_seq).map_err(Error::Frame)?;
        let Frame { len, tag, kind, .. } = frame;
        let to_fit = kind == FrameKind::MessageToFit;
        (self.last_len, self.idle_looks) = (len, 0);
        if let Some((index, member)) = self.buffers.take(tag) {
            let to = Target::Buffer { index, member };
            // Lanes bring a message whole.
            let kept = self.fill(to, len, tag, to_fit && !is_long(len, self.lanes))?;
            self.excess = len - kept;
            return Ok(Some(self.begin(Main::Message { to, len: kept })));
        }
        if self.buffers.is_empty() {
            return Ok(None);
        }
        if !self.parked.may_come(len) {
            let waiting = self.parked.bytes();
            return Err(Error::Frame(FrameError::Ahead { len, waiting }));
        }
        let Some(place) = self.parked.enter(len, tag, to_fit) else { return Ok(None) };
        Ok(Some(self.begin(Main::Park { place, len })))
    }

    /// Goes on from a frame to its message.
    fn begin(&mut self, message: Main) -> Step {
        self.main = message;
        self.frame_seq = self.frame_seq.wrapping_add(1);
        Step::Skip(FRAME_BYTES)
    }

    /// Says how a message comes over the lanes.
    fn spread(&mut self, to: Target, len: u32) -> Step {
        let chunks = Chunks::new(len, self.lanes, self.next_lane);
        self.next_lane = chunks.lane_after();
        if let Some(left) = self.chunks(to) {
            *left = chunks.left() as u8;
        }
        Step::Spread { to, chunks }
    }

    /// Chunks of a message that are still to come.
    fn chunks(&mut self, of: Target) -> Option<&mut u8> {
        match of {
            Target::Buffer { index, member } => {
                self.reqs.at(index.into()).value.chunks.get_mut(usize::from(member))
            }
            Target::Parked(place) => self.parked.chunks(place),
        }
    }

    /// All of a message is where it belongs.
    fn arrived(&mut self, to: Target) {
        match to {
            Target::Buffer { index, .. } => {
                self.reqs.at(index.into()).book();
            }
            Target::Parked(place) => self.parked.arrived(place),
        }
    }
}

#[cfg(test)]
mod tests;
