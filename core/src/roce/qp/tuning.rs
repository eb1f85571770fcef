//! Settings that the verbs do not have.

use core::num::NonZeroU32;

use crate::nic::RtrAttr;

/// The default of [`Tuning::rnr_ns_max`]. A receiver of NCCL's protocol that posts nothing in this time never
/// will.
pub const RNR_NS_MAX: u64 = 60_000_000_000;

/// Settings of a queue pair that a host may choose beyond the attributes of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Maximum number of packets in flight, 1 to [`WINDOW_PACKETS_MAX`](super::WINDOW_PACKETS_MAX). So
    /// many packets of the path MTU's length should fit into the receiver's socket buffer.
    pub window_packets_max: u32,
    /// Least ACK timeout. It replaces a shorter one of the verbs. Hardware answers at once, but a peer in software
    /// only once its host gives it a processor.
    pub ack_timeout_ns_min: u64,
    /// Time without progress after which a probe sends the oldest unacknowledged packets again. Each
    /// later probe waits twice as long as the one before, and up to a quarter longer, so that queue pairs
    /// do not probe together. Probes use up no retry: only whole ACK timeouts do. If the ACK timeout is
    /// shorter than this time, there is no probe.
    pub probe_ns: u64,
    /// Time for which the peer may hold an acknowledge back. With adaptive routing, the first probe
    /// leaves this long after the acknowledge should have come, judged by this connection's round
    /// trips. The probe leaves after `probe_ns` if that is sooner.
    pub ack_delay_ns: u64,
    /// A longer round trip counts as congestion, because packets wait in a queue. If the shortest
    /// round trip exceeds four times this target, the limit is one and a half times the shortest. With
    /// `None`, only losses count as congestion.
    pub rtt_target_ns: Option<u64>,
    /// Maximum rate of sent payload in Mbit/s. `None` means no limit.
    pub rate_mbps_max: Option<NonZeroU32>,
    /// Time for which a hole in adaptive-routing traffic may stay before it counts as a loss.
    pub hole_age_ns: u64,
    /// Time for which retries without a count (`rnr_retry` 7) follow RNR NAKs while nothing is acknowledged.
    /// `u64::MAX` means for ever, as the IBTA has it.
    pub rnr_ns_max: u64,
}

impl Tuning {
    /// Scales the window to the same number of bytes, if packets are longer than the path MTU.
    #[must_use]
    pub fn scaled(self, attr: &RtrAttr) -> Tuning {
        let packets = u64::from(self.window_packets_max) * u64::from(attr.path_mtu.bytes());
        let packets = packets.div_ceil(attr.mtu_bytes().into());
        Tuning { window_packets_max: packets as u32, ..self }
    }
}

impl Default for Tuning {
    /// Default tuning: 512 packets (2 MiB at path MTU 4096), any ACK timeout, no rate limit, and holes of
    /// 50 µs. Probes leave after 8 ms without progress, or 50 µs after a late acknowledge should have come. The
    /// target of a round trip is 1 ms.
    fn default() -> Self {
        Tuning {
            window_packets_max: 512,
            ack_timeout_ns_min: 0,
            probe_ns: 8_000_000,
            ack_delay_ns: 50_000,
            rtt_target_ns: Some(1_000_000),
            rate_mbps_max: None,
            hole_age_ns: 50_000,
            rnr_ns_max: RNR_NS_MAX,
        }
    }
}
