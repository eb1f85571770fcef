//! The receiver's acknowledges, where lost sockets are resumed.

use super::{Main, Receiver};
use crate::socket::wire::{AckFrame, FRAME_BYTES};
use crate::socket::{AHEAD_MESSAGES, COPIED_BYTES, LANES_MAX};

/// A quarter of the messages that the sender keeps. The sender should never have to stop for an acknowledge.
const ACK_MESSAGES: usize = AHEAD_MESSAGES / 4;

/// Number of bytes after which the receiver acknowledges though more are coming. Until then the sender gets one frame
/// for all of them.
const ACK_BYTES: u64 = 256 << 10;

/// Number of bytes after which the receiver acknowledges if no more come. The send of one of them may not be done, if the
/// sender had too many copies.
const IDLE_BYTES: u64 = COPIED_BYTES as u64;

/// Number of bytes that the receiver has read from each socket, and number that it has acknowledged.
#[derive(Debug)]
pub(super) struct Acks {
    is_on: bool,
    /// Number of bytes read from main.
    main: u64,
    /// Number of bytes that the sender was told of, for main and then each lane.
    told: [u64; LANES_MAX + 1],
    /// Number of messages that have arrived since the last acknowledge.
    arrived: usize,
    /// The send of a message that has arrived is not done before the acknowledge.
    is_awaited: bool,
    /// The acknowledge must not wait for further bytes.
    is_due: bool,
}

impl Acks {
    pub(super) const fn new() -> Self {
        Acks {
            is_on: false,
            main: 0,
            told: [0; LANES_MAX + 1],
            arrived: 0,
            is_awaited: false,
            is_due: false,
        }
    }

    /// Notes that a message of `len` bytes has arrived.
    pub(super) fn arrived(&mut self, len: u32) {
        self.arrived += 1;
        self.is_awaited_for(len);
    }

    /// Notes that a part of a message of `len` bytes was read.
    pub(super) fn is_awaited_for(&mut self, len: u32) {
        self.is_awaited |= len > COPIED_BYTES;
    }

    /// Notes that no more bytes have come.
    pub(super) fn idle(&mut self) {
        self.is_due |= self.is_awaited || self.main - self.told[0] > IDLE_BYTES;
    }

    /// Forgets what the sender was told of.
    pub(super) fn tell_again(&mut self) {
        self.told.fill(0);
        self.is_due = true;
    }
}

impl Receiver {
    /// Sets whether main and lanes go on over new connections once they are lost. If so, the receiver acknowledges.
    #[must_use]
    pub fn resuming(mut self, on: bool) -> Self {
        self.acks.is_on = on;
        self
    }

    /// Notes that this many bytes were read from main.
    pub fn has_read(&mut self, bytes: usize) {
        self.acks.main += bytes as u64;
    }

    /// Number of bytes that were read from main, for the first frame on a new main socket.
    pub fn main_position(&self) -> u64 {
        self.acks.main
    }

    /// Fills `frames` with the acknowledges to send over control, and returns their length in bytes. The length is 0
    /// if it is not yet time, or if there is no room for all sockets. `lanes` has the number of bytes read from each
    /// lane.
    pub fn take_acks(&mut self, lanes: impl Iterator<Item = u64>, frames: &mut [u8]) -> usize {
        let is_between = matches!(self.main, Main::Frame | Main::Excess(0));
        let Acks { is_on, main, told, arrived, is_awaited, is_due } = &mut self.acks;
        let is_time = *is_due
            || *is_awaited && is_between
            || *main - told[0] >= ACK_BYTES
            || *arrived >= ACK_MESSAGES;
        if !*is_on || !is_time {
            return 0;
        }
        let frames = frames.as_chunks_mut::<FRAME_BYTES>().0;
        if frames.len() <= usize::from(self.lanes) {
            return 0;
        }
        let mut filled = 0;
        let counts = core::iter::once(*main).chain(lanes);
        for ((socket, count), told) in (1..).zip(counts).zip(told) {
            if count != *told {
                frames[filled] = AckFrame { socket, count }.to_bytes();
                (*told, filled) = (count, filled + 1);
            }
        }
        (*arrived, *is_awaited, *is_due) = (0, false, false);
        filled * FRAME_BYTES
    }
}
