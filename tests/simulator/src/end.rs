//! A queue pair with its resources, for tests at the level of the verbs.

use invar_core::auth::Secret;
use invar_core::nic::{
    Access, AddressVector, Gid, Memory, MemoryKeys, Mtu, Nic, PacketKeys, QpCap, QpOptions,
    QpTransition, RecvWr, RtrAttr, RtsAttr, SendFlags, SendOpcode, SendWr, Sge, Wc,
};
use invar_test_wait::until;

use crate::duo::Buffer;

/// A queue pair with a completion queue and memory of its own.
pub struct End<N: Nic> {
    /// The queue pair.
    pub qp: N::Qp,
    /// The registered memory.
    pub buffer: Buffer<N>,
    /// The completion queue of both of its queues.
    pub cq: N::Cq,
    /// The protection domain of the queue pair and the memory.
    pub pd: N::Pd,
    /// The NIC to which the queue pair belongs.
    pub nic: N,
}

/// Everything that a peer has to know of an end.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The number of the queue pair.
    pub qp_num: u32,
    /// The global identifier (GID) of the port.
    pub gid: Gid,
    /// The UDP port of a software NIC, otherwise 0.
    pub udp_port: u16,
    /// The first address of the memory.
    pub addr: u64,
    /// The rkey of the memory.
    pub rkey: u32,
}

/// The attributes by which two ends are connected.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The path MTU, which bounds the packets of each end.
    pub mtu: Mtu,
    /// The bound of Invar's long packets, if it is greater than the path MTU.
    pub long_mtu_bytes: u32,
    /// The options that both ends agreed on.
    pub options: QpOptions,
    /// The key of the tags of both ends' packets, if they carry tags.
    pub packet_key: Option<Secret>,
    /// The timeout and the retries.
    pub rts: RtsAttr,
    /// The RNR timer code: how long a peer waits after an RNR NAK.
    pub min_rnr_timer: u8,
    /// The first packet sequence number of both ends.
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
    /// A queue pair in state INIT on `nic`, with `len` bytes of memory.
    pub fn new(nic: &N, len: usize) -> Self {
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_inline_data: 64 };
        Self::with(nic, nic.alloc_pd().expect("domain"), &cap, 128, len)
    }

    /// A queue pair in state INIT with the given caps, depth of the completion queue, and protection
    /// domain.
    pub fn with(nic: &N, pd: N::Pd, cap: &QpCap, cq_depth: usize, len: usize) -> Self {
        let buffer = Buffer::new(nic, &pd, len);
        let cq = nic.create_cq(cq_depth).expect("completion queue");
        let qp = nic.create_qp(&pd, &cq, cap).expect("queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        nic.modify_qp(&qp, &QpTransition::Init { pkey_index: 0, port_num: 1, access })
            .expect("to INIT");
        End { qp, buffer, cq, pd, nic: nic.clone() }
    }

    /// The address that a peer needs.
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

    /// Moves the queue pair to RTR and RTS, connected to `peer`.
    pub fn connect(&self, peer: &End<N>, link: &Link) {
        self.connect_to(&peer.address(), link);
    }

    /// Moves the queue pair to RTR and RTS, connected to a peer in another process.
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
            peer_host: None,
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

    /// The `len` bytes at `offset` of this end's memory.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.buffer.addr(offset), length: len as u32, lkey: self.buffer.lkey() }
    }

    /// A signaled request between the beginning of this end's memory and that of `peer`.
    pub fn work(&self, opcode: SendOpcode, len: usize, peer: &End<N>) -> SendWr {
        self.work_at(opcode, len, &peer.address())
    }

    /// A signaled request between the beginning of this end's memory and that of a peer in another
    /// process.
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

    /// Posts a receive into the beginning of this end's memory.
    pub fn post_recv(&self, wr_id: u64, len: usize) {
        let wr = RecvWr { wr_id, sge: self.sge(0, len), ..RecvWr::default() };
        self.nic.post_recv(&self.qp, &wr).expect("posted");
    }

    /// Waits for the next completion of this end. No other end is polled meanwhile.
    pub fn wait(&self) -> Wc {
        let mut wcs = [Wc::default()];
        until("a completion", || self.nic.poll(&self.cq, &mut wcs).expect("polled") == 1);
        wcs[0]
    }

    /// Whether there is no completion now.
    pub fn has_none(&self) -> bool {
        self.nic.poll(&self.cq, &mut [Wc::default()]) == Ok(0)
    }

    /// Registers memory once more, with other access rights. Returns the registration, the address and
    /// the rkey.
    pub fn register(&self, memory: &N::Memory, access: Access) -> (N::Mr, u64, u32) {
        let mr = self.nic.reg_mr(&self.pd, memory, access).expect("registered");
        let key = mr.rkey();
        (mr, memory.addr(), key)
    }
}
