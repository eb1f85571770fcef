//! Reliable connection over RoCEv2, sans-IO.
//!
//! An InfiniBand transport packet in a UDP datagram (IBTA annex A17):
//!
//! ```text
//! IP | UDP, port 4791 | BTH | extension headers | payload | pad | ICRC
//!                       ^ UDP payload: `Packet`                      ^ `Flow`, `IpDatagram`
//! ```
//!
//! Read in this order: [`Opcode`] says which headers a packet has, [`Bth`] and its fellows are
//! these headers, [`Packet`] is all of them around a payload, [`Flow`] guards it with a checksum.
//! [`qp::Qp`] is one end of a connection that speaks in such packets.
//!
//! Between Invar peers that agreed on it
//! ([`QpOptions::ADAPTIVE_ROUTING`](crate::nic::QpOptions::ADAPTIVE_ROUTING)) one bit that the
//! standard reserves has a meaning: [`Bth::adaptive`].

mod datagram;
mod header;
mod icrc;
mod opcode;
mod packet;
mod psn;
pub mod qp;

pub use datagram::{IP_UDP_BYTES_MAX, IpDatagram, IpHeaders};
pub use header::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, NakCode, Reth, Syndrome};
pub use icrc::{Flow, Ipv4Id, MixedFamilies};
pub use opcode::{Extensions, Opcode, Position, Transport};
pub use packet::{DecodeError, Foreign, HEADERS_BYTES_MAX, Headers, Packet, pad_count};
pub use psn::Psn;

/// Destination UDP port of RoCEv2.
pub const UDP_PORT: u16 = 4791;
/// Bytes of the invariant CRC that ends each packet.
pub const ICRC_BYTES: usize = 4;
