//! One queue pair and what belongs to it, for tests at the level of the verbs.

use std::time::{Duration, Instant};

use invar_core::auth::Secret;
use invar_core::nic::{
    Access, AddressVector, Gid, Memory, MemoryKeys, Mtu, Nic, PacketKeys, QpCap, QpOptions,
    QpTransition, RecvWr, RtrAttr, RtsAttr, SendFlags, SendOpcode, SendWr, Sge, Wc,
};

use crate::duo::Buffer;

/// How long a test waits for what has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A queue pair with a completion queue and memory of its own.
pub struct End<N: Nic> {
    /// The queue pair.
    pub qp: N::Qp,
    /// Its memory.
    pub buffer: Buffer<N>,
    /// Of both its queues.
    pub cq: N::Cq,
    /// Of all of it.
    pub pd: N::Pd,
    /// Whose it is.
    pub nic: N,
}

/// What a peer has to know of an end.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Global identifier of the port.
    pub gid: Gid,
    /// UDP port of a software NIC, otherwise 0.
    pub udp_port: u16,
    /// Beginning of the memory.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
}

/// How two ends are connected.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Packets of each end are this long at most.
    pub mtu: Mtu,
    /// Or this long, if that is more.
    pub long_mtu_bytes: u32,
    /// What both agreed on.
    pub options: QpOptions,
    /// The key of the tags of both ends' packets, if they carry tags.
    pub packet_key: Option<Secret>,
    /// Timeout and retries.
    pub rts: RtsAttr,
    /// Code of the wait of a peer whose receiver is not ready.
    pub min_rnr_timer: u8,
    /// First packet sequence number, of both ends.
    pub psn: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            mtu: Mtu::Mtu4096,
            long_mtu_bytes: 0,
            options: QpOptions::ICRC_MASKS_IP_ID,
            packet_key: None,
            rts: RtsAttr { timeout: 14, retry_cnt: 7, rnr_retry: 7, sq_psn: 0, max_rd_atomic: 4 },
            min_rnr_timer: 1,
            psn: 0xff_fff0,
        }
    }
}

impl<N: Nic + Clone> End<N> {
    /// A queue pair in state INIT, on `nic`, with `len` bytes of memory.
    pub fn new(nic: &N, len: usize) -> Self {
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_inline_data: 64 };
        Self::with(nic, nic.alloc_pd().expect("domain"), &cap, 128, len)
    }

    /// The same with caps, a depth of the completion queue, and a protection domain.
    pub fn with(nic: &N, pd: N::Pd, cap: &QpCap, cq_depth: usize, len: usize) -> Self {
        let buffer = Buffer::new(nic, &pd, len);
        let cq = nic.create_cq(cq_depth).expect("completion queue");
        let qp = nic.create_qp(&pd, &cq, cap).expect("queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        nic.modify_qp(&qp, &QpTransition::Init { pkey_index: 0, port_num: 1, access })
            .expect("to INIT");
        End { qp, buffer, cq, pd, nic: nic.clone() }
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        let port = self.nic.query_port().expect("port");
        Address {
            qp_num: self.nic.qp_num(&self.qp),
            gid: port.gid,
            udp_port: port.udp_port,
            addr: self.buffer.addr(0),
            rkey: self.buffer.rkey(),
        }
    }

    /// To RTR and RTS, towards `peer`.
    pub fn connect(&self, peer: &End<N>, link: &Link) {
        self.connect_to(&peer.address(), link);
    }

    /// The same, towards a peer of another process.
    pub fn connect_to(&self, peer: &Address, link: &Link) {
        let ours = self.nic.query_port().expect("port");
        let rtr = RtrAttr {
            path_mtu: link.mtu,
            long_mtu_bytes: link.long_mtu_bytes,
            dest_qp_num: peer.qp_num,
            rq_psn: link.psn,
            max_dest_rd_atomic: link.rts.max_rd_atomic,
            min_rnr_timer: link.min_rnr_timer,
            ah: AddressVector {
                is_global: true,
                dgid: peer.gid,
                sgid_index: ours.gid_index,
                hop_limit: 255,
                port_num: ours.port_num,
                udp_port: peer.udp_port,
                ..AddressVector::default()
            },
            options: link.options,
            packet_keys: link.packet_key.map(|key| PacketKeys { send: key, recv: key }),
        };
        self.nic.modify_qp(&self.qp, &QpTransition::Rtr(rtr)).expect("to RTR");
        let rts = RtsAttr { sq_psn: link.psn, ..link.rts };
        self.nic.modify_qp(&self.qp, &QpTransition::Rts(rts)).expect("to RTS");
    }

    /// Both ends of a connection.
    pub fn pair(nics: [&N; 2], len: usize, link: &Link) -> [End<N>; 2] {
        let ends = nics.map(|nic| End::new(nic, len));
        ends[0].connect(&ends[1], link);
        ends[1].connect(&ends[0], link);
        ends
    }

    /// `len` bytes at `offset` of this end's memory.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.buffer.addr(offset), length: len as u32, lkey: self.buffer.lkey() }
    }

    /// A signaled request between the beginning of our memory and of `peer`'s.
    pub fn work(&self, opcode: SendOpcode, len: usize, peer: &End<N>) -> SendWr {
        self.work_at(opcode, len, &peer.address())
    }

    /// The same, with a peer of another process.
    pub fn work_at(&self, opcode: SendOpcode, len: usize, peer: &Address) -> SendWr {
        SendWr {
            wr_id: 0x1234_5678_9abc_def0 ^ len as u64,
            remote_addr: peer.addr,
            sge: self.sge(0, len),
            rkey: peer.rkey,
            imm_data: 0xfeed_0000 | len as u32 & 0xffff,
            opcode,
            flags: SendFlags::SIGNALED,
            ..SendWr::default()
        }
    }

    /// Posts a send.
    pub fn post(&self, wr: &SendWr) {
        self.nic.post_send(&self.qp, &[*wr]).expect("posted");
    }

    /// Posts a receive into the beginning of our memory.
    pub fn post_recv(&self, wr_id: u64, len: usize) {
        let wr = RecvWr { wr_id, sge: self.sge(0, len), ..RecvWr::default() };
        self.nic.post_recv(&self.qp, &wr).expect("posted");
    }

    /// The next completion of this end. No other end is polled meanwhile.
    pub fn wait(&self) -> Wc {
        let mut wcs = [Wc::default()];
        patiently("a completion", || self.nic.poll(&self.cq, &mut wcs).expect("polled") == 1);
        wcs[0]
    }

    /// That there is no completion now.
    pub fn has_none(&self) -> bool {
        self.nic.poll(&self.cq, &mut [Wc::default()]) == Ok(0)
    }

    /// Registers memory of ours once more, with other rights.
    pub fn register(&self, memory: &N::Memory, access: Access) -> (N::Mr, u64, u32) {
        let mr = self.nic.reg_mr(&self.pd, memory, access).expect("registered");
        let key = mr.rkey();
        (mr, memory.addr(), key)
    }
}

/// Asks until the answer is yes.
///
/// # Panics
/// When that takes too long.
pub fn patiently(what: &str, mut ask: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ask() {
        assert!(start.elapsed() < PATIENCE, "no {what} in {PATIENCE:?}");
        std::thread::yield_now();
    }
}
