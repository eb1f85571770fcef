//! The chunks of a lane, from the first that is not done.

use std::collections::VecDeque;
use std::ptr::NonNull;

use invar_core::error::Error;
use invar_core::socket::SocketFrameError;

use crate::memory::read_raw;

/// A chunk, or the rest of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: The caller of `Lanes::push` promised the memory to the lane, whichever thread moves it.
unsafe impl Send for Piece {}

/// A chunk that is not done, and its copy if it has one.
#[derive(Debug)]
struct Chunk {
    piece: Piece,
    copy: Option<Box<[u8]>>,
}

/// Chunks in the order in which their bytes cross the socket. Positions count the bytes of the lane.
#[derive(Debug, Default)]
pub(super) struct Queue {
    chunks: VecDeque<Chunk>,
    /// Position of the first chunk.
    begin: u64,
    /// Index of the chunk that moves next, and the number of its bytes that have moved.
    next: usize,
    partial: usize,
    position: u64,
    /// Position of the first byte that has never moved.
    fresh: u64,
}

impl Queue {
    pub(super) fn push(&mut self, piece: Piece) {
        self.chunks.push_back(Chunk { piece, copy: None });
    }

    /// Returns the rest of the chunk that moves next.
    pub(super) fn next(&self) -> Option<Piece> {
        let Chunk { piece: Piece { start, len }, copy } = self.chunks.get(self.next)?;
        let start = copy.as_ref().map_or(*start, |copy| NonNull::from(&copy[..]).cast());
        // SAFETY: Fewer bytes than the chunk has have moved.
        Some(Piece { start: unsafe { start.add(self.partial) }, len: len - self.partial })
    }

    /// Notes that bytes of the next chunk have moved.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.position += bytes as u64;
        self.fresh = self.fresh.max(self.position);
        self.partial += bytes;
        if self.chunks.get(self.next).is_some_and(|chunk| self.partial == chunk.piece.len) {
            (self.next, self.partial) = (self.next + 1, 0);
        }
    }

    /// Position of the next byte that moves.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether bytes that had moved are to be moved again.
    pub(super) fn is_behind(&self) -> bool {
        self.position < self.fresh
    }

    /// The lengths of the chunks that have moved and have not ended.
    pub(super) fn moved_lens(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().take(self.next).map(|chunk| chunk.piece.len)
    }

    /// Removes the chunks that have moved and end before `position`, or all that have moved. Returns their number.
    pub(super) fn end_up_to(&mut self, position: Option<u64>) -> usize {
        let position = position.unwrap_or(self.position).min(self.position);
        let mut ended = 0;
        while self.next > 0 && self.begin + self.chunks[0].piece.len as u64 <= position {
            self.begin += self.chunks[0].piece.len as u64;
            self.chunks.pop_front();
            (self.next, ended) = (self.next - 1, ended + 1);
        }
        ended
    }

    /// Copies the chunks that have moved, so that they can move again although their owners have them back. Returns their
    /// number.
    ///
    /// # Safety
    /// The bytes are valid, and nobody writes them.
    pub(super) unsafe fn copy_moved(&mut self) -> usize {
        for Chunk { piece: Piece { start, len }, copy } in self.chunks.iter_mut().take(self.next) {
            copy.get_or_insert_with(|| {
                let mut copy = vec![0; *len].into_boxed_slice();
                // SAFETY: The caller promises the bytes.
                unsafe { read_raw(*start, &mut copy) };
                copy
            });
        }
        self.next
    }

    /// Moves all bytes again from a position on, which the peer has named.
    ///
    /// # Errors
    /// [`SocketFrameError::Count`]: the position is behind those that have moved, or before the first chunk.
    pub(super) fn go_back_to(&mut self, position: u64) -> Result<(), Error> {
        if !(self.begin..=self.position).contains(&position) {
            let range = [self.begin, self.position];
            return Err(Error::Frame(SocketFrameError::Count { got: position, range }));
        }
        let mut left = (position - self.begin) as usize;
        self.next = 0;
        while self.chunks.get(self.next).is_some_and(|chunk| chunk.piece.len <= left) {
            left -= self.chunks[self.next].piece.len;
            self.next += 1;
        }
        (self.partial, self.position) = (left, position);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_move_again_from_where_the_peer_has_come_and_end_once() {
        let mut bytes = [0u8; 60];
        let start = NonNull::from(&mut bytes[0]);
        let mut queue = Queue::default();
        for (at, len) in [(0, 10), (10, 20), (30, 30)] {
            // SAFETY: The offset lies within the array.
            queue.push(Piece { start: unsafe { start.add(at) }, len });
        }
        let next = |queue: &Queue| {
            queue
                .next()
                .map(|rest| (rest.start.as_ptr() as usize - start.as_ptr() as usize, rest.len))
        };
        queue.moved(10);
        queue.moved(15);
        assert_eq!((next(&queue), queue.position()), (Some((25, 5)), 25));
        assert_eq!(queue.end_up_to(Some(9)), 0);
        assert_eq!(queue.end_up_to(Some(12)), 1);
        assert!(queue.go_back_to(9).is_err() && queue.go_back_to(26).is_err());
        queue.go_back_to(12).unwrap();
        assert_eq!((next(&queue), queue.position()), (Some((12, 18)), 12));
        queue.moved(18);
        assert_eq!(queue.end_up_to(None), 1);
        queue.moved(30);
        assert_eq!((next(&queue), queue.end_up_to(Some(99)), queue.position()), (None, 1, 60));
        queue.go_back_to(60).unwrap();
        assert!(queue.go_back_to(59).is_err());
    }
}
