//! A ring of slots in shared memory: one process fills them, another empties them, in order.
//!
//! ```text
//!  released │ stamp 0  payload of up to 56 bytes │ … stamp 7 │ slot 0 │ … slot 7 │
//!  128 B      64 B each                                       slot_bytes each
//! ```
//!
//! A stamp shows that its slot is full: it holds the message's number (from 1, wrapping) in its upper
//! half and the length in its lower half. So a short message needs only one cache line to change hands;
//! a long message lies in its slot. The only other word, `released`, counts the emptied slots. Each word
//! has one writer.
//!
//! Neither side trusts the other: a length is checked against the slot, and a count against what was
//! sent. The peer may still change a slot during a read, so callers get a pointer to it.
//!
//! Both sides ring the other side's [`Bell`] after each write.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use invar_core::math::STEPS;

use super::{Bell, SharedMemory};

/// Maximum bytes of a message that fits next to its stamp.
pub const INLINE_BYTES_MAX: usize = 64 - size_of::<u64>();

const SLOTS: u32 = STEPS;
/// The count takes two cache lines, because processors fetch lines in pairs.
const RELEASED_BYTES: usize = 128;
const CELL_BYTES: usize = 64;
/// Slots begin on a page boundary, so slots of any size are aligned.
const SLOTS_AT: usize = 4096;
/// Maximum size of a slot in bytes: the largest number of whole pages whose length fits a stamp.
const SLOT_BYTES_MAX: usize = u32::MAX as usize & !(SLOTS_AT - 1);
const _: () = assert!(RELEASED_BYTES + SLOTS as usize * CELL_BYTES <= SLOTS_AT);

/// The layout of consecutive rings in a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    slot_bytes: usize,
}

/// The other side wrote an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A message is longer than its slot.
    #[error("a message of {len} bytes in a slot of {slot_bytes} of shared memory")]
    Length {
        /// Length in the stamp.
        len: usize,
        /// Length of a slot.
        slot_bytes: usize,
    },
    /// The count of emptied slots exceeds that of filled ones.
    #[error("{released} slots of shared memory emptied, of {sent} filled")]
    Released {
        /// Number of emptied slots, as the other side claims.
        released: u32,
        /// Number of filled slots.
        sent: u32,
    },
}

impl RingLayout {
    /// Makes the layout of rings with slots of `slot_bytes`, rounded up to whole pages. Returns `None`
    /// if a message could exceed the length that fits a stamp (4 GiB), or a ring the address space.
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

    /// Makes the layout with the longest slots whose ring has at most `ring_bytes`. A slot has at least a page, so
    /// the ring may be longer than a very small `ring_bytes`.
    pub fn within(ring_bytes: usize) -> Self {
        let slot_bytes = ring_bytes.saturating_sub(SLOTS_AT) / SLOTS as usize;
        RingLayout { slot_bytes: (slot_bytes & !(SLOTS_AT - 1)).clamp(SLOTS_AT, SLOT_BYTES_MAX) }
    }

    /// Returns the maximum length of a message in bytes.
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the length of a ring in bytes.
    pub const fn ring_bytes(&self) -> usize {
        // `new` has checked that this does not overflow.
        SLOTS_AT + SLOTS as usize * self.slot_bytes
    }

    fn ring(&self, memory: &SharedMemory, number: usize) -> ShmRing {
        let at = self.ring_bytes().checked_mul(number);
        let at = at
            .filter(|at| at.checked_add(self.ring_bytes()).is_some_and(|end| end <= memory.len()));
        let at = at.expect("as many rings as there is memory for");
        // SAFETY: The ring lies within the mapping, which `ShmRing` keeps.
        let start = unsafe { memory.start().add(at) };
        ShmRing { start, slot_bytes: self.slot_bytes, _memory: memory.clone() }
    }
}

/// A ring in mapped memory.
#[derive(Debug)]
struct ShmRing {
    start: NonNull<u8>,
    slot_bytes: usize,
    _memory: SharedMemory,
}

// SAFETY: `ShmRing` keeps the mapping, which belongs to no thread.
unsafe impl Send for ShmRing {}

impl ShmRing {
    fn released(&self) -> &AtomicU32 {
        // SAFETY: The word is at the page-aligned start of the ring, and everyone accesses it as an
        // atomic.
        unsafe { self.start.cast().as_ref() }
    }

    fn cell(&self, index: u32) -> NonNull<u8> {
        let at = RELEASED_BYTES + (index % SLOTS) as usize * CELL_BYTES;
        // SAFETY: The cell lies before `SLOTS_AT`, within the ring.
        unsafe { self.start.add(at) }
    }

    fn stamp(&self, index: u32) -> &AtomicU64 {
        // SAFETY: The stamp is at the start of a 64-byte aligned cell, and everyone accesses it as an
        // atomic.
        unsafe { self.cell(index).cast().as_ref() }
    }

    /// Returns the location of a message of `len` bytes.
    fn payload(&self, index: u32, len: usize) -> NonNull<u8> {
        if len <= INLINE_BYTES_MAX {
            // SAFETY: The location is in the cell, behind its stamp.
            return unsafe { self.cell(index).add(size_of::<u64>()) };
        }
        let at = SLOTS_AT + (index % SLOTS) as usize * self.slot_bytes;
        // SAFETY: The slot lies within the ring.
        unsafe { self.start.add(at) }
    }
}

/// Returns the stamp of message number `index`, counted from 0.
fn stamp(index: u32, len: usize) -> u64 {
    u64::from(index.wrapping_add(1)) << 32 | len as u64
}

/// The sending end, which fills slots. Each ring has exactly one.
#[derive(Debug)]
pub struct SendRing {
    ring: ShmRing,
    /// The bell of the other side.
    bell: Bell,
    /// Number of filled slots, wrapping.
    sent: u32,
    /// Number of emptied slots at the last check.
    released: u32,
}

impl SendRing {
    /// Makes the sending end of ring `number`, in memory that was zeroed. `bell` is the receiver's.
    ///
    /// # Panics
    /// Panics if the memory has no such ring.
    pub fn new(memory: &SharedMemory, layout: RingLayout, number: usize, bell: Bell) -> Self {
        SendRing { ring: layout.ring(memory, number), bell, sent: 0, released: 0 }
    }

    /// Returns the location for a message of `len` bytes, at most a slot's length; `None` if every slot
    /// is full.
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

    /// Hands the slot of the last [`free`](Self::free) to the other side; `len` is the same as there.
    #[inline]
    pub fn publish(&mut self, len: usize) {
        debug_assert!(self.sent.wrapping_sub(self.released) < SLOTS, "`free` comes first");
        self.ring.stamp(self.sent).store(stamp(self.sent, len), Ordering::Release);
        self.sent = self.sent.wrapping_add(1);
        self.bell.ring();
    }
}

/// The receiving end, which empties slots. Each ring has exactly one.
#[derive(Debug)]
pub struct RecvRing {
    ring: ShmRing,
    /// The bell of the other side.
    bell: Bell,
    /// Number of emptied slots, wrapping.
    released: u32,
}

impl RecvRing {
    /// Makes the receiving end of ring `number`, in memory that was zeroed. `bell` is the sender's.
    ///
    /// # Panics
    /// Panics if the memory has no such ring.
    pub fn new(memory: &SharedMemory, layout: RingLayout, number: usize, bell: Bell) -> Self {
        RecvRing { ring: layout.ring(memory, number), bell, released: 0 }
    }

    /// Returns the next message and its length, or `None` if no message has arrived yet.
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

    /// Hands the slot of the last [`full`](Self::full) back to the other side.
    #[inline]
    pub fn release(&mut self) {
        self.released = self.released.wrapping_add(1);
        self.ring.released().store(self.released, Ordering::Release);
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::shm::BELL_BYTES;

    const LAYOUT: RingLayout = RingLayout::new(4096).unwrap();

    fn pair(number: usize) -> (SendRing, RecvRing) {
        let bells_at = 2 * LAYOUT.ring_bytes();
        let ours = SharedMemory::create("invar-test", bells_at + 2 * BELL_BYTES).unwrap();
        let theirs = SharedMemory::from_fd(ours.to_fd().unwrap()).unwrap();
        let receiver = Bell::new(&ours, bells_at);
        let sender = Bell::new(&theirs, bells_at + BELL_BYTES);
        (
            SendRing::new(&ours, LAYOUT, number, receiver),
            RecvRing::new(&theirs, LAYOUT, number, sender),
        )
    }

    fn send(ring: &mut SendRing, bytes: &[u8]) -> bool {
        let Some(to) = ring.free(bytes.len()).unwrap() else { return false };
        // SAFETY: The slot is ours until it is published, and has enough room.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        ring.publish(bytes.len());
        true
    }

    fn recv(ring: &mut RecvRing) -> Option<Vec<u8>> {
        let (from, len) = ring.full().unwrap()?;
        // SAFETY: The slot is ours until it is released.
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
    fn the_longest_slots_within_a_length_leave_no_room_for_another_page_each() {
        for ring_bytes in [RingLayout::new(1).unwrap().ring_bytes(), 100_000, 1 << 20, 1 << 30] {
            let layout = RingLayout::within(ring_bytes);
            let longer = RingLayout::new(layout.slot_bytes() + 1).unwrap();
            assert!(layout.ring_bytes() <= ring_bytes, "{ring_bytes}: {layout:?}");
            assert!(longer.ring_bytes() > ring_bytes, "{ring_bytes}: {layout:?}");
        }
        assert_eq!(RingLayout::within(0).slot_bytes(), SLOTS_AT);
        assert_eq!(RingLayout::within(usize::MAX).slot_bytes(), SLOT_BYTES_MAX);
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
