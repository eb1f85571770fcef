//! The counters of a device.

use invar_core::roce::qp;

/// All counts of a device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Datagrams given to the sink and taken.
    pub packets_sent: u64,
    /// Bytes in them, IP and UDP headers left out.
    pub bytes_sent: u64,
    /// Calls of the sink that they took.
    pub trains_sent: u64,
    /// Times that the sink had no room.
    pub sink_full: u64,
    /// Datagrams that came in, whatever became of them.
    pub packets_received: u64,
    /// Bytes in them, IP and UDP headers left out.
    pub bytes_received: u64,
    /// Datagrams dropped since they are no packets.
    pub malformed: u64,
    /// Packets dropped since there is no such queue pair, or no longer.
    pub unknown_qp: u64,
    /// Packets dropped since their queue pair has no peer yet.
    pub unconnected: u64,
    /// Packets dropped since they did not come from the peer's address.
    pub wrong_source: u64,
    /// Packets dropped since they were damaged on the way.
    pub icrc_bad: u64,
    /// Packets dropped since their tag is not one that the peer made.
    pub tag_bad: u64,
    /// Packets taken though their ICRC could not be verified: IPv4, from a peer that covers the
    /// identification by it.
    pub icrc_unverified: u64,
    /// Packets dropped since they belong to another partition.
    pub wrong_pkey: u64,
    /// All queue pairs together, those that are gone too.
    pub qps: qp::Counters,
}

impl DeviceCounters {
    /// Keeps what a queue pair counted that is going.
    pub(super) fn retire(&mut self, qp: &qp::Counters) {
        add(&mut self.qps, qp);
    }

    /// With those of the queue pairs that there are.
    pub(super) fn total<'a>(mut self, qps: impl Iterator<Item = &'a qp::Counters>) -> Self {
        qps.for_each(|qp| add(&mut self.qps, qp));
        self
    }
}

fn add(total: &mut qp::Counters, qp: &qp::Counters) {
    // By name, so that the compiler misses a counter that is new.
    let qp::Counters {
        packets_sent,
        packets_retransmitted,
        packets_received,
        duplicates,
        out_of_order,
        dropped,
        sequence_naks_sent,
        sequence_naks_received,
        rnr_naks_sent,
        rnr_naks_received,
        responses_lost,
        probes,
        timeouts,
    } = qp;
    total.packets_sent += packets_sent;
    total.packets_retransmitted += packets_retransmitted;
    total.packets_received += packets_received;
    total.duplicates += duplicates;
    total.out_of_order += out_of_order;
    total.dropped += dropped;
    total.sequence_naks_sent += sequence_naks_sent;
    total.sequence_naks_received += sequence_naks_received;
    total.rnr_naks_sent += rnr_naks_sent;
    total.rnr_naks_received += rnr_naks_received;
    total.responses_lost += responses_lost;
    total.probes += probes;
    total.timeouts += timeouts;
}
