//! Makes any calls and delivers any packets, in any order. A queue pair must stay sound in every case.

use invar_core::nic::{
    LocalOp, QpState, QpTransition, QpType, RecvWr, SendFlags, SendOpcode, SendWr, Sge, Wc,
    WcStatus,
};
use invar_core::roce::qp::{Destination, GRH_BYTES};
use invar_core::roce::{
    Aeth, Bth, Deth, Foreign, Headers, Ieth, ImmDt, Opcode, Packet, Psn, Reth, Syndrome, pad_count,
};

use super::{Attr, Choices, Memory, Peer};

/// No state of a queue pair may produce more packets than this at a time.
const TRANSMIT_MAX: usize = 4096;

const QKEY: u32 = 0x1111_1111;

struct Abuse<'a, 'b> {
    choices: &'a mut Choices<'b>,
    peer: Peer,
    attr: Attr,
    now: u64,
    /// The posted requests that are not known to be done: sends, in order, and receives.
    posted: [Vec<u64>; 2],
    next_wr_id: u64,
}

/// Calls one queue pair `steps` times at random.
///
/// # Panics
/// Panics if the queue pair panics or produces packets without end. Panics if it completes a request
/// that was not posted, or never completes one that was.
pub fn abuse(steps: u32, choices: &mut Choices<'_>) {
    let attr = Attr {
        qp_type: choices.one(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]),
        qkey: QKEY,
        depth: 8,
        adaptive: choices.percent(50),
        timeout: choices.one(&[14, 0, 1, 31]),
        retry_cnt: choices.one(&[7, 0]),
        rnr_retry: choices.one(&[7, 0]),
        rd_atomic: choices.one(&[1, 0, 16]),
        ..Attr::default()
    };
    let peer = Peer::new(&attr, vec![Memory::open()]);
    let posted = [Vec::new(), Vec::new()];
    let mut abuse = Abuse { choices, peer, attr, now: 0, posted, next_wr_id: 0 };
    for _ in 0..steps {
        abuse.step();
        abuse.check();
    }
    // In the end every posted request completes.
    let Peer { qp, host } = &mut abuse.peer;
    qp.modify(&QpTransition::Err, host).unwrap();
    abuse.check();
    assert!(abuse.posted.iter().all(Vec::is_empty), "forgotten: {:?}", abuse.posted);
}

impl Abuse<'_, '_> {
    fn step(&mut self) {
        match self.choices.below(16) {
            0..2 if self.choices.percent(10) => self.post_local(),
            0..2 => self.post_send(),
            2 => self.post_receive(),
            3 => self.time(),
            4 if self.peer.qp.state() == QpState::Err || self.choices.percent(10) => self.modify(),
            4..6 => self.transmit(),
            _ => self.packet(),
        }
    }

    fn post_send(&mut self) {
        let all = [
            SendOpcode::RdmaWrite,
            SendOpcode::RdmaWriteWithImm,
            SendOpcode::Send,
            SendOpcode::SendWithImm,
            SendOpcode::RdmaRead,
            SendOpcode::SendWithInv,
        ];
        let wr = SendWr {
            wr_id: self.next_wr_id,
            remote_addr: self.addr(),
            sge: self.sge(),
            rkey: self.key(),
            imm_data: 5,
            opcode: self.choices.one(&all),
            // The request is signaled, so that it completes in any case.
            flags: SendFlags::SIGNALED | SendFlags::from_bits_truncate(self.choices.below(16)),
            ..SendWr::default()
        };
        if let Ok(slot) = self.peer.qp.post_send(&wr, &mut self.peer.host) {
            if wr.flags.contains(SendFlags::INLINE) {
                let bytes = vec![3; wr.sge.length as usize];
                self.peer.host.inline.insert(slot, bytes);
            }
            if self.choices.percent(95) {
                let to = Destination { qp_num: 0x12, qkey: self.choices.one(&[QKEY, u32::MAX]) };
                self.peer.host.destinations.insert(slot, to);
            }
            self.posted[0].push(wr.wr_id);
            self.next_wr_id += 1;
        }
    }

    fn post_local(&mut self) {
        let operation = self.choices.one(&[LocalOp::BindWindow, LocalOp::Invalidate]);
        let outcome = self.choices.one(&[Ok(()), Ok(()), Err(WcStatus::MW_BIND_ERR)]);
        let Peer { qp, host } = &mut self.peer;
        if let Ok(slot) = qp.post_local(self.next_wr_id, SendFlags::SIGNALED, operation, host) {
            host.locals.insert(slot, outcome);
            self.posted[0].push(self.next_wr_id);
            self.next_wr_id += 1;
        }
    }

    fn post_receive(&mut self) {
        let wr = RecvWr { wr_id: self.next_wr_id, sge: self.sge(), ..RecvWr::default() };
        if self.peer.qp.post_recv(&wr, &mut self.peer.host).is_ok() {
            self.posted[1].push(wr.wr_id);
            self.next_wr_id += 1;
        }
    }

    fn time(&mut self) {
        let later = self.now + u64::from(self.choices.below(1_000_000));
        self.now = match self.choices.below(3) {
            0 => later,
            _ => self.peer.qp.deadline_ns().map_or(later, |at| at.max(self.now)),
        };
        self.peer.qp.handle_timeout(self.now, &mut self.peer.host);
    }

    fn modify(&mut self) {
        let [init, rtr, rts] = self.attr.moves();
        let moves = [QpTransition::Reset, QpTransition::Sqd, QpTransition::Resume];
        let all = [init, rtr, rts, moves[0], moves[1], moves[2], QpTransition::Err];
        let Peer { qp, host } = &mut self.peer;
        let move_ = match qp.state() {
            QpState::Err => QpTransition::Reset,
            _ => self.choices.one(&all),
        };
        if qp.modify(&move_, host).is_ok() && move_ == QpTransition::Reset {
            qp.set_qkey(QKEY);
            self.posted = [Vec::new(), Vec::new()];
            for move_ in [init, rtr, rts] {
                qp.modify(&move_, host).unwrap();
            }
        }
    }

    fn transmit(&mut self) {
        let sent = self.peer.transmit_all(self.now);
        assert!(sent.len() < TRANSMIT_MAX);
        for (transmit, payload) in sent {
            assert_eq!(transmit.headers.bth.pad_count, pad_count(payload.len() as u32));
            assert!(payload.len() <= self.attr.mtu.bytes() as usize);
        }
    }

    fn packet(&mut self) {
        let choices = &mut *self.choices;
        let opcodes = if choices.percent(95) { 0x18 } else { 256 };
        // Mostly choose an opcode of the queue pair's transport service.
        let service = match self.attr.qp_type {
            QpType::Rc => 0,
            QpType::Uc => 0x20,
            QpType::Ud => 0x60,
        };
        let opcode = match choices.below(opcodes) as u8 {
            number if choices.percent(95) => Opcode(number | service),
            number => Opcode(number),
        };
        // Choose a PSN near the progress of the requester or the responder.
        let base = self.attr.psns[usize::from(!opcode.is_response())];
        let psn = Psn::new(base).add(match choices.below(8) {
            0 => choices.below(1 << 24),
            1 => choices.below(3000).wrapping_sub(1500),
            _ => choices.below(12),
        });
        let bth = Bth {
            opcode,
            dest_qp: self.attr.qpns[0] + u32::from(choices.percent(2)),
            tver: u8::from(choices.percent(2)),
            ack_req: choices.percent(50),
            adaptive: choices.percent(50),
            psn,
            ..Bth::default()
        };
        let mtu = self.attr.mtu.bytes();
        let len = choices.one(&[0, 4, mtu, mtu, mtu, mtu - 1, 5000]);
        let syndrome = Syndrome::from_byte(match choices.below(4) {
            0 => choices.below(256) as u8,
            1 => 0x60,
            2 => 0x21,
            _ => 0x1f,
        });
        let dma_len = match choices.below(4) {
            0 => choices.one(&[0, u32::MAX, 1 << 31, 9000]),
            _ => len,
        };
        let reth = Reth { va: self.addr(), rkey: self.key(), dma_len };
        // Sometimes leave out headers that the opcode needs. A decoder would not produce such a packet.
        let some = self.choices.percent(98);
        let qkey = self.choices.one(&[QKEY, QKEY, QKEY, 0]);
        let foreign = match opcode {
            Opcode::SEND_LAST_INV | Opcode::SEND_ONLY_INV => {
                // The program takes the key back into use from time to time.
                if self.choices.percent(80) {
                    self.peer.host.keys.insert(self.peer.host.regions[0].key);
                }
                Foreign::Invalidate(Ieth(self.key()))
            }
            _ => Foreign::Datagram(Deth { qkey, resv8: 7, src_qp: 0x12 }),
        };
        let headers = Headers {
            bth,
            reth: some.then_some(reth),
            aeth: some.then_some(Aeth { syndrome, msn: 0 }),
            imm: self.choices.percent(30).then_some(ImmDt([1; 4])),
            foreign: some.then_some(foreign),
        };
        let payload = vec![0xee; len as usize];
        let packet = Packet { headers, payload: &payload, trailer: &[] };
        if self.attr.qp_type == QpType::Ud && self.choices.percent(90) {
            self.peer.qp.handle_datagram(&packet, &[4; GRH_BYTES], &mut self.peer.host);
            return;
        }
        self.peer.qp.handle_packet(self.now, &packet, &mut self.peer.host);
    }

    fn addr(&mut self) -> u64 {
        let Memory { addr, ref bytes, .. } = self.peer.host.regions[0];
        match self.choices.below(10) {
            0 => addr - 1,
            1 => u64::MAX - 3,
            2 => addr + bytes.len() as u64 - 4,
            _ => addr + u64::from(self.choices.below(8192)),
        }
    }

    fn key(&mut self) -> u32 {
        self.peer.host.regions[0].key + u32::from(self.choices.percent(5))
    }

    fn sge(&mut self) -> Sge {
        let length = self.choices.one(&[0, 1, 64, 1024, 1025, 5000, 1 << 31, u32::MAX]);
        Sge { addr: self.addr(), length, lkey: self.key() }
    }

    /// Checks that each posted request completes at most once, and that sends complete in order.
    fn check(&mut self) {
        let Peer { qp, host } = &mut self.peer;
        let sends: Vec<Wc> = host.sends.drain(..).collect();
        for wc in sends {
            assert_eq!(self.posted[0].first(), Some(&wc.wr_id), "out of order");
            self.posted[0].remove(0);
            assert!(wc.status == WcStatus::SUCCESS || qp.state() == QpState::Err);
        }
        let receives: Vec<Wc> = host.receives.drain(..).collect();
        for wc in receives {
            assert_eq!(self.posted[1].first(), Some(&wc.wr_id), "out of order");
            self.posted[1].remove(0);
            assert!(wc.status == WcStatus::SUCCESS || qp.state() == QpState::Err);
        }
        let live = [QpState::Rtr, QpState::Rts, QpState::Sqd].contains(&qp.state());
        assert!(live || qp.deadline_ns().is_none());
    }
}
