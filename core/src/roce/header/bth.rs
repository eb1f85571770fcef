use crate::roce::{Opcode, Psn};

/// Base transport header, in every packet (IBTA §9.2).
///
/// Fields narrower than their type are cut to width when encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The responder's completion asks for an event.
    pub solicited: bool,
    /// Path migration state; RoCE peers send either and look at neither.
    pub migreq: bool,
    /// Bytes of padding behind the payload, 0 to 3.
    pub pad_count: u8,
    /// Transport header version, 4 bits: 0.
    pub tver: u8,
    /// Partition key; RoCE has only the default one, `0xffff`.
    pub pkey: u16,
    /// The packet met congestion.
    pub fecn: bool,
    /// A packet the other way met congestion.
    pub becn: bool,
    /// Six reserved bits below BECN, kept. The ICRC covers none of this byte.
    pub resv8a: u8,
    /// Receiving queue pair, 24 bits.
    pub dest_qp: u32,
    /// An acknowledge is wanted.
    pub ack_req: bool,
    /// Ours, in the top one of the seven reserved bits beside AckReq: the packet belongs to a
    /// WRITE of which each packet names its own memory, and may be placed before earlier ones
    /// arrive. Set only between peers that agreed on it, ignored by others (IBTA §9.2.10).
    pub adaptive: bool,
    /// The other six reserved bits, kept.
    pub resv7: u8,
    /// Sequence number.
    pub psn: Psn,
}
