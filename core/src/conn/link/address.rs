//! The address vector of a peer's queue pair.

use super::Peer;
use crate::conn::{CommSettings, Wire};
use crate::nic::{AddressVector, LinkLayer, PortAttr};

/// Returns the address vector from a port to the peer's queue pair `qpn`.
///
/// On InfiniBand, packets have a global route header if the port of either end requires one, and into another subnet.
/// A peer tells of its port on Invar's wire only. A GID has its subnet in bytes 6 and 7. Into another subnet the peer's
/// FLID is taken, or its LID if it has none (`net_ib.cc ncclIbRtrQp` of later NCCL).
pub(super) fn address_of(
    peer: &Peer,
    qpn: u32,
    port: &PortAttr,
    settings: &CommSettings,
) -> AddressVector {
    let (ours, theirs) = (&port.gid.0, &peer.info.gid.0);
    let is_infiniband = port.link_layer == LinkLayer::Infiniband;
    // NCCL 2.14 leaves the GID of its message unset on InfiniBand.
    let has_gids = settings.wire == Wire::Invar;
    let crosses = is_infiniband && has_gids && ours[6..8] != theirs[6..8];
    let dlid = match peer.info.gid.flid() {
        flid if crosses && flid != 0 => flid,
        _ => peer.info.lid,
    };
    // NCCL's end has a GID here if these bytes are of a link-local prefix. Others would lead nowhere.
    let may_be_global = has_gids || theirs[..2] == [0xfe, 0x80];
    let needs_grh = peer.needs_grh || port.needs_grh && may_be_global;
    AddressVector {
        is_global: !is_infiniband || crosses || needs_grh,
        dgid: peer.info.gid,
        sgid_index: port.gid_index,
        hop_limit: 255,
        traffic_class: settings.traffic_class,
        dlid,
        sl: settings.sl,
        port_num: port.port_num,
        udp_port: peer.udp_port,
        udp_source_port: peer.udp_source_ports.port(qpn),
    }
}
