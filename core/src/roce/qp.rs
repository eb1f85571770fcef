//! One end of a reliable connection (IBTA §9.7), sans-IO. A queue pair can also be one end of an
//! unreliable connection, or send and receive datagrams (IBTA §9.8).
//!
//! A [`Qp`] takes work requests, packets and the time. A `Qp` gives packets
//! ([`Qp::poll_transmit_run`]), completions ([`Env::complete`]) and the time of its next call
//! ([`Qp::deadline_ns`]). A queue pair never sees payload. [`Payload`] names the bytes to send, and
//! [`Env::place`] takes the received bytes.
//!
//! An adapter calls [`Qp::post_send`], [`Qp::post_recv`], [`Qp::handle_packet`] or
//! [`Qp::handle_timeout`]. After each call, or after a batch of calls, the adapter drains
//! [`Qp::poll_transmit_run`] and reads [`Qp::deadline_ns`]. The queue pair makes acknowledges while
//! the adapter drains it. One acknowledge covers everything that arrived before, so a batch costs one
//! acknowledge. Requests leave before the acknowledge. An adapter that sends trains of packets can
//! then send both by one call, because only the last packet of a train may be short.
//!
//! A requester sends a WRITE in one of two ways:
//!
//! - In the standard way the requester sends FIRST, MIDDLE and LAST packets in order, and goes back to
//!   the oldest packet on a loss (go-back-N).
//! - Between peers that agreed on [`ADAPTIVE_ROUTING`](crate::nic::QpOptions::ADAPTIVE_ROUTING), each
//!   packet is a WRITE_ONLY. The packet names its own memory and carries the mark
//!   [`Bth::adaptive`](super::Bth::adaptive).
//!   The responder places such packets on arrival and acknowledges up to the first hole. Once a hole
//!   has aged, the responder asks for just that packet. A requester whose acknowledge is late sends
//!   the oldest and the newest packet again. The last packet of a WRITE_WITH_IMM carries the RETH of
//!   the whole message, and its payload is the message's tail. So the completion can report the
//!   message's length. Marked and unmarked packets are never in flight at the same time.
//!
//! A packet's maximum payload is one of the path MTUs of the verbs. Invar peers may agree on more
//! ([`RtrAttr::long_mtu_bytes`](crate::nic::RtrAttr::long_mtu_bytes)). Then the first packet of a
//! multi-packet standard WRITE gives up as many payload bytes as its RETH takes. So the first packet
//! is as long as the next ones, and shares a train with these packets. Nothing else changes.
//!
//! Unreliable queue pairs know no acknowledges. A send completes once the adapter has taken its packets
//! and asks for more. `requester/unreliable.rs` and `responder/unreliable.rs` have their rules.
//!
//! Where the standard leaves a choice, this code does what Linux rxe does. Comments in the code note
//! the differences.
//!
//! Read `qp/requester.rs`, then `qp/requester/wqe.rs` and `qp/requester/response.rs`. Then read
//! `qp/responder.rs`, `qp/responder/answer.rs` and `qp/reorder.rs`.

mod counters;
mod env;
mod linger;
mod local;
mod pace;
mod path;
mod phase;
mod psn_set;
mod reorder;
mod requester;
mod responder;
mod ring;
mod rtt;
mod send_room;
mod state;
mod timer;
mod tuning;
mod unreliable;
mod update;
mod window;

use super::{Packet, Psn};
use crate::nic::{
    Atomic, NicError, QpCap, QpOptions, QpState, QpTransition, QpType, RecvWr, SendFlags,
    SendOpcode, SendWr, Verb,
};
use path::{Path, RETH_BYTES};
use requester::{Requester, SendWqe};
use responder::{Receive, Responder};
use state::{EINVAL, ENOMEM};

pub use counters::Counters;
pub use env::{AccessFault, Destination, Env, Payload, QpSide, Queue, Region, Transmit};
pub use linger::Lingering;
pub use phase::{RequesterPhase, ResponderPhase};
pub use responder::GRH_BYTES;
pub use timer::{ack_timeout_ns, rnr_timer_ns};
pub use tuning::{RNR_NS_MAX, Tuning};
pub use update::QpUpdate;

/// Maximum number of outstanding READs and atomics: from a peer at a responder, and from a requester at its peer.
pub const RD_ATOMIC_MAX: u8 = 16;
/// Maximum length of one message in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 31;
/// Maximum value of [`Tuning::window_packets_max`], and length of the receive window of adaptive
/// routing.
pub const WINDOW_PACKETS_MAX: u32 = psn_set::LEN;

/// Maximum payload of a packet in bytes: see
/// [`RtrAttr::long_mtu_bytes`](crate::nic::RtrAttr::long_mtu_bytes).
pub const LONG_MTU_BYTES_MAX: u32 = 1 << 13;

/// Maximum length in bytes of a train: the packets that an adapter may send by one call. A train with
/// its headers must stay below the largest send of a device, usually 64 KiB. Otherwise the kernel cuts
/// the train before the device, which is less than half as fast.
pub const TRAIN_BYTES_MAX: u32 = 65_300;

/// The queue pair must go to ERR. Whoever returns this value has completed the work request at fault.
struct Fatal;

/// One end of a reliable connection, with room for `SQ` sends and `RQ` receives. Both must be powers
/// of two.
///
/// The state takes 64 bytes a send, 32 bytes a receive, and 3.2 KB more: 44 KB for 512 sends and 256
/// receives.
pub struct Qp<const SQ: usize, const RQ: usize> {
    state: QpState,
    cap: QpCap,
    path: Path,
    tuning: Tuning,
    counters: Counters,
    requester: Requester<SQ>,
    responder: Responder<RQ>,
    /// Number of request packets that were sent while an acknowledge is due.
    before_ack: u32,
    /// Number of packets of the responder that were sent in a row.
    before_request: u32,
}

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// `EINVAL`: `qpn` has more than 24 bits, or `cap` asks for more than `SQ` or `RQ`.
    pub fn new(qpn: u32, cap: QpCap) -> Result<Self, NicError> {
        let refuse = |cause| Err(NicError::new(Verb::CreateQp, EINVAL, cause));
        if qpn > Psn::MASK {
            return refuse("queue pair number exceeds 24 bits");
        }
        if cap.max_send_wr as usize > SQ {
            return refuse("max_send_wr exceeds the send queue");
        }
        if cap.max_recv_wr as usize > RQ {
            return refuse("max_recv_wr exceeds the receive queue");
        }
        let tuning = Tuning::default();
        Ok(Qp {
            state: QpState::Reset,
            cap,
            path: Path { qpn, ..Path::default() },
            tuning,
            counters: Counters::default(),
            requester: Requester::new(),
            responder: Responder::new(),
            before_ack: 0,
            before_request: 0,
        })
    }

    /// State of the queue pair, as transitions and errors have left it.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The 24-bit number by which the peer names this queue pair.
    pub fn qpn(&self) -> u32 {
        self.path.qpn
    }

    /// Counts of the events so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Replaces the tuning, preferably before the move to RTR. The window is clamped to its valid
    /// range.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.requester.set_tuning(&tuning);
        self.responder.set_hole_age(tuning.hole_age_ns);
    }

    /// Changes the state, as `ibv_modify_qp` does. A move to ERR completes everything posted as
    /// flushed. A move to RESET drops everything posted.
    ///
    /// # Errors
    /// `EINVAL`: the state does not allow this move, or an attribute is out of range. Nothing has
    /// changed.
    pub fn modify(&mut self, move_: &QpTransition, env: &mut impl Env) -> Result<(), NicError> {
        let next = state::check(self.state, move_)?;
        match move_ {
            QpTransition::Reset => self.reset(),
            QpTransition::Init { access, .. } => self.path.access = *access,
            QpTransition::Rtr(attr) => {
                self.path.dest_qp = attr.dest_qp_num;
                self.path.mtu_bytes = attr.mtu_bytes();
                self.path.first_less = if attr.is_long() { RETH_BYTES } else { 0 };
                self.path.adaptive = attr.options.contains(QpOptions::ADAPTIVE_ROUTING);
                self.path.train_packets = self.path.packets_in_a_train();
                self.responder.start(attr);
            }
            QpTransition::Rts(attr) => self.requester.start(attr),
            QpTransition::Sqd | QpTransition::Resume => {}
            QpTransition::Err => {
                self.responder.silence();
                self.fail(env);
            }
        }
        self.state = next;
        Ok(())
    }

    fn reset(&mut self) {
        let Path { qpn, qp_type, .. } = self.path;
        self.path = Path { qpn, qp_type, ..Path::default() };
        self.requester = Requester::new();
        self.responder = Responder::new();
        self.set_tuning(self.tuning);
    }

    /// Posts a send with at most one buffer, as `ibv_post_send` does. The function returns the slot in which
    /// the adapter keeps the bytes of an inline request. A slot is free again once a later request gets it.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: the state is not RTS, SQD or ERR, or no queue pair could
    /// carry out the request. In ERR the request is accepted and completes as flushed.
    pub fn post_send(&mut self, wr: &SendWr, env: &mut impl Env) -> Result<u16, NicError> {
        self.post_send_work(SendWqe::new(wr, false), env)
    }

    /// Posts a send with several buffers. The length of `wr.sge` is that of all buffers together. The
    /// function returns the slot in which the adapter keeps the list of buffers, for [`Env::gather`]
    /// and [`Env::scatter`].
    ///
    /// # Errors
    /// The errors of [`Qp::post_send`].
    pub fn post_send_list(&mut self, wr: &SendWr, env: &mut impl Env) -> Result<u16, NicError> {
        self.post_send_work(SendWqe::new(wr, true), env)
    }

    /// Posts an atomic operation, whose result goes to the one buffer of `wr`. The opcode of `wr` has no
    /// meaning. The function returns the slot in which the adapter keeps the operation, for
    /// [`Env::atomic`].
    ///
    /// # Errors
    /// The errors of [`Qp::post_send`]. `EINVAL`: the buffer has less than 8 bytes, or the peer's address
    /// is no multiple of 8.
    pub fn post_atomic(
        &mut self,
        wr: &SendWr,
        atomic: Atomic,
        env: &mut impl Env,
    ) -> Result<u16, NicError> {
        let refuse = |cause| Err(NicError::new(Verb::PostSend, EINVAL, cause));
        if wr.sge.length < Atomic::BYTES {
            return refuse("the result of an atomic needs 8 bytes");
        }
        if !wr.remote_addr.is_multiple_of(Atomic::BYTES.into()) {
            return refuse("the address of an atomic is no multiple of 8");
        }
        self.post_send_work(SendWqe::atomic(wr, atomic), env)
    }

    fn post_send_work(&mut self, wqe: SendWqe, env: &mut impl Env) -> Result<u16, NicError> {
        let wr = &wqe.wr;
        let refuse = |errno, cause| Err(NicError::new(Verb::PostSend, errno, cause));
        let inline = wr.flags.contains(SendFlags::INLINE);
        if !matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Err) {
            return refuse(EINVAL, "not in state RTS, SQD or ERR");
        }
        if wr.sge.length > MESSAGE_BYTES_MAX {
            return refuse(EINVAL, "message exceeds 2^31 bytes");
        }
        if inline && wr.opcode == SendOpcode::RdmaRead {
            return refuse(EINVAL, "an RDMA READ or atomic cannot be inline");
        }
        if inline && wr.sge.length > self.cap.max_inline_data {
            return refuse(EINVAL, "more bytes inline than max_inline_data");
        }
        if let Some(cause) = self.refuses_unreliable(&wqe) {
            return refuse(EINVAL, cause);
        }
        if wr.opcode == SendOpcode::RdmaRead && !self.requester.may_read() {
            return refuse(EINVAL, "an RDMA READ or atomic with max_rd_atomic 0");
        }
        if self.requester.posted() >= self.cap.max_send_wr {
            return refuse(ENOMEM, "send queue full");
        }
        let Some(slot) = self.requester.post(wqe) else {
            return refuse(ENOMEM, "send queue full");
        };
        if self.state == QpState::Err {
            self.requester.flush(&self.path, env);
        }
        Ok(slot)
    }

    /// Posts a receive with at most one buffer, as `ibv_post_recv` does.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: the state is RESET. In ERR the request is accepted and
    /// completes as flushed.
    pub fn post_recv(&mut self, wr: &RecvWr, env: &mut impl Env) -> Result<(), NicError> {
        self.post_receive(Receive::new(wr, false), env).map(|_| ())
    }

    /// Posts a receive with several buffers. The length of `wr.sge` is that of all buffers together. The
    /// function returns the slot in which the adapter keeps the list of buffers, for [`Env::scatter`].
    ///
    /// # Errors
    /// The errors of [`Qp::post_recv`].
    pub fn post_recv_list(&mut self, wr: &RecvWr, env: &mut impl Env) -> Result<u16, NicError> {
        self.post_receive(Receive::new(wr, true), env)
    }

    fn post_receive(&mut self, receive: Receive, env: &mut impl Env) -> Result<u16, NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::PostRecv, errno, cause));
        if self.state == QpState::Reset {
            return refuse(EINVAL, "in state RESET");
        }
        if self.responder.posted() >= self.cap.max_recv_wr {
            return refuse(ENOMEM, "receive queue full");
        }
        let Some(slot) = self.responder.post(receive) else {
            return refuse(ENOMEM, "receive queue full");
        };
        match self.state {
            QpState::Err => self.responder.flush(&self.path, env),
            _ => self.responder.resume(&self.path, env),
        }
        Ok(slot)
    }

    /// Handles a packet from the peer. The adapter has checked its ICRC, destination queue pair, P_Key
    /// and source address.
    pub fn handle_packet(&mut self, now_ns: u64, packet: &Packet<'_>, env: &mut impl Env) {
        self.counters.packets_received += 1;
        let bth = &packet.headers.bth;
        let answered = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let asking = matches!(self.state, QpState::Rts | QpState::Sqd);
        let known = bth.dest_qp == self.path.qpn && bth.tver == 0;
        let Qp { path, counters, .. } = self;
        let outcome = match (bth.opcode.is_response(), path.qp_type) {
            (true, QpType::Rc) if asking && known => {
                self.requester.handle_response(now_ns, packet, path, counters, env)
            }
            (false, QpType::Rc)
                if answered && known && bth.opcode.transport() == super::RoceTransport::Rc =>
            {
                self.responder.handle_request(now_ns, packet, path, counters, env)
            }
            (_, QpType::Uc) if answered && known => {
                self.responder.handle_unreliable(packet, path, counters, env)
            }
            _ => {
                counters.dropped += 1;
                Ok(())
            }
        };
        if outcome.is_err() {
            self.fail(env);
        }
    }

    /// Returns the next packet to send. Call this function until it returns `None`. READ responses and
    /// NAKs leave before requests. An acknowledge lets up to one train of requests go first.
    pub fn poll_transmit(&mut self, now_ns: u64, env: &mut impl Env) -> Option<Transmit> {
        self.poll_transmit_run(now_ns, 1, env)
    }

    /// Returns up to `packets_max` packets to send, where `packets_max` is not 0. The result is one
    /// packet and the number of packets that [follow](Transmit::advance) it. [`Qp::poll_transmit`]
    /// returns these packets one by one. Within one message this call costs as much for a run as for
    /// one packet.
    pub fn poll_transmit_run(
        &mut self,
        now_ns: u64,
        packets_max: u32,
        env: &mut impl Env,
    ) -> Option<Transmit> {
        let transmit = match self.next_transmit(now_ns, packets_max, env) {
            Ok(transmit) => transmit,
            Err(Fatal) => {
                self.fail(env);
                // The responder still holds the NAK that the failure left.
                let transmit = self.responder.poll_transmit(&self.path, &mut self.counters, env);
                transmit.ok().flatten()
            }
        };
        transmit.inspect(|first| self.counters.packets_sent += 1 + u64::from(first.following))
    }

    /// Returns whether the only thing to send is an acknowledge of one-packet messages that arrived
    /// after `since_ns`. The peer needs no acknowledge to finish such messages. So the adapter may
    /// delay the acknowledge a little, to send it together with requests.
    pub fn may_wait(&self, since_ns: u64) -> bool {
        self.responder.may_wait(since_ns) && self.requester.is_idle()
    }

    /// Defers the acknowledge if [`Qp::may_wait`] is true and the messages are WRITEs without immediate.
    /// Returns whether it is deferred. Usually nobody waits for the acknowledge of such WRITEs, so it
    /// need not even leave with the requests just sent. One packet takes an adapter less time than two.
    /// A deferred acknowledge leaves behind the next requests.
    pub fn defer_ack(&mut self, since_ns: u64) -> bool {
        let deferred = self.responder.is_silent() && self.may_wait(since_ns);
        self.before_ack = if deferred { 0 } else { self.before_ack };
        deferred
    }

    fn next_transmit(
        &mut self,
        now_ns: u64,
        packets_max: u32,
        env: &mut impl Env,
    ) -> Result<Option<Transmit>, Fatal> {
        // A failed responder still has its NAK to send, so the state does not matter here.
        let Qp { path, counters, requester, responder, before_ack, before_request, .. } = self;
        if !path.is_reliable() {
            return match self.state {
                QpState::Rts => requester.poll_unreliable(now_ns, true, packets_max, path, env),
                QpState::Sqd => requester.poll_unreliable(now_ns, false, packets_max, path, env),
                _ => Ok(None),
            };
        }
        let ack_waits = responder.only_acknowledges() && *before_ack < path.train_packets;
        // A peer that always reads must not keep back this end's requests, which may have to be repeated.
        let request_waits = !ack_waits && *before_request < path.train_packets;
        if request_waits && let Some(transmit) = responder.poll_transmit(path, counters, env)? {
            (*before_ack, *before_request) = (0, *before_request + 1);
            return Ok(Some(transmit));
        }
        *before_request = 0;
        if matches!(self.state, QpState::Rts | QpState::Sqd) {
            let start = self.state == QpState::Rts;
            let before = if ack_waits { path.train_packets - *before_ack } else { u32::MAX };
            let most = packets_max.min(before);
            let request = requester.poll_transmit(now_ns, start, most, path, counters, env)?;
            if let Some(Transmit { following, .. }) = request {
                *before_ack += if ack_waits { 1 + following } else { 0 };
                return Ok(request);
            }
        }
        *before_ack = 0;
        if request_waits { Ok(None) } else { responder.poll_transmit(path, counters, env) }
    }

    /// Handles expired timers. Call this function at [`Qp::deadline_ns`]. An earlier or repeated call
    /// does no harm.
    pub fn handle_timeout(&mut self, now_ns: u64, env: &mut impl Env) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return;
        }
        self.responder.handle_timeout(now_ns);
        let Qp { path, counters, .. } = self;
        if self.requester.handle_timeout(now_ns, path, counters, env).is_err() {
            self.fail(env);
        }
    }

    /// Time at which [`Qp::handle_timeout`] is due, on the clock of `now_ns`. `None` means never.
    pub fn deadline_ns(&self) -> Option<u64> {
        earlier(self.requester.deadline_ns(), self.responder.deadline_ns())
    }

    /// Moves to ERR and completes everything posted as flushed: sends first, then receives.
    fn fail(&mut self, env: &mut impl Env) {
        self.state = QpState::Err;
        self.requester.flush(&self.path, env);
        self.responder.flush(&self.path, env);
    }
}

/// Returns the earlier of two deadlines, where `None` means never.
fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
