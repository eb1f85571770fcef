//! The FIFO: the receiver writes the addresses of its posted buffers here, in the sender's memory.
//!
//! The sender owns an array of `depth` rows of eight slots, registered for remote writes. To post a
//! receive of `n` buffers, the receiver fills `n` slots of the next row in its own shadow of the FIFO.
//! The receiver then RDMA-writes these slots to the sender. The sender takes a row once each of its
//! slots carries `idx == head + 1` (`net_ib.cc ncclIbSendFifo`, `ncclIbPostFifo`, `ncclIbIsend`).
//!
//! ```text
//! byte  0        8      12      16      20      24       32
//!       +--------+------+-------+-------+-------+--------+
//!       | addr   | size | rkey  | nreqs | tag   | idx    |   little-endian
//!       +--------+------+-------+-------+-------+--------+
//! word  0        1              2               3
//! ```
//!
//! A slot has 32 bytes at a 32-byte boundary, so that PCIe relaxed ordering cannot tear it. `idx` is in
//! the slot's last word: a sender that reads `idx` with acquire ordering also sees the other words.

use core::hint::cold_path;
use core::sync::atomic::{AtomicU64, Ordering};

use static_assertions::{assert_eq_size, const_assert, const_assert_eq};
use zerocopy::byteorder::little_endian::{I32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The largest number of buffers that one receive may group (`NCCL_NET_IB_MAX_RECVS`).
pub const RECVS_MAX: usize = 8;
/// The largest number of rows of a FIFO, and of requests of a comm: 32 requests of up to eight buffers.
pub const DEPTH_MAX: usize = 256;
/// The number of rows in NCCL 2.14.3 (`MAX_REQUESTS`).
pub const DEPTH_NCCL_2_14: usize = 64;
/// Length in bytes of the longest buffer: the largest value of a slot's signed size.
pub(crate) const LEN_MAX: u32 = i32::MAX as u32;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = size_of::<SlotBytes>();
/// Bytes of a row.
pub const ROW_BYTES: usize = SLOT_BYTES * RECVS_MAX;
/// Bytes of a FIFO with the largest number of rows. Every FIFO occupies this much memory, even with
/// fewer rows.
pub(crate) const FIFO_BYTES_MAX: usize = ROW_BYTES * DEPTH_MAX;

const SLOT_WORDS: usize = SLOT_BYTES / 8;

/// A slot as it lies in memory and on the wire. The [module](self) documentation has the picture.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(32))]
pub struct SlotBytes {
    addr: U64,
    size: I32,
    rkey: U32,
    nreqs: U32,
    tag: U32,
    idx: U64,
}

assert_eq_size!(SlotBytes, [u8; 32]);
const_assert_eq!(core::mem::offset_of!(SlotBytes, idx), 24);
const_assert_eq!(DEPTH_MAX, u8::MAX as usize + 1);
const_assert!(DEPTH_MAX.is_power_of_two() && DEPTH_NCCL_2_14.is_power_of_two());

/// The values of a slot: the sender may write up to `size` bytes to `addr` under `rkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoSlot {
    /// Address of the receiver's buffer.
    pub addr: u64,
    /// Length of the buffer in bytes. The length is signed as in NCCL; a negative length is an error of
    /// the peer.
    pub size: i32,
    /// Remote key of the buffer.
    pub rkey: u32,
    /// The number of buffers in this row.
    pub nreqs: u32,
    /// Tag of the message.
    pub tag: u32,
    /// The number of receives posted on this comm before this one, plus one.
    pub idx: u64,
}

impl FifoSlot {
    /// Converts the slot to the bytes of the wire.
    pub fn to_bytes(&self) -> SlotBytes {
        SlotBytes {
            addr: self.addr.into(),
            size: self.size.into(),
            rkey: self.rkey.into(),
            nreqs: self.nreqs.into(),
            tag: self.tag.into(),
            idx: self.idx.into(),
        }
    }
}

/// Any bytes form a slot; the sender checks each field.
impl From<&SlotBytes> for FifoSlot {
    fn from(bytes: &SlotBytes) -> Self {
        FifoSlot {
            addr: bytes.addr.get(),
            size: bytes.size.get(),
            rkey: bytes.rkey.get(),
            nreqs: bytes.nreqs.get(),
            tag: bytes.tag.get(),
            idx: bytes.idx.get(),
        }
    }
}

/// A word of memory that the peer or a NIC writes.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// A row of slots in memory.
pub(crate) struct Row<'a, W = AtomicU64>(&'a [[W; SLOT_WORDS]; RECVS_MAX]);

impl<'a> Row<'a> {
    /// Row number `row`; `None` if the memory is shorter than the longest FIFO.
    #[inline(always)]
    pub(crate) fn of(words: &'a [AtomicU64], row: u8) -> Option<Self> {
        let Some(words) = words.first_chunk::<{ FIFO_BYTES_MAX / 8 }>() else {
            cold_path();
            return None;
        };
        words.as_chunks().0.as_chunks().0.get(usize::from(row)).map(Row)
    }
}

impl<'a, W: Word> Row<'a, W> {
    /// A slot, if it belongs to the receive with number `idx`.
    #[inline(always)]
    pub(crate) fn load(&self, slot: usize, idx: u64) -> Option<SlotWords<'a, W>> {
        let words = self.0.get(slot)?;
        (u64::from_le(words[3].load(Ordering::Acquire)) == idx).then_some(SlotWords(words))
    }

    /// A slot that [`Row::load`] has found before: this function does not check `idx` again.
    #[inline(always)]
    pub(crate) fn seen(&self, slot: usize) -> SlotWords<'a, W> {
        SlotWords(&self.0[slot % RECVS_MAX])
    }

    /// Fills a slot of the receiver's shadow.
    #[inline(always)]
    pub(crate) fn store(&self, slot: usize, value: &FifoSlot) {
        let Some(w) = self.0.get(slot) else { return };
        w[0].store(value.addr.to_le(), Ordering::Relaxed);
        let size_rkey = u64::from(value.size as u32) | u64::from(value.rkey) << 32;
        w[1].store(size_rkey.to_le(), Ordering::Relaxed);
        let nreqs_tag = u64::from(value.nreqs) | u64::from(value.tag) << 32;
        w[2].store(nreqs_tag.to_le(), Ordering::Relaxed);
        w[3].store(value.idx.to_le(), Ordering::Release);
    }

    /// Stores another `idx` in a slot of the receiver's shadow, for a planted bug.
    pub(crate) fn store_idx(&self, slot: usize, idx: u64) {
        let Some(w) = self.0.get(slot) else { return };
        w[3].store(idx.to_le(), Ordering::Release);
    }
}

/// A slot that has arrived. The peer may change its memory again, so read each word only once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotWords<'a, W = AtomicU64>(&'a [W; SLOT_WORDS]);

impl<W: Word> SlotWords<'_, W> {
    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        u64::from_le(self.0[i].load(Ordering::Relaxed))
    }

    /// Returns whether the slot is alone in its row and has this tag. One comparison decides.
    #[inline(always)]
    pub(crate) fn is_single(&self, tag: u32) -> bool {
        self.word(2) == 1 | u64::from(tag) << 32
    }

    /// The number of buffers in this row, and the tag.
    #[inline(always)]
    pub(crate) fn nreqs_tag(&self) -> (u32, u32) {
        let word = self.word(2);
        (word as u32, (word >> 32) as u32)
    }

    /// Tag of the message.
    #[inline(always)]
    pub(crate) fn tag(&self) -> u32 {
        (self.word(2) >> 32) as u32
    }

    /// The receiver's buffer.
    #[inline(always)]
    pub(crate) fn room(&self) -> Room {
        let word = self.word(1);
        Room { size: word as i32, rkey: (word >> 32) as u32, addr: self.word(0) }
    }
}

/// A buffer that waits for data, as the peer describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) addr: u64,
    pub(crate) size: i32,
    pub(crate) rkey: u32,
}

impl Room {
    /// Returns whether `len` bytes fit; `len` is at most [`LEN_MAX`]. No message fits into a negative
    /// size.
    #[inline(always)]
    pub(crate) fn holds(&self, len: u32) -> bool {
        len as i32 <= self.size
    }

    /// Checks the values. The error names a value that no working receiver writes, and gives that
    /// value.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), (&'static str, u64)> {
        if self.size < 0 {
            return Err(("a negative size", u64::from(self.size as u32)));
        }
        if self.addr == 0 {
            return Err(("address", self.addr));
        }
        if self.rkey == 0 {
            return Err(("rkey", u64::from(self.rkey)));
        }
        Ok(())
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORDS: usize = FIFO_BYTES_MAX / 8;

    fn words() -> [AtomicU64; WORDS] {
        [const { AtomicU64::new(0) }; WORDS]
    }

    proptest! {
        #[test]
        fn a_stored_slot_reads_back_and_lies_as_on_the_wire(
            addr: u64, size: i32, rkey: u32, nreqs in 0u32..10, tag: u32, idx: u64,
            len in 0..=LEN_MAX, row: u8, slot in 0usize..RECVS_MAX,
        ) {
            let memory = words();
            let memory = &memory[..];
            let value = FifoSlot { addr, size, rkey, nreqs, tag, idx };
            let there = Row::of(memory, row).unwrap();
            there.store(slot, &value);
            let loaded = there.load(slot, idx).unwrap();
            prop_assert_eq!(loaded.room(), Room { addr, size, rkey });
            prop_assert_eq!(loaded.nreqs_tag(), (nreqs, tag));
            prop_assert_eq!(loaded.is_single(tag), nreqs == 1);
            prop_assert!(!loaded.is_single(tag.wrapping_add(1)));
            prop_assert!(there.load(slot, idx.wrapping_add(1)).is_none());
            prop_assert_eq!(loaded.room().holds(len), i64::from(len) <= i64::from(size));
            let mut bytes = [0u8; SLOT_BYTES];
            for (i, chunk) in bytes.chunks_exact_mut(8).enumerate() {
                let w = memory[(usize::from(row) * RECVS_MAX + slot) * SLOT_WORDS + i].load(Ordering::Relaxed);
                chunk.copy_from_slice(&w.to_ne_bytes());
            }
            let wire = value.to_bytes();
            prop_assert_eq!(wire.as_bytes(), &bytes);
            prop_assert_eq!(FifoSlot::from(&value.to_bytes()), value);
        }
    }

    #[test]
    fn memory_that_cannot_be_is_named() {
        let sound = Room { addr: 8, size: 0, rkey: 1 };
        assert_eq!(sound.check(), Ok(()));
        let size = Room { size: -1, ..sound };
        assert_eq!(size.check(), Err(("a negative size", 0xffff_ffff)));
        assert!(!size.holds(0));
        assert_eq!(Room { addr: 0, ..sound }.check(), Err(("address", 0)));
        assert_eq!(Room { rkey: 0, ..sound }.check(), Err(("rkey", 0)));
    }

    #[test]
    fn slot_bytes_match_what_nccl_writes() {
        let slot = FifoSlot {
            addr: 0x0102_0304_0506_0708,
            size: 4096,
            rkey: 0xaabb_ccdd,
            nreqs: 2,
            tag: 7,
            idx: 65,
        };
        let golden: [u8; 32] = [
            8, 7, 6, 5, 4, 3, 2, 1, 0, 0x10, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa, //
            2, 0, 0, 0, 7, 0, 0, 0, 65, 0, 0, 0, 0, 0, 0, 0,
        ];
        let wire = slot.to_bytes();
        assert_eq!(wire.as_bytes(), golden);
    }

    #[test]
    fn memory_that_is_too_short_has_no_rows() {
        let memory = words();
        assert!(Row::of(&memory, 0).is_some() && Row::of(&memory, u8::MAX).is_some());
        assert!(Row::of(&memory[1..], 0).is_none());
    }
}
