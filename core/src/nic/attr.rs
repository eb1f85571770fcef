//! Attributes of ports and queue pairs.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use super::Access;
use crate::auth::Secret;

/// Global identifier of a port (`union ibv_gid`): for RoCEv2 an IPv6 address, or an IPv4 address
/// mapped into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The RoCEv2 address that this GID stands for.
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Gid(match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// `IBV_LINK_LAYER_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkLayer {
    /// InfiniBand: peers are named by LID.
    Infiniband = 1,
    /// Ethernet, that is RoCE: peers are named by GID.
    #[default]
    Ethernet = 2,
}

/// `enum ibv_mtu`: path MTU, counted in payload bytes a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    #[default]
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// The largest first.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512, Mtu::Mtu256];

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// From the verbs' code; `None` where it is not one of the five.
    pub fn from_code(code: u32) -> Option<Mtu> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == code)
    }

    /// The largest path MTU whose packets fit into `bytes` of payload.
    pub fn fitting(bytes: u32) -> Option<Mtu> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() <= bytes)
    }
}

/// `enum ibv_port_state`, as far as anything depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No traffic passes.
    Down,
    /// Up.
    #[default]
    Active,
}

/// What [`Nic::query_port`](super::Nic::query_port) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortAttr {
    /// Up or not.
    pub state: PortState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Port number on its device, from 1.
    pub port_num: u8,
    /// Local identifier (InfiniBand only).
    pub lid: u16,
    /// Largest path MTU that the port carries.
    pub active_mtu: Mtu,
    /// Payload bytes of a longer packet that a software NIC can exchange with its like, to be
    /// agreed with the peer; 0 where there is no such.
    pub long_mtu_bytes: u32,
    /// Global identifier, of the index below.
    pub gid: Gid,
    /// Index of that GID in the port's table.
    pub gid_index: u8,
    /// Megabit a second, all lanes.
    pub speed_mbps: u32,
    /// UDP port on which a software NIC receives; 0 for a real one, which uses 4791.
    pub udp_port: u16,
    /// UDP ports from which a software NIC sends.
    pub udp_source_ports: SourcePorts,
    /// What this NIC can do beyond the verbs, to be agreed with the peer.
    pub options: QpOptions,
}

/// UDP ports from which a software NIC sends, those that are not 0. Each queue pair keeps to one,
/// and queue pairs spread over them, as networks spread flows over paths by their ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePorts(pub [u16; SourcePorts::MAX]);

impl SourcePorts {
    /// Ports that a software NIC may have.
    pub const MAX: usize = 4;

    /// The place of the port that a queue pair sends from; `None` where there are no ports.
    pub fn place(&self, qpn: u32) -> Option<usize> {
        let count = self.0.iter().take_while(|port| **port != 0).count();
        (qpn as usize).checked_rem(count)
    }

    /// The port that a queue pair sends from; 0 where there are no ports.
    pub fn port(&self, qpn: u32) -> u16 {
        self.place(qpn).map_or(0, |place| self.0[place])
    }
}

bitflags::bitflags! {
    /// What two Invar software NICs may agree on beyond the verbs. A real NIC has none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpOptions: u32 {
        /// Every packet of a WRITE is a WRITE_ONLY with its own RETH, placed in any order, so that the
        /// network may route adaptively and only lost packets are sent again; see [`crate::roce::qp`].
        const ADAPTIVE_ROUTING = 1;
        /// The ICRC also masks the IPv4 identification, which a UDP socket does not show.
        const ICRC_MASKS_IP_ID = 1 << 1;
        /// Each packet ends with a tag that only the two ends can make, in place of the ICRC; see
        /// [`PacketKeys`].
        const PACKET_TAGS = 1 << 2;
    }
}

/// The keys of a connection whose packets carry tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKeys {
    /// For the packets that this end sends.
    pub send: Secret,
    /// For the packets that the peer sends.
    pub recv: Secret,
}

/// Enhanced connection establishment (`struct ibv_ece`): what a driver can do beyond the verbs'
/// attributes, in its vendor's own words. What two ends have in common is agreed on while they
/// connect: the connector offers, the acceptor's driver leaves of it what it can do as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Whose words the options are.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
    /// What there is behind them; none so far.
    pub comp_mask: u32,
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Work requests that may be outstanding on the send queue.
    pub max_send_wr: u32,
    /// Work requests that may be outstanding on the receive queue.
    pub max_recv_wr: u32,
    /// Bytes that may be posted inline.
    pub max_inline_data: u32,
}

/// `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Created; nothing may be posted.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive: packets are answered.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained: what was started completes, nothing new starts.
    Sqd,
    /// Error: everything posted completes as flushed.
    Err,
}

/// One move of the queue pair state machine with the attributes that it requires
/// (`ibv_modify_qp`, IBTA §10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpTransition {
    /// Any state → RESET.
    Reset,
    /// RESET → INIT.
    Init {
        /// `NCCL_IB_PKEY`.
        pkey_index: u16,
        /// Port of the device, from 1.
        port_num: u8,
        /// What the peer may do through this queue pair.
        access: Access,
    },
    /// INIT → RTR.
    Rtr(RtrAttr),
    /// RTR → RTS.
    Rts(RtsAttr),
    /// RTS → SQD.
    Sqd,
    /// SQD → RTS, nothing changed.
    Resume,
    /// Any state → ERR.
    Err,
}

/// Where the peer is (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Whether a global route header is used: always on Ethernet.
    pub is_global: bool,
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of our GID.
    pub sgid_index: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP type of service; `NCCL_IB_TC`.
    pub traffic_class: u8,
    /// The peer's LID (InfiniBand only).
    pub dlid: u16,
    /// Service level; `NCCL_IB_SL`.
    pub sl: u8,
    /// Our port.
    pub port_num: u8,
    /// UDP port of a peer that is a software NIC; 0 stands for 4791.
    pub udp_port: u16,
    /// UDP port that such a peer's queue pair sends from; 0 for any.
    pub udp_source_port: u16,
}

/// INIT → RTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrAttr {
    /// Agreed with the peer.
    pub path_mtu: Mtu,
    /// Payload bytes of a full packet, a multiple of 4, where both ends can do more than `path_mtu`;
    /// what is no more than that has no meaning.
    pub long_mtu_bytes: u32,
    /// The peer's queue pair, 24 bits.
    pub dest_qp_num: u32,
    /// First packet sequence number that the peer will send.
    pub rq_psn: u32,
    /// READs of the peer that may be outstanding here.
    pub max_dest_rd_atomic: u8,
    /// Code of the wait that an RNR NAK asks for (IBTA table 46).
    pub min_rnr_timer: u8,
    /// Where the peer is.
    pub ah: AddressVector,
    /// Agreed with the peer.
    pub options: QpOptions,
    /// The keys of tags, where both ends agreed on [`QpOptions::PACKET_TAGS`].
    pub packet_keys: Option<PacketKeys>,
}

impl RtrAttr {
    /// Payload bytes of a full packet.
    pub fn mtu_bytes(&self) -> u32 {
        self.path_mtu.bytes().max(self.long_mtu_bytes)
    }

    /// Whether that is more than `path_mtu`.
    pub fn is_long(&self) -> bool {
        self.long_mtu_bytes > self.path_mtu.bytes()
    }
}

/// RTR → RTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtsAttr {
    /// Local ACK timeout: 4.096 µs × 2^timeout; 0 is for ever. `NCCL_IB_TIMEOUT`.
    pub timeout: u8,
    /// Retries before RETRY_EXC_ERR, 0 to 7. `NCCL_IB_RETRY_CNT`.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 7, where 7 is for ever; the software NIC ends those after
    /// [`RNR_NS_MAX`](crate::roce::qp::RNR_NS_MAX).
    pub rnr_retry: u8,
    /// First packet sequence number that we send.
    pub sq_psn: u32,
    /// READs that we may have outstanding.
    pub max_rd_atomic: u8,
}
