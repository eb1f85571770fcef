//! Datagrams coming in.

use std::net::SocketAddr;

use invar_core::roce::Packet;

use super::Device;
use super::queue_pair::Surroundings;

/// The default partition, in which all of RoCE is; the top bit tells full members from limited
/// ones.
const PKEY: u16 = 0x7fff;

impl Device {
    /// Takes a datagram that came to the device's address from `from`. What is not for us is
    /// counted and dropped.
    ///
    /// The ICRC is verified where the receiver can know the IP header that it covers: over IPv6,
    /// and over IPv4 from peers that agreed on
    /// [`ICRC_MASKS_IP_ID`](invar_core::nic::QpOptions::ICRC_MASKS_IP_ID). Of other IPv4 peers a
    /// UDP socket hides the identification: what guards their packets is the checksum of the link,
    /// and UDP's where they compute one (Linux rxe does not). They are counted as
    /// [`icrc_unverified`](super::DeviceCounters::icrc_unverified).
    #[inline]
    pub fn handle_datagram(&mut self, now_ns: u64, from: SocketAddr, bytes: &[u8]) {
        let counters = &mut self.counters;
        counters.packets_received += 1;
        counters.bytes_received += bytes.len() as u64;
        let Ok(packet) = Packet::decode(bytes) else {
            counters.malformed += 1;
            return;
        };
        let bth = &packet.headers.bth;
        let qpn = bth.dest_qp;
        let Some(qp) = self.qps.get_mut(qpn) else {
            counters.unknown_qp += 1;
            return;
        };
        let Some(path) = &mut qp.path else {
            counters.unconnected += 1;
            return;
        };
        if from.ip() != path.route.to.ip() {
            counters.wrong_source += 1;
            return;
        }
        if !path.verifies() {
            counters.icrc_unverified += 1;
        } else if !path.verify(from, self.config.address, bytes) {
            counters.icrc_bad += 1;
            return;
        }
        if bth.pkey & PKEY != PKEY {
            counters.wrong_pkey += 1;
            return;
        }
        let (pd, cq) = (qp.pd, qp.cq);
        let mut env = Surroundings { regions: &self.regions, cqs: &mut self.cqs, pd, cq };
        qp.handle_packet(now_ns, &packet, &mut env);
        qp.follow_up(qpn, &mut env, &mut self.ready);
    }
}
