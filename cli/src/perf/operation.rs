//! The operations that a run can measure.

use serde::{Deserialize, Serialize};

/// The operation that a run measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    /// RDMA WRITE, as ib_write_bw and ib_write_lat do
    Write,
    /// RDMA READ, as ib_read_bw and ib_read_lat do
    Read,
    /// SEND, as ib_send_bw and ib_send_lat do
    Send,
    /// Messages of Invar's protocol
    #[default]
    Message,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Read => "read",
            Op::Send => "send",
            Op::Message => "message",
        }
    }

    /// What the percentiles of the latency are of.
    pub(super) fn latency_is_of(self) -> &'static str {
        if self == Op::Read { "a whole READ" } else { "half a round trip" }
    }

    /// Slots of memory for each message under way. The receiver of SENDs has as many more receives as
    /// it may need to catch up.
    pub(super) fn slots_each(self) -> u16 {
        if self == Op::Send { 2 } else { 1 }
    }
}
