//! IP packets that carry RoCEv2, as raw sockets and packet captures show them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crc32fast::Hasher;
use static_assertions::assert_eq_size;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::icrc::{BTH_BYTES, BTH_MASKED, IP_PROTOCOL_UDP, ONES, UDP_BYTES};
use super::packet::Cursor;
use super::{DecodeError, ICRC_BYTES, MixedFamilies};

const IP_BYTES_MAX: usize = 60;
const DONT_FRAGMENT: u16 = 0x4000;

/// Maximum length of an IP header without options and its UDP header, in bytes.
pub const IP_UDP_BYTES_MAX: usize = size_of::<Ipv6>() + UDP_BYTES;

/// A UDP datagram that was decoded from a whole IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpDatagram<'a> {
    /// Address and port of the sender.
    pub src: SocketAddr,
    /// Address and port of the receiver.
    pub dst: SocketAddr,
    /// Payload of the datagram, ready for [`Packet::decode`](super::Packet::decode).
    pub udp_payload: &'a [u8],
    ip_header: &'a [u8],
    udp_header: [u8; UDP_BYTES],
}

impl<'a> IpDatagram<'a> {
    /// Decodes an IP packet. The decoder ignores bytes behind the packet's end, because Ethernet pads
    /// short frames.
    ///
    /// # Errors
    /// The packet is truncated, a fragment, not UDP, or has IPv6 extension headers or a wrong length
    /// field.
    pub fn decode(ip: &'a [u8]) -> Result<IpDatagram<'a>, DecodeError> {
        let mut rest = Cursor { bytes: ip, offset: 0 };
        let (src, dst): (IpAddr, IpAddr) = match ip.first().map_or(4, |byte| byte >> 4) {
            4 => {
                let ipv4: Ipv4 = rest.take("IPv4 header")?;
                let header_bytes = ipv4.check()?;
                rest.skip("IPv4 options", header_bytes - size_of::<Ipv4>())?;
                rest.end_after("IPv4 total", ipv4.total_length, header_bytes)?;
                (Ipv4Addr::from(ipv4.src).into(), Ipv4Addr::from(ipv4.dst).into())
            }
            6 => {
                let ipv6: Ipv6 = rest.take("IPv6 header")?;
                check_protocol(ipv6.next_header)?;
                rest.end_after("IPv6 payload", ipv6.payload_length, 0)?;
                (Ipv6Addr::from(ipv6.src).into(), Ipv6Addr::from(ipv6.dst).into())
            }
            version => return Err(DecodeError::IpVersion(version)),
        };
        let ip_header = &ip[..rest.offset];
        let udp_header: [u8; UDP_BYTES] = rest.take("UDP header")?;
        let [src_port, dst_port, length, _]: [U16; 4] = zerocopy::transmute!(udp_header);
        rest.end_after("UDP", length, UDP_BYTES)?;
        Ok(IpDatagram {
            src: SocketAddr::new(src, src_port.get()),
            dst: SocketAddr::new(dst, dst_port.get()),
            udp_payload: rest.bytes,
            ip_header,
            udp_header,
        })
    }

    /// Returns whether the packet ends with its correct ICRC. With `mask_ip_id` the IPv4
    /// identification counts as [masked](super::Ipv4Id::Masked). A payload too short for a BTH and an
    /// ICRC gives `false`.
    pub fn verify_icrc(&self, mask_ip_id: bool) -> bool {
        let Some((covered, icrc)) = self.udp_payload.split_last_chunk::<ICRC_BYTES>() else {
            return false;
        };
        let Some((bth, rest)) = covered.split_first_chunk::<BTH_BYTES>() else { return false };

        let mut ip = [0; IP_BYTES_MAX];
        let ip = &mut ip[..self.ip_header.len()];
        ip.copy_from_slice(self.ip_header);
        if self.src.is_ipv4() {
            if mask_ip_id {
                ip[4..6].fill(0xff);
            }
            ip[1] = 0xff;
            ip[8] = 0xff;
            ip[10..12].fill(0xff);
        } else {
            ip[0] |= 0x0f;
            ip[1..4].fill(0xff);
            ip[7] = 0xff;
        }
        let mut udp = self.udp_header;
        udp[6..8].fill(0xff);
        let mut bth = *bth;
        bth[BTH_MASKED] = 0xff;

        let mut crc = Hasher::new();
        for piece in [&[0xff; ONES][..], ip, &udp, &bth, rest] {
            crc.update(piece);
        }
        crc.finalize().to_le_bytes() == *icrc
    }
}

/// Fields of a datagram's IP and UDP headers, except for its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeaders {
    /// Address and port of the sender.
    pub src: SocketAddr,
    /// Address and port of the receiver.
    pub dst: SocketAddr,
    /// IPv4 type of service, or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 identification. IPv6 has no such field and ignores this value.
    pub identification: u16,
}

impl IpHeaders {
    /// Writes the headers to the front of `buffer` and returns that part. The UDP checksum stays 0, as
    /// in Linux rxe. Either address may be an IPv4 address mapped into IPv6.
    ///
    /// # Errors
    /// One address is IPv4 and the other is IPv6.
    pub fn encode<'a>(
        &self,
        udp_payload_bytes: u16,
        buffer: &'a mut [u8; IP_UDP_BYTES_MAX],
    ) -> Result<&'a [u8], MixedFamilies> {
        let udp_length = udp_payload_bytes.wrapping_add(UDP_BYTES as u16);
        let ip_bytes = match (self.src.ip().to_canonical(), self.dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ipv4 = Ipv4 {
                    version_ihl: 0x45,
                    tos: self.traffic_class,
                    total_length: udp_length.wrapping_add(size_of::<Ipv4>() as u16).into(),
                    identification: self.identification.into(),
                    flags_offset: DONT_FRAGMENT.into(),
                    ttl: self.hop_limit,
                    protocol: IP_PROTOCOL_UDP,
                    checksum: U16::ZERO,
                    src: src.octets(),
                    dst: dst.octets(),
                };
                ipv4.checksum = ipv4.sum().into();
                buffer[..size_of::<Ipv4>()].copy_from_slice(ipv4.as_bytes());
                size_of::<Ipv4>()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ipv6 = Ipv6 {
                    version_class_label: (6 << 28 | u32::from(self.traffic_class) << 20)
                        .to_be_bytes(),
                    payload_length: udp_length.into(),
                    next_header: IP_PROTOCOL_UDP,
                    hop_limit: self.hop_limit,
                    src: src.octets(),
                    dst: dst.octets(),
                };
                buffer[..size_of::<Ipv6>()].copy_from_slice(ipv6.as_bytes());
                size_of::<Ipv6>()
            }
            _ => return Err(MixedFamilies),
        };
        let udp = [self.src.port(), self.dst.port(), udp_length, 0].map(U16::new);
        let end = ip_bytes + UDP_BYTES;
        buffer[ip_bytes..end].copy_from_slice(udp.as_bytes());
        Ok(&buffer[..end])
    }
}

/// IPv4 header without options.
///
/// ```text
/// +---------+---------+-------------------+---------------------------------------+
/// | ver ihl |   tos   |   total_length    |    identification   |  flags, offset  |
/// +---------+---------+-------------------+---------------------------------------+
/// |   ttl   |  proto  |     checksum      |        src        |        dst        |
/// +---------+---------+-------------------+---------------------------------------+
/// ```
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv4 {
    version_ihl: u8,
    tos: u8,
    total_length: U16,
    identification: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}
assert_eq_size!(Ipv4, [u8; 20]);

impl Ipv4 {
    /// Checks that the header is of a whole UDP packet, and returns the header length with options, in
    /// bytes.
    fn check(&self) -> Result<usize, DecodeError> {
        let words = self.version_ihl & 0x0f;
        if words < 5 {
            return Err(DecodeError::Length { what: "IPv4 header", length: u16::from(words) * 4 });
        }
        // The flag for more fragments is set, or the offset is not 0.
        if self.flags_offset.get() & 0x3fff != 0 {
            return Err(DecodeError::Fragment(self.flags_offset.get()));
        }
        check_protocol(self.protocol)?;
        Ok(usize::from(words) * 4)
    }

    /// Computes the checksum of a header whose own checksum field is 0 (RFC 1071).
    fn sum(&self) -> u16 {
        let words: &[U16; 10] = zerocopy::transmute_ref!(self);
        let sum: u32 = words.iter().map(|word| u32::from(word.get())).sum();
        let once = (sum & 0xffff) + (sum >> 16);
        !((once & 0xffff) + (once >> 16)) as u16
    }
}

/// IPv6 header.
///
/// ```text
/// +---------------------------------------+-------------------+---------+---------+
/// |  version, traffic class, flow label   |  payload_length   | next_h. | hop lim.|
/// +---------------------------------------+-------------------+---------+---------+
/// |                                src (16 bytes)                                 |
/// +-------------------------------------------------------------------------------+
/// |                                dst (16 bytes)                                 |
/// +-------------------------------------------------------------------------------+
/// ```
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv6 {
    version_class_label: [u8; 4],
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}
assert_eq_size!(Ipv6, [u8; 40]);

fn check_protocol(protocol: u8) -> Result<(), DecodeError> {
    if protocol == IP_PROTOCOL_UDP { Ok(()) } else { Err(DecodeError::Protocol(protocol)) }
}

impl Cursor<'_> {
    fn skip(&mut self, what: &'static str, n: usize) -> Result<(), DecodeError> {
        self.bytes = self.bytes.get(n..).ok_or(self.truncated(what, n))?;
        self.offset += n;
        Ok(())
    }

    /// Drops the bytes behind a layer of `length` bytes, of which the cursor has read `taken`.
    fn end_after(
        &mut self,
        what: &'static str,
        length: U16,
        taken: usize,
    ) -> Result<(), DecodeError> {
        let length = length.get();
        let Some(left) = usize::from(length).checked_sub(taken) else {
            return Err(DecodeError::Length { what, length });
        };
        self.bytes = self.bytes.get(..left).ok_or(self.truncated(what, left))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
