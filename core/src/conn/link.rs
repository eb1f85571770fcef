//! The common parts of both ends of a connection: the queue pairs and the description of the peer.

mod address;
mod queues;
mod rails;
mod renew;

use core::net::IpAddr;

use super::rails::{RAILS_MAX, RailSet, wire_qpn};
use super::stage::Side;
use super::wire::{DeviceName, Preface, QpInfo};
use super::{CommSettings, PacketAuth, QPS_MAX, Wire};
use crate::auth::Session;
use crate::error::{Ends, Error};
use crate::fifo::DEPTH_NCCL_2_14;
use crate::nic::{
    Access, Ece, LinkLayer, Memory, MemoryKeys, Mtu, Nic, NicError, PacketKeys, PortAttr,
    QpOptions, QpTransition, RtrAttr, RtsAttr, SourcePorts, Verb,
};
use crate::request::ROWS;
use crate::roce::UDP_PORT;
use address::address_of;
use queues::{capacities, cq_depth};
use rails::{VerbsRails, lead_rail};

/// The verbs resources of one comm, in the order in which they are released.
pub(crate) struct Verbs<N: Nic> {
    /// The first queue pair, which also carries the FIFO.
    pub(crate) qp: N::Qp,
    /// The other queue pairs: first those that carry data, then those of rails on probation.
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
    pub(crate) side: Side,
    pub(crate) session: Session,
    /// See [`RtrAttr::peer_host`].
    pub(super) peer_host: Option<IpAddr>,
    /// How often the queue pairs have been replaced.
    attempt: u32,
    /// The peer driver's ECE options, which each queue pair needs.
    peer_ece: Option<Ece>,
    pub(crate) rails: VerbsRails,
}

/// The `wr_id` of the last work requests on a queue pair that stops. No other work request has it.
pub(crate) const FENCE: u64 = u64::MAX - 1;
/// The `wr_id` of the empty WRITE that tries a rail on probation.
pub(crate) const PROBE: u64 = u64::MAX - 2;

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
        rail: Option<usize>,
    ) -> Result<Self, NicError> {
        let (rail, port) = lead_rail(&nic, rail.filter(|rail| *rail < nic.rails()))?;
        let pd = nic.connection_pd(&shared_pd)?;
        let cq = nic.create_cq(cq_depth(&nic, &port, &settings, qps)?)?;
        let control = nic.alloc(control_bytes)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let control_mr = nic.reg_mr(&pd, &control, access)?;
        let create = || create_qp(&nic, rail, &pd, &cq, &port, &settings, Access::REMOTE_WRITE);
        let qp = create()?;
        let mut other_qps = heapless::Vec::new();
        for _ in 1..qps {
            let qp = create()?;
            if other_qps.push(qp).is_err() {
                return Err(NicError::new(Verb::CreateQp, 0, "more than 128 queue pairs"));
            }
        }
        let mut ports = [PortAttr::default(); RAILS_MAX];
        ports[rail % RAILS_MAX] = port;
        let rails = VerbsRails {
            count: 1,
            qps,
            data_others: qps.saturating_sub(1),
            ports,
            weights: core::array::from_fn(|other| u16::from(other == rail)),
            standby: RailSet::NONE,
        };
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
            peer_host: None,
            attempt: 0,
            peer_ece: None,
            rails,
        })
    }

    /// The queue pairs that carry data, in the order in which both ends use them.
    pub(crate) fn qps(&self) -> impl Iterator<Item = &N::Qp> {
        core::iter::once(&self.qp).chain(self.data_qps())
    }

    /// The queue pairs that carry data, but for the first.
    fn data_qps(&self) -> &[N::Qp] {
        match N::RAILS_MAX {
            1 => &self.other_qps,
            _ => self.other_qps.get(..self.rails.data_others).unwrap_or(&self.other_qps),
        }
    }

    /// The number of queue pairs that carry data.
    pub(crate) fn qp_count(&self) -> u16 {
        1 + self.data_qps().len() as u16
    }

    /// All queue pairs, with those of rails on probation.
    pub(crate) fn all_qps(&self) -> impl Iterator<Item = &N::Qp> {
        core::iter::once(&self.qp).chain(&self.other_qps)
    }

    /// The port of a rail, as it was when the queue pairs were created.
    pub(crate) fn port_of(&self, rail: usize) -> &PortAttr {
        &self.rails.ports[rail % RAILS_MAX]
    }

    /// The rail of the first queue pair.
    pub(crate) fn lead(&self) -> usize {
        self.nic.rail_of(&self.qp)
    }

    /// Destroys all queue pairs but the first `count`, since the peer wants only these.
    pub(crate) fn keep_qps(&mut self, count: u16) {
        self.other_qps.truncate(usize::from(count).saturating_sub(1));
        (self.rails.qps, self.rails.data_others) = (usize::from(count), self.other_qps.len());
    }

    /// The first sequence number of a queue pair that is connected to itself.
    pub(crate) fn loopback_psn(&self) -> u32 {
        self.session.first_psn(self.side, u16::MAX.into(), self.attempt)
    }

    /// Creates a queue pair in INIT for this end's own use, in the domain that connections share.
    pub(crate) fn create_own(&self, rail: usize, access: Access) -> Result<N::Qp, NicError> {
        let Self { nic, shared_pd: pd, cq, settings, .. } = self;
        // The ring of flushes has this length whatever the FIFO's depth is.
        let settings = CommSettings { wire: Wire::Invar, fifo_depth: ROWS as u16, ..*settings };
        create_qp(nic, rail, pd, cq, self.port_of(rail), &settings, access)
    }

    /// Registers memory for this end's own use, in the domain that connections share.
    pub(crate) fn reg_own(&self, memory: &N::Memory) -> Result<N::Mr, NicError> {
        self.nic.reg_mr(&self.shared_pd, memory, Access::LOCAL_WRITE)
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
        let rail = self.nic.rail_of(qp);
        let rtr = RtrAttr {
            path_mtu: peer.info.mtu,
            long_mtu_bytes: peer.long_mtu_bytes,
            dest_qp_num: qpn,
            rq_psn,
            max_dest_rd_atomic: peer.reads,
            min_rnr_timer: 12,
            ah: address_of(peer, qpn, self.port_of(rail), settings),
            options: peer.options,
            packet_keys: self.packet_keys(peer.options, rail),
            peer_host: self.peer_host,
        };
        self.nic.modify_qp(qp, &QpTransition::Rtr(rtr))?;
        let rts = RtsAttr {
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: 7,
            sq_psn,
            max_rd_atomic: peer.reads,
        };
        self.nic.modify_qp(qp, &QpTransition::Rts(rts))
    }

    /// Moves all queue pairs to RTS. The peer's queue pairs are in the same order.
    pub(crate) fn start(&mut self, peer: &Peer) -> Result<(), Error> {
        self.suits(&self.port, peer)?;
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

    /// Checks that queue pairs of a port and of the peer fit to each other.
    fn suits(&self, port: &PortAttr, peer: &Peer) -> Result<(), Error> {
        if peer.info.link_layer != port.link_layer {
            let theirs = peer.info.link_layer;
            return Err(Error::LinkLayer { ours: port.link_layer, theirs });
        }
        let can_tag = port.options.contains(QpOptions::PACKET_TAGS);
        let must_tag = can_tag && self.settings.packet_auth == PacketAuth::Always;
        if must_tag && !peer.options.contains(QpOptions::PACKET_TAGS) {
            return Err(Error::PacketAuth);
        }
        Ok(())
    }

    /// A fault of this end's port on a rail that would explain an error.
    pub(crate) fn port_trouble(&self, rail: usize) -> Option<&'static str> {
        match lead_rail(&self.nic, Some(rail)) {
            Err(error) => Some(error.cause),
            Ok((rail, port)) if self.keeps_gid(rail, &port) => None,
            Ok(_) => Some("its GID is gone: has its interface lost the address?"),
        }
    }

    /// Whether the port of a rail, as it is now, still has the GID of the queue pairs.
    fn keeps_gid(&self, rail: usize, port: &PortAttr) -> bool {
        let used = self.port_of(rail);
        // A port may have several GIDs, and prefer another one now.
        let has = |gid| rail == 0 && self.nic.query_gid(used.gid_index) == Ok(gid);
        port.link_layer == LinkLayer::Infiniband || port.gid == used.gid || has(used.gid)
    }

    pub(crate) fn control_addr(&self) -> u64 {
        self.control.addr()
    }

    /// The local key of the control memory on the rail of the first queue pair.
    pub(crate) fn control_lkey(&self) -> u32 {
        self.lkey_for(&self.qp, self.control_mr.lkey())
    }

    pub(crate) fn control_rkey(&self) -> u32 {
        self.control_rkey_on(self.lead())
    }

    /// The QP info for the peer. The caller adds the FIFO.
    pub(crate) fn info(&self, mtu: Mtu) -> QpInfo {
        QpInfo {
            lid: self.port.lid,
            ib_port: self.port.port_num,
            link_layer: self.port.link_layer,
            qpns: self.qps().map(|qp| wire_qpn(self.nic.qp_num(qp))).collect(),
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

    /// The options that this end allows on a port.
    fn options(&self, port: &PortAttr) -> QpOptions {
        let tags = match self.settings.packet_auth {
            PacketAuth::Off => false,
            PacketAuth::Network => !port.gid.ip().is_loopback(),
            PacketAuth::Always => true,
        };
        let mut allowed = self.settings.options;
        allowed.set(QpOptions::PACKET_TAGS, tags);
        allowed & port.options
    }

    /// The keys of packet tags, if both ends have agreed on tags.
    fn packet_keys(&self, agreed: QpOptions, rail: usize) -> Option<PacketKeys> {
        // No two queue pairs may use a key with the same sequence numbers. Two devices may give their
        // queue pairs the same numbers.
        let key = |side| {
            let (first, others) = ([side as u8], [side as u8, rail as u8]);
            let context: &[u8] = if rail == 0 { &first } else { &others };
            self.session.qp_key(b"packet tags", context, self.attempt)
        };
        agreed.contains(QpOptions::PACKET_TAGS).then_some(())?;
        Some(PacketKeys { send: key(self.side)?, recv: key(self.side.other())? })
    }

    /// This end's preface with the given FIFO depth.
    pub(crate) fn preface(&self, fifo_depth: u16) -> Preface {
        let preface = self.rail_preface(self.lead(), fifo_depth);
        Preface {
            rails: self.nic.rails() as u8,
            standby: self.own_standby().map(|rails| rails.0),
            ece: self.ece(),
            ..preface
        }
    }
}

/// Creates a queue pair in INIT.
fn create_qp<N: Nic>(
    nic: &N,
    rail: usize,
    pd: &N::Pd,
    cq: &N::Cq,
    port: &PortAttr,
    settings: &CommSettings,
    access: Access,
) -> Result<N::Qp, NicError> {
    let qp = nic.create_rail_qp(rail, pd, cq, &capacities::<N>(settings, port))?;
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
    /// See [`Preface::renewal_port`].
    pub(crate) renewal_port: u16,
    /// Whether both ends exchange views.
    pub(crate) shares_views: bool,
    /// The clock of an acceptor when it answered, if it tells it.
    pub(crate) time_ns: Option<u64>,
    /// Payload bytes of a long packet; see [`RtrAttr::long_mtu_bytes`].
    pub(crate) long_mtu_bytes: u32,
    pub(crate) rails: u8,
    /// The rail over which the first messages come.
    pub(crate) rail: u8,
    /// The standby rails of both ends together, if both ends have several rails.
    pub(crate) standby: Option<RailSet>,
    pub(crate) device: DeviceName,
    /// READs that either end may have outstanding on a queue pair.
    pub(crate) reads: u8,
    /// See [`Preface::needs_grh`].
    pub(crate) needs_grh: bool,
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
            renewal_port: preface.renewal_port,
            shares_views: ours.shares_views && preface.shares_views,
            time_ns: None,
            long_mtu_bytes,
            rails: preface.rails,
            rail: preface.rail,
            standby: ours.standby.zip(preface.standby).map(|(a, b)| RailSet(a | b)),
            device: preface.device,
            reads: 1,
            needs_grh: preface.needs_grh,
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
            renewal_port: 0,
            shares_views: false,
            time_ns: None,
            long_mtu_bytes: 0,
            rails: 1,
            rail: 0,
            standby: None,
            device: DeviceName::new(),
            reads: 1,
            needs_grh: false,
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
