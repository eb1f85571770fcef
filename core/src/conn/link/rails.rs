//! The queue pairs of a connection over several rails.

use super::{Peer, Verbs, create_qp};
use crate::conn::QPS_MAX;
use crate::conn::rails::{RAILS_MAX, RailSet, wire_qpn};
use crate::conn::wire::{Preface, QpInfo};
use crate::error::{Ends, Error};
use crate::nic::{Access, MemoryKeys, Nic, NicError, PortAttr, PortState, Verb};

/// The rails of a comm. With one rail nothing here changes.
pub(crate) struct VerbsRails {
    /// The number of rails that both ends have.
    pub(crate) count: usize,
    /// The number of queue pairs on each rail.
    pub(crate) qps: usize,
    /// The number of `other_qps` that carry data.
    pub(crate) data_others: usize,
    /// The ports as they were when the queue pairs were created.
    pub(crate) ports: [PortAttr; RAILS_MAX],
    /// Shares of the rails in a long message; 0 for a rail that carries no data.
    pub(crate) weights: [u16; RAILS_MAX],
    /// The rails that carry data only while no other rail works. Both ends have the same.
    pub(crate) standby: RailSet,
}

impl<N: Nic> Verbs<N> {
    /// Creates queue pairs on each rail of `rails` whose port is up, and returns these rails. `is_drained` is that
    /// of [`Verbs::renew`].
    pub(crate) fn renew_rails(
        &mut self,
        attempt: u32,
        rails: RailSet,
        is_drained: bool,
    ) -> Result<RailSet, NicError> {
        let mut all: heapless::Vec<N::Qp, QPS_MAX> = heapless::Vec::new();
        let (mut usable, mut trouble) = (RailSet::NONE, None);
        for rail in rails.iter() {
            let before = all.len();
            match self.create_on_rail(rail, &mut all) {
                Ok(port) => {
                    self.rails.ports[rail] = port;
                    usable = usable.or(RailSet::one(rail));
                }
                Err(error) => {
                    all.truncate(before);
                    trouble = Some(error);
                }
            }
        }
        let mut all = all.into_iter();
        let (Some(first), Some(lead)) = (all.next(), usable.iter().next()) else {
            return Err(trouble.unwrap_or(NO_RAIL));
        };
        self.replace_qps(first, all.collect(), is_drained);
        (self.port, self.attempt) = (self.rails.ports[lead], attempt);
        self.rails.data_others = self.other_qps.len();
        Ok(usable)
    }

    fn create_on_rail(
        &self,
        rail: usize,
        qps: &mut heapless::Vec<N::Qp, QPS_MAX>,
    ) -> Result<PortAttr, NicError> {
        let (_, port) = lead_rail(&self.nic, Some(rail))?;
        let Self { nic, pd, cq, settings, .. } = self;
        for _ in 0..self.rails.qps {
            let qp = create_qp(nic, rail, pd, cq, &port, settings, Access::REMOTE_WRITE)?;
            if qps.push(qp).is_err() {
                return Err(NicError::new(Verb::CreateQp, 0, "more than 128 queue pairs"));
            }
        }
        Ok(port)
    }

    /// Moves the queue pairs of a rail to RTS. The peer's queue pairs are in the same order.
    pub(crate) fn start_rail(&self, rail: usize, peer: &Peer) -> Result<(), Error> {
        self.suits(self.port_of(rail), peer)?;
        let own = self.all_qps().filter(|qp| self.nic.rail_of(qp) == rail);
        for (index, (qp, &qpn)) in (0..).zip(own.zip(&peer.info.qpns)) {
            let index = (rail * QPS_MAX) as u32 + index;
            let first_psn = |side| self.session.first_psn(side, index, self.attempt);
            let psns = [self.side, self.side.other()].map(first_psn);
            self.start_qp(qp, qpn, psns, peer)?;
        }
        Ok(())
    }

    /// Lets the queue pairs of the rails `in_use` carry data, in the order of the rails.
    pub(crate) fn use_rails(&mut self, in_use: RailSet) {
        let Self { qp, other_qps, nic, .. } = self;
        let carries = |qp: &N::Qp| in_use.has(nic.rail_of(qp));
        let mut others = core::mem::take(other_qps);
        if !carries(qp)
            && let Some(first) = others.iter_mut().find(|other| carries(other))
        {
            core::mem::swap(qp, first);
        }
        let (mut data, mut rest) = (heapless::Vec::new(), heapless::Vec::<_, QPS_MAX>::new());
        for other in others {
            // Both have room for all of them.
            let _ = if carries(&other) { data.push(other) } else { rest.push(other) };
        }
        self.rails.data_others = data.len();
        data.extend(rest);
        self.other_qps = data;
        self.port = self.rails.ports[self.lead() % RAILS_MAX];
    }

    /// The rails whose ports are up now. Those of the rails `in_use` also have the GID of the queue pairs.
    pub(crate) fn rails_up(&self, in_use: RailSet) -> RailSet {
        let works = |(rail, port)| !in_use.has(rail) || self.keeps_gid(rail, &port);
        let up = RailSet::first(self.rails.count).iter();
        let up = up.filter(|rail| lead_rail(&self.nic, Some(*rail)).is_ok_and(works));
        up.collect()
    }

    /// Whether the connection has several rails.
    #[inline(always)]
    pub(crate) fn has_rails(&self) -> bool {
        N::RAILS_MAX > 1 && self.rails.count > 1
    }

    /// The queue pair that carries data with this index.
    #[inline(always)]
    pub(crate) fn data_qp(&self, index: usize) -> &N::Qp {
        match index {
            0 => &self.qp,
            _ => self.other_qps.get(index - 1).unwrap_or(&self.qp),
        }
    }

    /// The local key of a buffer on the rail of a queue pair.
    #[inline(always)]
    pub(crate) fn lkey_for(&self, qp: &N::Qp, lkey: u32) -> u32 {
        self.nic.rail_lkey(self.nic.rail_of(qp), lkey)
    }

    /// The key of the control memory for a peer on a rail.
    pub(crate) fn control_rkey_on(&self, rail: usize) -> u32 {
        self.nic.rail_rkeys(self.control_mr.rkey())[rail % RAILS_MAX]
    }

    /// The queue pairs and the port of a rail, for the peer.
    pub(crate) fn rail_info(&self, rail: usize) -> QpInfo {
        let port = self.port_of(rail);
        let own = self.all_qps().filter(|qp| self.nic.rail_of(qp) == rail);
        QpInfo {
            lid: port.lid,
            ib_port: port.port_num,
            link_layer: port.link_layer,
            qpns: own.map(|qp| wire_qpn(self.nic.qp_num(qp))).collect(),
            gid: port.gid,
            mtu: port.active_mtu,
            fifo_rkey: 0,
            fifo_addr: 0,
        }
    }

    /// A preface that describes the queue pairs of a rail, without ECE.
    pub(crate) fn rail_preface(&self, rail: usize, fifo_depth: u16) -> Preface {
        let port = self.port_of(rail);
        Preface {
            fifo_depth,
            qp_count: self.qp_count(),
            options: self.options(port),
            udp_port: port.udp_port,
            udp_source_ports: port.udp_source_ports,
            sizes_addr: 0,
            sizes_rkey: 0,
            ece: None,
            recovers: self.settings.recovers(),
            renewal_port: 0,
            shares_views: true,
            tells_time: true,
            long_mtu_bytes: if self.settings.long_mtu { port.long_mtu_bytes } else { 0 },
            rails: 1,
            rail: rail as u8,
            standby: None,
            needs_grh: port.needs_grh,
            device: Ends::local(self.nic.rail_name(rail), port.gid).device,
        }
    }

    /// The standby rails of this end; `None` for a NIC with one rail.
    pub(crate) fn own_standby(&self) -> Option<RailSet> {
        let rails = self.nic.rails();
        let standby = || (0..rails).filter(|rail| self.nic.is_standby(*rail)).collect();
        (rails > 1).then(standby)
    }

    /// Takes the number of rails that both ends have, and the standby rails of both.
    pub(crate) fn agree_on_rails(&mut self, peer: &Peer) {
        let is_known = peer.recovers && peer.standby.is_some();
        let of_peer = if is_known { usize::from(peer.rails) } else { 1 };
        let fitting = QPS_MAX / self.rails.qps.max(1);
        let common = self.nic.rails().min(of_peer).min(fitting).max(1);
        // The keys of several rails have no place for a rail beyond those that both ends have.
        let count = if usize::from(peer.rail) < common { common } else { 1 };
        self.rails.count = count;
        self.rails.standby = peer.standby.unwrap_or_default().and(RailSet::first(count));
        let own = self.nic.rails();
        if count < own {
            info!(
                "{}: {count} of {own} rails are used: the peer has no more that fit",
                self.nic.name()
            );
        }
    }
}

/// No rail is left to try.
const NO_RAIL: NicError = NicError::new(Verb::QueryPort, 0, "no rail has a port that is up");

/// Queries the port of a rail, and fails if the port is down. Without a rail, takes the first rail whose
/// port is up.
pub(super) fn lead_rail(
    nic: &impl Nic,
    rail: Option<usize>,
) -> Result<(usize, PortAttr), NicError> {
    let query = |rail| {
        let port = nic.query_rail(rail)?;
        match port.state {
            PortState::Active => Ok((rail, port)),
            PortState::Down => Err(NicError::new(Verb::QueryPort, 0, "the port is down")),
        }
    };
    match rail {
        Some(rail) => query(rail),
        None => {
            let first = query(0);
            let later = || (1..nic.rails()).find_map(|rail| query(rail).ok());
            first.or_else(|error| later().ok_or(error))
        }
    }
}
