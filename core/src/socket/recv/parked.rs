//! Messages taken out of the way, until their buffers are posted.

use heapless::Deque;

use crate::socket::tag_queue::TagQueue;
use crate::socket::{AHEAD_BYTES, AHEAD_MESSAGES};

/// The places to park at, and who is there.
#[derive(Debug)]
pub(super) struct Parked {
    places: [Option<Message>; AHEAD_MESSAGES],
    /// Those that no buffer has met, and their bytes: what a sender is ahead by, as we see it.
    waiting: TagQueue<u8, AHEAD_MESSAGES>,
    bytes: u32,
    /// Those that are whole and have met their buffers.
    leaving: Deque<u8, AHEAD_MESSAGES>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    len: u32,
    /// Whether its buffer may be shorter.
    to_fit: bool,
    /// Chunks that are still to come over the lanes.
    chunks: u8,
    is_whole: bool,
    /// The buffer that it has met: of which receive, and which of its buffers.
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

    /// Bytes of messages that no buffer has met.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether a sender may have sent one more, of `len` bytes.
    pub(super) fn may_come(&self, len: u32) -> bool {
        self.waiting.room() > 0 && len <= AHEAD_BYTES - self.bytes
    }

    /// A place for a message that may come; `None` while all are taken, by messages whose chunks
    /// are still under way.
    pub(super) fn enter(&mut self, len: u32, tag: u32, to_fit: bool) -> Option<u8> {
        let place = self.places.iter().position(Option::is_none)? as u8;
        if !self.waiting.push(tag, place) {
            return None;
        }
        let message = Message { len, to_fit, chunks: 0, is_whole: false, buffer: None };
        self.places[usize::from(place)] = Some(message);
        self.bytes += len;
        Some(place)
    }

    /// A buffer was posted: the length of the message that it meets, and whether the buffer may be
    /// shorter.
    pub(super) fn claim(&mut self, tag: u32, index: u8, member: u8) -> Option<(u32, bool)> {
        let place = self.waiting.take(tag)?;
        let message = self.places[usize::from(place)].as_mut()?;
        message.buffer = Some((index, member));
        let Message { len, to_fit, is_whole, .. } = *message;
        self.bytes -= len;
        if is_whole {
            self.leaving.push_back(place).unwrap_or_default();
        }
        Some((len, to_fit))
    }

    /// All of a message is there.
    pub(super) fn arrived(&mut self, place: u8) {
        let Some(message) = &mut self.places[usize::from(place)] else { return };
        message.is_whole = true;
        if message.buffer.is_some() {
            self.leaving.push_back(place).unwrap_or_default();
        }
    }

    /// Chunks of a message that are still to come.
    pub(super) fn chunks(&mut self, place: u8) -> Option<&mut u8> {
        self.places[usize::from(place)].as_mut().map(|message| &mut message.chunks)
    }

    /// Whether one is to go to its buffer.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The next to go to its buffer: its place, and the buffer.
    pub(super) fn leave(&mut self) -> Option<(u8, (u8, u8))> {
        let place = self.leaving.pop_front()?;
        let Message { buffer, .. } = self.places[usize::from(place)].take()?;
        Some((place, buffer?))
    }
}
