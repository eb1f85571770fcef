use crate::roce::{Opcode, Psn};

/// Base transport header, present in every packet (IBTA §9.2).
///
/// Encoding cuts each field to its width on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Kind of the packet.
    pub opcode: Opcode,
    /// The sender asks the responder to raise an event with its completion.
    pub solicited: bool,
    /// Path migration state. A queue pair without path migration sends 1, for Migrated (IBTA §9.2.3).
    /// Linux rxe sends 0. Invar ignores the bit of received packets, as rxe does.
    pub migreq: bool,
    /// Number of padding bytes behind the payload, 0 to 3.
    pub pad_count: u8,
    /// Transport header version, 4 bits, always 0.
    pub tver: u8,
    /// Partition key. RoCE has only the default partition, `0xffff`.
    pub pkey: u16,
    /// Forward congestion bit (FECN): this packet met congestion.
    pub fecn: bool,
    /// Backward congestion bit (BECN): a packet in the other direction met congestion.
    pub becn: bool,
    /// Six reserved bits below BECN, kept as received. The ICRC does not cover this byte.
    pub resv8a: u8,
    /// Number of the receiving queue pair, 24 bits.
    pub dest_qp: u32,
    /// The sender asks for an acknowledge.
    pub ack_req: bool,
    /// Invar's own mark, in the top one of the seven reserved bits beside AckReq. The packet belongs
    /// to a WRITE in which each packet names its own memory. The responder may place the packet before
    /// earlier ones arrive. Only peers that agreed on the mark set it. Other peers ignore the bit
    /// (IBTA §9.2.10).
    pub adaptive: bool,
    /// The other six reserved bits, kept as received.
    pub resv7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}
