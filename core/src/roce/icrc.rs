//! The invariant CRC, or ICRC (IBTA §7.8.1, annex A17.3.3).
//!
//! The ICRC is the CRC-32 of Ethernet, stored little endian. The ICRC covers eight bytes of ones, the
//! IP header, the UDP header, and the packet up to its ICRC. Fields that may change on the way count
//! as ones:
//!
//! - IPv4: type of service, time to live, header checksum;
//! - IPv6: traffic class, flow label, hop limit;
//! - UDP: checksum;
//! - BTH: byte 4 (FECN, BECN and reserved bits).
//!
//! The ICRC covers the identification and the fragment bits of IPv4, but a UDP socket shows neither.
//! [`Ipv4Id`] says what the ICRC assumes about the identification.

use core::net::{IpAddr, SocketAddr};

use crc32fast::Hasher;

use super::{HEADERS_BYTES_MAX, ICRC_BYTES};

/// Number of bytes of ones that stand for InfiniBand's local route header.
pub(super) const ONES: usize = 8;
/// Index of the BTH byte that counts as ones.
pub(super) const BTH_MASKED: usize = 4;
pub(super) const BTH_BYTES: usize = 12;
pub(super) const UDP_BYTES: usize = 8;
pub(super) const IP_PROTOCOL_UDP: u8 = 17;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const FLOW_BYTES_MAX: usize = ONES + IPV6_BYTES + UDP_BYTES;

/// The IPv4 identification that the ICRC covers. IPv6 has no such field and ignores this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv4Id {
    /// The ICRC covers this identification, as the standard demands. Linux sends 0 from an unconnected
    /// socket whose `IP_MTU_DISCOVER` is DO or PROBE. Linux sends 0, 1, 2, … in the segments of one
    /// `UDP_SEGMENT` call.
    Known(u16),
    /// The identification counts as ones, if both Invar peers agreed on
    /// [`QpOptions::ICRC_MASKS_IP_ID`](crate::nic::QpOptions::ICRC_MASKS_IP_ID).
    Masked,
}

/// The error for a source and a destination of different IP versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("source and destination are of different IP versions")]
pub struct MixedFamilies;

/// Computes the ICRC for packets from one UDP address to another. A flow keeps the IP and UDP header
/// fields that all these packets share, and takes every datagram as unfragmented (DF set).
#[derive(Clone, Debug)]
pub struct Flow {
    /// Bytes of ones, IP header and UDP header. The lengths and the identification are filled in per
    /// packet.
    template: [u8; FLOW_BYTES_MAX],
    ip_bytes: usize,
    last: Option<Difference>,
}

/// The XOR between the ICRC and the plain CRC-32 of a packet. A CRC is linear, so all packets of one
/// length and one masked byte share this value, whatever they contain.
#[derive(Clone, Copy, Debug)]
struct Difference {
    packet_bytes: usize,
    masked: u8,
    xor: u32,
}

/// Minimum packet length, in bytes, from which [`Flow`] uses a cached [`Difference`].
const DIFFERENCE_BYTES_MIN: usize = 512;

impl Flow {
    /// Prepares to compute ICRCs for packets from `src` to `dst`. Either address may be an IPv4
    /// address mapped into IPv6.
    ///
    /// # Errors
    /// One address is IPv4 and the other is IPv6.
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

    /// Computes the ICRC of `packet`, which starts at its BTH and ends before its ICRC.
    #[inline]
    pub fn icrc(&mut self, id: Ipv4Id, packet: &[u8]) -> [u8; ICRC_BYTES] {
        self.crc(id, packet).to_le_bytes()
    }

    /// Returns whether `udp_payload` ends with its correct ICRC. A payload too short for a BTH and an
    /// ICRC gives `false`.
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

    /// Computes the CRC over the covered headers and then the packet.
    fn whole_crc(&self, id: Ipv4Id, packet: &[u8]) -> u32 {
        // Copy the short pieces into one contiguous buffer: the hasher is slow at the ends of each
        // piece.
        let mut run = [0; FLOW_BYTES_MAX + HEADERS_BYTES_MAX];
        let flow_bytes = ONES + self.ip_bytes + UDP_BYTES;
        run[..FLOW_BYTES_MAX].copy_from_slice(&self.template);
        // A length above 16 bits fits no datagram, so a wrapped length is never sent.
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
