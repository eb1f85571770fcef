//! One end of a reliable connection (IBTA §9.7), sans-IO.
//!
//! A [`Qp`] takes work requests, packets and time; it gives packets ([`Qp::poll_transmit_run`]),
//! completions ([`Env::complete`]) and the time at which it wants to be called again
//! ([`Qp::deadline_ns`]). It sees no payload: what it sends is named by [`Payload`], what it
//! receives it passes to [`Env::place`].
//!
//! An adapter, after each of [`Qp::post_send`], [`Qp::post_recv`], [`Qp::handle_packet`] and
//! [`Qp::handle_timeout`], or after a batch of them, drains [`Qp::poll_transmit_run`] and looks at
//! [`Qp::deadline_ns`]. Acknowledges are made while draining, one for all that arrived before, so
//! a batch costs one; and they let requests go first, so that both leave by one call where an
//! adapter sends packets in trains, of which only the last may be short.
//!
//! Two ways to send a WRITE:
//!
//! - the standard one: FIRST, MIDDLE, LAST packets in order, and go-back-N on loss;
//! - between peers that agreed on
//!   [`ADAPTIVE_ROUTING`](crate::nic::QpOptions::ADAPTIVE_ROUTING), each packet a WRITE_ONLY that
//!   names its own memory and is marked with [`Bth::adaptive`]. The responder places them as they
//!   come, acknowledges up to the first hole, and once a hole has aged asks for just that packet.
//!   A requester whose acknowledge is late sends the oldest and the newest packet again.
//!   The last packet of a WRITE_WITH_IMM carries the RETH of the whole message, its payload being
//!   the tail of it, so that the completion can say how long the message was. Marked and unmarked
//!   packets are never in flight at the same time.
//!
//! Packets are as long as one of the verbs' path MTUs, or longer, where Invar's own peers agree on it
//! ([`RtrAttr::long_mtu_bytes`](crate::nic::RtrAttr::long_mtu_bytes)). Then the first of a WRITE of
//! several standard packets has so much less payload as its RETH takes: it is as long as those that
//! follow, and leaves in one train with them. Nothing else changes.
//!
//! What Linux rxe does where the standard leaves a choice is what happens here; differences are
//! noted where they are.
//!
//! Read `qp/requester.rs`, then `qp/requester/wqe.rs` and `qp/requester/response.rs`;
//! `qp/responder.rs`, then `qp/responder/answer.rs` and `qp/reorder.rs`.

mod counters;
mod env;
mod linger;
mod pace;
mod psn_set;
mod reorder;
mod requester;
mod responder;
mod ring;
mod rtt;
mod state;
mod timer;
mod tuning;
mod window;

use super::{Bth, Headers, Opcode, Packet, Psn, pad_count};
use crate::nic::{
    Access, NicError, QpCap, QpOptions, QpState, QpTransition, RecvWr, SendFlags, SendOpcode,
    SendWr, Verb, Wc, WcStatus,
};
use requester::Requester;
use responder::Responder;
use state::{EINVAL, ENOMEM};

pub use counters::Counters;
pub use env::{AccessFault, Env, Payload, Queue, Region, Side, Transmit};
pub use linger::Lingering;
pub use timer::{RNR_NS_MAX, ack_timeout_ns, rnr_timer_ns};
pub use tuning::Tuning;

/// READs of a peer that may be outstanding at a responder, and of ours at a peer.
pub const RD_ATOMIC_MAX: u8 = 16;
/// Bytes of one message.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 31;
/// Largest [`Tuning::window_packets_max`]; also the receive window of adaptive routing.
pub const WINDOW_PACKETS_MAX: u32 = psn_set::LEN;

/// Most payload bytes of a packet: [`RtrAttr::long_mtu_bytes`](crate::nic::RtrAttr::long_mtu_bytes).
pub const LONG_MTU_BYTES_MAX: u32 = 1 << 13;

/// Most bytes of what an adapter may send by one call, a train of packets. With the headers before it
/// it has to stay below what devices take at a time, 64 KiB as a rule, or the kernel cuts it before
/// the device: less than half as fast.
pub const TRAIN_BYTES_MAX: u32 = 65_300;
/// And this many packets, as far as Linux before 6.9 goes.
const TRAIN_PACKETS_MAX: u32 = 64;

/// What both halves of a queue pair need to know of it.
#[derive(Clone, Copy, Default)]
struct Path {
    qpn: u32,
    dest_qp: u32,
    mtu_bytes: u32,
    /// By how much less payload the first of several packets of a WRITE has.
    first_less: u32,
    /// Packets of full length in a train.
    train_packets: u32,
    access: Access,
    adaptive: bool,
}

/// The queue pair has to go to ERR; whoever says so has completed the work request at fault.
struct Fatal;

/// A reliable connection's end, with room for `SQ` sends and `RQ` receives, powers of two.
///
/// Its state takes 64 bytes a send, 24 a receive, and 2.9 KB besides: 41 KB for 512 and 256.
pub struct Qp<const SQ: usize, const RQ: usize> {
    state: QpState,
    cap: QpCap,
    path: Path,
    tuning: Tuning,
    counters: Counters,
    requester: Requester<SQ>,
    responder: Responder<RQ>,
    /// Requests that went before the acknowledge that is due.
    before_ack: u32,
}

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// A queue pair in state RESET.
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
        })
    }

    /// The state now.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The 24-bit number by which the peer names this end.
    pub fn qpn(&self) -> u32 {
        self.path.qpn
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Replaces the tuning, at best before the move to RTR. The window is brought into its range.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.requester.set_tuning(&tuning);
        self.responder.set_hole_age(tuning.hole_age_ns);
    }

    /// `ibv_modify_qp`. A move to ERR completes all that is posted as flushed; one to RESET drops
    /// it.
    ///
    /// # Errors
    /// `EINVAL`: no such move from this state, or an attribute out of range. Nothing has changed.
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
        self.path = Path { qpn: self.path.qpn, ..Path::default() };
        self.requester = Requester::new();
        self.responder = Responder::new();
        self.set_tuning(self.tuning);
    }

    /// `ibv_post_send`. The answer is the slot in which the adapter keeps the bytes of an inline
    /// request; it is free again once a later request gets the same one.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: not in RTS, SQD or ERR, or a request that no queue
    /// pair could carry out. In ERR the request is taken and completes as flushed.
    pub fn post_send(&mut self, wr: &SendWr, env: &mut impl Env) -> Result<u16, NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::PostSend, errno, cause));
        let inline = wr.flags.contains(SendFlags::INLINE);
        if !matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Err) {
            return refuse(EINVAL, "not in state RTS, SQD or ERR");
        }
        if wr.sge.length > MESSAGE_BYTES_MAX {
            return refuse(EINVAL, "message exceeds 2^31 bytes");
        }
        if inline && wr.opcode == SendOpcode::RdmaRead {
            return refuse(EINVAL, "an RDMA READ cannot be inline");
        }
        if inline && wr.sge.length > self.cap.max_inline_data {
            return refuse(EINVAL, "more bytes inline than max_inline_data");
        }
        if wr.opcode == SendOpcode::RdmaRead && !self.requester.may_read() {
            return refuse(EINVAL, "an RDMA READ with max_rd_atomic 0");
        }
        if self.requester.posted() >= self.cap.max_send_wr {
            return refuse(ENOMEM, "send queue full");
        }
        let Some(slot) = self.requester.post(wr) else {
            return refuse(ENOMEM, "send queue full");
        };
        if self.state == QpState::Err {
            self.requester.flush(&self.path, env);
        }
        Ok(slot)
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: in state RESET. In ERR the request is taken and
    /// completes as flushed.
    pub fn post_recv(&mut self, wr: &RecvWr, env: &mut impl Env) -> Result<(), NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::PostRecv, errno, cause));
        if self.state == QpState::Reset {
            return refuse(EINVAL, "in state RESET");
        }
        if self.responder.posted() >= self.cap.max_recv_wr || !self.responder.post(wr) {
            return refuse(ENOMEM, "receive queue full");
        }
        match self.state {
            QpState::Err => self.responder.flush(&self.path, env),
            _ => self.responder.resume(&self.path, env),
        }
        Ok(())
    }

    /// Takes a packet from the peer. The adapter has checked its ICRC, its destination queue
    /// pair, P_Key and source address.
    pub fn handle_packet(&mut self, now_ns: u64, packet: &Packet<'_>, env: &mut impl Env) {
        self.counters.packets_received += 1;
        let bth = &packet.headers.bth;
        let answered = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let asking = matches!(self.state, QpState::Rts | QpState::Sqd);
        let known = bth.dest_qp == self.path.qpn && bth.tver == 0;
        let Qp { path, counters, .. } = self;
        let outcome = match bth.opcode.is_response() {
            true if asking && known => {
                self.requester.handle_response(now_ns, packet, path, counters, env)
            }
            false if answered && known && bth.opcode.transport() == super::Transport::Rc => {
                self.responder.handle_request(now_ns, packet, path, counters, env)
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

    /// The next packet to send. To be called until it has none. READ responses and NAKs come before
    /// requests, an acknowledge behind some.
    pub fn poll_transmit(&mut self, now_ns: u64, env: &mut impl Env) -> Option<Transmit> {
        self.poll_transmit_run(now_ns, 1, env)
    }

    /// The next packets to send, `packets_max` at most, which is not 0: one and those that
    /// [follow](Transmit::advance) it. The same packets as by [`Qp::poll_transmit`], for the cost of
    /// one as long as a message goes on.
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
                // What the failure left to be said is in the responder.
                let transmit = self.responder.poll_transmit(&self.path, &mut self.counters, env);
                transmit.ok().flatten()
            }
        };
        transmit.inspect(|first| self.counters.packets_sent += 1 + u64::from(first.following))
    }

    /// Whether all that there is to send is an acknowledge of messages of one packet each that came
    /// after `since_ns`. Their sender has no more of them to send for it, so it may wait a little for
    /// requests to go with.
    pub fn may_wait(&self, since_ns: u64) -> bool {
        self.responder.may_wait(since_ns) && self.requester.is_idle()
    }

    /// Whether that is so, and they are WRITEs without immediate. As a rule nobody waits for their
    /// acknowledge, so it need not even go with requests that were just sent: one packet takes an
    /// adapter less time than two. It goes behind the next requests then.
    pub fn stays(&mut self, since_ns: u64) -> bool {
        let stays = self.responder.is_silent() && self.may_wait(since_ns);
        if stays {
            self.before_ack = 0;
        }
        stays
    }

    fn next_transmit(
        &mut self,
        now_ns: u64,
        packets_max: u32,
        env: &mut impl Env,
    ) -> Result<Option<Transmit>, Fatal> {
        // A responder that failed still has its NAK to send, so its state does not matter here.
        let Qp { path, counters, requester, responder, before_ack, .. } = self;
        let ack_waits = responder.only_acknowledges() && *before_ack < path.train_packets;
        if !ack_waits && let Some(transmit) = responder.poll_transmit(path, counters, env)? {
            *before_ack = 0;
            return Ok(Some(transmit));
        }
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
        if ack_waits { responder.poll_transmit(path, counters, env) } else { Ok(None) }
    }

    /// To be called at [`Qp::deadline_ns`]; earlier or more often does no harm.
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

    /// When [`Qp::handle_timeout`] is due, on the clock of `now_ns`; `None` for never.
    pub fn deadline_ns(&self) -> Option<u64> {
        earlier(self.requester.deadline_ns(), self.responder.deadline_ns())
    }

    /// To ERR, with everything posted completed as flushed: sends, then receives.
    fn fail(&mut self, env: &mut impl Env) {
        self.state = QpState::Err;
        self.requester.flush(&self.path, env);
        self.responder.flush(&self.path, env);
    }
}

impl Path {
    /// Packets that a message of `len` bytes takes: one even for none.
    fn packets(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu_bytes).max(1)
    }

    /// Of the packets in the middle of a WRITE.
    fn packets_in_a_train(&self) -> u32 {
        let (bth, reth, icrc) = (12, if self.adaptive { RETH_BYTES } else { 0 }, 4);
        (TRAIN_BYTES_MAX / (self.mtu_bytes + bth + reth + icrc)).min(TRAIN_PACKETS_MAX)
    }

    /// A packet for the peer.
    fn transmit(&self, opcode: Opcode, psn: Psn, payload: Payload) -> Transmit {
        let bth = Bth {
            opcode,
            pad_count: pad_count(payload.len()),
            pkey: DEFAULT_PKEY,
            dest_qp: self.dest_qp,
            psn,
            ..Bth::default()
        };
        Transmit { headers: Headers { bth, ..Headers::default() }, payload, following: 0 }
    }

    /// A completion that says nothing but how it ended.
    fn completion(&self, wr_id: u64, status: WcStatus) -> Wc {
        Wc { wr_id, status, qp_num: self.qpn, ..Wc::default() }
    }
}

/// Of two deadlines, `None` being never.
fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

const RETH_BYTES: u32 = 16;

/// The partition that RoCE has.
const DEFAULT_PKEY: u16 = 0xffff;

#[cfg(test)]
mod tests;
