//! Byte layouts of the transport headers, all big endian and unaligned.

use static_assertions::{assert_eq_align, assert_eq_size};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Opcode, Psn};
use super::Syndrome;

/// Base transport header.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +---------------+-+-+---+-------+-------------------------------+
/// |    opcode     |S|M|pad| tver  |             pkey              |
/// +-+-+-----------+-+-+---+-------+-------------------------------+
/// |F|B|  resv8a   |                    dest_qp                    |
/// +-+-+-----------+-----------------------------------------------+
/// |A|a|   resv7   |                      psn                      |
/// +-+-+-----------+-----------------------------------------------+
/// S solicited, M migreq, F fecn, B becn, A ack_req, a adaptive (ours)
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct Bth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    dest_qp: U32,
    psn: U32,
}

/// RDMA extended transport header.
///
/// ```text
/// +---------------------------------------------------------------+
/// |                          va (8 bytes)                         |
/// +-------------------------------+-------------------------------+
/// |        rkey (4 bytes)         |       dma_len (4 bytes)       |
/// +-------------------------------+-------------------------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct Reth {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

/// ACK extended transport header.
///
/// ```text
/// +---------------+-----------------------------------------------+
/// |   syndrome    |                 msn (3 bytes)                 |
/// +---------------+-----------------------------------------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct Aeth(U32);

/// Atomic extended transport header.
///
/// ```text
/// +---------------------------------------------------------------+
/// |                          va (8 bytes)                         |
/// +-------------------------------+-------------------------------+
/// |        rkey (4 bytes)         |
/// +-------------------------------+-------------------------------+
/// |                     swap_or_add (8 bytes)                     |
/// +---------------------------------------------------------------+
/// |                       compare (8 bytes)                       |
/// +---------------------------------------------------------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct AtomicEth {
    va: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

/// Atomic acknowledge extended transport header: the word's value before the operation, 8 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct AtomicAckEth(U64);

/// Invalidate extended transport header: an rkey, 4 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct Ieth(U32);

/// Immediate data: four bytes in memory order.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct ImmDt([u8; 4]);

/// Datagram extended transport header.
///
/// ```text
/// +---------------------------------------------------------------+
/// |                             qkey                              |
/// +---------------+-----------------------------------------------+
/// |     resv8     |                    src_qp                     |
/// +---------------+-----------------------------------------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in crate::roce) struct Deth {
    qkey: U32,
    src_qp: U32,
}

assert_eq_size!(Bth, [u8; 12]);
assert_eq_size!(Reth, [u8; 16]);
assert_eq_size!(Aeth, [u8; 4]);
assert_eq_size!(AtomicEth, [u8; 28]);
assert_eq_size!(AtomicAckEth, [u8; 8]);
assert_eq_size!(Ieth, [u8; 4]);
assert_eq_size!(ImmDt, [u8; 4]);
assert_eq_size!(Deth, [u8; 8]);
assert_eq_align!(Bth, Reth, Aeth, AtomicEth, AtomicAckEth, Ieth, ImmDt, Deth, u8);

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Bth, flags) == 1 && offset_of!(Bth, pkey) == 2);
    assert!(offset_of!(Bth, dest_qp) == 4 && offset_of!(Bth, psn) == 8);
    assert!(offset_of!(Reth, rkey) == 8 && offset_of!(Reth, dma_len) == 12);
    assert!(offset_of!(AtomicEth, rkey) == 8 && offset_of!(AtomicEth, swap_or_add) == 12);
    assert!(offset_of!(AtomicEth, compare) == 20 && offset_of!(Deth, src_qp) == 4);
};

/// Packs a byte into the bits above a 24-bit number.
const fn word(high: u8, low24: u32) -> U32 {
    U32::new((high as u32) << 24 | low24 & Psn::MASK)
}

const fn low24(word: U32) -> u32 {
    word.get() & Psn::MASK
}

const fn high8(word: U32) -> u8 {
    (word.get() >> 24) as u8
}

const fn bit(set: bool, n: u32) -> u8 {
    (set as u8) << n
}

impl Bth {
    /// Number of the receiving queue pair.
    pub(in crate::roce) const fn dest_qp(&self) -> u32 {
        low24(self.dest_qp)
    }
}

impl From<&super::Bth> for Bth {
    fn from(v: &super::Bth) -> Self {
        Bth {
            opcode: v.opcode.0,
            flags: bit(v.solicited, 7) | bit(v.migreq, 6) | (v.pad_count & 3) << 4 | v.tver & 0x0f,
            pkey: U16::new(v.pkey),
            dest_qp: word(bit(v.fecn, 7) | bit(v.becn, 6) | v.resv8a & 0x3f, v.dest_qp),
            psn: word(bit(v.ack_req, 7) | bit(v.adaptive, 6) | v.resv7 & 0x3f, v.psn.get()),
        }
    }
}

impl From<Bth> for super::Bth {
    fn from(w: Bth) -> Self {
        let (congestion, request) = (high8(w.dest_qp), high8(w.psn));
        super::Bth {
            opcode: Opcode(w.opcode),
            solicited: w.flags & 0x80 != 0,
            migreq: w.flags & 0x40 != 0,
            pad_count: w.flags >> 4 & 3,
            tver: w.flags & 0x0f,
            pkey: w.pkey.get(),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            resv8a: congestion & 0x3f,
            dest_qp: low24(w.dest_qp),
            ack_req: request & 0x80 != 0,
            adaptive: request & 0x40 != 0,
            resv7: request & 0x3f,
            psn: Psn::new(w.psn.get()),
        }
    }
}

impl From<&super::Reth> for Reth {
    fn from(v: &super::Reth) -> Self {
        Reth { va: U64::new(v.va), rkey: U32::new(v.rkey), dma_len: U32::new(v.dma_len) }
    }
}

impl From<Reth> for super::Reth {
    fn from(w: Reth) -> Self {
        super::Reth { va: w.va.get(), rkey: w.rkey.get(), dma_len: w.dma_len.get() }
    }
}

impl From<&super::Aeth> for Aeth {
    fn from(v: &super::Aeth) -> Self {
        Aeth(word(v.syndrome.to_byte(), v.msn))
    }
}

impl From<Aeth> for super::Aeth {
    fn from(w: Aeth) -> Self {
        super::Aeth { syndrome: Syndrome::from_byte(high8(w.0)), msn: low24(w.0) }
    }
}

impl From<&super::AtomicEth> for AtomicEth {
    fn from(v: &super::AtomicEth) -> Self {
        AtomicEth {
            va: U64::new(v.va),
            rkey: U32::new(v.rkey),
            swap_or_add: U64::new(v.swap_or_add),
            compare: U64::new(v.compare),
        }
    }
}

impl From<AtomicEth> for super::AtomicEth {
    fn from(w: AtomicEth) -> Self {
        super::AtomicEth {
            va: w.va.get(),
            rkey: w.rkey.get(),
            swap_or_add: w.swap_or_add.get(),
            compare: w.compare.get(),
        }
    }
}

impl From<&super::AtomicAckEth> for AtomicAckEth {
    fn from(v: &super::AtomicAckEth) -> Self {
        AtomicAckEth(U64::new(v.0))
    }
}

impl From<AtomicAckEth> for super::AtomicAckEth {
    fn from(w: AtomicAckEth) -> Self {
        super::AtomicAckEth(w.0.get())
    }
}

impl From<&super::Ieth> for Ieth {
    fn from(v: &super::Ieth) -> Self {
        Ieth(U32::new(v.0))
    }
}

impl From<Ieth> for super::Ieth {
    fn from(w: Ieth) -> Self {
        super::Ieth(w.0.get())
    }
}

impl From<&super::ImmDt> for ImmDt {
    fn from(v: &super::ImmDt) -> Self {
        ImmDt(v.0)
    }
}

impl From<ImmDt> for super::ImmDt {
    fn from(w: ImmDt) -> Self {
        super::ImmDt(w.0)
    }
}

impl From<&super::Deth> for Deth {
    fn from(v: &super::Deth) -> Self {
        Deth { qkey: U32::new(v.qkey), src_qp: word(v.resv8, v.src_qp) }
    }
}

impl From<Deth> for super::Deth {
    fn from(w: Deth) -> Self {
        super::Deth { qkey: w.qkey.get(), resv8: high8(w.src_qp), src_qp: low24(w.src_qp) }
    }
}
