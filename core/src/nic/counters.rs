//! The counters of a NIC.

/// Defines [`NicCounters`] and its conversions from a list of the fields.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident,)+) => {
        /// Counts of a NIC since it was opened, or since its driver was loaded. A NIC leaves the counts at 0 that
        /// it does not have.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct NicCounters {
            $($(#[$doc])* pub $field: u64,)+
        }

        impl NicCounters {
            /// Number of counters.
            pub const COUNT: usize = [$(stringify!($field)),+].len();

            /// All counters, in the order of the fields.
            pub const fn to_array(self) -> [u64; Self::COUNT] {
                [$(self.$field),+]
            }

            /// Restores the counters from [`NicCounters::to_array`].
            pub const fn from_array([$($field),+]: [u64; Self::COUNT]) -> Self {
                NicCounters { $($field),+ }
            }
        }
    };
}

counters! {
    /// Bytes sent, with the headers of packets.
    sent_bytes,
    /// Bytes received, with the headers of packets.
    received_bytes,
    /// Number of packets that the port has sent.
    sent_packets,
    /// Number of packets that the port has received.
    received_packets,
    /// Packets sent again.
    retransmitted_packets,
    /// Packets that arrived before an earlier one.
    out_of_order_packets,
    /// Times that a peer had to wait, or that this NIC had to, because no receive was posted.
    rnr,
    /// Times that an acknowledge did not arrive in time.
    ack_timeouts,
    /// Packets dropped because their check sum or tag is wrong.
    corrupt_packets,
    /// Packets dropped for other reasons.
    dropped_packets,
}

impl NicCounters {
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
