//! The current state of a port.

use std::io;
use std::net::IpAddr;

use invar_core::device::LinkRate;
use invar_core::nic::{Gid, LinkLayer, Mtu, PortAttr, PortState, QpOptions};

use crate::device::Opened;
use crate::gid::{self, ChosenGid, GidEntry, GidError, GidRules};
use crate::sys::*;

/// The reason why a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// `ibv_query_port` failed.
    #[error("ibv_query_port of port {port_num}: {source}")]
    Query {
        /// Number of the port.
        port_num: u8,
        /// The system's error.
        source: io::Error,
    },
    /// The port is neither InfiniBand nor Ethernet.
    #[error("port {port_num} has link layer {code}, neither InfiniBand (1) nor Ethernet (2)")]
    LinkLayer {
        /// Number of the port.
        port_num: u8,
        /// The value of `link_layer`.
        code: u8,
    },
    /// The port has no usable GID.
    #[error("port {port_num}: {source}")]
    Gid {
        /// Number of the port.
        port_num: u8,
        /// The GIDs that the user asked for and that the port has.
        source: GidError,
    },
}

/// A port and the GID that Invar uses on it.
pub(crate) struct Port {
    pub(crate) attr: PortAttr,
    pub(crate) gid: ChosenGid,
}

impl Port {
    /// Reads the port and its GID table, and chooses a GID, for a connection with `peer` if one is
    /// given.
    pub(crate) fn read(
        opened: &Opened,
        port_num: u8,
        rules: &GidRules,
        peer: Option<IpAddr>,
    ) -> Result<Port, PortError> {
        let raw = opened.query_port(port_num);
        let raw = raw.map_err(|source| PortError::Query { port_num, source })?;
        let link_layer = match raw.link_layer {
            IBV_LINK_LAYER_INFINIBAND => LinkLayer::Infiniband,
            IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            code => return Err(PortError::LinkLayer { port_num, code }),
        };
        let len = usize::try_from(raw.gid_tbl_len).unwrap_or(0);
        let table = gid::table(opened, port_num, len);
        let gid = match link_layer {
            LinkLayer::Ethernet => gid::choose(&table, rules, peer),
            LinkLayer::Infiniband => Ok(gid_of_infiniband(&table)),
        };
        let gid = gid.map_err(|source| PortError::Gid { port_num, source })?;
        let attr = PortAttr {
            state: match raw.state {
                IBV_PORT_ACTIVE => PortState::Active,
                _ => PortState::Down,
            },
            link_layer,
            port_num,
            lid: raw.lid,
            needs_grh: raw.flags & IBV_QPF_GRH_REQUIRED != 0,
            active_mtu: Mtu::from_code(raw.active_mtu).unwrap_or_default(),
            max_message_bytes: message_limit(raw.max_msg_sz),
            long_mtu_bytes: 0,
            gid: gid.entry.gid,
            gid_index: gid.entry.index,
            speed_mbps: speed_mbps(opened, port_num, &raw),
            udp_port: 0,
            udp_source_ports: Default::default(),
            options: QpOptions::empty(),
        };
        Ok(Port { attr, gid })
    }
}

/// On InfiniBand, LIDs name peers within their subnet. GID 1 is chosen if it has a FLID, by which routers of other
/// subnets reach it, and else GID 0 (`net_ib.cc ncclIbGetGidIndex` of later NCCL, with the default of
/// `NCCL_IB_ROUTABLE_FLID_GID_INDEX`).
fn gid_of_infiniband(table: &[GidEntry]) -> ChosenGid {
    let at = |index| table.iter().find(|entry| entry.index == index).copied();
    if let Some(entry) = at(1).filter(|entry| entry.gid.flid() != 0) {
        return ChosenGid { entry, why: "InfiniBand: it has a FLID".to_owned() };
    }
    let gid = Gid::default();
    let nameless = GidEntry { index: 0, gid, roce_version: None, ifindex: 0, prefix_len: None };
    let why = "InfiniBand: peers are named by LID".to_owned();
    ChosenGid { entry: at(0).unwrap_or(nameless), why }
}

/// Length in bytes of the longest work request of a device that reports `max_msg_sz`; 0 if there is no limit.
/// ConnectX reports 2³⁰, so two work requests carry any message. A smaller value is taken for no limit: rdma_rxe of
/// older kernels reports 8 MiB and carries longer messages, and the send queue has no room for the many work requests
/// that 8 MiB would take.
fn message_limit(max_msg_sz: u32) -> u32 {
    if max_msg_sz < 1 << 30 { 0 } else { max_msg_sz }
}

/// Speed in megabits per second; 0 if the driver's codes are unknown.
fn speed_mbps(opened: &Opened, port_num: u8, raw: &ibv_port_attr) -> u32 {
    // The codes cannot express the speed of a link that aggregates several ports.
    if let Some(query_port_speed) = opened.library().query_port_speed {
        let mut in_100_mbps = 0;
        // SAFETY: The context is open, and `in_100_mbps` has room for a number.
        let rc = unsafe { query_port_speed(opened.raw(), port_num.into(), &mut in_100_mbps) };
        if rc == 0 && in_100_mbps > 0 {
            return u32::try_from(in_100_mbps.saturating_mul(100)).unwrap_or(u32::MAX);
        }
    }
    // The code of XDR does not fit the older field (`net_ib.cc ncclIbInit`).
    let active_speed = match raw.active_speed_ex {
        0 => raw.active_speed.into(),
        code => code,
    };
    match LinkRate::from_codes(raw.active_width.into(), active_speed) {
        Ok(rate) => rate.mbps(),
        Err(error) => {
            log::warn!("{} port {port_num}: its speed is unknown: {error}", opened.name());
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, flid: u8) -> GidEntry {
        let mut gid = Gid([0; 16]);
        (gid.0[0], gid.0[1], gid.0[5], gid.0[15]) = (0xfe, 0x80, flid, index + 1);
        GidEntry { index, gid, roce_version: None, ifindex: 0, prefix_len: None }
    }

    #[test]
    fn an_infiniband_port_uses_gid_1_if_that_has_a_flid_and_else_gid_0() {
        let (without, with) = ([entry(0, 0), entry(1, 0)], [entry(0, 0), entry(1, 7)]);
        assert_eq!(gid_of_infiniband(&with).entry, with[1]);
        assert_eq!(gid_of_infiniband(&without).entry, without[0]);
        assert_eq!(gid_of_infiniband(&with[..1]).entry, with[0]);
        assert_eq!(gid_of_infiniband(&[]).entry.gid, Gid::default());
    }

    #[test]
    fn a_reported_limit_below_one_gibibyte_is_no_limit() {
        for (reported, limit) in [(0, 0), (0x80_0000, 0), (1 << 30, 1 << 30), (1 << 31, 1 << 31)] {
            assert_eq!(message_limit(reported), limit);
        }
    }
}
