//! The sending end of a connection (`net_socket.cc ncclNetSocketIsend`, `ncclNetSocketTest`).

mod resume;

use core::ops::Range;

use super::layout::is_long;
use super::tag_queue::TagQueue;
use super::wire::{
    AckFrame, FRAME_BYTES, Frame, FrameKind, SocketFrameError, VIEW_FRAME_BYTES, ViewFrame,
};
use super::{AHEAD_BYTES, AHEAD_MESSAGES, BUFFERS_MAX, Chunks};
use crate::comm::Request;
use crate::error::Error;
use crate::fifo::DEPTH_MAX;
use crate::request::RequestRing;
use crate::stall::Counts;
use resume::Resumption;

/// State of a send that the request itself does not hold.
#[derive(Clone, Copy, Debug, Default)]
struct Sending {
    len: u32,
    tag: u32,
    /// The message is copied, so its send is done before the receiver has read it.
    is_kept: bool,
    /// The copy was made after the message had been written.
    is_late: bool,
}

/// Says which bytes to write to the main socket next, and tracks each send until it is done.
///
/// The caller reports the bytes that it wrote and read. The sender touches no payload.
#[derive(Debug)]
pub struct Sender {
    reqs: RequestRing<Sending>,
    /// Room of each peer buffer that no message has met.
    buffers: TagQueue<u32, BUFFERS_MAX>,
    /// Length of each message that was sent ahead of its buffer.
    ahead: TagQueue<u32, AHEAD_MESSAGES>,
    ahead_bytes: u32,
    /// A message longer than its buffer is cut to the buffer's length.
    truncates: bool,
    lanes: u16,
    next_lane: u16,
    /// Number of messages accepted (`queued`), and number of messages whose main part is written
    /// (`written`), on the connection that main has now.
    queued: u64,
    written: u64,
    resumption: Resumption,
    /// Number of bytes written of the next message, its frame included.
    partial: u64,
    /// A frame of the peer that has partly arrived, and in `frame_seq` the sequence number that it
    /// should have if it announces a buffer.
    frame: heapless::Vec<u8, VIEW_FRAME_BYTES>,
    frame_seq: u32,
    /// The peer's view that came last.
    view: Option<ViewFrame>,
    end: Option<Error>,
}

/// The bytes of one message that are to be written to the main socket: the rest of its frame, then
/// payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// [`Request::index`] of the message's request.
    pub index: usize,
    /// Frame of the message.
    pub frame: [u8; FRAME_BYTES],
    /// Number of frame bytes that are written already.
    pub frame_written: usize,
    /// Range of the payload that is left and goes over main.
    pub payload: Range<u32>,
}

impl Outgoing {
    /// Number of bytes that are left.
    pub const fn bytes(&self) -> usize {
        FRAME_BYTES - self.frame_written + (self.payload.end - self.payload.start) as usize
    }
}

impl Sender {
    /// Creates the sender of an open connection with this many lanes.
    pub fn new(lanes: u16) -> Self {
        Sender {
            reqs: RequestRing::new(DEPTH_MAX, |_| Sending::default()),
            buffers: TagQueue::new(),
            ahead: TagQueue::new(),
            ahead_bytes: 0,
            truncates: false,
            lanes,
            next_lane: 0,
            queued: 0,
            written: 0,
            resumption: Resumption::new(),
            partial: 0,
            frame: heapless::Vec::new(),
            frame_seq: 0,
            view: None,
            end: None,
        }
    }

    /// Sets whether a message longer than its buffer is cut. If so, as many of its first bytes arrive
    /// as the buffer has room for.
    #[must_use]
    pub fn truncating(mut self, on: bool) -> Self {
        self.truncates = on;
        self
    }

    /// Sets whether main and lanes go on over new connections once they are lost. If so, the receiver acknowledges.
    #[must_use]
    pub fn resuming(mut self, on: bool) -> Self {
        self.resumption.is_on = on;
        self
    }

    /// Accepts a message of `len` bytes, and returns its chunks for the lanes. `None` means that no
    /// request is free, or that the message may not go ahead of its buffer. Call again when the
    /// control socket has brought more.
    ///
    /// # Errors
    /// [`Error::TooLong`]: the message is too long. [`Error::SizeMismatch`]: the known buffer is
    /// shorter, and messages are not cut. The connection goes on after both. After its end, each call
    /// returns the error that ended the connection.
    pub fn isend(&mut self, len: u32, tag: u32) -> Result<Option<(Request, Chunks)>, Error> {
        if let Some(error) = self.end {
            return Err(error);
        }
        if len > i32::MAX as u32 {
            return Err(Error::TooLong(len));
        }
        let room = self.buffers.peek(tag);
        let len = match room {
            Some(room) if room < len && self.truncates => room,
            Some(room) if room < len => {
                return Err(Error::SizeMismatch { local: len, remote: room, tag });
            }
            _ => len,
        };
        if room.is_none() && !self.may_go_ahead(len) || !self.has_place() {
            return Ok(None);
        }
        let Some((request, entry)) = self.reqs.next_free() else { return Ok(None) };
        let chunks = Chunks::new(len, self.lanes, self.next_lane);
        entry.value = Sending { len, tag, is_kept: self.resumption.keep(len), is_late: false };
        // The request waits for its part of main, and for each chunk.
        entry.arm(request.raw(), 1 + chunks.left());
        self.reqs.advance();
        self.next_lane = chunks.lane_after();
        self.queued += 1;
        if room.is_some() {
            self.buffers.take(tag);
        } else {
            let has_room = self.ahead.push(tag, len);
            debug_assert!(has_room, "looked at before");
            self.ahead_bytes += len;
        }
        Ok(Some((request, chunks)))
    }

    /// Length in bytes of the buffer that a message with `tag` would meet. `None` means that no buffer
    /// is known.
    pub fn room(&self, tag: u32) -> Option<u32> {
        self.buffers.peek(tag)
    }

    /// Returns whether to read the control socket before sending this message. The answer is yes if no
    /// buffer is known for the message, and it may not go ahead or half of the limit is used. The answer is also
    /// yes if half of all messages wait for an acknowledge.
    pub fn wants_news(&self, len: u32, tag: u32) -> bool {
        if self.unacknowledged() >= DEPTH_MAX as u64 / 2 {
            return true;
        }
        let is_half_way =
            self.ahead.room() <= AHEAD_MESSAGES / 2 || self.ahead_bytes > AHEAD_BYTES / 2;
        (is_half_way || !self.may_go_ahead(len)) && self.buffers.peek(tag).is_none()
    }

    /// Returns the number of sent bytes once a send is done. `request` is over then. `None` means that
    /// the send is not done.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], or the error that ended the connection, the same on every call.
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        let token = request.raw();
        let entry = self.reqs.at(token);
        if entry.end_if_done(token) {
            return Ok(Some(entry.value.len));
        }
        if entry.is_pending(token) {
            return Ok(None);
        }
        let is_cut_short = entry.is_cut_short(token);
        Err(self.end.filter(|_| is_cut_short).unwrap_or(Error::UnknownRequest(token)))
    }

    /// Returns whether a send is done, and not yet tested.
    pub fn is_done(&mut self, request: &Request) -> bool {
        self.reqs.at(request.raw()).is_done(request.raw())
    }

    /// Returns whether any bytes are to be written to main.
    pub fn has_outgoing(&self) -> bool {
        self.queued != self.written && self.end.is_none()
    }

    /// Iterates over the bytes to write to main, in this order.
    pub fn outgoing(&mut self) -> impl Iterator<Item = Outgoing> {
        let (lanes, mut partial) = (self.lanes, self.partial);
        let end = if self.end.is_none() { self.queued } else { self.written };
        let numbers = (self.written..end).map(|number| number as u32);
        let kind = if self.truncates { FrameKind::MessageToFit } else { FrameKind::Message };
        let reqs = &mut self.reqs;
        numbers.map(move |seq| {
            let Sending { len, tag, .. } = reqs.at(seq).value;
            let frame = Frame { kind, seq, len, tag }.to_bytes();
            let begun = core::mem::take(&mut partial);
            let frame_begun = begun.min(FRAME_BYTES as u64);
            Outgoing {
                index: usize::from(seq as u8),
                frame,
                frame_written: frame_begun as usize,
                payload: (begun - frame_begun) as u32..on_main(len, lanes),
            }
        })
    }

    /// Returns the bytes to write to main, if they belong to exactly one message.
    #[inline]
    pub fn only_outgoing(&mut self) -> Option<Outgoing> {
        let is_one = self.queued - self.written == 1;
        if is_one { self.outgoing().next() } else { None }
    }

    /// Notes that this many bytes of [`Sender::outgoing`] were written.
    pub fn wrote(&mut self, bytes: usize) {
        self.partial += bytes as u64;
        self.resumption.wrote(bytes);
        while self.queued != self.written {
            let entry = self.reqs.at(self.written as u32);
            let whole = FRAME_BYTES as u64 + u64::from(on_main(entry.value.len, self.lanes));
            if self.partial < whole {
                break;
            }
            self.partial -= whole;
            if self.resumption.is_done_by(self.written, entry.value.is_kept) {
                entry.book();
            }
            self.written += 1;
        }
    }

    /// Notes that a chunk was written to its lane, for the message with this [`Request::index`]. If lanes are resumed,
    /// the receiver must have read the chunk.
    pub fn chunk_done(&mut self, index: usize) {
        self.reqs.at(index as u32).book();
    }

    /// Handles bytes from the control socket.
    ///
    /// # Errors
    /// A frame is not valid. Or a message that was sent ahead is longer than its buffer and is not
    /// cut: [`Error::SizeMismatch`]. Either error ends the connection.
    pub fn take_control(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() && self.end.is_none() {
            let whole =
                if ViewFrame::is_begun(&self.frame) { VIEW_FRAME_BYTES } else { FRAME_BYTES };
            let (now, later) = bytes.split_at(bytes.len().min(whole - self.frame.len()));
            self.frame.extend_from_slice(now).unwrap_or_default();
            bytes = later;
            if let Err(error) = self.take_frame() {
                self.fail(error);
            }
        }
        self.end.map_or(Ok(()), Err)
    }

    /// Handles the peer's frame, if all of it has arrived.
    fn take_frame(&mut self) -> Result<(), Error> {
        if ViewFrame::is_begun(&self.frame) {
            let Some(frame) = self.frame.first_chunk() else { return Ok(()) };
            self.view = Some(ViewFrame::parse(frame));
            self.frame.clear();
            return Ok(());
        }
        let Some(frame) = self.frame.first_chunk() else { return Ok(()) };
        if AckFrame::is_begun(frame) && self.resumption.is_on {
            let ack = AckFrame::parse(frame);
            self.frame.clear();
            return self.take_ack(ack);
        }
        let buffer = Frame::parse(frame, FrameKind::Buffer, self.frame_seq);
        self.frame.clear();
        self.frame_seq = self.frame_seq.wrapping_add(1);
        self.meet(buffer.map_err(Error::Frame)?)
    }

    /// Takes the peer's view that came last, if it was not taken before.
    pub fn take_view(&mut self) -> Option<ViewFrame> {
        self.view.take()
    }

    /// Matches a buffer of the peer with a message that was sent ahead, or keeps it for a later
    /// message.
    fn meet(&mut self, buffer: Frame) -> Result<(), Error> {
        let Frame { len: room, tag, .. } = buffer;
        match self.ahead.take(tag) {
            Some(len) => {
                self.ahead_bytes -= len;
                if len > room && !self.truncates {
                    return Err(Error::SizeMismatch { local: len, remote: room, tag });
                }
            }
            None if self.buffers.push(tag, room) => {}
            None => return Err(Error::Frame(SocketFrameError::Buffers)),
        }
        Ok(())
    }

    /// Ends the connection. The first error stays. The caller can still test sends that are done.
    pub fn fail(&mut self, error: Error) {
        if self.end.is_none() {
            self.end = Some(error);
            self.reqs.cut_short();
        }
    }

    /// Number of messages that were accepted.
    pub fn begun(&self) -> u64 {
        self.queued
    }

    /// Returns whether the sockets have taken the message with this number, counted from 0.
    pub fn is_sent(&mut self, number: u64) -> bool {
        !self.reqs.at(number as u32).is_awaiting()
    }

    /// Returns the progress of the sends, for [`stall`](crate::stall).
    pub fn counts(&self) -> Counts {
        let begun = self.queued;
        let done = begun.saturating_sub(self.reqs.pending().into());
        Counts {
            begun,
            done,
            seen: begun + self.buffers.len() as u64,
            seen_tag: self.buffers.oldest_tag().unwrap_or(0),
            ahead_tag: self.ahead.oldest_tag(),
            untested: self.reqs.done(),
            ..Counts::default()
        }
    }

    /// Error that ended the connection.
    pub fn end(&self) -> Option<Error> {
        self.end
    }

    /// Number of sends that are accepted and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.reqs.live()
    }

    /// Returns whether a message may be sent before its buffer is known. The receiver reads chunks
    /// from the lanes right to their destination. So a message over the lanes cannot be cut there.
    fn may_go_ahead(&self, len: u32) -> bool {
        let may_be_cut = self.truncates && is_long(len, self.lanes);
        !may_be_cut && self.ahead.room() > 0 && len <= AHEAD_BYTES - self.ahead_bytes
    }
}

/// Number of payload bytes of a message that go over main.
const fn on_main(len: u32, lanes: u16) -> u32 {
    if is_long(len, lanes) { 0 } else { len }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::stall::EndView;

    #[test]
    fn views_come_between_buffers_and_in_any_pieces() {
        let buffer =
            |seq| Frame { kind: FrameKind::Buffer, seq, len: 10 + seq, tag: seq }.to_bytes();
        let view = ViewFrame { view: EndView { begun: 7, ..EndView::default() }, asks: true };
        let bytes = [&buffer(0)[..], &view.to_bytes(), &buffer(1)].concat();
        for piece in 1..=bytes.len() {
            let mut sender = Sender::new(0);
            for piece in bytes.chunks(piece) {
                sender.take_control(piece).unwrap();
            }
            assert_eq!(
                [0, 1].map(|tag| sender.room(tag)),
                [Some(10), Some(11)],
                "pieces of {piece}"
            );
            assert_eq!([sender.take_view(), sender.take_view()], [Some(view), None]);
        }
    }
}
