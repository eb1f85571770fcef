//! The facts about a connection that requester and responder share.

use super::{Payload, TRAIN_BYTES_MAX, Transmit};
use crate::nic::{Access, QpType, Wc, WcStatus};
use crate::roce::{Bth, Headers, Opcode, Psn, pad_count};

pub(super) const RETH_BYTES: u32 = 16;

/// The only partition that RoCE has.
const DEFAULT_PKEY: u16 = 0xffff;

/// Maximum number of packets in a train. Linux before 6.9 takes no more in one call.
const TRAIN_PACKETS_MAX: u32 = 64;

/// The facts about a queue pair that its requester and its responder share.
#[derive(Clone, Copy, Default)]
pub(super) struct Path {
    pub(super) qpn: u32,
    pub(super) qp_type: QpType,
    /// The key that a datagram needs to be received.
    pub(super) qkey: u32,
    pub(super) dest_qp: u32,
    pub(super) mtu_bytes: u32,
    /// Number of payload bytes by which the first packet of a multi-packet WRITE is shorter than the
    /// others.
    pub(super) first_less: u32,
    /// Number of full-length packets in a train.
    pub(super) train_packets: u32,
    pub(super) access: Access,
    pub(super) adaptive: bool,
}

impl Path {
    pub(super) fn is_reliable(&self) -> bool {
        self.qp_type == QpType::Rc
    }

    /// Number of packets of a message of `len` bytes. An empty message takes one packet.
    pub(super) fn packets(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu_bytes).max(1)
    }

    /// Number of packets in a train from the middle of a WRITE.
    pub(super) fn packets_in_a_train(&self) -> u32 {
        let (bth, reth, icrc) = (12, if self.adaptive { RETH_BYTES } else { 0 }, 4);
        (TRAIN_BYTES_MAX / (self.mtu_bytes + bth + reth + icrc)).min(TRAIN_PACKETS_MAX)
    }

    /// Builds a packet for the peer.
    pub(super) fn transmit(&self, opcode: Opcode, psn: Psn, payload: Payload) -> Transmit {
        let bth = Bth {
            opcode,
            migreq: true,
            pad_count: pad_count(payload.len()),
            pkey: DEFAULT_PKEY,
            dest_qp: self.dest_qp,
            psn,
            ..Bth::default()
        };
        Transmit { headers: Headers { bth, ..Headers::default() }, payload, following: 0, slot: 0 }
    }

    /// Builds a completion that reports only its status.
    pub(super) fn completion(&self, wr_id: u64, status: WcStatus) -> Wc {
        Wc { wr_id, status, qp_num: self.qpn, ..Wc::default() }
    }
}
