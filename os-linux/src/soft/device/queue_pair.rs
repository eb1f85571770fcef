//! A queue pair of the device: the engine, and the device's knowledge of the peer.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use invar_core::nic::{
    Atomic, LocalOp, NicError, QpCap, QpState, QpTransition, QpType, RecvWr, SendFlags, SendWr,
    Sge, Verb,
};
use invar_core::roce::Packet;
use invar_core::roce::Psn;
use invar_core::roce::qp::{
    Counters, GRH_BYTES, Lingering, Qp, QpUpdate, RequesterPhase, ResponderPhase, Transmit, Tuning,
};

use super::datagram::{DatagramPaths, Receivers};
use super::lists::Lists;
use super::notice::{AsyncEvent, Subject};
use super::path::Path;
use super::posted::{DeviceEnv, Inline, Posted, QpEnv};
use super::window::LocalWork;

pub use super::lists::SGES_MAX;

/// Maximum number of work requests on either queue.
pub const WORK_REQUESTS_MAX: u32 = 2048;
/// Maximum number of receives of a queue pair that has at most 512 sends. Unreliable services need long
/// receive queues, because a datagram without a receive is lost.
const RECEIVES_MAX: usize = 8192;
/// Maximum bytes of inline data.
pub const INLINE_BYTES_MAX: u32 = 1024;

/// The engine in the smallest size that fits. Each send takes about 72 bytes, each receive 32.
///
/// A comm over one device has three sends and one receive for each row of its FIFO, and a few more. The medium size fits
/// depths up to 128, the large size fits ours of 256.
enum Engine {
    Small(Box<Qp<128, 64>>),
    Medium(Box<Qp<512, 256>>),
    Receiving(Box<Qp<512, RECEIVES_MAX>>),
    Large(Box<Qp<{ WORK_REQUESTS_MAX as usize }, { WORK_REQUESTS_MAX as usize }>>),
}

/// Makes the same call on an engine of any size.
macro_rules! engine {
    ($engine:expr, $qp:ident => $call:expr) => {
        match $engine {
            Engine::Small($qp) => $call,
            Engine::Medium($qp) => $call,
            Engine::Receiving($qp) => $call,
            Engine::Large($qp) => $call,
        }
    };
}

/// Makes the same call on the engine of a queue pair, with what the device has for the engine.
macro_rules! engine_with {
    ($pair:expr, $device:expr, |$qp:ident, $env:ident| $call:expr) => {{
        let QueuePair { engine, posted, .. } = $pair;
        let $env = &mut QpEnv { device: $device, posted };
        engine!(engine, $qp => $call)
    }};
}

pub(super) struct QueuePair {
    engine: Engine,
    pub(super) posted: Posted,
    /// The path to the peer, known since the transition to RTR.
    pub(super) path: Option<Path>,
    /// The paths of datagrams, which have no peer.
    pub(super) datagrams: Option<Box<DatagramPaths>>,
    qp_type: QpType,
    rate_mbps_max: Option<NonZeroU32>,
    /// Whether to raise [`AsyncEvent::SqDrained`] once the send queue, in state SQD, is drained.
    pub(super) awaits_drain: bool,
    /// Whether the device's list of queue pairs with pending packets contains this one.
    pub(super) listed: bool,
    /// Time of the earliest armed timer; `u64::MAX` if none is armed.
    pub(super) armed_ns: u64,
}

/// A queue pair to be created.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// The protection domain.
    pub pd: u32,
    /// The completion queue of sends.
    pub send_cq: u32,
    /// The completion queue of receives.
    pub recv_cq: u32,
    /// Lengths of the queues.
    pub cap: QpCap,
    /// Maximum number of buffers of a send.
    pub send_sges_max: u32,
    /// Maximum number of buffers of a receive.
    pub recv_sges_max: u32,
    /// A shared receive queue. Then the queue pair has no receives of its own.
    pub srq: Option<u32>,
    /// The transport service.
    pub qp_type: QpType,
    /// Maximum rate of sent payload in Mbit/s, if it is less than the device's.
    pub rate_mbps_max: Option<NonZeroU32>,
}

impl QpConfig {
    /// A reliable connection that completes to one queue, and whose work requests have one buffer.
    pub fn new(pd: u32, cq: u32, cap: QpCap) -> Self {
        QpConfig {
            pd,
            send_cq: cq,
            recv_cq: cq,
            cap,
            send_sges_max: 1,
            recv_sges_max: 1,
            srq: None,
            qp_type: QpType::Rc,
            rate_mbps_max: None,
        }
    }
}

/// Makes an engine on the heap. The function is never inlined: an unoptimized build keeps copies of an
/// engine on the stack. Inlining would put the copies of all sizes there at once, more than half of a
/// thread's 2 MiB.
#[inline(never)]
fn boxed<const SQ: usize, const RQ: usize>(
    qpn: u32,
    config: &QpConfig,
) -> Result<Box<Qp<SQ, RQ>>, NicError> {
    Ok(Box::new(Qp::new(qpn, config.cap)?.with_type(config.qp_type)))
}

/// Keeps what belongs to a request of the send queue, in a list that grows with the first use of a slot.
fn keep<T: Clone>(list: &mut Vec<Option<T>>, slot: u16, value: T) {
    let slot = usize::from(slot);
    if list.len() <= slot {
        list.resize(slot + 1, None);
    }
    list[slot] = Some(value);
}

impl QueuePair {
    /// Runs after every call on the engine: [looks after](Self::look_after) the queue pair, and lists it for
    /// [`Device::transmit`](super::Device::transmit).
    #[inline]
    pub(super) fn follow_up(
        &mut self,
        qpn: u32,
        env: &mut DeviceEnv<'_>,
        ready: &mut VecDeque<u32>,
    ) {
        self.look_after(qpn, env);
        if !self.listed {
            self.listed = true;
            ready.push_back(qpn);
        }
    }

    /// Moves the queue pair to ERR if its completion queue overflowed, and tells of its last receive and
    /// of a drained send queue.
    #[inline]
    pub(super) fn look_after(&mut self, qpn: u32, env: &mut DeviceEnv<'_>) {
        if self.posted.overrun(env.cqs) && self.state() != QpState::Err {
            // This transition exists from every state.
            let moved = self.modify(&QpTransition::Err, env);
            debug_assert_eq!(moved, Ok(()));
            env.notices.push((Subject::Qp(qpn), AsyncEvent::QpFatal));
        }
        if self.posted.srq.is_some() && !self.posted.told_last && self.state() == QpState::Err {
            self.posted.told_last = true;
            env.notices.push((Subject::Qp(qpn), AsyncEvent::LastWqeReached));
        }
        if self.awaits_drain && self.is_drained() {
            self.awaits_drain = false;
            env.notices.push((Subject::Qp(qpn), AsyncEvent::SqDrained));
        }
    }

    /// Makes a queue pair whose receives have the domain `recv_pd`. A queue pair for datagrams has their
    /// paths.
    pub(super) fn new(
        qpn: u32,
        config: &QpConfig,
        recv_pd: u32,
        datagrams: Option<Box<DatagramPaths>>,
    ) -> Result<Self, NicError> {
        let QpConfig { pd, send_cq, recv_cq, cap, send_sges_max, recv_sges_max, srq, .. } = *config;
        if send_sges_max.max(recv_sges_max) > SGES_MAX {
            let cause = "a work request has more than 32 buffers";
            return Err(NicError::new(Verb::CreateQp, libc::EINVAL, cause));
        }
        if cap.max_inline_data > INLINE_BYTES_MAX {
            let cause = "max_inline_data exceeds 1024 bytes";
            return Err(NicError::new(Verb::CreateQp, libc::EINVAL, cause));
        }
        let (engine, sends, recvs) = match (cap.max_send_wr, cap.max_recv_wr) {
            (0..=128, 0..=64) => (Engine::Small(boxed(qpn, config)?), 128, 64),
            (0..=512, 0..=256) => (Engine::Medium(boxed(qpn, config)?), 512, 256),
            (0..=512, 2049..) => (Engine::Receiving(boxed(qpn, config)?), 512, RECEIVES_MAX),
            _ => {
                let most = WORK_REQUESTS_MAX as usize;
                (Engine::Large(boxed(qpn, config)?), most, most)
            }
        };
        let slot_bytes = cap.max_inline_data as usize;
        Ok(QueuePair {
            engine,
            posted: Posted {
                pd,
                recv_pd,
                send_cq,
                recv_cq,
                inline: Inline { bytes: vec![0; sends * slot_bytes], slot_bytes },
                send_lists: Lists::new(sends, send_sges_max),
                recv_lists: Lists::new(recvs, recv_sges_max),
                atomics: Vec::new(),
                locals: Vec::new(),
                receivers: Receivers::NONE,
                qpn,
                srq,
                told_last: false,
            },
            path: None,
            datagrams,
            qp_type: config.qp_type,
            rate_mbps_max: config.rate_mbps_max,
            awaits_drain: false,
            listed: false,
            armed_ns: u64::MAX,
        })
    }

    pub(super) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(super) fn set_qkey(&mut self, qkey: u32) {
        engine!(&mut self.engine, qp => qp.set_qkey(qkey));
    }

    pub(super) fn set_tuning(&mut self, tuning: Tuning) {
        let rate_mbps_max = self.rate_mbps_max.or(tuning.rate_mbps_max);
        let tuning = Tuning { rate_mbps_max, ..tuning };
        engine!(&mut self.engine, qp => qp.set_tuning(tuning));
    }

    pub(super) fn counters(&self) -> &Counters {
        engine!(&self.engine, qp => qp.counters())
    }

    pub(super) fn lingering(&self) -> Option<Lingering> {
        engine!(&self.engine, qp => qp.lingering())
    }

    pub(super) fn retry_time_ns(&self) -> Option<u64> {
        engine!(&self.engine, qp => qp.retry_time_ns())
    }

    pub(super) fn send_room(&self) -> u32 {
        engine!(&self.engine, qp => qp.send_room())
    }

    pub(super) fn withdraw_sends(&mut self, count: u32) {
        engine!(&mut self.engine, qp => qp.withdraw_sends(count));
    }

    #[inline]
    pub(super) fn qpn(&self) -> u32 {
        engine!(&self.engine, qp => qp.qpn())
    }

    pub(super) fn phases(&self) -> (RequesterPhase, ResponderPhase) {
        engine!(&self.engine, qp => qp.phases())
    }

    /// Whether the program may use the memory of its sends again.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state(), QpState::Err | QpState::Reset | QpState::Init)
    }

    /// Whether packets that waited for room may still leave. If the queue pair has ended, only answers may.
    pub(super) fn may_send(&self, run: &Transmit) -> bool {
        !self.has_ended() || run.headers.bth.opcode.is_response()
    }

    /// Whether no send that has begun is left.
    pub(super) fn is_drained(&self) -> bool {
        engine!(&self.engine, qp => qp.is_drained())
    }

    pub(super) fn state(&self) -> QpState {
        engine!(&self.engine, qp => qp.state())
    }

    pub(super) fn modify(
        &mut self,
        transition: &QpTransition,
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        engine_with!(self, env, |qp, env| qp.modify(transition, env))?;
        self.awaits_drain = false;
        if let QpTransition::Reset = transition {
            self.path = None;
            self.posted.told_last = false;
        }
        if let (QpTransition::Rts(attr), Some(path)) = (transition, &mut self.path) {
            path.set_first_psn(Psn::new(attr.sq_psn));
        }
        Ok(())
    }

    pub(super) fn update(&mut self, update: &QpUpdate) -> Result<(), NicError> {
        engine!(&mut self.engine, qp => qp.update(update))
    }

    /// Posts a send and returns its slot, into which the caller copies inline data.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        wr: &SendWr,
        env: &mut DeviceEnv<'_>,
    ) -> Result<u16, NicError> {
        let slot = engine_with!(self, env, |qp, env| qp.post_send(wr, env))?;
        if self.datagrams.is_some() {
            self.posted.receivers.keep(slot);
        }
        Ok(slot)
    }

    /// Posts a send with several buffers.
    pub(super) fn post_send_list(
        &mut self,
        wr: &SendWr,
        list: &[Sge],
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        if wr.flags.contains(SendFlags::INLINE) {
            let cause = "a list of buffers is not sent inline";
            return Err(NicError::new(Verb::PostSend, libc::EINVAL, cause));
        }
        let length = self.posted.send_lists.check(list, Verb::PostSend)?;
        let wr = SendWr { sge: Sge { length, ..Sge::default() }, ..*wr };
        let slot = engine_with!(self, env, |qp, env| qp.post_send_list(&wr, env))?;
        self.posted.send_lists.set(slot, list);
        if self.datagrams.is_some() {
            self.posted.receivers.keep(slot);
        }
        Ok(())
    }

    pub(super) fn post_atomic(
        &mut self,
        wr: &SendWr,
        atomic: Atomic,
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        let slot = engine_with!(self, env, |qp, env| qp.post_atomic(wr, atomic, env))?;
        keep(&mut self.posted.atomics, slot, atomic);
        Ok(())
    }

    /// Posts a local operation.
    pub(super) fn post_local(
        &mut self,
        (wr_id, flags): (u64, SendFlags),
        operation: LocalOp,
        work: LocalWork,
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        let slot = engine_with!(self, env, |qp, env| qp.post_local(wr_id, flags, operation, env))?;
        keep(&mut self.posted.locals, slot, work);
        Ok(())
    }

    pub(super) fn post_recv(
        &mut self,
        wr: &RecvWr,
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        engine_with!(self, env, |qp, env| qp.post_recv(wr, env))
    }

    /// Posts a receive with several buffers.
    pub(super) fn post_recv_list(
        &mut self,
        wr: &RecvWr,
        list: &[Sge],
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        let length = self.posted.recv_lists.check(list, Verb::PostRecv)?;
        let wr = RecvWr { sge: Sge { length, ..Sge::default() }, ..*wr };
        let slot = engine_with!(self, env, |qp, env| qp.post_recv_list(&wr, env))?;
        self.posted.recv_lists.set(slot, list);
        Ok(())
    }

    #[inline]
    pub(super) fn handle_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
        env: &mut DeviceEnv<'_>,
    ) {
        engine_with!(self, env, |qp, env| qp.handle_packet(now_ns, packet, env));
    }

    pub(super) fn handle_datagram(
        &mut self,
        packet: &Packet<'_>,
        grh: &[u8; GRH_BYTES],
        env: &mut DeviceEnv<'_>,
    ) {
        engine_with!(self, env, |qp, env| qp.handle_datagram(packet, grh, env));
    }

    #[inline]
    pub(super) fn poll_transmit_run(
        &mut self,
        now_ns: u64,
        packets_max: u32,
        env: &mut DeviceEnv<'_>,
    ) -> Option<Transmit> {
        engine_with!(self, env, |qp, env| qp.poll_transmit_run(now_ns, packets_max, env))
    }

    #[inline]
    pub(super) fn may_wait(&self, since_ns: u64) -> bool {
        engine!(&self.engine, qp => qp.may_wait(since_ns))
    }

    #[inline]
    pub(super) fn defer_ack(&mut self, since_ns: u64) -> bool {
        engine!(&mut self.engine, qp => qp.defer_ack(since_ns))
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64, env: &mut DeviceEnv<'_>) {
        engine_with!(self, env, |qp, env| qp.handle_timeout(now_ns, env));
    }

    #[inline]
    pub(super) fn deadline_ns(&self) -> u64 {
        engine!(&self.engine, qp => qp.deadline_ns()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_with_few_sends_may_have_many_receives() {
        let is_made = |max_send_wr, max_recv_wr| {
            let cap = QpCap { max_send_wr, max_recv_wr, ..QpCap::default() };
            QueuePair::new(1, &QpConfig::new(0, 0, cap), 0, None).is_ok()
        };
        assert!(is_made(512, 8192) && is_made(2048, 2048));
        assert!(!is_made(512, 8193) && !is_made(513, 2049) && !is_made(2049, 1));
    }
}
