//! The buffers that the sender was told of: the last of them may be lost with the control socket.

use heapless::Deque;

use super::{Posted, Receiver};
use crate::error::Error;
use crate::socket::wire::{Frame, FrameKind, SocketFrameError};
use crate::socket::{AHEAD_MESSAGES, BUFFERS_MAX};

/// The most buffers that the sender may not have heard of. It has heard of each that a message has met, but for those
/// of the messages that it has sent ahead.
const TOLD_MAX: usize = BUFFERS_MAX + AHEAD_MESSAGES;

/// The last buffers that the sender was told of.
#[derive(Debug)]
pub(super) struct Told {
    buffers: Deque<Posted, TOLD_MAX>,
    /// Number of buffers that were told, wrapping.
    count: u32,
    /// Number of buffers at the end of the list that must be told again.
    untold: usize,
}

impl Told {
    pub(super) const fn new() -> Self {
        Told { buffers: Deque::new(), count: 0, untold: 0 }
    }

    /// Whether buffers must be told again.
    pub(super) fn has_untold(&self) -> bool {
        self.untold > 0
    }

    /// Returns the frame of the next buffer, which is the first of `news` if none must be told again.
    pub(super) fn next<const N: usize>(&mut self, news: &mut Deque<Posted, N>) -> Option<Frame> {
        let at = self.buffers.len() - self.untold;
        let (Posted { len, tag }, seq) = match self.buffers.get(at) {
            Some(again) => {
                let seq = self.count.wrapping_sub(self.untold as u32);
                self.untold -= 1;
                (*again, seq)
            }
            None => {
                let new = news.pop_front()?;
                if self.buffers.is_full() {
                    self.buffers.pop_front();
                }
                self.buffers.push_back(new).unwrap_or_default();
                self.count = self.count.wrapping_add(1);
                (new, self.count.wrapping_sub(1))
            }
        };
        Some(Frame { kind: FrameKind::Buffer, seq, len, tag })
    }
}

impl Receiver {
    /// Tells the sender again of all buffers that it does not know: it knows `count` of them, wrapping at 2³². All
    /// acknowledges follow anew too.
    ///
    /// # Errors
    /// [`SocketFrameError::Count`] ends the connection: the count cannot be right.
    pub fn control_resumed(&mut self, count: u64) -> Result<(), Error> {
        let Told { buffers, count: told, untold } = &mut self.told;
        let missing = told.wrapping_sub(count as u32) as usize;
        if missing > buffers.len() {
            let most = u64::from(*told);
            let range = [most.saturating_sub(buffers.len() as u64), most];
            return Err(self.fail(Error::Frame(SocketFrameError::Count { got: count, range })));
        }
        *untold = missing;
        self.acks.tell_again();
        Ok(())
    }
}
