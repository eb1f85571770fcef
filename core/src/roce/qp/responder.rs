//! The responder handles request packets (IBTA §9.7.4), writes memory and completes receives. The
//! answers are in `responder/answer.rs`, atomics in `responder/atomic.rs`, and adaptive routing is in
//! `responder/marked.rs`.

mod answer;
mod atomic;
mod marked;
mod message;
mod operation;
mod unreliable;

use heapless::{HistoryBuf, Vec};

use super::reorder::Reorder;
use super::ring::QueueRing;
use super::{Counters, Env, Fatal, MESSAGE_BYTES_MAX, Path, QpSide, Queue, RD_ATOMIC_MAX};
use crate::nic::{Access, RecvWr, RtrAttr, Sge, WcOpcode, WcStatus};
use crate::roce::{Headers, NakCode, Opcode, Packet, Position, Psn, Reth};
pub(super) use answer::{Answer, Progress};
use answer::{Due, ResponderReply};
use message::Told;
pub(super) use operation::is_acknowledged;
use operation::{RemoteOperation, operation, permitted, uses_receive};
pub use unreliable::GRH_BYTES;

/// Maximum number of READs and atomics that the responder answers at a time: first answers and repeated ones.
const REPLIES_MAX: usize = 2 * RD_ATOMIC_MAX as usize;

/// The message that has begun and not ended.
#[derive(Clone, Copy, Default)]
enum ResponderMessage {
    #[default]
    None,
    /// A SEND that fills the oldest receive.
    Send { received: u32 },
    /// A WRITE whose remaining `left` bytes go to `va`.
    Write { va: u64, rkey: u32, left: u32, length: u32 },
}

/// Why a request is not carried out.
#[derive(Clone, Copy)]
enum ResponderRefusal {
    /// The request needs a receive, and none is posted.
    NotReady,
    /// The request fails for good. The status is for the receive that the request would have
    /// completed.
    Error(NakCode, WcStatus),
}

const INVALID: ResponderRefusal =
    ResponderRefusal::Error(NakCode::InvalidRequest, WcStatus::REM_INV_REQ_ERR);
const NO_ACCESS: ResponderRefusal =
    ResponderRefusal::Error(NakCode::RemoteAccessError, WcStatus::REM_ACCESS_ERR);
// Like rxe, we report a too short receive as a failed operation, both in its completion and in the
// NAK. The standard has LOC_LEN_ERR and an invalid request.
const TOO_LONG: ResponderRefusal =
    ResponderRefusal::Error(NakCode::RemoteOperationalError, WcStatus::LOC_QP_OP_ERR);
const NO_LOCAL_ACCESS: ResponderRefusal =
    ResponderRefusal::Error(NakCode::RemoteOperationalError, WcStatus::LOC_PROT_ERR);

/// What the responder keeps of a READ or atomic, to answer a duplicate.
#[derive(Clone, Copy)]
enum Answered {
    Read {
        packets: u32,
    },
    /// The word before the operation, which must not be carried out twice.
    Atomic {
        word: u64,
    },
}

/// The parts of a receive request that the engine needs.
#[derive(Clone, Copy, Default)]
pub(super) struct Receive {
    wr_id: u64,
    sge: Sge,
    /// The adapter keeps a list of buffers for this receive; `sge` has only their length.
    has_list: bool,
}

impl Receive {
    pub(super) fn new(wr: &RecvWr, has_list: bool) -> Self {
        Receive { wr_id: wr.wr_id, sge: wr.sge, has_list }
    }
}

pub(super) struct Responder<const RQ: usize> {
    queue: QueueRing<Receive, RQ>,
    expected: Psn,
    /// The last packet of a SEND or WRITE that was carried out. An acknowledge names no READ or atomic: rxe would
    /// complete one whose response was lost, without its data.
    acked: Psn,
    /// Number of completed messages, 24 bits.
    msn: u32,
    message: ResponderMessage,
    /// The peer knows that it must send `expected` again. Until then the responder silently drops
    /// later packets.
    gap_reported: bool,
    /// The farthest packet that was dropped because an earlier one was missing.
    dropped: Option<Psn>,
    answer: Answer,
    due: Due,
    /// The marked packet before the expected one asked for an acknowledge.
    asked_before: bool,
    /// READs and atomics to be answered, in the order of their PSNs.
    replies: Vec<ResponderReply, REPLIES_MAX>,
    /// First PSN and outcome of the latest READs and atomics. The peer may repeat only these.
    answered: HistoryBuf<(Psn, Answered), { RD_ATOMIC_MAX as usize }>,
    reorder: Reorder,
    min_rnr_timer: u8,
    max_dest_rd_atomic: u8,
}

impl<const RQ: usize> Responder<RQ> {
    pub(super) fn new() -> Self {
        let mut reorder = Reorder::default();
        reorder.set_hole_age(super::Tuning::default().hole_age_ns);
        Responder {
            queue: QueueRing::new(),
            expected: Psn::default(),
            acked: Psn::default(),
            msn: 0,
            message: ResponderMessage::None,
            gap_reported: false,
            dropped: None,
            answer: Answer::None,
            due: Due::default(),
            asked_before: true,
            replies: Vec::new(),
            answered: HistoryBuf::new(),
            reorder,
            min_rnr_timer: 0,
            max_dest_rd_atomic: 0,
        }
    }

    pub(super) fn set_hole_age(&mut self, hole_age_ns: u64) {
        self.reorder.set_hole_age(hole_age_ns);
    }

    pub(super) fn start(&mut self, attr: &RtrAttr) {
        self.expected = Psn::new(attr.rq_psn);
        self.acked = self.expected.add(Psn::MASK);
        self.min_rnr_timer = attr.min_rnr_timer;
        self.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }

    pub(super) fn set_min_rnr_timer(&mut self, code: u8) {
        self.min_rnr_timer = code;
    }

    pub(super) fn set_reads_max(&mut self, max_dest_rd_atomic: u8) {
        self.max_dest_rd_atomic = max_dest_rd_atomic;
    }

    /// Returns what a lingering queue pair goes on with: the progress, and the answer to send.
    pub(super) fn last_state(&self) -> (Progress, Answer) {
        (self.progress(), self.answer)
    }

    fn progress(&self) -> Progress {
        let Responder { expected, acked, msn, min_rnr_timer, .. } = *self;
        Progress { expected, acked, msn, min_rnr_timer }
    }

    /// Returns whether the peer must send a packet again.
    pub(super) fn misses_packet(&self) -> bool {
        self.gap_reported || !self.reorder.is_empty()
    }

    /// Returns whether a message of several packets has begun and not ended.
    pub(super) fn is_in_message(&self) -> bool {
        !matches!(self.message, ResponderMessage::None)
    }

    pub(super) fn posted(&self) -> u32 {
        self.queue.len()
    }

    pub(super) fn post(&mut self, receive: Receive) -> Option<u16> {
        self.queue.push(receive).map(QueueRing::<Receive, RQ>::slot)
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.reorder.deadline_ns()
    }

    pub(super) fn handle_timeout(&mut self, now: u64) {
        self.reorder.handle_timeout(now, self.expected);
    }

    /// Completes all receives as flushed. Answers that are still to be sent stay.
    pub(super) fn flush(&mut self, path: &Path, env: &mut impl Env) {
        self.reorder.clear();
        while let Some(recv) = self.queue.pop() {
            let wc = path.completion(recv.wr_id, WcStatus::WR_FLUSH_ERR);
            env.complete(Queue::Recv, wc, false);
        }
    }

    pub(super) fn handle_request(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        let bth = &packet.headers.bth;
        if path.adaptive && bth.adaptive {
            return self.handle_marked(now, packet, path, counters, env);
        }
        let ahead = bth.psn.since(self.expected);
        if ahead < 0 {
            counters.duplicates += 1;
            self.handle_duplicate(&packet.headers, path, env);
            return Ok(());
        }
        if ahead > 0 {
            counters.out_of_order += 1;
            if self.dropped.is_none_or(|dropped| bth.psn.since(dropped) > 0) {
                self.dropped = Some(bth.psn);
            }
            if !self.gap_reported {
                self.gap_reported = true;
                self.answer = Answer::Missing { psn: self.expected };
            }
            return Ok(());
        }
        match self.execute(packet, path, env) {
            Ok(psns) => {
                // A response with data acknowledges its request and all requests before it.
                let read = bth.opcode.asks_for_data();
                let wanted = bth.ack_req || self.answer == Answer::Ack;
                if self.answer != Answer::Ack {
                    self.due = Due { short: true, silent: true, since_ns: now };
                }
                self.due.short &= bth.opcode.position() == Some(Position::Only);
                self.due.silent &= bth.opcode == Opcode::WRITE_ONLY;
                self.step(psns, wanted, read);
                Ok(())
            }
            Err(refusal) => self.refuse(refusal, bth.opcode, path, env),
        }
    }

    fn refuse(
        &mut self,
        refusal: ResponderRefusal,
        opcode: Opcode,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        match refusal {
            ResponderRefusal::NotReady => {
                self.gap_reported = true;
                self.answer = Answer::NotReady;
                Ok(())
            }
            ResponderRefusal::Error(code, status) => {
                let has_receive = matches!(self.message, ResponderMessage::Send { .. });
                if (has_receive || uses_receive(opcode))
                    && let Some(recv) = self.queue.pop()
                {
                    env.complete(Queue::Recv, path.completion(recv.wr_id, status), false);
                }
                self.answer = Answer::Refuse { psn: self.expected, code };
                env.refused(code);
                Err(Fatal)
            }
        }
    }

    /// Carries out the request with the expected PSN and returns the number of PSNs that it takes.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<u32, ResponderRefusal> {
        let opcode = packet.headers.bth.opcode;
        let (Some(operation), Some(position)) = (operation(opcode), opcode.position()) else {
            return Err(INVALID);
        };
        let begun = match self.message {
            ResponderMessage::None => None,
            ResponderMessage::Send { .. } => Some(RemoteOperation::Send),
            ResponderMessage::Write { .. } => Some(RemoteOperation::Write),
        };
        let continues = (!position.begins()).then_some(operation);
        if begun != continues || !permitted(operation, path) {
            return Err(INVALID);
        }
        match operation {
            RemoteOperation::Send => self.execute_send(packet, position, path, env)?,
            RemoteOperation::Write => self.execute_write(packet, position, path, env)?,
            RemoteOperation::Read => return self.execute_read(&packet.headers, path, env),
            RemoteOperation::Atomic => return self.execute_atomic(&packet.headers, env),
        }
        if position.ends() {
            self.message = ResponderMessage::None;
            self.count_message();
        }
        Ok(1)
    }

    /// Returns the receive of the next message. If the queue is empty, the receive comes from a shared
    /// receive queue.
    #[inline]
    fn oldest_receive(&mut self, env: &mut impl Env) -> Option<Receive> {
        if let Some(&receive) = self.queue.front() {
            return Some(receive);
        }
        let (wr, has_list) = env.take_receive(QueueRing::<Receive, RQ>::slot(self.queue.head()))?;
        let receive = Receive::new(&wr, has_list);
        self.queue.push(receive).map(|_| receive)
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<(), ResponderRefusal> {
        let Headers { bth, reth, imm, .. } = packet.headers;
        if imm.is_some() && self.oldest_receive(env).is_none() {
            return Err(ResponderRefusal::NotReady);
        }
        let (va, rkey, left, length) = match (self.message, reth) {
            (ResponderMessage::Write { va, rkey, left, length }, _) => (va, rkey, left, length),
            (_, Some(Reth { va, rkey, dma_len })) => (va, rkey, dma_len, dma_len),
            (_, None) => return Err(INVALID),
        };
        if position == Position::First {
            check_memory(va, rkey, length, Access::REMOTE_WRITE, env)?;
        }
        let len = packet.payload.len() as u32;
        let fits = match position {
            Position::First => len == path.mtu_bytes - path.first_less && len < left,
            Position::Middle => len == path.mtu_bytes && len < left,
            Position::Last | Position::Only => len <= path.mtu_bytes && len == left,
        };
        if !fits {
            return Err(INVALID);
        }
        place_write(va, rkey, packet.payload, env)?;
        let va = va.wrapping_add(len.into());
        self.message = ResponderMessage::Write { va, rkey, left: left - len, length };
        if imm.is_some() {
            let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
            let told = Told::immediate(imm);
            self.complete_receive(opcode, length, told, bth.solicited, path, env);
        }
        Ok(())
    }

    fn execute_read(
        &mut self,
        headers: &Headers,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<u32, ResponderRefusal> {
        let Some(reth) = headers.reth else { return Err(INVALID) };
        check_memory(reth.va, reth.rkey, reth.dma_len, Access::REMOTE_READ, env)?;
        if self.unanswered(false) >= usize::from(self.max_dest_rd_atomic) {
            return Err(INVALID);
        }
        let psn = headers.bth.psn;
        let packets = path.packets(reth.dma_len);
        self.count_message();
        self.answered.write((psn, Answered::Read { packets }));
        self.reply(ResponderReply::new(psn, &reth, self.msn));
        Ok(packets)
    }

    /// Answers a request that was carried out before: its answer was lost, or the request came twice.
    fn handle_duplicate(&mut self, headers: &Headers, path: &Path, env: &mut impl Env) {
        let opcode = headers.bth.opcode;
        if operation(opcode) == Some(RemoteOperation::Read) {
            self.repeat_read(headers, path, env);
        } else if operation(opcode) == Some(RemoteOperation::Atomic) {
            self.repeat_atomic(headers, path);
        } else if is_acknowledged(opcode) {
            self.acknowledge();
        }
    }

    /// Answers a READ again by the RETH of the repeated request, which may ask for the rest only. A
    /// READ that was never asked before is dropped.
    fn repeat_read(&mut self, headers: &Headers, path: &Path, env: &mut impl Env) {
        let Some(reth) = headers.reth else { return };
        let psn = headers.bth.psn;
        let packets = path.packets(reth.dma_len);
        // Number of packets from the start of the original READ to the repeated piece, if the piece
        // lies within the READ.
        let piece = |&(first, answered): &(Psn, Answered)| {
            let Answered::Read { packets: count } = answered else { return None };
            let skipped = u32::try_from(psn.since(first)).ok()?;
            (skipped.saturating_add(packets) <= count).then_some(skipped)
        };
        let Some(skipped) = self.answered.oldest_ordered().rev().find_map(piece) else { return };
        let pending = self.replies.iter().any(|reply| reply.covers(psn, path));
        let access = check_memory(reth.va, reth.rkey, reth.dma_len, Access::REMOTE_READ, env);
        if pending || access.is_err() {
            return;
        }
        // The new reply also sends what is left of earlier replies to this READ.
        let is_first = self.withdraw_replies(psn, packets, path);
        if is_first || self.unanswered(true) < usize::from(RD_ATOMIC_MAX) {
            self.reply(ResponderReply::again(psn, &reth, self.msn, skipped > 0, !is_first));
        }
    }

    /// Moves past a request that was carried out, and queues an acknowledge if one is wanted and the request does not
    /// ask for data.
    fn step(&mut self, psns: u32, ack_wanted: bool, asks_for_data: bool) {
        self.expected = self.expected.add(psns);
        if !asks_for_data {
            self.acked = self.expected.add(Psn::MASK);
        }
        if let (Answer::Missing { .. }, Some(dropped)) = (self.answer, self.dropped)
            && dropped.since(self.expected) >= 0
        {
            // The peer was not told yet, and must send what was dropped. The NAK acknowledges everything before it.
            self.answer = Answer::Missing { psn: self.expected };
            return;
        }
        // A complaint about the missing PSN is void now, and with it the acknowledge that it would have been.
        let ack_wanted = ack_wanted || matches!(self.answer, Answer::Missing { .. });
        (self.gap_reported, self.dropped) = (false, None);
        self.answer = if ack_wanted && !asks_for_data { Answer::Ack } else { Answer::None };
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & Psn::MASK;
    }
}

/// Checks the whole memory of a message. An empty message needs no valid key or address (IBTA C9-88).
fn check_memory(
    va: u64,
    rkey: u32,
    len: u32,
    need: Access,
    env: &mut impl Env,
) -> Result<(), ResponderRefusal> {
    if len > MESSAGE_BYTES_MAX {
        return Err(INVALID);
    }
    if len == 0 {
        return Ok(());
    }
    env.resolve(rkey, va, len, need, QpSide::Remote).map(|_| ()).map_err(|_| NO_ACCESS)
}

fn place_write(
    va: u64,
    rkey: u32,
    payload: &[u8],
    env: &mut impl Env,
) -> Result<(), ResponderRefusal> {
    if payload.is_empty() {
        return Ok(());
    }
    let len = payload.len() as u32;
    let to = env.resolve(rkey, va, len, Access::REMOTE_WRITE, QpSide::Remote);
    env.place(to.map_err(|_| NO_ACCESS)?, payload);
    Ok(())
}
