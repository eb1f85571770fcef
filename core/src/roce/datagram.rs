//! IP packets that carry RoCEv2, as raw sockets and captures show them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use static_assertions::assert_eq_size;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::icrc::{BTH_BYTES, BTH_MASKED, IP_PROTOCOL_UDP, Icrc, ONES, UDP_BYTES};
use super::packet::Cursor;
use super::{DecodeError, ICRC_BYTES};

const IP_BYTES_MAX: usize = 60;

/// A UDP datagram in a whole IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpDatagram<'a> {
    /// Sender.
    pub src: SocketAddr,
    /// Receiver.
    pub dst: SocketAddr,
    /// What [`Packet::decode`](super::Packet::decode) takes.
    pub udp_payload: &'a [u8],
    ip_header: &'a [u8],
    udp_header: [u8; UDP_BYTES],
}

impl<'a> IpDatagram<'a> {
    /// Takes an IP packet apart. Bytes behind its end (Ethernet pads short frames) are left out;
    /// fragments and IPv6 extension headers are errors.
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

    /// Whether the packet ends with its right ICRC, be it with the IPv4 identification
    /// [masked](super::Ipv4Id::Masked). Too short a payload does not.
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

        let mut crc = Icrc::new();
        for piece in [&[0xff; ONES][..], ip, &udp, &bth, rest] {
            crc.update(piece);
        }
        crc.finish() == *icrc
    }
}

/// ```text
/// +---------+---------+-------------------+---------------------------------------+
/// | ver ihl |   tos   |   total_length    |    identification   |  flags, offset  |
/// +---------+---------+-------------------+---------------------------------------+
/// |   ttl   |  proto  |     checksum      |        src        |        dst        |
/// +---------+---------+-------------------+---------------------------------------+
/// ```
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
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
    /// That it is a whole UDP packet; gives the bytes of the header with its options.
    fn check(&self) -> Result<usize, DecodeError> {
        let words = self.version_ihl & 0x0f;
        if words < 5 {
            return Err(DecodeError::Length { what: "IPv4 header", length: u16::from(words) * 4 });
        }
        // More fragments, or an offset.
        if self.flags_offset.get() & 0x3fff != 0 {
            return Err(DecodeError::Fragment(self.flags_offset.get()));
        }
        check_protocol(self.protocol)?;
        Ok(usize::from(words) * 4)
    }
}

/// ```text
/// +---------------------------------------+-------------------+---------+---------+
/// |  version, traffic class, flow label   |  payload_length   | next_h. | hop lim.|
/// +---------------------------------------+-------------------+---------+---------+
/// |                                src (16 bytes)                                 |
/// +-------------------------------------------------------------------------------+
/// |                                dst (16 bytes)                                 |
/// +-------------------------------------------------------------------------------+
/// ```
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
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

    /// Leaves out what is behind the `length` bytes of a layer, of which `taken` are taken.
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
