//! The path of a queue pair to its peer, and the checks of packets that come from there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use invar_core::nic::{NicError, QpOptions, RtrAttr, Verb};
use invar_core::roce::{Bth, Flow, ICRC_BYTES, Ipv4Id, Packet, Psn, UDP_PORT};

use super::tags::{TAG_BYTES, Tags};
use super::train::Route;
use super::{DeviceCounters, LocalAddress};

/// The default partition, which all of RoCE uses; the top bit distinguishes full from limited members.
const PKEY: u16 = 0x7fff;

/// The path to the peer.
pub(super) struct Path {
    /// The address of this end.
    local: SocketAddr,
    pub(super) route: Route,
    outgoing: Flow,
    /// Makes and checks tags, if packets carry tags instead of the ICRC.
    tags: Option<Box<Tags>>,
    /// UDP source port of the peer's packets; 0 means any port.
    source_port: u16,
    incoming: Incoming,
}

/// The last address from which packets came, with the state that verifies their ICRC.
#[derive(Default)]
pub(super) struct Incoming(Option<(SocketAddr, Flow)>);

impl Incoming {
    /// Whether a datagram from `from` ends with the right ICRC.
    #[inline]
    pub(super) fn verify(&mut self, from: SocketAddr, local: SocketAddr, bytes: &[u8]) -> bool {
        if self.0.as_ref().is_none_or(|(source, _)| *source != from) {
            self.0 = Flow::new(from, local).ok().map(|flow| (from, flow));
        }
        let Some((_, flow)) = &mut self.0 else { return false };
        flow.verify(Ipv4Id::Masked, bytes)
    }
}

/// Whether a packet belongs to the default partition.
#[inline]
pub(super) fn is_of_partition(packet: &Packet<'_>) -> bool {
    packet.headers.bth.pkey & PKEY == PKEY
}

impl Path {
    /// Makes the path from `local` to the peer that `attr` names.
    ///
    /// # Errors
    /// `EINVAL`: there is no local address, or it cannot send to the peer's.
    pub(super) fn new(local: Option<LocalAddress>, attr: &RtrAttr) -> Result<Path, NicError> {
        let refuse = |cause| NicError::new(Verb::ModifyQp, libc::EINVAL, cause);
        let LocalAddress { address: local, source, source_port } =
            local.ok_or_else(|| refuse("the device has no GID at this index"))?;
        let port = if attr.ah.udp_port == 0 { UDP_PORT } else { attr.ah.udp_port };
        let peer = match (attr.ah.dgid.ip(), local) {
            // A link-local address is valid on our own link only.
            (IpAddr::V6(ip), SocketAddr::V6(local)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, local.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, port),
        };
        let is_broadcast = peer.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
        if peer.ip().is_unspecified() || peer.ip().is_multicast() || is_broadcast {
            return Err(refuse("the peer's GID is no address of a host"));
        }
        // Without this check a remote peer could aim our packets at services of this host.
        if peer.ip().is_loopback() && !local.ip().is_loopback() {
            return Err(refuse("the peer's GID is a loopback address, and this device's is not"));
        }
        let outgoing = Flow::new(SocketAddr::new(local.ip(), source_port), peer)
            .map_err(|_| refuse("the peer's GID is of the other IP version"))?;
        let route = Route {
            to: peer,
            source,
            traffic_class: attr.ah.traffic_class,
            // If no hop limit is given, use 64 as the kernel's driver does.
            hop_limit: if attr.ah.hop_limit == 0 { 64 } else { attr.ah.hop_limit },
            masks_ip_id: attr.options.contains(QpOptions::ICRC_MASKS_IP_ID),
        };
        let tags = attr.packet_keys.map(|keys| Box::new(Tags::new(&keys, Psn::new(attr.rq_psn))));
        Ok(Path {
            local,
            route,
            outgoing,
            tags,
            source_port: attr.ah.udp_source_port,
            incoming: Incoming::default(),
        })
    }

    /// Sets the sequence number of the first request that this end sends.
    pub(super) fn set_first_psn(&mut self, psn: Psn) {
        if let Some(tags) = &mut self.tags {
            tags.set_first_psn(psn);
        }
    }

    /// Length of the trailer that [`Path::end_packet`] writes.
    #[inline]
    pub(super) fn check_bytes(&self) -> usize {
        if self.tags.is_some() { TAG_BYTES } else { ICRC_BYTES }
    }

    /// Writes the trailer of a packet, tag or ICRC, to the front of `out`. `packet` is everything before
    /// the trailer.
    #[inline]
    pub(super) fn end_packet(&mut self, id: Ipv4Id, bth: &Bth, packet: &[u8], out: &mut [u8]) {
        match &mut self.tags {
            None => out[..ICRC_BYTES].copy_from_slice(&self.outgoing.icrc(id, packet)),
            Some(tags) => out[..TAG_BYTES].copy_from_slice(&tags.make(bth, packet)),
        }
    }

    /// Decodes the packet in `bytes` if it comes from the peer and is undamaged; otherwise counts the
    /// reason and returns `None`.
    #[inline]
    pub(super) fn admit<'a>(
        &mut self,
        from: SocketAddr,
        bytes: &'a [u8],
        counters: &mut DeviceCounters,
    ) -> Option<Packet<'a>> {
        let is_from_peer = from.ip() == self.route.to.ip()
            && (self.source_port == 0 || from.port() == self.source_port);
        if !is_from_peer {
            counters.wrong_source += 1;
            return None;
        }
        let Ok(packet) = Packet::decode_with(bytes, self.check_bytes()) else {
            counters.malformed += 1;
            return None;
        };
        let bth = &packet.headers.bth;
        if let Some(tags) = &mut self.tags {
            if !tags.verify(bth, bytes) {
                counters.tag_bad += 1;
                return None;
            }
        } else if !self.verifies() {
            counters.icrc_unverified += 1;
        } else if !self.incoming.verify(from, self.local, bytes) {
            counters.icrc_bad += 1;
            return None;
        }
        if !is_of_partition(&packet) {
            counters.wrong_pkey += 1;
            return None;
        }
        Some(packet)
    }

    /// Whether the receiver can know the IP header that the ICRC covers. This always holds for IPv6. For
    /// IPv4 it holds if the peer excludes the fields that a UDP socket does not show.
    fn verifies(&self) -> bool {
        self.route.to.is_ipv6() || self.route.masks_ip_id
    }
}
