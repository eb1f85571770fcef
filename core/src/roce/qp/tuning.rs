//! Settings beyond those of the verbs.

use core::num::NonZeroU32;

use crate::nic::RtrAttr;

/// What a host may set beyond the attributes of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Most packets in flight, 1 to [`WINDOW_PACKETS_MAX`](super::WINDOW_PACKETS_MAX). Times the
    /// path MTU it should fit into the receiver's socket buffer.
    pub window_packets_max: u32,
    /// Without progress for this long the oldest unacknowledged packets are sent again, and again
    /// after twice that, and so on, without using up a retry: only whole ACK timeouts do. With an
    /// ACK timeout shorter than this there is no probe.
    pub probe_ns: u64,
    /// How long the peer may hold an acknowledge back. With adaptive routing the first probe leaves
    /// when the acknowledge is so much later than round trips of this connection take, if that is
    /// sooner than `probe_ns`.
    pub ack_delay_ns: u64,
    /// Longer round trips count as congestion: somewhere packets wait in a queue. Where none was
    /// ever shorter than four times this, those do that take half as long again as the shortest.
    /// `None`: only losses count.
    pub rtt_target_ns: Option<u64>,
    /// Most Mbit/s that leave, payload counted; `None` for as many as can.
    pub rate_mbps_max: Option<NonZeroU32>,
    /// How long a hole in adaptive-routing traffic may stay before it counts as a loss.
    pub hole_age_ns: u64,
}

impl Tuning {
    /// With a window of as many bytes, where packets are longer than the path MTU.
    #[must_use]
    pub fn scaled(self, attr: &RtrAttr) -> Tuning {
        let packets = u64::from(self.window_packets_max) * u64::from(attr.path_mtu.bytes());
        let packets = packets.div_ceil(attr.mtu_bytes().into());
        Tuning { window_packets_max: packets as u32, ..self }
    }
}

impl Default for Tuning {
    /// 512 packets (2 MiB at path MTU 4096), probes after 8 ms or 50 µs behind a round trip, round
    /// trips of 1 ms, any rate, holes of 50 µs.
    fn default() -> Self {
        Tuning {
            window_packets_max: 512,
            probe_ns: 8_000_000,
            ack_delay_ns: 50_000,
            rtt_target_ns: Some(1_000_000),
            rate_mbps_max: None,
            hole_age_ns: 50_000,
        }
    }
}
