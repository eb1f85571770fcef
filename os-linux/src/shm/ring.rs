//! A ring of slots in shared memory: one process fills them, another empties them, in order.
//!
//! ```text
//!  released │ stamp 0  payload of up to 56 bytes │ … stamp 7 │ slot 0 │ … slot 7 │
//!  128 B      64 B each                                       slot_bytes each
//! ```
//!
//! A stamp says that its slot is full: the number of the message (from 1, wrapping) above its
//! length. So one cache line that changes hands carries a short message; a long one lies in its
//! slot. The one other word, `released`, counts what was emptied. Each word has one writer.
//!
//! Neither side trusts the other: a length is checked against the slot, a count against what was
//! sent. What is in a slot may still change while it is read, so it is handed out as a pointer.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use invar_core::math::STEPS;

use super::SharedMemory;

/// Bytes that go beside the stamp of a message.
pub const INLINE_BYTES_MAX: usize = 64 - size_of::<u64>();

const SLOTS: u32 = STEPS;
/// Two cache lines: processors fetch them in pairs.
const RELEASED_BYTES: usize = 128;
const CELL_BYTES: usize = 64;
/// Slots begin on a page, so that slots of any size are aligned.
const SLOTS_AT: usize = 4096;
/// The most bytes of a slot: the largest number of whole pages that a stamp can tell.
const SLOT_BYTES_MAX: usize = u32::MAX as usize & !(SLOTS_AT - 1);
const _: () = assert!(RELEASED_BYTES + SLOTS as usize * CELL_BYTES <= SLOTS_AT);

/// How rings lie in a piece of memory, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    slot_bytes: usize,
}

/// The other side wrote something that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// More bytes than a slot has.
    #[error("a message of {len} bytes in a slot of {slot_bytes} of shared memory")]
    Length {
        /// Bytes that the stamp tells of.
        len: usize,
        /// Bytes of a slot.
        slot_bytes: usize,
    },
    /// More slots emptied than were filled.
    #[error("{released} slots of shared memory emptied, of {sent} filled")]
    Released {
        /// Emptied, as the other side says.
        released: u32,
        /// Filled.
        sent: u32,
    },
}

impl RingLayout {
    /// Of rings with slots of `slot_bytes`, rounded up to whole pages. `None` where a message could
    /// be longer than a stamp can say (4 GiB), or a ring than there are addresses.
    pub const fn new(slot_bytes: usize) -> Option<Self> {
        if slot_bytes > SLOT_BYTES_MAX {
            return None;
        }
        let layout = RingLayout { slot_bytes: slot_bytes.next_multiple_of(SLOTS_AT) };
        match layout.slot_bytes.checked_mul(SLOTS as usize) {
            Some(bytes) if bytes.checked_add(SLOTS_AT).is_some() => Some(layout),
            _ => None,
        }
    }

    /// Bytes that a message may have.
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of a ring.
    pub const fn ring_bytes(&self) -> usize {
        // `new` has seen that this has an end.
        SLOTS_AT + SLOTS as usize * self.slot_bytes
    }

    fn ring(&self, memory: &SharedMemory, number: usize) -> Ring {
        let at = self.ring_bytes().checked_mul(number);
        let at = at
            .filter(|at| at.checked_add(self.ring_bytes()).is_some_and(|end| end <= memory.len()));
        let at = at.expect("as many rings as there is memory for");
        // SAFETY: within the mapping, which `Ring` keeps.
        let start = unsafe { memory.start().add(at) };
        Ring { start, slot_bytes: self.slot_bytes, _memory: memory.clone() }
    }
}

/// A ring in mapped memory.
#[derive(Debug)]
struct Ring {
    start: NonNull<u8>,
    slot_bytes: usize,
    _memory: SharedMemory,
}

// SAFETY: the mapping is kept, and has no thread affinity.
unsafe impl Send for Ring {}

impl Ring {
    fn released(&self) -> &AtomicU32 {
        // SAFETY: at the start of the ring, page-aligned; atomic for all who access it.
        unsafe { self.start.cast().as_ref() }
    }

    fn cell(&self, index: u32) -> NonNull<u8> {
        let at = RELEASED_BYTES + (index % SLOTS) as usize * CELL_BYTES;
        // SAFETY: before `SLOTS_AT`, within the ring.
        unsafe { self.start.add(at) }
    }

    fn stamp(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the head of a cell, aligned to 64; atomic for all who access it.
        unsafe { self.cell(index).cast().as_ref() }
    }

    /// The place of a message of `len` bytes.
    fn payload(&self, index: u32, len: usize) -> NonNull<u8> {
        if len <= INLINE_BYTES_MAX {
            // SAFETY: in the cell, behind its stamp.
            return unsafe { self.cell(index).add(size_of::<u64>()) };
        }
        let at = SLOTS_AT + (index % SLOTS) as usize * self.slot_bytes;
        // SAFETY: within the ring.
        unsafe { self.start.add(at) }
    }
}

/// The stamp of message number `index`, counted from 0.
fn stamp(index: u32, len: usize) -> u64 {
    u64::from(index.wrapping_add(1)) << 32 | len as u64
}

/// The end that fills. There must be just one for each ring.
#[derive(Debug)]
pub struct SendRing {
    ring: Ring,
    /// Slots filled, wrapping.
    sent: u32,
    /// Slots emptied, when last looked at.
    released: u32,
}

impl SendRing {
    /// Makes this end of ring `number`, in memory that was all zero.
    ///
    /// # Panics
    /// The memory has no such ring.
    pub fn new(memory: &SharedMemory, layout: RingLayout, number: usize) -> Self {
        SendRing { ring: layout.ring(memory, number), sent: 0, released: 0 }
    }

    /// The place for a message of `len` bytes, at most a slot's; `None` if every slot is full.
    #[inline]
    pub fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, RingError> {
        debug_assert!(len <= self.ring.slot_bytes);
        if self.sent.wrapping_sub(self.released) >= SLOTS {
            self.released = self.ring.released().load(Ordering::Acquire);
            let full = self.sent.wrapping_sub(self.released);
            if full > SLOTS {
                return Err(RingError::Released { released: self.released, sent: self.sent });
            }
            if full == SLOTS {
                return Ok(None);
            }
        }
        Ok(Some(self.ring.payload(self.sent, len)))
    }

    /// Gives the slot that [`free`](Self::free) gave, for the same length, to the other side.
    #[inline]
    pub fn publish(&mut self, len: usize) {
        debug_assert!(self.sent.wrapping_sub(self.released) < SLOTS, "`free` comes first");
        self.ring.stamp(self.sent).store(stamp(self.sent, len), Ordering::Release);
        self.sent = self.sent.wrapping_add(1);
    }
}

/// The end that empties. There must be just one for each ring.
#[derive(Debug)]
pub struct RecvRing {
    ring: Ring,
    /// Slots emptied, wrapping.
    released: u32,
}

impl RecvRing {
    /// Makes this end of ring `number`, in memory that was all zero.
    ///
    /// # Panics
    /// The memory has no such ring.
    pub fn new(memory: &SharedMemory, layout: RingLayout, number: usize) -> Self {
        RecvRing { ring: layout.ring(memory, number), released: 0 }
    }

    /// The next message and its length; `None`: it is not there yet.
    #[inline]
    pub fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, RingError> {
        let stamp = self.ring.stamp(self.released).load(Ordering::Acquire);
        if (stamp >> 32) as u32 != self.released.wrapping_add(1) {
            return Ok(None);
        }
        let (len, slot_bytes) = (stamp as u32 as usize, self.ring.slot_bytes);
        if len > slot_bytes {
            return Err(RingError::Length { len, slot_bytes });
        }
        Ok(Some((self.ring.payload(self.released, len), len)))
    }

    /// Gives the slot that [`full`](Self::full) gave back to the other side.
    #[inline]
    pub fn release(&mut self) {
        self.released = self.released.wrapping_add(1);
        self.ring.released().store(self.released, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LAYOUT: RingLayout = RingLayout::new(4096).unwrap();

    fn pair(number: usize) -> (SendRing, RecvRing) {
        let ours = SharedMemory::create("invar-test", 2 * LAYOUT.ring_bytes()).unwrap();
        let theirs = SharedMemory::from_fd(ours.to_fd().unwrap()).unwrap();
        (SendRing::new(&ours, LAYOUT, number), RecvRing::new(&theirs, LAYOUT, number))
    }

    fn send(ring: &mut SendRing, bytes: &[u8]) -> bool {
        let Some(to) = ring.free(bytes.len()).unwrap() else { return false };
        // SAFETY: the slot is ours until it is published, and has room.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        ring.publish(bytes.len());
        true
    }

    fn recv(ring: &mut RecvRing) -> Option<Vec<u8>> {
        let (from, len) = ring.full().unwrap()?;
        // SAFETY: the slot is ours until it is released.
        let bytes = (0..len).map(|i| unsafe { from.add(i).read() }).collect();
        ring.release();
        Some(bytes)
    }

    #[test]
    fn eight_messages_fit_and_come_out_in_order() {
        let (mut sender, mut receiver) = pair(1);
        assert_eq!(recv(&mut receiver), None);
        for round in 0..5_u8 {
            let lens = [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 64, 4095, 4096, 3];
            let messages = lens.map(|len| vec![round ^ len as u8; len]);
            assert!(messages.iter().all(|message| send(&mut sender, message)));
            assert!(!send(&mut sender, b"no room"));
            for message in messages {
                assert_eq!(recv(&mut receiver), Some(message));
            }
            assert_eq!(recv(&mut receiver), None);
        }
    }

    #[test]
    fn what_two_threads_exchange_is_whole() {
        let (mut sender, mut receiver) = pair(0);
        let message = |i: usize| vec![i as u8; i * 37 % 300];
        let thread = thread::spawn(move || {
            for i in 0..20_000 {
                while !send(&mut sender, &message(i)) {
                    thread::yield_now();
                }
            }
        });
        for i in 0..20_000 {
            let got = loop {
                match recv(&mut receiver) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, message(i), "message {i}");
        }
        thread.join().unwrap();
    }

    #[test]
    fn slots_that_no_memory_has_are_refused() {
        for slot_bytes in
            [1 << 32, 1 << 60, 1 << 61, (1 << 61) - 511, usize::MAX - 4095, usize::MAX]
        {
            assert_eq!(RingLayout::new(slot_bytes), None, "{slot_bytes:#x}");
        }
        let largest = RingLayout::new(SLOT_BYTES_MAX).unwrap();
        assert_eq!(largest.ring_bytes(), 4096 + 8 * SLOT_BYTES_MAX);
        assert_eq!(stamp(0, largest.slot_bytes()), 0x1_ffff_f000);
    }

    #[test]
    fn numbers_wrap() {
        let (mut sender, mut receiver) = pair(0);
        let start = u32::MAX - 2;
        (sender.sent, sender.released, receiver.released) = (start, start, start);
        for i in 0..10_u8 {
            assert!(send(&mut sender, &[i]));
            assert_eq!(recv(&mut receiver), Some(vec![i]));
        }
    }

    #[test]
    fn a_peer_that_writes_nonsense_is_found_out() {
        let (mut sender, mut receiver) = pair(0);
        sender.ring.stamp(0).store(stamp(0, 4097), Ordering::Release);
        let error = RingError::Length { len: 4097, slot_bytes: 4096 };
        assert_eq!(receiver.full().unwrap_err(), error);
        for _ in 0..SLOTS {
            assert!(send(&mut sender, b""));
        }
        sender.ring.released().store(9, Ordering::Release);
        let error = RingError::Released { released: 9, sent: 8 };
        assert_eq!(sender.free(0).unwrap_err(), error);
    }
}
