//! Queue pairs of unreliable connections and datagrams (IBTA §9.8).

use super::{GRH_BYTES, Qp, SendWqe};
use crate::nic::{QpState, QpType, SendOpcode};
use crate::roce::Packet;
use crate::roce::qp::Env;

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// Turns a new queue pair into one of another transport service.
    #[must_use]
    pub fn with_type(mut self, qp_type: QpType) -> Self {
        self.path.qp_type = qp_type;
        self
    }

    /// Sets the Q_Key: datagrams with another one are dropped.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.path.qkey = qkey;
    }

    /// Handles a datagram. The adapter has checked it as for [`Qp::handle_packet`], except for its source.
    /// The bytes of `grh` go in front of the payload: the IP header of the packet.
    pub fn handle_datagram(
        &mut self,
        packet: &Packet<'_>,
        grh: &[u8; GRH_BYTES],
        env: &mut impl Env,
    ) {
        self.counters.packets_received += 1;
        let bth = &packet.headers.bth;
        let receives = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let is_known = bth.dest_qp == self.path.qpn && bth.tver == 0;
        let is_datagram = self.path.qp_type == QpType::Ud;
        let Qp { path, counters, responder, .. } = self;
        let is_taken = match receives && is_known && is_datagram {
            true => responder.handle_datagram(packet, grh, path, env),
            false => Ok(false),
        };
        match is_taken {
            Ok(true) => {}
            Ok(false) => counters.dropped += 1,
            Err(_) => self.fail(env),
        }
    }

    /// Returns why an unreliable queue pair cannot carry out a request, or `None` if it can.
    pub(super) fn refuses_unreliable(&self, wqe: &SendWqe) -> Option<&'static str> {
        use SendOpcode::{RdmaRead, Send, SendWithImm, SendWithInv};
        let (opcode, len, most) = (wqe.wr.opcode, wqe.wr.sge.length, self.path.mtu_bytes);
        match self.path.qp_type {
            QpType::Rc => None,
            _ if wqe.local.is_some() => Some("a local operation on an unreliable queue pair"),
            QpType::Uc => matches!(opcode, RdmaRead | SendWithInv)
                .then_some("an RDMA READ, atomic or invalidation on an unreliable connection"),
            QpType::Ud if !matches!(opcode, Send | SendWithImm) => {
                Some("a datagram that is no SEND")
            }
            // A queue pair that failed before RTR knows no MTU, and sends nothing.
            QpType::Ud => (most > 0 && len > most).then_some("a datagram longer than the MTU"),
        }
    }
}
