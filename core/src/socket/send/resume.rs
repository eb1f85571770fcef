//! Acknowledges, and the messages that are written again over a new connection.
//!
//! A lost connection loses the bytes that the receiver has not read. So the sender keeps each message until the
//! receiver has acknowledged its bytes: a short message as a copy ([`Sender::kept`]), any other message in the buffer
//! of the caller, whose send is not done before. If the receiver takes its time, the caller copies the other messages
//! too ([`Sender::keep_written`]), so that a send is done however late it is received.

use super::{Sender, Sending, on_main};
use crate::comm::Request;
use crate::error::Error;
use crate::fifo::DEPTH_MAX;
use crate::socket::wire::{AckFrame, FRAME_BYTES, SocketFrameError};
use crate::socket::{COPIED_BYTES, COPIES_BYTES, KEPT_BYTES, LANES_MAX};

/// How far main and the lanes have come.
#[derive(Debug)]
pub(super) struct Resumption {
    pub(super) is_on: bool,
    /// Number of messages whose main part the receiver has read, and position of its end in the bytes of main.
    acked: u64,
    acked_at: u64,
    /// Number of messages whose main part was written, on any connection.
    written_once: u64,
    /// Position of the next byte to write to main.
    position: u64,
    /// Number of messages that are written and not acknowledged, and whose sends wait for that.
    held: u32,
    /// Number of bytes of the messages that were copied when their sends started, and are not acknowledged.
    kept_bytes: u32,
    /// Number of bytes that the receiver has read from each lane.
    lanes: [u64; LANES_MAX],
}

impl Resumption {
    pub(super) const fn new() -> Self {
        Resumption {
            is_on: false,
            acked: 0,
            acked_at: 0,
            written_once: 0,
            position: 0,
            held: 0,
            kept_bytes: 0,
            lanes: [0; LANES_MAX],
        }
    }

    /// Notes that bytes were written to main.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.position += bytes as u64;
    }

    /// Decides whether a new message is copied when its send starts, and counts the copy.
    pub(super) fn keep(&mut self, len: u32) -> bool {
        let has_room = len <= COPIED_BYTES && self.kept_bytes + len <= COPIES_BYTES;
        let is_kept = self.is_on && (len <= KEPT_BYTES || has_room);
        self.kept_bytes += if is_kept { len } else { 0 };
        is_kept
    }

    /// Notes that the main part of message `number` is written. Returns whether this part of its send is done.
    pub(super) fn is_done_by(&mut self, number: u64, is_kept: bool) -> bool {
        if number != self.written_once {
            return false;
        }
        self.written_once += 1;
        let is_held = self.is_on && !is_kept;
        self.held += u32::from(is_held);
        !is_held
    }
}

impl Sender {
    /// Number of bytes of the message of a send that is under way, and whether the caller copies them when the send
    /// starts. The copy is what is written to main, since it may be written again after the send is done.
    pub fn kept(&mut self, request: &Request) -> (u32, bool) {
        let Sending { len, is_kept, .. } = self.reqs.at(request.raw()).value;
        (len, self.resumption.is_on && is_kept)
    }

    /// Number of bytes of the next message whose send waits for an acknowledge; 0 if there is none.
    pub fn held_bytes(&mut self) -> u32 {
        self.next_held().map_or(0, |number| self.reqs.at(number).value.len)
    }

    /// Number of the next message that is written and whose send waits for an acknowledge.
    fn next_held(&mut self) -> Option<u32> {
        if self.resumption.held == 0 {
            return None;
        }
        let mut numbers = (self.resumption.acked..self.written).map(|number| number as u32);
        numbers.find(|number| !self.reqs.at(*number).value.is_kept)
    }

    /// Lets the next send that waits for an acknowledge be done, since the caller copies its message now. All its bytes
    /// were written to main. Returns the [`Request::index`](crate::comm::Request::index) and the number of bytes to
    /// copy.
    pub fn keep_written(&mut self) -> Option<(usize, usize)> {
        let number = self.next_held()?;
        let entry = self.reqs.at(number);
        (entry.value.is_kept, entry.value.is_late) = (true, true);
        entry.book();
        self.resumption.held -= 1;
        Some((usize::from(number as u8), on_main(entry.value.len, self.lanes) as usize))
    }

    /// Number of messages that the receiver has read from main.
    pub fn acknowledged(&self) -> u64 {
        self.resumption.acked
    }

    /// Number of messages that the receiver may not have read yet from main.
    pub(super) fn unacknowledged(&self) -> u64 {
        if self.resumption.is_on { self.queued - self.resumption.acked } else { 0 }
    }

    /// Returns whether a send may be done as soon as the receiver has acknowledged it.
    pub fn awaits_ack(&self) -> bool {
        self.resumption.held > 0
    }

    /// Returns whether bytes that were written before are to be written again.
    pub fn is_behind(&self) -> bool {
        self.written < self.resumption.written_once
    }

    /// Number of bytes that the receiver has read from each lane. The chunks before are done.
    pub fn lane_acks(&self) -> &[u64; LANES_MAX] {
        &self.resumption.lanes
    }

    /// Number of buffers of which this end knows, for the first frame on a new control socket.
    pub fn buffers_known(&self) -> u64 {
        self.frame_seq.into()
    }

    /// Drops the part of a frame that came over the lost control socket. All of it comes again.
    pub fn control_renewed(&mut self) {
        self.frame.clear();
    }

    /// Writes all bytes to main again that the receiver has not read: it has read `position` bytes.
    ///
    /// # Errors
    /// [`SocketFrameError::Count`] ends the connection: the position cannot be right.
    pub fn main_resumed(&mut self, position: u64) -> Result<(), Error> {
        let resumed = self.check_position(position).map(|()| {
            self.acknowledge(position);
            (self.written, self.partial) =
                (self.resumption.acked, position - self.resumption.acked_at);
            self.resumption.position = position;
        });
        resumed.inspect_err(|error| self.fail(*error))
    }

    /// Handles an acknowledge of the peer.
    pub(super) fn take_ack(&mut self, ack: AckFrame) -> Result<(), Error> {
        if let Some(lane) = ack.socket.checked_sub(2) {
            let lanes = &mut self.resumption.lanes[..usize::from(self.lanes)];
            let out = SocketFrameError::Count {
                got: ack.socket.into(),
                range: [1, u64::from(self.lanes) + 1],
            };
            let count = lanes.get_mut(lane as usize).ok_or(Error::Frame(out))?;
            *count = ack.count.max(*count);
            return Ok(());
        }
        if ack.count > self.resumption.acked_at {
            self.check_position(ack.count)?;
            self.acknowledge(ack.count);
        }
        Ok(())
    }

    /// Checks a position that the peer has named. No more than what was written can have reached it.
    fn check_position(&self, got: u64) -> Result<(), Error> {
        let Resumption { acked_at, position, .. } = self.resumption;
        match (acked_at..=position).contains(&got) {
            true => Ok(()),
            false => {
                Err(Error::Frame(SocketFrameError::Count { got, range: [acked_at, position] }))
            }
        }
    }

    /// Counts the messages that end before a position of main.
    fn acknowledge(&mut self, position: u64) {
        let Resumption { acked, acked_at, held, kept_bytes, .. } = &mut self.resumption;
        while *acked != self.written {
            let entry = self.reqs.at(*acked as u32);
            let Sending { len, is_kept, is_late, .. } = entry.value;
            let end = *acked_at + FRAME_BYTES as u64 + u64::from(on_main(len, self.lanes));
            if end > position {
                break;
            }
            if !is_kept {
                entry.book();
                *held -= 1;
            } else if !is_late {
                *kept_bytes -= len;
            }
            (*acked, *acked_at) = (*acked + 1, end);
        }
    }

    /// Whether one more message has a place until it is acknowledged.
    pub(super) fn has_place(&self) -> bool {
        self.unacknowledged() < DEPTH_MAX as u64
    }
}
