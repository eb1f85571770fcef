//! The invariant CRC (IBTA §7.8.1, annex A17.3.3).
//!
//! CRC-32 of Ethernet over eight bytes of ones, then the IP header, the UDP header and the packet
//! up to its ICRC, with what may change on the way set to ones: of IPv4 the type of service, time
//! to live and header checksum; of IPv6 the traffic class, flow label and hop limit; the UDP
//! checksum; byte 4 of the BTH (FECN, BECN and reserved bits). Stored little endian.
//!
//! IPv4's identification and fragment bits are covered, and a UDP socket shows neither of them:
//! [`Ipv4Id`] says what to do.

use core::net::{IpAddr, SocketAddr};

use crc32fast::Hasher;

use super::{HEADERS_BYTES_MAX, ICRC_BYTES};

/// Bytes of ones that stand for InfiniBand's local route header.
pub(super) const ONES: usize = 8;
/// Byte of the BTH that is masked.
pub(super) const BTH_MASKED: usize = 4;
pub(super) const BTH_BYTES: usize = 12;
pub(super) const UDP_BYTES: usize = 8;
pub(super) const IP_PROTOCOL_UDP: u8 = 17;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const FLOW_BYTES_MAX: usize = ONES + IPV6_BYTES + UDP_BYTES;

/// The identification of an IPv4 header. IPv6 has none, and then it does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv4Id {
    /// Covered as the standard says. Linux gives 0 to datagrams of an unconnected socket with
    /// `IP_MTU_DISCOVER` on DO or PROBE, and 0, 1, 2, … to the segments of one `UDP_SEGMENT` call.
    Known(u16),
    /// Masked, as agreed between Invar peers:
    /// [`QpOptions::ICRC_MASKS_IP_ID`](crate::nic::QpOptions::ICRC_MASKS_IP_ID).
    Masked,
}

/// Source and destination are not both IPv4 or both IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("source and destination are of different IP versions")]
pub struct MixedFamilies;

/// One direction between two UDP addresses: all of the covered IP and UDP headers that stays the
/// same from packet to packet. Takes datagrams as never fragmented (DF set).
#[derive(Clone, Debug)]
pub struct Flow {
    /// Ones, IP and UDP header, with lengths and identification open.
    template: [u8; FLOW_BYTES_MAX],
    ip_bytes: usize,
    last: Option<Difference>,
}

/// What covered headers and the masked byte add to the plain CRC-32 of a packet. CRCs being linear,
/// it is the same for all packets of one length, whatever their content.
#[derive(Clone, Copy, Debug)]
struct Difference {
    packet_bytes: usize,
    masked: u8,
    xor: u32,
}

/// A packet from this length on is worth to look up what its headers add.
const DIFFERENCE_BYTES_MIN: usize = 512;

impl Flow {
    /// Prepares a direction. IPv4 addresses may come mapped into IPv6.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Result<Flow, MixedFamilies> {
        let mut template = [0xff; FLOW_BYTES_MAX];
        let ip = &mut template[ONES..];
        let ip_bytes = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ip[0] = 0x45;
                ip[6..8].copy_from_slice(&[0x40, 0]); // DF
                ip[9] = IP_PROTOCOL_UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                IPV4_BYTES
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ip[0] = 0x6f;
                ip[6] = IP_PROTOCOL_UDP;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                IPV6_BYTES
            }
            _ => return Err(MixedFamilies),
        };
        let udp = &mut ip[ip_bytes..];
        udp[0..2].copy_from_slice(&src.port().to_be_bytes());
        udp[2..4].copy_from_slice(&dst.port().to_be_bytes());
        Ok(Flow { template, ip_bytes, last: None })
    }

    /// The four bytes that end a packet: `packet` is all of it before them, from its BTH on.
    #[inline]
    pub fn icrc(&mut self, id: Ipv4Id, packet: &[u8]) -> [u8; ICRC_BYTES] {
        self.crc(id, packet).to_le_bytes()
    }

    /// Whether a received UDP payload ends with its right ICRC. Too short a payload does not.
    #[inline]
    pub fn verify(&mut self, id: Ipv4Id, udp_payload: &[u8]) -> bool {
        let Some((packet, icrc)) = udp_payload.split_last_chunk::<ICRC_BYTES>() else {
            return false;
        };
        packet.len() >= BTH_BYTES && self.icrc(id, packet) == *icrc
    }

    #[inline]
    fn crc(&mut self, id: Ipv4Id, packet: &[u8]) -> u32 {
        let same_id = id == Ipv4Id::Masked || self.ip_bytes == IPV6_BYTES;
        if packet.len() < DIFFERENCE_BYTES_MIN || !same_id {
            return self.whole_crc(id, packet);
        }
        let (packet_bytes, masked) = (packet.len(), packet[BTH_MASKED]);
        let plain = crc32fast::hash(packet);
        match &self.last {
            Some(last) if last.packet_bytes == packet_bytes && last.masked == masked => {
                plain ^ last.xor
            }
            _ => {
                let crc = self.whole_crc(id, packet);
                self.last = Some(Difference { packet_bytes, masked, xor: plain ^ crc });
                crc
            }
        }
    }

    /// Of the covered headers, then the packet.
    fn whole_crc(&self, id: Ipv4Id, packet: &[u8]) -> u32 {
        // One contiguous run of what is short, since the hasher is slow at its ends.
        let mut run = [0; FLOW_BYTES_MAX + HEADERS_BYTES_MAX];
        let flow_bytes = ONES + self.ip_bytes + UDP_BYTES;
        run[..FLOW_BYTES_MAX].copy_from_slice(&self.template);
        // A length beyond 16 bits fits no datagram, so what it hashes to is never sent.
        let udp_len = (UDP_BYTES + ICRC_BYTES).wrapping_add(packet.len()) as u16;
        let ip = &mut run[ONES..];
        if self.ip_bytes == IPV4_BYTES {
            let total = udp_len.wrapping_add(IPV4_BYTES as u16);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            if let Ipv4Id::Known(id) = id {
                ip[4..6].copy_from_slice(&id.to_be_bytes());
            }
        } else {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
        ip[self.ip_bytes + 4..self.ip_bytes + 6].copy_from_slice(&udp_len.to_be_bytes());

        let (first, more) = packet.split_at(packet.len().min(HEADERS_BYTES_MAX));
        run[flow_bytes..flow_bytes + first.len()].copy_from_slice(first);
        run[flow_bytes + BTH_MASKED] = 0xff;
        let mut hasher = Hasher::new();
        hasher.update(&run[..flow_bytes + first.len()]);
        hasher.update(more);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests;
