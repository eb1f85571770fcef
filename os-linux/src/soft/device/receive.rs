//! Datagrams coming in.

use std::net::SocketAddr;

use invar_core::roce::Packet;

use super::Device;
use super::queue_pair::Surroundings;

impl Device {
    /// Takes a datagram that came to the device's address from `from`. What is not for us is
    /// counted and dropped.
    ///
    /// A packet of a connection whose [packets carry tags](invar_core::nic::QpOptions::PACKET_TAGS) must have the
    /// right one. Of others the ICRC is verified where the receiver can know the IP header that it covers: over IPv6,
    /// and over IPv4 from peers that agreed on
    /// [`ICRC_MASKS_IP_ID`](invar_core::nic::QpOptions::ICRC_MASKS_IP_ID). Of other IPv4 peers a
    /// UDP socket hides the identification: what guards their packets is the checksum of the link,
    /// and UDP's where they compute one (Linux rxe does not). They are counted as
    /// [`icrc_unverified`](super::DeviceCounters::icrc_unverified).
    #[inline]
    pub fn handle_datagram(&mut self, now_ns: u64, from: SocketAddr, bytes: &[u8]) {
        let Device { config, counters, qps, lingerers, .. } = self;
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
            if let Some(packet) = path.admit(from, config.address, bytes, counters)
                && !lingerers.handle_packet(qpn, &packet)
            {
                counters.unknown_qp += 1;
            }
            return;
        };
        let Some(path) = &mut qp.path else {
            counters.unconnected += 1;
            return;
        };
        let Some(packet) = path.admit(from, config.address, bytes, counters) else { return };
        let (pd, cq) = (qp.pd, qp.cq);
        let mut env = Surroundings { regions: &self.regions, cqs: &mut self.cqs, pd, cq };
        qp.handle_packet(now_ns, &packet, &mut env);
        qp.follow_up(qpn, &mut env, &mut self.ready);
    }
}
