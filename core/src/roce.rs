//! RoCEv2 as a sans-IO engine: reliable and unreliable connections, and datagrams.
//!
//! A RoCEv2 packet is an InfiniBand transport packet in a UDP datagram (IBTA annex A17):
//!
//! ```text
//! IP | UDP, port 4791 | BTH | extension headers | payload | pad | ICRC
//!                       ^ UDP payload: `Packet`                      ^ `Flow`, `IpDatagram`
//! ```
//!
//! Read the types in this order. An [`Opcode`] says which headers a packet has. [`Bth`] and the other
//! header types are those headers. A [`Packet`] is all headers and the payload. A [`Flow`] computes
//! and checks the checksum of packets between two addresses. A [`qp::Qp`] is one end of a connection
//! that sends and receives such packets.
//!
//! Invar peers can agree on [`QpOptions::ADAPTIVE_ROUTING`](crate::nic::QpOptions::ADAPTIVE_ROUTING).
//! Then both peers use one bit that the standard reserves: [`Bth::adaptive`].

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
pub use opcode::{Extensions, Opcode, Position, RoceTransport};
pub use packet::{DecodeError, Foreign, HEADERS_BYTES_MAX, Headers, Packet, pad_count};
pub use psn::Psn;

/// UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;
/// Length of the invariant CRC at the end of each packet, in bytes.
pub const ICRC_BYTES: usize = 4;
