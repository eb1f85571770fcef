//! Handling of incoming datagrams.

use std::net::SocketAddr;

use invar_core::roce::Packet;

use super::Device;
use super::posted::DeviceEnv;

impl Device {
    /// Handles a datagram from `from` that arrived at the device's first address. The device counts and
    /// drops datagrams that it does not accept.
    ///
    /// If the connection's [packets carry tags](invar_core::nic::QpOptions::PACKET_TAGS), the tag must
    /// be right. Otherwise the device verifies the ICRC if it can know the IP header that the ICRC
    /// covers. That is the case over IPv6, and over IPv4 with peers that agreed on
    /// [`ICRC_MASKS_IP_ID`](invar_core::nic::QpOptions::ICRC_MASKS_IP_ID).
    ///
    /// For other IPv4 peers, a UDP socket hides the identification. The checksum of the link protects
    /// their packets, and so does UDP's checksum if the peer computes one (Linux rxe does not). The
    /// device counts such packets as [`icrc_unverified`](super::DeviceCounters::icrc_unverified).
    #[inline]
    pub fn handle_datagram(&mut self, now_ns: u64, from: SocketAddr, bytes: &[u8]) {
        self.handle_datagram_at(now_ns, 0, from, bytes);
    }

    /// Handles a datagram that arrived at the address with the GID index `at`, as
    /// [`Device::handle_datagram`] does.
    #[inline]
    pub fn handle_datagram_at(&mut self, now_ns: u64, at: usize, from: SocketAddr, bytes: &[u8]) {
        let Device {
            counters,
            qps,
            lingerers,
            regions,
            windows,
            cqs,
            events,
            srqs,
            notices,
            ready,
            ..
        } = self;
        counters.packets_received += 1;
        counters.bytes_received += bytes.len() as u64;
        let Some(qpn) = Packet::dest_qp(bytes) else {
            counters.malformed += 1;
            return;
        };
        let Some(qp) = qps.get_mut(qpn) else {
            let Some(path) = lingerers.path(now_ns, qpn) else {
                counters.unknown_qp += 1;
                return;
            };
            if let Some(packet) = path.admit(from, bytes, counters)
                && !lingerers.handle_packet(qpn, &packet)
            {
                counters.unknown_qp += 1;
            }
            return;
        };
        let mut env = DeviceEnv { regions, windows, cqs, events, srqs, notices };
        if let Some(datagrams) = &mut qp.datagrams {
            if let Some((packet, grh)) = datagrams.admit(at, from, bytes, counters) {
                qp.handle_datagram(&packet, &grh, &mut env);
                qp.follow_up(qpn, &mut env, ready);
            }
            return;
        }
        let Some(path) = &mut qp.path else {
            counters.unconnected += 1;
            return;
        };
        let Some(packet) = path.admit(from, bytes, counters) else { return };
        qp.handle_packet(now_ns, &packet, &mut env);
        qp.follow_up(qpn, &mut env, ready);
    }
}
