//! A whole transport packet: the UDP payload of one RoCEv2 datagram.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::header::wire;
use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Extensions, ICRC_BYTES, Ieth, ImmDt, Reth};

/// Maximum length of all headers of a packet, 64 bytes. [`Headers::encode`] takes a buffer of this
/// length.
pub const HEADERS_BYTES_MAX: usize = size_of::<wire::Bth>()
    + size_of::<wire::Reth>()
    + size_of::<wire::Aeth>()
    + size_of::<wire::AtomicEth>()
    + size_of::<wire::ImmDt>();

/// Why bytes are not a valid packet, and where they fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are those of the message")]
pub enum DecodeError {
    /// The bytes end within a header, or before the padding and the checksum.
    #[error("{what} at byte {offset} needs {needed} bytes and has {got}")]
    Truncated { what: &'static str, offset: usize, needed: usize, got: usize },
    /// The IP version is neither 4 nor 6.
    #[error("IP version is {0}, neither 4 nor 6")]
    IpVersion(u8),
    /// The packet is an IP fragment. RoCEv2 packets are never fragmented.
    #[error("IPv4 fragment: flags and offset are {0:#06x}")]
    Fragment(u16),
    /// The IP header is not followed by UDP.
    #[error("IP protocol is {0}, not 17 (UDP)")]
    Protocol(u8),
    /// A length field is smaller than its own header.
    #[error("{what} length field is {length}, less than the header itself")]
    Length { what: &'static str, length: u16 },
}

/// The headers of a packet. The opcode decides which ones a packet has:
/// [`Opcode::extensions`](super::Opcode::extensions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header, present in every packet.
    pub bth: Bth,
    /// Address, key and length of remote memory.
    pub reth: Option<Reth>,
    /// Outcome that an acknowledge or a READ response reports.
    pub aeth: Option<Aeth>,
    /// Immediate data, which the completion of the peer's receive carries.
    pub imm: Option<ImmDt>,
    /// A header of an operation that Invar's own protocol does not use.
    pub foreign: Option<Foreign>,
}

/// Extension headers of operations that Invar's own protocol does not use. A packet has at most one of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Header of COMPARE_SWAP and FETCH_ADD.
    Atomic(AtomicEth),
    /// Header of ATOMIC_ACKNOWLEDGE.
    AtomicAck(AtomicAckEth),
    /// Header of a SEND with invalidate.
    Invalidate(Ieth),
    /// Header of an unreliable datagram, which connection management uses too.
    Datagram(Deth),
}

/// A packet that borrows the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// All headers before the payload.
    pub headers: Headers,
    /// Payload without padding. With an unknown opcode, the payload starts right behind the BTH.
    pub payload: &'a [u8],
    /// Padding and ICRC, or padding and tag, as they arrived. The trailer is empty in a packet that
    /// never was on a wire.
    pub trailer: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Decodes the UDP payload of one datagram. Opcode and reserved fields may have any value.
    /// `decode` does not check the ICRC.
    ///
    /// # Errors
    /// The packet is too short for its opcode and its pad count.
    pub fn decode(udp_payload: &'a [u8]) -> Result<Packet<'a>, DecodeError> {
        Self::decode_with(udp_payload, ICRC_BYTES)
    }

    /// Reads the destination queue pair, or returns `None` if the bytes are shorter than a BTH.
    #[inline]
    pub fn dest_qp(udp_payload: &[u8]) -> Option<u32> {
        let (bth, _) = wire::Bth::ref_from_prefix(udp_payload).ok()?;
        Some(bth.dest_qp())
    }

    /// Decodes a datagram that ends with `check_bytes` of ICRC or tag. This function does not check
    /// the ICRC or tag.
    ///
    /// # Errors
    /// The packet is too short for its opcode and its pad count.
    pub fn decode_with(
        udp_payload: &'a [u8],
        check_bytes: usize,
    ) -> Result<Packet<'a>, DecodeError> {
        let mut rest = Cursor { bytes: udp_payload, offset: 0 };
        let bth: Bth = rest.take::<wire::Bth>("BTH")?.into();
        let mut headers = Headers { bth, ..Headers::default() };

        // Read the headers in the order of the wire. A foreign header never appears beside a RETH. An
        // AETH may come before it, and an ImmDt behind it.
        let extensions = bth.opcode.extensions();
        if extensions.contains(Extensions::RETH) {
            headers.reth = Some(rest.take::<wire::Reth>("RETH")?.into());
        }
        if extensions.contains(Extensions::AETH) {
            headers.aeth = Some(rest.take::<wire::Aeth>("AETH")?.into());
        }
        if extensions.intersects(Foreign::EXTENSIONS) {
            headers.foreign = Some(rest.take_foreign(extensions)?);
        }
        if extensions.contains(Extensions::IMMDT) {
            headers.imm = Some(rest.take::<wire::ImmDt>("ImmDt")?.into());
        }

        let trailer_len = usize::from(bth.pad_count) + check_bytes;
        let Some(payload_len) = rest.bytes.len().checked_sub(trailer_len) else {
            return Err(rest.truncated("pad and checksum", trailer_len));
        };
        let (payload, trailer) = rest.bytes.split_at(payload_len);
        Ok(Packet { headers, payload, trailer })
    }
}

impl Headers {
    /// Writes all present headers to the front of `out` and returns their length in bytes. The caller
    /// should set exactly the headers that the opcode asks for, because a receiver reads those.
    pub fn encode(&self, out: &mut [u8; HEADERS_BYTES_MAX]) -> usize {
        let mut at = 0;
        put(out, &mut at, wire::Bth::from(&self.bth));
        if let Some(reth) = &self.reth {
            put(out, &mut at, wire::Reth::from(reth));
        }
        if let Some(aeth) = &self.aeth {
            put(out, &mut at, wire::Aeth::from(aeth));
        }
        match &self.foreign {
            Some(Foreign::Atomic(atomic)) => put(out, &mut at, wire::AtomicEth::from(atomic)),
            Some(Foreign::AtomicAck(ack)) => put(out, &mut at, wire::AtomicAckEth::from(ack)),
            Some(Foreign::Invalidate(ieth)) => put(out, &mut at, wire::Ieth::from(ieth)),
            Some(Foreign::Datagram(deth)) => put(out, &mut at, wire::Deth::from(deth)),
            None => {}
        }
        if let Some(imm) = &self.imm {
            put(out, &mut at, wire::ImmDt::from(imm));
        }
        at
    }
}

/// Number of padding bytes behind a payload: padding fills the last word of four bytes (IBTA §9.2.4).
pub const fn pad_count(payload_len: u32) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

impl Foreign {
    const EXTENSIONS: Extensions = Extensions::DETH
        .union(Extensions::ATOMICETH)
        .union(Extensions::IETH)
        .union(Extensions::ATOMICACKETH);
}

fn put(out: &mut [u8; HEADERS_BYTES_MAX], at: &mut usize, header: impl IntoBytes + Immutable) {
    let bytes = header.as_bytes();
    out[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}

/// The undecoded rest of a packet, and its offset from the start.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) offset: usize,
}

impl Cursor<'_> {
    pub(super) fn take<T: FromBytes>(&mut self, what: &'static str) -> Result<T, DecodeError> {
        let Ok((header, rest)) = T::read_from_prefix(self.bytes) else {
            return Err(self.truncated(what, size_of::<T>()));
        };
        self.bytes = rest;
        self.offset += size_of::<T>();
        Ok(header)
    }

    fn take_foreign(&mut self, extensions: Extensions) -> Result<Foreign, DecodeError> {
        Ok(if extensions.contains(Extensions::DETH) {
            Foreign::Datagram(self.take::<wire::Deth>("DETH")?.into())
        } else if extensions.contains(Extensions::IETH) {
            Foreign::Invalidate(self.take::<wire::Ieth>("IETH")?.into())
        } else if extensions.contains(Extensions::ATOMICETH) {
            Foreign::Atomic(self.take::<wire::AtomicEth>("AtomicETH")?.into())
        } else {
            Foreign::AtomicAck(self.take::<wire::AtomicAckEth>("AtomicAckETH")?.into())
        })
    }

    pub(super) fn truncated(&self, what: &'static str, needed: usize) -> DecodeError {
        DecodeError::Truncated { what, offset: self.offset, needed, got: self.bytes.len() }
    }
}

#[cfg(test)]
mod tests;
