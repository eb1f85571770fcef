//! A hand-written peer on the wire of NCCL 2.14.3. It uses bytes and verbs, and none of Invar's
//! protocol code. Everything that NCCL leaves uninitialised is garbage here.

use invar_core::conn::Stream;
use invar_core::nic::{
    Access, AddressVector, Gid, Mtu, Nic, PollError, QpCap, QpTransition, RecvWr, RtrAttr, RtsAttr,
    SendFlags, SendOpcode, SendWr, Sge, Wc,
};
use invar_testkit::duo::Buffer;
use invar_testkit::null::{NullCq, NullNic, NullQp};
use invar_testkit::pipe::Pipe;

/// The size of `struct ncclIbQpInfo`.
const INFO_BYTES: usize = 552;
/// The FIFO's size: `MAX_REQUESTS` × `NCCL_NET_IB_MAX_RECVS` × `sizeof(struct ncclIbSendFifo)`.
const FIFO_BYTES: usize = 64 * 8 * 32;
const GARBAGE: u8 = 0xa5;

pub(crate) struct RawPeer {
    pub(crate) pipe: Pipe,
    pub(crate) nic: NullNic,
    pub(crate) pd: usize,
    qps: Vec<NullQp>,
    cq: NullCq,
    /// The memory of a sender's incoming slots, or of a receiver's outgoing slots.
    pub(crate) fifo: Buffer<NullNic>,
    /// For a receiver: the address and the key of the sender's FIFO.
    remote_fifo: (u64, u32),
}

/// A slot as NCCL writes it.
#[derive(Clone, Copy)]
pub(crate) struct RawSlot {
    pub(crate) addr: u64,
    pub(crate) size: i32,
    pub(crate) rkey: u32,
    pub(crate) nreqs: u32,
    pub(crate) tag: u32,
    pub(crate) idx: u64,
}

impl RawSlot {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.addr.to_le_bytes().to_vec();
        bytes.extend(self.size.to_le_bytes());
        bytes.extend([self.rkey, self.nreqs, self.tag].map(u32::to_le_bytes).concat());
        bytes.extend(self.idx.to_le_bytes());
        bytes
    }
}

impl RawPeer {
    pub(crate) fn new(nic: NullNic, pipe: Pipe, qps: usize) -> Self {
        let pd = nic.alloc_pd().expect("a domain");
        let cq = nic.create_cq(1024).expect("a completion queue");
        let cap = QpCap { max_send_wr: 128, max_recv_wr: 64, max_inline_data: 0 };
        let access = Access::REMOTE_WRITE;
        let init = QpTransition::Init { pkey_index: 0, port_num: 1, access };
        let qp = |_| {
            let qp = nic.create_qp(&pd, &cq, &cap).expect("a queue pair");
            nic.modify_qp(&qp, &init).expect("INIT");
            qp
        };
        let qps = (0..qps).map(qp).collect();
        let fifo = Buffer::new(&nic, &pd, FIFO_BYTES);
        RawPeer { pipe, nic, pd, qps, cq, fifo, remote_fifo: (0, 0) }
    }

    /// Sends the info of `ncclIbConnect` or the answer of `ncclIbAccept`. An acceptor has no FIFO to
    /// announce.
    pub(crate) fn send_info(&mut self, is_connector: bool) {
        let mut info = [GARBAGE; INFO_BYTES];
        let gid = self.nic.query_port().expect("a port").gid.0;
        info[..4].copy_from_slice(&0u32.to_le_bytes());
        info[4..6].copy_from_slice(&[1, 2]);
        for (qp, at) in self.qps.iter().zip((8..).step_by(4)) {
            info[at..at + 4].copy_from_slice(&self.nic.qp_num(qp).to_le_bytes());
        }
        info[520..536].copy_from_slice(&gid);
        info[536..540].copy_from_slice(&3u32.to_le_bytes());
        if is_connector {
            info[540..544].copy_from_slice(&self.fifo.rkey().to_le_bytes());
            info[544..].copy_from_slice(&self.fifo.addr(0).to_le_bytes());
        }
        assert_eq!(self.pipe.send(&info), Ok(INFO_BYTES));
    }

    /// Receives the peer's info of exactly [`INFO_BYTES`] bytes and connects the queue pairs. Returns
    /// the code of the peer's MTU.
    pub(crate) fn take_info(&mut self) -> u32 {
        let mut info = [0; INFO_BYTES];
        assert_eq!(self.pipe.recv(&mut info), Ok(INFO_BYTES));
        let word = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().expect("four"));
        assert_eq!(info[4..6], [1, 2], "port 1, Ethernet");
        let mut dgid = Gid::default();
        dgid.0.copy_from_slice(&info[520..536]);
        self.remote_fifo = (u64::from_le_bytes(info[544..].try_into().expect("eight")), word(540));
        for (q, qp) in self.qps.iter().enumerate() {
            let dest_qp_num = word(8 + 4 * q);
            let ah = AddressVector { is_global: true, dgid, hop_limit: 255, ..Default::default() };
            let rtr = RtrAttr { path_mtu: Mtu::Mtu1024, dest_qp_num, ah, ..Default::default() };
            self.nic.modify_qp(qp, &QpTransition::Rtr(rtr)).expect("RTR");
            let rts = RtsAttr { timeout: 18, retry_cnt: 7, rnr_retry: 7, ..Default::default() };
            self.nic.modify_qp(qp, &QpTransition::Rts(rts)).expect("RTS");
        }
        word(536)
    }

    /// Sends the ready word, an `int` of 1.
    pub(crate) fn send_ready(&mut self) {
        assert_eq!(self.pipe.send(&1u32.to_ne_bytes()), Ok(4));
    }

    /// Receives the ready word. Returns whether it came.
    pub(crate) fn take_ready(&mut self) -> bool {
        let mut word = [0; 4];
        self.pipe.recv(&mut word) == Ok(4) && word == 1u32.to_ne_bytes()
    }

    /// Acts as a receiver: posts receives, and writes slots to row `row`.
    pub(crate) fn post_row(&self, row: usize, slots: &[RawSlot]) {
        for qp in &self.qps {
            let wr = RecvWr { wr_id: row as u64, ..RecvWr::default() };
            self.nic.post_recv(qp, &wr).expect("post_recv");
        }
        let bytes: Vec<u8> = slots.iter().flat_map(RawSlot::bytes).collect();
        let offset = row * 256;
        self.fifo.write(offset, &bytes);
        self.write(
            0,
            offset,
            bytes.len(),
            (self.remote_fifo.0 + offset as u64, self.remote_fifo.1),
        );
    }

    /// Posts an unsignaled WRITE of `len` bytes from `offset` of the FIFO's memory.
    pub(crate) fn write(&self, q: usize, offset: usize, len: usize, to: (u64, u32)) {
        let sge = Sge { addr: self.fifo.addr(offset), length: len as u32, lkey: self.fifo.lkey() };
        let wr = SendWr { remote_addr: to.0, rkey: to.1, sge, ..SendWr::default() };
        self.nic.post_send(&self.qps[q], &[wr]).expect("post_send");
    }

    /// Acts as a sender: reads a slot of its FIFO.
    pub(crate) fn slot(&self, row: usize, r: usize) -> RawSlot {
        let bytes = self.fifo.read(row * 256 + r * 32, 32);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        RawSlot {
            addr: long(0),
            size: word(8) as i32,
            rkey: word(12),
            nreqs: word(16),
            tag: word(20),
            idx: long(24),
        }
    }

    /// Acts as a sender: finishes a message, or a group, on one queue pair.
    pub(crate) fn write_with_imm(&self, q: usize, sge: Sge, to: (u64, u32), imm_data: u32) {
        let wr = SendWr {
            wr_id: 7,
            remote_addr: to.0,
            rkey: to.1,
            sge,
            imm_data,
            opcode: SendOpcode::RdmaWriteWithImm,
            flags: SendFlags::SIGNALED,
            ..SendWr::default()
        };
        self.nic.post_send(&self.qps[q], &[wr]).expect("post_send");
    }

    /// Polls for the next completion.
    pub(crate) fn poll(&self) -> Result<Option<Wc>, PollError> {
        let mut wc = [Wc::default()];
        Ok((self.nic.poll(&self.cq, &mut wc)? == 1).then_some(wc[0]))
    }
}
