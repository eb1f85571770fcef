//! The counters of a device.

use invar_core::roce::qp;

/// The counts of a device since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Datagrams that the sink has taken.
    pub packets_sent: u64,
    /// Bytes of the sent datagrams, without IP and UDP headers.
    pub bytes_sent: u64,
    /// Calls of the sink that took datagrams.
    pub trains_sent: u64,
    /// Calls of the sink that found it full.
    pub sink_full: u64,
    /// Datagrams that arrived, including those that were dropped.
    pub packets_received: u64,
    /// Bytes of the received datagrams, without IP and UDP headers.
    pub bytes_received: u64,
    /// Datagrams dropped because they are no packets.
    pub malformed: u64,
    /// Packets dropped because their queue pair does not exist or no longer exists.
    pub unknown_qp: u64,
    /// Packets dropped because their queue pair has no peer yet.
    pub unconnected: u64,
    /// Packets dropped because they did not come from the peer's address.
    pub wrong_source: u64,
    /// Packets dropped because their ICRC is wrong, so they were damaged on the way.
    pub icrc_bad: u64,
    /// Packets dropped because the peer did not make their tag.
    pub tag_bad: u64,
    /// Packets accepted without verifying their ICRC: IPv4 packets of a peer whose ICRC covers the
    /// identification.
    pub icrc_unverified: u64,
    /// Packets dropped because they belong to another partition.
    pub wrong_pkey: u64,
    /// Sum over all queue pairs, including destroyed ones.
    pub qps: qp::Counters,
}

impl DeviceCounters {
    /// Adds the counts of a queue pair that is being destroyed.
    pub(super) fn retire(&mut self, qp: &qp::Counters) {
        add(&mut self.qps, qp);
    }

    /// Returns the counts including those of the living queue pairs.
    pub(super) fn total<'a>(mut self, qps: impl Iterator<Item = &'a qp::Counters>) -> Self {
        qps.for_each(|qp| add(&mut self.qps, qp));
        self
    }
}

fn add(total: &mut qp::Counters, qp: &qp::Counters) {
    // Naming every field makes the compiler report a counter that is missing here.
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
