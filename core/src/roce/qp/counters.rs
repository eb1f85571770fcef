//! Statistics of a queue pair.

/// What happened so far; all counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that were given to the adapter, of any kind.
    pub packets_sent: u64,
    /// Requests among them that had been sent before.
    pub packets_retransmitted: u64,
    /// Packets that the adapter handed in.
    pub packets_received: u64,
    /// Requests among them that had been received before.
    pub duplicates: u64,
    /// Requests that came before an earlier one.
    pub out_of_order: u64,
    /// Packets without effect: outside any window, in a state that takes none, not for us.
    pub dropped: u64,
    /// NAKs sent because a packet was missing.
    pub sequence_naks_sent: u64,
    /// Such NAKs received.
    pub sequence_naks_received: u64,
    /// RNR NAKs sent: a receive was missing.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// READ responses found missing.
    pub responses_lost: u64,
    /// Times that [`Tuning::probe_ns`](super::Tuning::probe_ns) passed without progress.
    pub probes: u64,
    /// ACK timeouts.
    pub timeouts: u64,
}
