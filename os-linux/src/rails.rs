//! Several ports as one NIC: its connections run over all of them ([`Nic::rails`]).

mod keys;

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use invar_core::conn::{RAILS_MAX, on_rail};
use invar_core::nic::{
    Access, Ece, Gid, MemoryKeys, Nic, NicCounters, NicError, PollError, PortAttr, PortNotices,
    QpCap, QpTransition, RecvWr, Refusal, Refused, Resolution, SendList, SendWr, Verb, Wc,
};

use keys::{Key, Keys};

/// Joins the names of rails.
pub const JOINT: &str = "+";
/// Stands before the names of the standby rails.
pub const STANDBY: &str = "/";

/// Returns the name of a NIC of several rails, such as `mlx5_0+mlx5_1/mlx5_2`.
pub fn joined_name(active: &[&str], standby: &[&str]) -> String {
    let sets = [active, standby].into_iter().filter(|names| !names.is_empty());
    sets.map(|names| names.join(JOINT)).collect::<Vec<_>>().join(STANDBY)
}

/// Up to [`RAILS_MAX`] ports as one NIC. Clones are the same NIC.
///
/// One registration covers all ports, and has one key for both directions. [`Nic::rail_lkey`] and
/// [`Nic::rail_rkeys`] give the keys of the ports.
pub struct Rails<N>(Arc<Owner<N>>);

struct Owner<N> {
    name: String,
    nics: Vec<N>,
    /// The number of rails that are no standby. The standby rails follow them.
    active: usize,
    keys: Keys,
}

impl<N> Clone for Rails<N> {
    fn clone(&self) -> Self {
        Rails(Arc::clone(&self.0))
    }
}

/// Protection domains, one on each rail.
pub struct RailsPd<N: Nic>(Arc<[N::Pd]>);

impl<N: Nic> Clone for RailsPd<N> {
    fn clone(&self) -> Self {
        RailsPd(Arc::clone(&self.0))
    }
}

/// Completion queues, one on each rail.
pub struct RailsCq<N: Nic> {
    cqs: Vec<N::Cq>,
    broken: Arc<Broken>,
}

impl<N: Nic> RailsCq<N> {
    /// Notes that the queue of a rail cannot be polled. Returns whether no other queue can.
    #[cold]
    fn is_last(&self, rail: usize) -> bool {
        self.broken[rail].store(true, Ordering::Relaxed);
        (0..self.cqs.len()).all(|rail| self.broken[rail].load(Ordering::Relaxed))
    }
}

/// A queue pair on one rail.
pub struct RailsQp<N: Nic> {
    rail: usize,
    qp: N::Qp,
    broken: Arc<Broken>,
}

/// A registration on each rail.
pub struct RailsMr<N: Nic> {
    key: Key,
    // The registrations end after their key.
    _mrs: Vec<N::Mr>,
}

/// The rails whose completion queue could not be polled.
type Broken = [AtomicBool; RAILS_MAX];

impl<N: Nic> MemoryKeys for RailsMr<N> {
    fn lkey(&self) -> u32 {
        self.key.number()
    }

    fn rkey(&self) -> u32 {
        self.key.number()
    }
}

impl<N: Nic> Rails<N> {
    /// Makes one NIC of `nics`. Those after the first `active` ones are standby: they carry data only while no
    /// other port works. The name of the NIC is their [joined name](joined_name). The peer's ports are matched in
    /// the same order.
    ///
    /// # Errors
    /// There are no active ports, fewer than `active`, or too many.
    pub fn new(nics: Vec<N>, active: usize) -> Result<Self, NicError> {
        if active == 0 || nics.len() < active || nics.len() > RAILS_MAX {
            let why = "a NIC has 1 to 8 rails, and at least one is no standby";
            return Err(NicError::new(Verb::CreateQp, 0, why));
        }
        let names: Vec<&str> = nics.iter().map(Nic::name).collect();
        let (first, standby) = names.split_at(active);
        let name = joined_name(first, standby);
        Ok(Rails(Arc::new(Owner { name, nics, active, keys: Keys::new() })))
    }

    /// The NICs of the ports that are joined, in the order of rails.
    pub fn nics(&self) -> &[N] {
        &self.0.nics
    }

    /// The ports, each with its protection domain.
    pub fn with_pds<'a>(&'a self, pd: &'a RailsPd<N>) -> impl Iterator<Item = (&'a N, &'a N::Pd)> {
        self.0.nics.iter().zip(pd.0.iter())
    }

    /// Makes one registration of those on each port.
    ///
    /// # Errors
    /// There are too many registrations.
    pub fn join_mrs(&self, mrs: Vec<N::Mr>) -> Result<RailsMr<N>, NicError> {
        let key = self.0.keys.take(mrs.iter().map(|mr| (mr.lkey(), mr.rkey())));
        let none = NicError::new(Verb::RegMr, 0, "too many registrations over several rails");
        Ok(RailsMr { key: key.ok_or(none)?, _mrs: mrs })
    }

    fn nic(&self, rail: usize) -> &N {
        // No handle of a rail exists beyond the last one.
        &self.0.nics[rail.min(self.0.nics.len() - 1)]
    }
}

impl<N: Nic> Nic for Rails<N> {
    type Memory = N::Memory;
    type Pd = RailsPd<N>;
    type Mr = RailsMr<N>;
    type Cq = RailsCq<N>;
    type Qp = RailsQp<N>;

    const RAILS_MAX: usize = RAILS_MAX;
    const GRANTS: bool = N::GRANTS;

    fn name(&self) -> &str {
        &self.0.name
    }

    /// Queries the first port that is up, or else the first one.
    fn query_port(&self) -> Result<PortAttr, NicError> {
        use invar_core::nic::PortState::Active;
        let ports = || self.0.nics.iter().map(Nic::query_port);
        let up = ports().find(|port| port.as_ref().is_ok_and(|port| port.state == Active));
        up.unwrap_or_else(|| self.nic(0).query_port())
    }

    fn query_gid(&self, index: u8) -> Result<Gid, NicError> {
        self.nic(0).query_gid(index)
    }

    fn rails(&self) -> usize {
        self.0.nics.len()
    }

    fn is_standby(&self, rail: usize) -> bool {
        rail >= self.0.active
    }

    fn is_software(&self, rail: usize) -> bool {
        self.nic(rail).is_software(0)
    }

    fn resolve(&self, rail: usize, gid: &Gid) -> Resolution {
        self.nic(rail).resolve(0, gid)
    }

    fn query_rail(&self, rail: usize) -> Result<PortAttr, NicError> {
        self.nic(rail).query_port()
    }

    fn rail_name(&self, rail: usize) -> &str {
        self.nic(rail).name()
    }

    fn rail_of(&self, qp: &RailsQp<N>) -> usize {
        qp.rail
    }

    #[inline]
    fn rail_lkey(&self, rail: usize, lkey: u32) -> u32 {
        self.0.keys.lkey(lkey, rail)
    }

    #[inline]
    fn rail_rkeys(&self, rkey: u32) -> [u32; RAILS_MAX] {
        self.0.keys.rkeys(rkey)
    }

    fn alloc(&self, len: usize) -> Result<N::Memory, NicError> {
        self.nic(0).alloc(len)
    }

    fn alloc_pd(&self) -> Result<RailsPd<N>, NicError> {
        let pds: Result<Arc<[N::Pd]>, _> = self.0.nics.iter().map(Nic::alloc_pd).collect();
        pds.map(RailsPd)
    }

    fn connection_pd(&self, pd: &RailsPd<N>) -> Result<RailsPd<N>, NicError> {
        let pairs = self.with_pds(pd);
        let pds: Result<Arc<[N::Pd]>, _> = pairs.map(|(nic, pd)| nic.connection_pd(pd)).collect();
        pds.map(RailsPd)
    }

    fn grant(&self, pd: &RailsPd<N>, rkey: u32) {
        for ((nic, pd), rkey) in self.with_pds(pd).zip(self.rail_rkeys(rkey)) {
            nic.grant(pd, rkey);
        }
    }

    fn reg_mr(
        &self,
        pd: &RailsPd<N>,
        memory: &N::Memory,
        access: Access,
    ) -> Result<RailsMr<N>, NicError> {
        let mrs = self.with_pds(pd).map(|(nic, pd)| nic.reg_mr(pd, memory, access));
        self.join_mrs(mrs.collect::<Result<_, _>>()?)
    }

    fn cq_depth_max(&self) -> usize {
        self.0.nics.iter().map(Nic::cq_depth_max).min().unwrap_or(usize::MAX)
    }

    fn create_cq(&self, depth: usize) -> Result<RailsCq<N>, NicError> {
        let cqs: Result<_, _> = self.0.nics.iter().map(|nic| nic.create_cq(depth)).collect();
        Ok(RailsCq { cqs: cqs?, broken: Arc::default() })
    }

    fn create_qp(
        &self,
        pd: &RailsPd<N>,
        cq: &RailsCq<N>,
        cap: &QpCap,
    ) -> Result<RailsQp<N>, NicError> {
        self.create_rail_qp(0, pd, cq, cap)
    }

    fn create_rail_qp(
        &self,
        rail: usize,
        pd: &RailsPd<N>,
        cq: &RailsCq<N>,
        cap: &QpCap,
    ) -> Result<RailsQp<N>, NicError> {
        let none = NicError::new(Verb::CreateQp, 0, "no such rail");
        let (pd, own_cq) = pd.0.get(rail).zip(cq.cqs.get(rail)).ok_or(none)?;
        let qp = self.nic(rail).create_qp(pd, own_cq, cap)?;
        cq.broken[rail].store(false, Ordering::Relaxed);
        Ok(RailsQp { rail, qp, broken: Arc::clone(&cq.broken) })
    }

    fn qp_num(&self, qp: &RailsQp<N>) -> u32 {
        on_rail(qp.rail, self.nic(qp.rail).qp_num(&qp.qp))
    }

    fn modify_qp(&self, qp: &RailsQp<N>, transition: &QpTransition) -> Result<(), NicError> {
        self.nic(qp.rail).modify_qp(&qp.qp, transition)
    }

    fn query_ece(&self, qp: &RailsQp<N>) -> Option<Ece> {
        self.nic(qp.rail).query_ece(&qp.qp)
    }

    fn set_ece(&self, qp: &RailsQp<N>, ece: &Ece) -> Result<(), NicError> {
        self.nic(qp.rail).set_ece(&qp.qp, ece)
    }

    fn post_send(&self, qp: &RailsQp<N>, wrs: &[SendWr]) -> Result<(), NicError> {
        self.nic(qp.rail).post_send(&qp.qp, wrs)
    }

    #[inline]
    fn post_list<const L: usize>(
        &self,
        qp: &RailsQp<N>,
        list: &mut SendList<L>,
        from: usize,
        refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        self.nic(qp.rail).post_list(&qp.qp, list, from, refusal)
    }

    fn post_recv(&self, qp: &RailsQp<N>, wr: &RecvWr) -> Result<(), NicError> {
        self.nic(qp.rail).post_recv(&qp.qp, wr)
    }

    fn post_empty_recv(
        &self,
        qp: &RailsQp<N>,
        wr: &RecvWr,
        refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        self.nic(qp.rail).post_empty_recv(&qp.qp, wr, refusal)
    }

    fn explain(&self, qp: &RailsQp<N>, wrs: &[SendWr], refused: Refused) -> NicError {
        self.nic(qp.rail).explain(&qp.qp, wrs, refused)
    }

    fn retire(&self, qp: RailsQp<N>) {
        self.nic(qp.rail).retire(qp.qp);
    }

    /// Polls all rails. A rail that cannot be polled is [noted](Nic::check), and the others go on.
    fn poll(&self, cq: &RailsCq<N>, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let mut polled = 0;
        for rail in 0..cq.cqs.len() {
            let Some(room @ [_, ..]) = wcs.get_mut(polled..) else { break };
            match self.poll_rail(rail, cq, room) {
                Ok(new) => polled += new as usize,
                Err(error) if polled == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(polled as u32)
    }

    /// Polls a rail. If it cannot be polled, this is an error only once no other rail can.
    #[inline]
    fn poll_rail(&self, rail: usize, cq: &RailsCq<N>, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let Some(own) = cq.cqs.get(rail) else { return Ok(0) };
        match self.nic(rail).poll(own, wcs) {
            Ok(new) => {
                for wc in wcs.iter_mut().take(new as usize) {
                    wc.qp_num = on_rail(rail, wc.qp_num);
                }
                Ok(new)
            }
            Err(error) if cq.is_last(rail) => Err(error),
            Err(_) => Ok(0),
        }
    }

    fn arm(&self, cq: &RailsCq<N>, writes: bool, ready: &mut dyn FnMut(c_int)) -> bool {
        let rails = self.0.nics.iter().zip(&cq.cqs);
        rails.fold(true, |all, (nic, own)| nic.arm(own, writes, ready) && all)
    }

    fn check(&self, qp: &RailsQp<N>) -> Result<(), NicError> {
        if qp.broken[qp.rail].load(Ordering::Relaxed) {
            return Err(NicError::new(Verb::PollCq, 0, "the completion queue cannot be polled"));
        }
        self.nic(qp.rail).check(&qp.qp)
    }

    fn port_changes(&self) -> u32 {
        self.0.nics.iter().map(Nic::port_changes).fold(0, u32::wrapping_add)
    }

    fn notices(&self) -> PortNotices {
        let all = self.0.nics.iter().map(Nic::notices);
        all.into_iter().find(|notices| *notices != PortNotices::default()).unwrap_or_default()
    }

    fn counters(&self) -> NicCounters {
        self.0.nics.iter().map(Nic::counters).fold(NicCounters::default(), NicCounters::plus)
    }

    fn progress(&self) {
        self.0.nics.iter().for_each(Nic::progress);
    }
}
