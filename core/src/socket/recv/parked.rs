//! Parked messages: payload that was taken from the socket before its buffer was posted.

use heapless::Deque;

use crate::socket::tag_queue::TagQueue;
use crate::socket::{AHEAD_BYTES, AHEAD_MESSAGES};

/// The places for parked messages, and the messages in them.
#[derive(Debug)]
pub(super) struct Parked {
    places: [Option<ParkedMessage>; AHEAD_MESSAGES],
    /// Messages that no buffer has met. The length of this queue and `bytes` say how far ahead the
    /// sender is, as the receiver sees it.
    waiting: TagQueue<u8, AHEAD_MESSAGES>,
    bytes: u32,
    /// Places of messages that are complete and have met their buffers.
    leaving: Deque<u8, AHEAD_MESSAGES>,
}

#[derive(Clone, Copy, Debug)]
struct ParkedMessage {
    len: u32,
    /// The message's buffer may be shorter than the message.
    to_fit: bool,
    /// Number of chunks that are still to arrive over the lanes.
    chunks: u8,
    is_whole: bool,
    /// The buffer that the message has met: index of the receive, and number of the buffer in it.
    buffer: Option<(u8, u8)>,
}

impl Parked {
    pub(super) const fn new() -> Self {
        Parked {
            places: [None; AHEAD_MESSAGES],
            waiting: TagQueue::new(),
            bytes: 0,
            leaving: Deque::new(),
        }
    }

    /// Number of bytes of the messages that no buffer has met.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns whether the sender was allowed to send one more message of `len` bytes ahead.
    pub(super) fn may_come(&self, len: u32) -> bool {
        self.waiting.room() > 0 && len <= AHEAD_BYTES - self.bytes
    }

    /// Reserves a place for a message that was allowed to come ahead. `None` means that all places are
    /// taken, by messages whose chunks are still under way.
    pub(super) fn enter(&mut self, len: u32, tag: u32, to_fit: bool) -> Option<u8> {
        let place = self.places.iter().position(Option::is_none)? as u8;
        if !self.waiting.push(tag, place) {
            return None;
        }
        let message = ParkedMessage { len, to_fit, chunks: 0, is_whole: false, buffer: None };
        self.places[usize::from(place)] = Some(message);
        self.bytes += len;
        Some(place)
    }

    /// Matches a posted buffer with a parked message. The function returns the message's length and
    /// whether the buffer may be shorter.
    pub(super) fn claim(&mut self, tag: u32, index: u8, member: u8) -> Option<(u32, bool)> {
        let place = self.waiting.take(tag)?;
        let message = self.places[usize::from(place)].as_mut()?;
        message.buffer = Some((index, member));
        let ParkedMessage { len, to_fit, is_whole, .. } = *message;
        self.bytes -= len;
        if is_whole {
            self.leaving.push_back(place).unwrap_or_default();
        }
        Some((len, to_fit))
    }

    /// Notes that a message is complete.
    pub(super) fn arrived(&mut self, place: u8) {
        let Some(message) = &mut self.places[usize::from(place)] else { return };
        message.is_whole = true;
        if message.buffer.is_some() {
            self.leaving.push_back(place).unwrap_or_default();
        }
    }

    /// Number of chunks of a message that are still to arrive.
    pub(super) fn chunks(&mut self, place: u8) -> Option<&mut u8> {
        self.places[usize::from(place)].as_mut().map(|message| &mut message.chunks)
    }

    /// Returns whether a message is ready to move to its buffer.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes the next message that is ready to move: its place, and its buffer.
    pub(super) fn leave(&mut self) -> Option<(u8, (u8, u8))> {
        let place = self.leaving.pop_front()?;
        let ParkedMessage { buffer, .. } = self.places[usize::from(place)].take()?;
        Some((place, buffer?))
    }
}
