//! The requester turns work requests into request packets (IBTA §9.7.2). The requester handles answers
//! in `requester/response.rs` and cuts work requests into packets in `requester/wqe.rs`.
//!
//! ```text
//!                  oldest       next               end
//! PSNs ──────────────┼────────────┼──────────────────┼─────────────>
//!       acknowledged   in flight    to be sent again   never sent
//! ```
//!
//! `next` is the PSN of the packet at the cursor: the work request and the packet of it to send next.
//! To go back, the requester moves both to `oldest`, which always lies in the first work request of
//! the queue. Marked packets (adaptive routing) never go back. The responder names the missing ones,
//! and `requester/repair.rs` sends them again.

mod local;
mod repair;
mod response;
mod unreliable;
mod wqe;

use super::pace::Pacer;
use super::ring::QueueRing;
use super::rtt::RoundTrip;
use super::timer::{AckTimer, Expired};
use super::window::Window;
use super::{Counters, Env, Fatal, Path, Queue, Transmit, Tuning, earlier};
use crate::nic::{RtsAttr, SendFlags, Wc, WcStatus};
use crate::roce::{Opcode, Psn};
use repair::Repair;
pub(super) use wqe::SendWqe;

pub(super) struct Requester<const SQ: usize> {
    queue: QueueRing<SendWqe, SQ>,
    /// Number of the work request to send next, and index of its next packet.
    cursor: u32,
    cursor_packet: u32,
    /// Oldest PSN that is not acknowledged.
    oldest: Psn,
    /// PSN of the packet at the cursor.
    next: Psn,
    /// One past the newest PSN ever sent.
    end: Psn,
    /// Number of READ requests and atomics between `oldest` and `next`.
    reads: u8,
    max_rd_atomic: u8,
    /// The packets in flight are marked (adaptive routing).
    marked: bool,
    repair: Repair,
    /// Value of `oldest` when the requester last went back on a hint. One hint for each `oldest` is
    /// enough.
    went_back_to: Option<Psn>,
    /// Value of `end` at the last loss. A loss of an earlier packet belongs to the same loss.
    recover: Psn,
    timer: AckTimer,
    window: Window,
    rtt: RoundTrip,
    ack_delay_ns: u64,
    pacer: Pacer,
    /// Number of packets sent since the last one that asked for an acknowledge.
    unasked: u32,
}

impl<const SQ: usize> Requester<SQ> {
    pub(super) fn new() -> Self {
        let mut requester = Requester {
            queue: QueueRing::new(),
            cursor: 0,
            cursor_packet: 0,
            oldest: Psn::default(),
            next: Psn::default(),
            end: Psn::default(),
            reads: 0,
            max_rd_atomic: 0,
            marked: false,
            repair: Repair::default(),
            went_back_to: None,
            recover: Psn::default(),
            timer: AckTimer::default(),
            window: Window::new(&Tuning::default()),
            rtt: RoundTrip::default(),
            ack_delay_ns: 0,
            pacer: Pacer::default(),
            unasked: 0,
        };
        requester.set_tuning(&Tuning::default());
        requester
    }

    pub(super) fn set_tuning(&mut self, tuning: &Tuning) {
        self.timer.set_tuning(tuning);
        self.window = Window::new(tuning);
        self.pacer = Pacer::new(tuning.rate_mbps_max);
        self.ack_delay_ns = tuning.ack_delay_ns;
    }

    pub(super) fn start(&mut self, attr: &RtsAttr) {
        let psn = Psn::new(attr.sq_psn);
        (self.oldest, self.next, self.end, self.recover) = (psn, psn, psn, psn);
        self.update(attr);
    }

    /// Changes how this end sends, except for the PSN.
    pub(super) fn update(&mut self, attr: &RtsAttr) {
        self.max_rd_atomic = attr.max_rd_atomic;
        self.timer.start(attr);
    }

    /// Returns whether a request has begun and is not complete.
    pub(super) fn is_under_way(&self) -> bool {
        self.oldest != self.end || self.cursor_packet > 0
    }

    pub(super) fn retry_time_ns(&self) -> Option<u64> {
        self.timer.retry_time_ns()
    }

    pub(super) fn posted(&self) -> u32 {
        self.queue.len()
    }

    /// Returns whether every posted request was sent and no packet is to be sent again.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.get(self.cursor).is_none() && self.repair.is_idle()
    }

    /// Returns whether packets are to be sent again, or were and are not acknowledged yet.
    pub(super) fn is_recovering(&self) -> bool {
        self.recover.since(self.oldest) > 0 || self.next != self.end || !self.repair.is_idle()
    }

    /// Returns whether the requester waits after an RNR NAK.
    pub(super) fn waits_for_receiver(&self) -> bool {
        self.timer.waits_for_receiver()
    }

    pub(super) fn may_read(&self) -> bool {
        self.max_rd_atomic > 0
    }

    pub(super) fn post(&mut self, wqe: SendWqe) -> Option<u16> {
        let number = self.queue.push(wqe)?;
        Some(QueueRing::<SendWqe, SQ>::slot(number))
    }

    /// Takes back the last `count` requests, none of which has begun.
    pub(super) fn withdraw(&mut self, count: u32) {
        self.queue.withdraw(count);
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        earlier(self.timer.deadline_ns(), self.pacer.deadline_ns())
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: u64,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        self.pacer.handle_timeout(now);
        match self.timer.expire(now, path.qpn) {
            None | Some(Expired::RnrOver) => {}
            Some(Expired::Late) if self.marked => {
                counters.probes += 1;
                self.probe();
                self.rtt.on_probe();
            }
            // Unmarked packets would all be sent again, which is too much for an acknowledge that is
            // only late.
            Some(Expired::Late) => {}
            Some(Expired::Probe) => {
                counters.probes += 1;
                self.retry();
            }
            Some(Expired::Timeout) => {
                counters.timeouts += 1;
                self.retry();
            }
            Some(Expired::RetriesExceeded) => {
                counters.timeouts += 1;
                return Err(self.fail_front(WcStatus::RETRY_EXC_ERR, 0, path, env));
            }
        }
        Ok(())
    }

    /// Sends the oldest packets again because nothing arrived.
    fn retry(&mut self) {
        self.window.on_timeout();
        self.went_back_to = None;
        self.recover = self.end;
        if self.marked {
            self.probe();
            self.rtt.on_resend();
        } else {
            self.go_back();
        }
    }

    /// Moves the cursor to the oldest unacknowledged packet.
    fn go_back(&mut self) {
        self.next = self.oldest;
        self.cursor = self.queue.head();
        self.cursor_packet = match self.queue.front() {
            Some(wqe) if wqe.packets > 0 => self.oldest.since(wqe.first) as u32,
            _ => 0,
        };
        self.reads = 0;
        self.rtt.on_resend();
    }

    /// Completes all posted requests as flushed.
    pub(super) fn flush(&mut self, path: &Path, env: &mut impl Env) {
        self.timer.stop();
        self.pacer.stop();
        if !path.is_reliable() {
            self.finish_sent(path, env);
        }
        while let Some(wqe) = self.queue.pop() {
            let wc = path.completion(wqe.wr.wr_id, WcStatus::WR_FLUSH_ERR);
            env.complete(Queue::Send, wc, false);
        }
    }

    /// Completes the oldest work request with an error.
    fn fail_front(
        &mut self,
        status: WcStatus,
        vendor_err: u32,
        path: &Path,
        env: &mut impl Env,
    ) -> Fatal {
        if let Some(wqe) = self.queue.pop() {
            let wc = path.completion(wqe.wr.wr_id, status);
            env.complete(Queue::Send, Wc { vendor_err, ..wc }, false);
        }
        Fatal
    }

    /// Returns the next request packets, at most `packets_max`. `start` says whether new work requests
    /// may begin.
    pub(super) fn poll_transmit(
        &mut self,
        now: u64,
        start: bool,
        packets_max: u32,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<Option<Transmit>, Fatal> {
        if self.timer.waits_for_receiver() || !self.pacer.allows(now) {
            return Ok(None);
        }
        let again = self.repair.take(self.oldest, self.end);
        if again.is_none() && start {
            while self.do_local(path, env)? {}
        }
        let (number, packet, psn, most) = if let Some(psn) = again {
            let Some((number, packet)) = self.locate(psn) else { return Ok(None) };
            (number, packet, psn, 1)
        } else if self.may_send(start, path) {
            let most = packets_max.min(self.packets_unasked(path));
            (self.cursor, self.cursor_packet, self.next, most)
        } else {
            return Ok(None);
        };
        let Some(wqe) = self.queue.get(number) else { return Ok(None) };
        let slot = QueueRing::<SendWqe, SQ>::slot(number);
        let run = wqe.alike(packet, path).min(most);
        let Some(mut transmit) = wqe.packet(slot, packet, run, psn, path, env) else {
            return self.fault(number, path, env);
        };
        let again = psn.since(self.end) < 0;
        counters.packets_retransmitted += if again { u64::from(run) } else { 0 };
        let psns = if wqe.is_read() { wqe.read_request_end(packet) - packet } else { run };
        let bth = &mut transmit.headers.bth;
        self.unasked += run;
        bth.ack_req |= self.unasked >= self.window.ack_req_packets(path.train_packets);
        if psn == self.next {
            self.advance(psns, bth.opcode);
        }
        bth.ack_req |= again && bth.adaptive;
        if bth.ack_req {
            self.unasked = 0;
            if !again && psns == 1 {
                self.rtt.on_transmit(now, psn);
            }
        }
        self.pacer.on_transmit(now, transmit.payload.len());
        self.marked = bth.adaptive;
        self.timer.on_transmit(now);
        Ok(Some(transmit))
    }

    /// Returns whether the packet at the cursor may be sent, and if so starts its work request.
    fn may_send(&mut self, start: bool, path: &Path) -> bool {
        let in_flight = self.next.since(self.oldest) as u32;
        let fresh = self.cursor_packet == 0 && self.next == self.end;
        let Some(wqe) = self.queue.get_mut(self.cursor) else { return false };
        let other_kind = wqe.is_marked(path) != self.marked && in_flight > 0;
        let fenced =
            wqe.wr.flags.contains(SendFlags::FENCE) && self.cursor_packet == 0 && self.reads > 0;
        let too_many_reads = wqe.is_read() && self.reads >= self.max_rd_atomic;
        if wqe.status != WcStatus::SUCCESS
            || wqe.local.is_some()
            || (fresh && !start)
            || in_flight >= self.window.packets()
            || other_kind
            || fenced
            || too_many_reads
        {
            return false;
        }
        if self.cursor_packet == 0 {
            wqe.first = self.next;
            wqe.packets = wqe.packets_of(path);
        }
        true
    }

    /// Maximum number of packets that may leave as one run from the cursor on. Either all are new, or
    /// all are sent again. In a run of several, no packet asks for an acknowledge.
    fn packets_unasked(&self, path: &Path) -> u32 {
        if self.pacer.is_limited() {
            return 1;
        }
        let again = self.end.since(self.next) as u32;
        let room = self.window.packets().saturating_sub(self.next.since(self.oldest) as u32);
        let stretch = self.window.ack_req_packets(path.train_packets);
        let unasked = stretch.saturating_sub(self.unasked + 1);
        room.min(unasked).min(if again > 0 { again } else { u32::MAX }).max(1)
    }

    /// Moves the cursor past the sent packets.
    fn advance(&mut self, psns: u32, opcode: Opcode) {
        self.next = self.next.add(psns);
        if self.next.since(self.end) > 0 {
            self.end = self.next;
        }
        self.reads += u8::from(opcode.asks_for_data());
        self.cursor_packet += psns;
        if self.queue.get(self.cursor).is_some_and(|wqe| self.cursor_packet >= wqe.packets) {
            self.cursor = self.cursor.wrapping_add(1);
            self.cursor_packet = 0;
        }
    }

    /// Finds the work request of a PSN in flight, and the packet's index in it, by bisection.
    fn locate(&self, psn: Psn) -> Option<(u32, u32)> {
        let head = self.queue.head();
        // `low..high` contains the last work request that starts at or before `psn`.
        let (mut low, mut high) = (0, self.cursor.wrapping_sub(head) + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let wqe = self.queue.get(head.wrapping_add(middle));
            match wqe {
                Some(wqe) if wqe.packets > 0 && wqe.first.since(psn) <= 0 => low = middle,
                _ => high = middle,
            }
        }
        let number = head.wrapping_add(low);
        let wqe = self.queue.get(number)?;
        let packet = u32::try_from(psn.since(wqe.first)).ok()?;
        (packet < wqe.packets).then_some((number, packet))
    }

    /// Fails a work request whose memory does not exist, once the requests before it are done.
    fn fault(
        &mut self,
        number: u32,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<Option<Transmit>, Fatal> {
        if number == self.queue.head() {
            return Err(self.fail_front(WcStatus::LOC_PROT_ERR, 0, path, env));
        }
        if let Some(wqe) = self.queue.get_mut(number) {
            wqe.status = WcStatus::LOC_PROT_ERR;
        }
        Ok(None)
    }
}
