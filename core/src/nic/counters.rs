//! The counters of a NIC.

/// Counts of a NIC since it was opened, or since its driver was loaded. A NIC leaves the counts at 0 that it
/// does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Bytes sent, with the headers of packets.
    pub sent_bytes: u64,
    /// Bytes received, with the headers of packets.
    pub received_bytes: u64,
    /// Number of packets that the port has sent.
    pub sent_packets: u64,
    /// Number of packets that the port has received.
    pub received_packets: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// Packets that arrived before an earlier one.
    pub out_of_order_packets: u64,
    /// Times that a peer had to wait, or that this NIC had to, because no receive was posted.
    pub rnr: u64,
    /// Times that an acknowledge did not arrive in time.
    pub ack_timeouts: u64,
    /// Packets dropped because their check sum or tag is wrong.
    pub corrupt_packets: u64,
    /// Packets dropped for other reasons.
    pub dropped_packets: u64,
}

impl NicCounters {
    /// Number of counters.
    pub const COUNT: usize = 10;

    /// All counters, in the order of the fields.
    pub const fn to_array(self) -> [u64; Self::COUNT] {
        let NicCounters {
            sent_bytes,
            received_bytes,
            sent_packets,
            received_packets,
            retransmitted_packets,
            out_of_order_packets,
            rnr,
            ack_timeouts,
            corrupt_packets,
            dropped_packets,
        } = self;
        [
            sent_bytes,
            received_bytes,
            sent_packets,
            received_packets,
            retransmitted_packets,
            out_of_order_packets,
            rnr,
            ack_timeouts,
            corrupt_packets,
            dropped_packets,
        ]
    }

    /// Restores the counters from [`NicCounters::to_array`].
    pub const fn from_array(counters: [u64; Self::COUNT]) -> Self {
        let [
            sent_bytes,
            received_bytes,
            sent_packets,
            received_packets,
            retransmitted_packets,
            out_of_order_packets,
            rnr,
            ack_timeouts,
            corrupt_packets,
            dropped_packets,
        ] = counters;
        NicCounters {
            sent_bytes,
            received_bytes,
            sent_packets,
            received_packets,
            retransmitted_packets,
            out_of_order_packets,
            rnr,
            ack_timeouts,
            corrupt_packets,
            dropped_packets,
        }
    }

    /// The sum, counter by counter, as of the rails of a NIC.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// The increase of each counter since `older` was read.
    #[must_use]
    pub fn since(self, older: Self) -> Self {
        self.with(older, u64::saturating_sub)
    }

    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        let (mut counters, other) = (self.to_array(), other.to_array());
        for (count, of_other) in counters.iter_mut().zip(other) {
            *count = join(*count, of_other);
        }
        Self::from_array(counters)
    }
}
