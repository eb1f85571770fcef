//! Event counters of a queue pair.

/// Counts of events since the queue pair was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of any kind given to the adapter.
    pub packets_sent: u64,
    /// Sent requests that had been sent before.
    pub packets_retransmitted: u64,
    /// Packets that the adapter handed in.
    pub packets_received: u64,
    /// Received requests that had been received before.
    pub duplicates: u64,
    /// Requests that arrived before an earlier request.
    pub out_of_order: u64,
    /// Packets without effect: outside any window, in a state that takes no packets, or for another
    /// queue pair.
    pub dropped: u64,
    /// NAKs sent because a packet was missing.
    pub sequence_naks_sent: u64,
    /// NAKs received because a packet was missing.
    pub sequence_naks_received: u64,
    /// RNR NAKs sent because no receive was posted.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Times that READ responses were found missing.
    pub responses_lost: u64,
    /// Probes sent, after [`Tuning::probe_ns`](super::Tuning::probe_ns) without progress or for a late
    /// acknowledge.
    pub probes: u64,
    /// ACK timeouts that expired.
    pub timeouts: u64,
}
