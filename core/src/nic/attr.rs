//! Attributes of ports and queue pairs.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use super::Access;
use crate::secret::Secret;

/// Global identifier of a port (`union ibv_gid`). With RoCEv2 it is an IPv6 address, or an IPv4 address
/// mapped into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The RoCEv2 address that this GID stands for.
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The LID by which routers of other InfiniBand subnets reach this GID (FLID); 0 if it has none.
    pub const fn flid(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
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

/// Link layer of a port (`IBV_LINK_LAYER_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkLayer {
    /// InfiniBand: a LID names a peer.
    Infiniband = 1,
    /// Ethernet, which means RoCE: a GID names a peer.
    #[default]
    Ethernet = 2,
}

/// Path MTU in payload bytes per packet (`enum ibv_mtu`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Mtu {
    /// Packets carry up to 256 bytes.
    Mtu256 = 1,
    /// Packets carry up to 512 bytes.
    Mtu512 = 2,
    /// Packets carry up to 1024 bytes.
    #[default]
    Mtu1024 = 3,
    /// Packets carry up to 2048 bytes.
    Mtu2048 = 4,
    /// Packets carry up to 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// All path MTUs, the largest first.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512, Mtu::Mtu256];

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// Converts a code of the verbs; `None` if the code is not one of the five.
    pub fn from_code(code: u32) -> Option<Mtu> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == code)
    }

    /// The largest path MTU whose packets fit into `bytes` of payload.
    pub fn fitting(bytes: u32) -> Option<Mtu> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() <= bytes)
    }
}

/// State of a port (`enum ibv_port_state`), reduced to the distinction that the protocol needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortState {
    /// The port is down: it carries no traffic.
    Down,
    /// The port is up.
    #[default]
    Active,
}

/// The attributes that [`Nic::query_port`](super::Nic::query_port) returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortAttr {
    /// State of the port: up or down.
    pub state: PortState,
    /// Link layer of the port: InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Port number on the device, from 1.
    pub port_num: u8,
    /// Local identifier (InfiniBand only).
    pub lid: u16,
    /// Whether each packet must have a global route header on InfiniBand (`IBV_QPF_GRH_REQUIRED`), as on a virtual
    /// function. A peer on Invar's wire sends the header too.
    pub needs_grh: bool,
    /// The largest path MTU that the port carries.
    pub active_mtu: Mtu,
    /// Length in bytes of the longest work request (`max_msg_sz`); 0 if there is no limit below 2³¹ − 1. Longer
    /// messages are sent in pieces. The send queue has room for two pieces of each message, so a port with a limit
    /// suits messages of up to twice that limit. The peer's port must carry the pieces too.
    pub max_message_bytes: u32,
    /// Payload bytes of the longer packets that two software NICs can exchange if both agree; 0 if the
    /// port has no longer packets.
    pub long_mtu_bytes: u32,
    /// Global identifier at `gid_index`.
    pub gid: Gid,
    /// Index of `gid` in the port's GID table.
    pub gid_index: u8,
    /// Speed of all lanes together in megabits per second.
    pub speed_mbps: u32,
    /// UDP port on which a software NIC receives; 0 for a real NIC, which uses 4791.
    pub udp_port: u16,
    /// UDP ports from which a software NIC sends.
    pub udp_source_ports: SourcePorts,
    /// Capabilities of this NIC beyond the verbs, which both ends must agree on.
    pub options: QpOptions,
}

/// UDP ports from which a software NIC sends; entries of 0 are unused. Each queue pair always sends
/// from the same port. Queue pairs spread over the ports, since networks spread flows over paths by
/// port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePorts(pub [u16; SourcePorts::MAX]);

impl SourcePorts {
    /// The largest number of ports of a software NIC.
    pub const MAX: usize = 4;

    /// Index of the port from which a queue pair sends; `None` if there are no ports.
    pub fn place(&self, qpn: u32) -> Option<usize> {
        let count = self.0.iter().take_while(|port| **port != 0).count();
        (qpn as usize).checked_rem(count)
    }

    /// The port from which a queue pair sends; 0 if there are no ports.
    pub fn port(&self, qpn: u32) -> u16 {
        self.place(qpn).map_or(0, |place| self.0[place])
    }
}

bitflags::bitflags! {
    /// Capabilities beyond the verbs that two Invar software NICs may agree on. A real NIC has none of
    /// them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpOptions: u32 {
        /// Every packet of a WRITE is a WRITE_ONLY with its own RETH, and the responder places packets
        /// in any order. So the network may route adaptively, and only lost packets are sent again; see
        /// [`crate::roce::qp`].
        const ADAPTIVE_ROUTING = 1;
        /// The ICRC also masks the IPv4 identification, which a UDP socket does not show.
        const ICRC_MASKS_IP_ID = 1 << 1;
        /// Each packet ends with a tag instead of the ICRC. Only the two ends can make the tag; see
        /// [`PacketKeys`].
        const PACKET_TAGS = 1 << 2;
    }
}

/// The keys of a connection whose packets carry tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKeys {
    /// Key for the packets that this end sends.
    pub send: Secret,
    /// Key for the packets that the peer sends.
    pub recv: Secret,
}

/// Enhanced connection establishment (`struct ibv_ece`): a driver's capabilities beyond the verbs'
/// attributes, in a form that its vendor defines. The two ends agree on common options while they
/// connect. The connector makes an offer, and the acceptor's driver keeps of the offer the options that
/// it supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor that defines the options.
    pub vendor_id: u32,
    /// The options that are offered or kept, as bits that the vendor defines.
    pub options: u32,
    /// Mask of fields that extend this structure; no such fields exist yet.
    pub comp_mask: u32,
}

/// Capacities of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// The largest number of outstanding work requests on the send queue.
    pub max_send_wr: u32,
    /// The largest number of outstanding work requests on the receive queue.
    pub max_recv_wr: u32,
    /// The largest number of bytes that may be posted inline.
    pub max_inline_data: u32,
}

/// Transport service of a queue pair (`enum ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc = 2,
    /// Unreliable connection: SENDs and WRITEs without acknowledges.
    Uc = 3,
    /// Unreliable datagrams: SENDs of one packet, each to a peer of its own.
    Ud = 4,
}

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Created: nothing may be posted.
    #[default]
    Reset,
    /// Initialized: receives may be posted.
    Init,
    /// Ready to receive: the queue pair answers packets.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained: started work completes, and no new work starts.
    Sqd,
    /// Error: all posted work completes as flushed.
    Err,
}

/// One move of the queue pair state machine, with the attributes that the move requires
/// (`ibv_modify_qp`, IBTA §10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpTransition {
    /// Any state → RESET.
    Reset,
    /// RESET → INIT.
    Init {
        /// Index of the partition key; `NCCL_IB_PKEY`.
        pkey_index: u16,
        /// Port of the device, from 1.
        port_num: u8,
        /// Operations that the peer may use through this queue pair.
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

/// How far the search for the way to a peer has come; see [`Nic::resolve`](super::Nic::resolve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The way is known: a queue pair starts without waiting.
    Done,
    /// The search goes on.
    Pending,
    /// Nobody has answered.
    Failed,
}

/// Address of the peer (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Whether packets have a global route header; always true on Ethernet. On InfiniBand true if the port requires
    /// it, or if the peer is in another subnet.
    pub is_global: bool,
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of this end's GID.
    pub sgid_index: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP type of service; `NCCL_IB_TC`.
    pub traffic_class: u8,
    /// The peer's LID, or its FLID from another subnet (InfiniBand only).
    pub dlid: u16,
    /// Service level; `NCCL_IB_SL`.
    pub sl: u8,
    /// Port number of this end.
    pub port_num: u8,
    /// UDP port of a peer that is a software NIC; 0 stands for 4791.
    pub udp_port: u16,
    /// UDP port from which the queue pair of such a peer sends; 0 stands for any port.
    pub udp_source_port: u16,
}

/// Attributes of the move INIT → RTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrAttr {
    /// Path MTU that both ends agreed on.
    pub path_mtu: Mtu,
    /// Payload bytes of a full packet, a multiple of 4, if both ends support longer packets than
    /// `path_mtu`. A value that is not larger than `path_mtu` has no effect.
    pub long_mtu_bytes: u32,
    /// Number of the peer's queue pair, 24 bits.
    pub dest_qp_num: u32,
    /// First packet sequence number that the peer will send.
    pub rq_psn: u32,
    /// The largest number of the peer's READs that may be outstanding at this end.
    pub max_dest_rd_atomic: u8,
    /// Code of the wait that an RNR NAK asks for (IBTA table 46).
    pub min_rnr_timer: u8,
    /// Address of the peer.
    pub ah: AddressVector,
    /// Options that both ends agreed on.
    pub options: QpOptions,
    /// Keys of the packet tags, if both ends agreed on [`QpOptions::PACKET_TAGS`].
    pub packet_keys: Option<PacketKeys>,
    /// Address of the peer's end of the TCP connection; `None` without a TCP connection. A software NIC then does not
    /// check the peer's address.
    pub peer_host: Option<IpAddr>,
}

impl RtrAttr {
    /// Payload bytes of a full packet.
    pub fn mtu_bytes(&self) -> u32 {
        self.path_mtu.bytes().max(self.long_mtu_bytes)
    }

    /// Returns whether full packets are longer than `path_mtu`.
    pub fn is_long(&self) -> bool {
        self.long_mtu_bytes > self.path_mtu.bytes()
    }
}

/// Attributes of the move RTR → RTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtsAttr {
    /// Local ACK timeout: 4.096 µs × 2^timeout; 0 means no timeout. `NCCL_IB_TIMEOUT`.
    pub timeout: u8,
    /// Number of retries before RETRY_EXC_ERR, 0 to 7. `NCCL_IB_RETRY_CNT`.
    pub retry_cnt: u8,
    /// Number of retries after RNR NAKs, 0 to 7; 7 means no limit. The software NIC ends unlimited
    /// retries after [`rnr_ns_max`](crate::roce::qp::Tuning::rnr_ns_max).
    pub rnr_retry: u8,
    /// First packet sequence number that this end sends.
    pub sq_psn: u32,
    /// The largest number of READs that this end may have outstanding.
    pub max_rd_atomic: u8,
}
