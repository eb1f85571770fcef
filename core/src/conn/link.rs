//! The common parts of both ends of a connection: the queue pairs and the description of the peer.

use super::stage::Side;
use super::wire::{DeviceName, Preface, QpInfo};
use super::{CommSettings, PacketAuth, QPS_MAX, Wire};
use crate::auth::Session;
use crate::error::{Ends, Error};
use crate::fifo::{DEPTH_NCCL_2_14, SLOT_BYTES};
use crate::nic::{
    Access, AddressVector, Ece, LinkLayer, Memory, MemoryKeys, Mtu, Nic, NicError, PacketKeys,
    PortAttr, PortState, QpCap, QpOptions, QpTransition, RecvWr, RtrAttr, RtsAttr, SendFlags,
    SendOpcode, SendWr, SourcePorts, Verb,
};
use crate::roce::UDP_PORT;

/// The verbs resources of one comm, in the order in which they are released.
pub(crate) struct Verbs<N: Nic> {
    /// The first queue pair, which also carries the FIFO.
    pub(crate) qp: N::Qp,
    pub(crate) other_qps: heapless::Vec<N::Qp, { QPS_MAX - 1 }>,
    control_mr: N::Mr,
    pub(crate) control: N::Memory,
    pub(crate) cq: N::Cq,
    /// The protection domain of the queue pairs towards the peer, and of the control memory.
    pub(crate) pd: N::Pd,
    /// The protection domain that all connections share.
    shared_pd: N::Pd,
    pub(crate) nic: N,
    pub(crate) port: PortAttr,
    pub(crate) settings: CommSettings,
    side: Side,
    session: Session,
    /// How often the queue pairs have been replaced.
    attempt: u32,
    /// The peer driver's ECE options, which each queue pair needs.
    peer_ece: Option<Ece>,
}

/// The `wr_id` of the last work requests on a queue pair that stops. No other work request has it.
pub(crate) const FENCE: u64 = u64::MAX - 1;

impl<N: Nic> Verbs<N> {
    /// Creates `qps` queue pairs in INIT and `control_bytes` of registered memory
    /// (`net_ib.cc ncclIbInitVerbs`, `ncclIbCreateQp`).
    pub(crate) fn create(
        nic: N,
        shared_pd: N::Pd,
        (side, session): (Side, Session),
        settings: CommSettings,
        qps: usize,
        control_bytes: usize,
    ) -> Result<Self, NicError> {
        let port = usable_port(&nic)?;
        let pd = nic.connection_pd(&shared_pd)?;
        let depth = u32::from(settings.depth());
        // Each queue pair needs room for receives and signaled slot writes, or for signaled sends.
        // Flushes need more.
        let flushes = if settings.flush { depth as usize } else { 0 };
        let QpCap { max_send_wr, max_recv_wr, .. } = capacities(&settings);
        let completions = match settings.recovers() {
            // If queue pairs stop, all their work requests complete.
            true => (max_send_wr + max_recv_wr) as usize * qps + flushes + 1,
            false => 2 * depth as usize * qps + flushes,
        };
        let cq = nic.create_cq(completions)?;
        let control = nic.alloc(control_bytes)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let control_mr = nic.reg_mr(&pd, &control, access)?;
        let qp = create_qp(&nic, &pd, &cq, &port, &settings, Access::REMOTE_WRITE)?;
        let mut other_qps = heapless::Vec::new();
        for _ in 1..qps {
            let qp = create_qp(&nic, &pd, &cq, &port, &settings, Access::REMOTE_WRITE)?;
            if other_qps.push(qp).is_err() {
                return Err(NicError::new(Verb::CreateQp, 0, "more than 128 queue pairs"));
            }
        }
        Ok(Verbs {
            qp,
            other_qps,
            control_mr,
            control,
            cq,
            pd,
            shared_pd,
            nic,
            port,
            settings,
            side,
            session,
            attempt: 0,
            peer_ece: None,
        })
    }

    /// All queue pairs, in the order in which both ends use them.
    pub(crate) fn qps(&self) -> impl Iterator<Item = &N::Qp> {
        core::iter::once(&self.qp).chain(&self.other_qps)
    }

    /// The number of queue pairs.
    pub(crate) fn qp_count(&self) -> u16 {
        1 + self.other_qps.len() as u16
    }

    /// Stops all queue pairs: afterwards the peer can neither write through them nor get an answer.
    /// Returns how many completions with the `wr_id` [`FENCE`] will follow. When these have arrived, so
    /// has every other completion of the queue pairs.
    pub(crate) fn fence(&self) -> u32 {
        self.qps().map(|qp| fence(&self.nic, qp, true)).sum()
    }

    /// Replaces the queue pairs by new ones in INIT, on the port as it is now. The old queue pairs must
    /// have stopped.
    pub(crate) fn renew(&mut self, attempt: u32) -> Result<(), NicError> {
        let port = usable_port(&self.nic)?;
        let Self { nic, pd, cq, settings, .. } = &*self;
        let create = || create_qp(nic, pd, cq, &port, settings, Access::REMOTE_WRITE);
        let first = create()?;
        let others = self.other_qps.iter().map(|_| create());
        let others = others.collect::<Result<heapless::Vec<_, { QPS_MAX - 1 }>, _>>()?;
        (self.qp, self.other_qps, self.port, self.attempt) = (first, others, port, attempt);
        Ok(())
    }

    /// Destroys all queue pairs but the first `count`, since the peer wants only these.
    pub(crate) fn keep_qps(&mut self, count: u16) {
        self.other_qps.truncate(usize::from(count).saturating_sub(1));
    }

    /// The first sequence number of a queue pair that is connected to itself.
    pub(crate) fn loopback_psn(&self) -> u32 {
        self.session.first_psn(self.side, u16::MAX.into(), self.attempt)
    }

    /// Creates a queue pair in INIT and registers memory, for this end's own use, in the domain that
    /// connections share.
    pub(crate) fn create_own(
        &self,
        memory: &N::Memory,
        access: Access,
    ) -> Result<(N::Qp, N::Mr), NicError> {
        let mr = self.nic.reg_mr(&self.shared_pd, memory, Access::LOCAL_WRITE)?;
        let (nic, pd) = (&self.nic, &self.shared_pd);
        Ok((create_qp(nic, pd, &self.cq, &self.port, &self.settings, access)?, mr))
    }

    /// Moves `qp` INIT → RTR → RTS towards the peer's queue pair `qpn`. The two sequence numbers are
    /// those of this end and of the peer (`net_ib.cc ncclIbRtrQp`, `ncclIbRtsQp`).
    pub(crate) fn start_qp(
        &self,
        qp: &N::Qp,
        qpn: u32,
        [sq_psn, rq_psn]: [u32; 2],
        peer: &Peer,
    ) -> Result<(), NicError> {
        let settings = &self.settings;
        let is_global = self.port.link_layer == LinkLayer::Ethernet;
        let ah = AddressVector {
            is_global,
            dgid: peer.info.gid,
            sgid_index: self.port.gid_index,
            hop_limit: 255,
            traffic_class: settings.traffic_class,
            dlid: peer.info.lid,
            sl: settings.sl,
            port_num: self.port.port_num,
            udp_port: peer.udp_port,
            udp_source_port: peer.udp_source_ports.port(qpn),
        };
        let rtr = RtrAttr {
            path_mtu: peer.info.mtu,
            long_mtu_bytes: peer.long_mtu_bytes,
            dest_qp_num: qpn,
            rq_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah,
            options: peer.options,
            packet_keys: self.packet_keys(peer.options),
        };
        self.nic.modify_qp(qp, &QpTransition::Rtr(rtr))?;
        let rts = RtsAttr {
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: 7,
            sq_psn,
            max_rd_atomic: 1,
        };
        self.nic.modify_qp(qp, &QpTransition::Rts(rts))
    }

    /// Moves all queue pairs to RTS. The peer's queue pairs are in the same order.
    pub(crate) fn start(&mut self, peer: &Peer) -> Result<(), Error> {
        if peer.info.link_layer != self.port.link_layer {
            let theirs = peer.info.link_layer;
            return Err(Error::LinkLayer { ours: self.port.link_layer, theirs });
        }
        let can_tag = self.port.options.contains(QpOptions::PACKET_TAGS);
        let must_tag = can_tag && self.settings.packet_auth == PacketAuth::Always;
        if must_tag && !peer.options.contains(QpOptions::PACKET_TAGS) {
            return Err(Error::PacketAuth);
        }
        if self.attempt == 0 {
            self.peer_ece = peer.ece;
        }
        for (index, (qp, &qpn)) in (0..).zip(self.qps().zip(&peer.info.qpns)) {
            if let Some(ece) = &self.peer_ece {
                self.nic.set_ece(qp, ece)?;
            }
            let first_psn = |side| self.session.first_psn(side, index, self.attempt);
            let psns = [self.side, self.side.other()].map(first_psn);
            self.start_qp(qp, qpn, psns, peer)?;
        }
        Ok(())
    }

    /// A fault of this end's own port that would explain an error.
    pub(crate) fn port_trouble(&self) -> Option<&'static str> {
        match usable_port(&self.nic) {
            Err(error) => Some(error.cause),
            Ok(port) if port.link_layer == LinkLayer::Infiniband => None,
            Ok(_) => match self.nic.query_gid(self.port.gid_index) {
                Ok(gid) if gid == self.port.gid => None,
                _ => Some("its GID is gone: has its interface lost the address?"),
            },
        }
    }

    pub(crate) fn control_addr(&self) -> u64 {
        self.control.addr()
    }

    pub(crate) fn control_lkey(&self) -> u32 {
        self.control_mr.lkey()
    }

    pub(crate) fn control_rkey(&self) -> u32 {
        self.control_mr.rkey()
    }

    /// The QP info for the peer. The caller adds the FIFO.
    pub(crate) fn info(&self, mtu: Mtu) -> QpInfo {
        QpInfo {
            lid: self.port.lid,
            ib_port: self.port.port_num,
            link_layer: self.port.link_layer,
            qpns: self.qps().map(|qp| self.nic.qp_num(qp)).collect(),
            gid: self.port.gid,
            mtu,
            fifo_rkey: 0,
            fifo_addr: 0,
        }
    }

    /// The driver's ECE offer, or the agreed options. One queue pair stands for all, since all are
    /// alike.
    pub(crate) fn ece(&self) -> Option<Ece> {
        let is_wanted = self.settings.ece && self.settings.wire == Wire::Invar;
        is_wanted.then(|| self.nic.query_ece(&self.qp)).flatten()
    }

    /// The options that this end allows.
    fn options(&self) -> QpOptions {
        let tags = match self.settings.packet_auth {
            PacketAuth::Off => false,
            PacketAuth::Network => !self.port.gid.ip().is_loopback(),
            PacketAuth::Always => true,
        };
        let mut allowed = self.settings.options;
        allowed.set(QpOptions::PACKET_TAGS, tags);
        allowed & self.port.options
    }

    /// The keys of packet tags, if both ends have agreed on tags.
    fn packet_keys(&self, agreed: QpOptions) -> Option<PacketKeys> {
        // No two queue pairs may use a key with the same sequence numbers.
        let key = |side| self.session.qp_key(b"packet tags", &[side as u8], self.attempt);
        agreed.contains(QpOptions::PACKET_TAGS).then_some(())?;
        Some(PacketKeys { send: key(self.side)?, recv: key(self.side.other())? })
    }

    /// This end's preface with the given FIFO depth.
    pub(crate) fn preface(&self, fifo_depth: u16) -> Preface {
        Preface {
            fifo_depth,
            qp_count: self.qp_count(),
            options: self.options(),
            udp_port: self.port.udp_port,
            udp_source_ports: self.port.udp_source_ports,
            sizes_addr: 0,
            sizes_rkey: 0,
            ece: self.ece(),
            recovers: self.settings.recovers(),
            shares_views: true,
            long_mtu_bytes: if self.settings.long_mtu { self.port.long_mtu_bytes } else { 0 },
            device: Ends::local(self.nic.name(), self.port.gid).device,
        }
    }
}

/// Queries the port, and fails if the port is down.
fn usable_port(nic: &impl Nic) -> Result<PortAttr, NicError> {
    let port = nic.query_port()?;
    match port.state {
        PortState::Active => Ok(port),
        PortState::Down => Err(NicError::new(Verb::QueryPort, 0, "the port is down")),
    }
}

/// Each row needs two send requests; messages in groups need up to one more for each row. A fence needs
/// one of each kind.
fn capacities(settings: &CommSettings) -> QpCap {
    let (depth, fence) = (u32::from(settings.depth()), u32::from(settings.recovers()));
    QpCap {
        max_send_wr: 3 * depth + fence,
        max_recv_wr: depth + fence,
        max_inline_data: if settings.use_inline { SLOT_BYTES as u32 } else { 0 },
    }
}

/// Moves a queue pair to ERR and posts work requests that complete last. Returns their number.
pub(crate) fn fence<N: Nic>(nic: &N, qp: &N::Qp, with_recv: bool) -> u32 {
    let stop = || nic.modify_qp(qp, &QpTransition::Err);
    let (flags, opcode) = (SendFlags::SIGNALED, SendOpcode::RdmaWrite);
    let last = SendWr { wr_id: FENCE, flags, opcode, ..SendWr::default() };
    let recv = RecvWr { wr_id: FENCE, ..RecvWr::default() };
    if stop().is_err() {
        return 0;
    }
    let posted = u32::from(nic.post_send(qp, &[last]).is_ok())
        + u32::from(with_recv && nic.post_recv(qp, &recv).is_ok());
    // Some drivers look for new receives of a stopped queue pair only while it changes its state.
    let _ = stop();
    posted
}

/// Creates a queue pair in INIT.
fn create_qp<N: Nic>(
    nic: &N,
    pd: &N::Pd,
    cq: &N::Cq,
    port: &PortAttr,
    settings: &CommSettings,
    access: Access,
) -> Result<N::Qp, NicError> {
    let qp = nic.create_qp(pd, cq, &capacities(settings))?;
    let (pkey_index, port_num) = (settings.pkey_index, port.port_num);
    nic.modify_qp(&qp, &QpTransition::Init { pkey_index, port_num, access })?;
    Ok(qp)
}

/// The UDP port on which a port receives packets. An Ethernet port whose `own` is 0 uses 4791;
/// InfiniBand gives 0.
pub(super) fn udp_port(link_layer: LinkLayer, own: u16) -> u16 {
    match (link_layer, own) {
        (LinkLayer::Infiniband, _) => 0,
        (LinkLayer::Ethernet, 0) => UDP_PORT,
        (LinkLayer::Ethernet, own) => own,
    }
}

/// The description of the peer, from the peer's message.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) info: QpInfo,
    /// Options that both ends have.
    pub(crate) options: QpOptions,
    pub(crate) udp_port: u16,
    pub(crate) udp_source_ports: SourcePorts,
    pub(crate) fifo_depth: u16,
    /// Address and key of the memory where the acceptor takes the sizes of grouped receives. `None` on
    /// the wire of NCCL 2.14.
    pub(crate) sizes: Option<(u64, u32)>,
    /// The peer driver's ECE offer or the agreed options, if both devices are of one vendor.
    pub(crate) ece: Option<Ece>,
    /// Whether both ends make new queue pairs when old ones fail.
    pub(crate) recovers: bool,
    /// Whether both ends exchange views.
    pub(crate) shares_views: bool,
    /// Payload bytes of a long packet; see [`RtrAttr::long_mtu_bytes`].
    pub(crate) long_mtu_bytes: u32,
    pub(crate) device: DeviceName,
}

impl Peer {
    /// Describes a peer by its message; `ours` is this end's preface.
    pub(crate) fn new(info: QpInfo, preface: Option<Preface>, ours: &Preface) -> Self {
        let Some(preface) = preface else { return Self::bare(info) };
        // The length is a whole number of words, since only the last packet of a message is padded.
        let long_mtu_bytes = ours.long_mtu_bytes.min(preface.long_mtu_bytes) & !3;
        Peer {
            info,
            options: ours.options & preface.options,
            udp_port: preface.udp_port,
            udp_source_ports: preface.udp_source_ports,
            fifo_depth: preface.fifo_depth,
            sizes: Some((preface.sizes_addr, preface.sizes_rkey)),
            // This end's driver cannot interpret the options of another vendor.
            ece: preface
                .ece
                .filter(|theirs| ours.ece.is_some_and(|ours| ours.vendor_id == theirs.vendor_id)),
            recovers: ours.recovers && preface.recovers,
            shares_views: ours.shares_views && preface.shares_views,
            long_mtu_bytes,
            device: preface.device,
        }
    }

    /// Describes a peer that tells no more than NCCL 2.14 does.
    pub(crate) fn bare(info: QpInfo) -> Self {
        Peer {
            info,
            options: QpOptions::empty(),
            udp_port: 0,
            udp_source_ports: SourcePorts::default(),
            fifo_depth: DEPTH_NCCL_2_14 as u16,
            sizes: None,
            ece: None,
            recovers: false,
            shares_views: false,
            long_mtu_bytes: 0,
            device: DeviceName::new(),
        }
    }

    /// Stores the peer's description in `ends`, for error messages.
    pub(crate) fn note(&self, ends: &mut Ends) {
        ends.peer_udp_port = udp_port(self.info.link_layer, self.udp_port);
        ends.peer_device = self.device.clone();
        ends.peer_gid = self.info.gid;
        ends.peer_qpn = self.info.qpns.first().copied().unwrap_or(0);
    }
}
