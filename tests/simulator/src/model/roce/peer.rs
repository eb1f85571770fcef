//! One end with its host.

use std::iter;

use invar_core::nic::{
    Access, Atomic, LocalOp, Mtu, QpCap, QpOptions, QpTransition, QpType, RecvWr, RtrAttr, RtsAttr,
    SendFlags, SendOpcode, SendWr, Sge, WcStatus,
};
use invar_core::roce::qp::{Destination, Qp, Transmit, Tuning};
use invar_core::roce::{Aeth, Bth, Headers, NakCode, Opcode, Packet, Psn, Syndrome};

use super::{Host, Memory};

/// The acknowledge of a responder that does not count credits.
pub const ACK: Syndrome = Syndrome::Ack { credits: 31 };
/// The NAK of a responder that misses a packet.
pub const MISSING: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// All attributes of an end. In pairs the peer's value comes second.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "those of `RtrAttr`, `RtsAttr` and `QpCap`")]
pub struct Attr {
    pub qp_type: QpType,
    pub qkey: u32,
    pub qpns: [u32; 2],
    pub psns: [u32; 2],
    pub depth: u32,
    pub access: Access,
    pub mtu: Mtu,
    /// The payload bytes of a full packet, if both ends agreed on more than the path MTU.
    pub long_mtu_bytes: u32,
    pub adaptive: bool,
    pub rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub tuning: Tuning,
}

impl Default for Attr {
    fn default() -> Self {
        Attr {
            qp_type: QpType::Rc,
            qkey: 0,
            qpns: [0x11, 0x12],
            psns: [0xff_fffa, 0x100],
            depth: 64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            mtu: Mtu::Mtu1024,
            long_mtu_bytes: 0,
            adaptive: false,
            rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            tuning: Tuning::default(),
        }
    }
}

impl Attr {
    /// The attributes of the other end.
    pub fn peer(&self) -> Attr {
        let swapped = |[ours, theirs]: [u32; 2]| [theirs, ours];
        Attr { qpns: swapped(self.qpns), psns: swapped(self.psns), ..*self }
    }

    /// Both ends of a connection with these attributes, in state RTS. Their memory is that of [`Peer::with_memory`].
    pub fn pair(&self) -> [Peer; 2] {
        [self, &self.peer()].map(Peer::with_memory)
    }

    /// The transitions from RESET to RTS.
    pub fn moves(&self) -> [QpTransition; 3] {
        let mut options = QpOptions::empty();
        options.set(QpOptions::ADAPTIVE_ROUTING, self.adaptive);
        let init = QpTransition::Init { pkey_index: 0, port_num: 1, access: self.access };
        let rtr = QpTransition::Rtr(RtrAttr {
            path_mtu: self.mtu,
            long_mtu_bytes: self.long_mtu_bytes,
            dest_qp_num: self.qpns[1],
            rq_psn: self.psns[1],
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            options,
            ..RtrAttr::default()
        });
        let rts = QpTransition::Rts(RtsAttr {
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            sq_psn: self.psns[0],
            max_rd_atomic: self.rd_atomic,
        });
        [init, rtr, rts]
    }
}

/// A queue pair and its host.
pub struct Peer {
    /// The queue pair.
    pub qp: Box<Qp<64, 64>>,
    /// Its memory and completions.
    pub host: Host,
}

impl Peer {
    /// A peer in state RTS.
    pub fn new(attr: &Attr, regions: Vec<Memory>) -> Peer {
        let mut peer = Peer::reset(attr, regions);
        for move_ in attr.moves() {
            peer.qp.modify(&move_, &mut peer.host).unwrap();
        }
        peer
    }

    /// A peer with 16 KiB of zeros that everybody may read and write, at an address that is equal at
    /// both ends.
    pub fn with_memory(attr: &Attr) -> Peer {
        Peer::new(attr, vec![Memory::open()])
    }

    /// A peer in state RESET.
    pub fn reset(attr: &Attr, regions: Vec<Memory>) -> Peer {
        let cap = QpCap { max_send_wr: attr.depth, max_recv_wr: attr.depth, max_inline_data: 64 };
        let mut qp = Box::new(Qp::new(attr.qpns[0], cap).unwrap().with_type(attr.qp_type));
        qp.set_tuning(attr.tuning);
        qp.set_qkey(attr.qkey);
        Peer { qp, host: Host { regions, ..Host::default() } }
    }

    /// The next packet with its payload.
    pub fn transmit(&mut self, now: u64) -> Option<(Transmit, Vec<u8>)> {
        let transmit = self.qp.poll_transmit(now, &mut self.host)?;
        let payload = self.host.payload(transmit.payload).to_vec();
        Some((transmit, payload))
    }

    /// The next packets that leave by one call, at most `packets_max`.
    pub fn transmit_run(&mut self, now: u64, packets_max: u32) -> Vec<(Transmit, Vec<u8>)> {
        let mut run = self.qp.poll_transmit_run(now, packets_max, &mut self.host);
        iter::from_fn(|| {
            let transmit = run?;
            run = Some(transmit).filter(|_| transmit.following > 0);
            run.iter_mut().for_each(|next| assert!(next.advance()));
            let payload = self.host.payload(transmit.payload).to_vec();
            Some((Transmit { following: 0, ..transmit }, payload))
        })
        .collect()
    }

    /// All packets that the queue pair sends now.
    pub fn transmit_all(&mut self, now: u64) -> Vec<(Transmit, Vec<u8>)> {
        iter::from_fn(|| self.transmit(now)).collect()
    }

    /// Receives a packet that the other end produced.
    pub fn receive(&mut self, now: u64, (transmit, payload): &(Transmit, Vec<u8>)) {
        let packet = Packet { headers: transmit.headers, payload, trailer: &[] };
        self.qp.handle_packet(now, &packet, &mut self.host);
    }

    /// Sends all packets, and the other end receives them.
    pub fn pass(&mut self, now: u64, to: &mut Peer) {
        self.transmit_all(now).iter().for_each(|packet| to.receive(now, packet));
    }

    /// A signaled request between this end's first region and the peer's equal one.
    fn request(&self, wr_id: u64, length: u32) -> SendWr {
        let Memory { key, addr, .. } = self.host.regions[0];
        SendWr {
            wr_id,
            remote_addr: addr,
            sge: Sge { addr, length, lkey: key },
            rkey: key,
            imm_data: 0xcafe,
            flags: SendFlags::SIGNALED,
            ..SendWr::default()
        }
    }

    /// Posts a signaled request between this end's first region and the peer's equal one.
    pub fn post(&mut self, wr_id: u64, opcode: SendOpcode, length: u32) {
        let wr = SendWr { opcode, ..self.request(wr_id, length) };
        self.qp.post_send(&wr, &mut self.host).unwrap();
    }

    /// Posts a signaled atomic on the word at `offset` of the peer's first region. The result goes to the
    /// start of this end's equal one.
    pub fn post_atomic(&mut self, wr_id: u64, offset: u64, atomic: Atomic) {
        let mut wr = self.request(wr_id, Atomic::BYTES);
        wr.remote_addr += offset;
        let slot = self.qp.post_atomic(&wr, atomic, &mut self.host).unwrap();
        self.host.atomics.insert(slot, atomic);
    }

    /// Posts a signaled local operation, which ends so.
    pub fn post_local(&mut self, wr_id: u64, outcome: Result<(), WcStatus>) {
        let (flags, operation) = (SendFlags::SIGNALED, LocalOp::BindWindow);
        let slot = self.qp.post_local(wr_id, flags, operation, &mut self.host).unwrap();
        self.host.locals.insert(slot, outcome);
    }

    /// Posts a signaled datagram of the first bytes of this end's first region.
    pub fn post_datagram(&mut self, wr_id: u64, length: u32, to: Destination) {
        let wr = SendWr { opcode: SendOpcode::SendWithImm, ..self.request(wr_id, length) };
        let slot = self.qp.post_send(&wr, &mut self.host).unwrap();
        self.host.destinations.insert(slot, to);
    }

    /// Posts a receive into the first region.
    pub fn post_receive(&mut self, wr_id: u64, length: u32) {
        let Memory { key, addr, .. } = self.host.regions[0];
        let sge = Sge { addr, length, lkey: key };
        let wr = RecvWr { wr_id, sge, ..RecvWr::default() };
        self.qp.post_recv(&wr, &mut self.host).unwrap();
    }

    /// Receives a packet with these headers. `change` may alter the headers first.
    pub fn take(
        &mut self,
        now: u64,
        opcode: Opcode,
        psn: u32,
        change: impl FnOnce(&mut Headers),
        payload: &[u8],
    ) {
        let bth = Bth { opcode, dest_qp: self.qp.qpn(), psn: Psn::new(psn), ..Bth::default() };
        let mut headers = Headers { bth, ..Headers::default() };
        change(&mut headers);
        let packet = Packet { headers, payload, trailer: &[] };
        self.qp.handle_packet(now, &packet, &mut self.host);
    }

    /// Receives an acknowledge packet.
    pub fn hear(&mut self, now: u64, psn: u32, syndrome: Syndrome) {
        let aeth = Some(Aeth { syndrome, msn: 0 });
        self.take(now, Opcode::ACKNOWLEDGE, psn, |headers| headers.aeth = aeth, &[]);
    }

    /// The ids and statuses of the completed sends.
    pub fn sends(&self) -> Vec<(u64, WcStatus)> {
        self.host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// The ids and statuses of the completed receives.
    pub fn receives(&self) -> Vec<(u64, WcStatus)> {
        self.host.receives.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}
