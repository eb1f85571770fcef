//! A NIC that records posted requests and misbehaves as a test tells it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use invar_core::nic::{
    Access, Ece, Nic, NicError, PollError, PortAttr, PortNotices, PortState, QpCap, QpTransition,
    RecvWr, SendWr, Verb, Wc, WcStatus,
};
use invar_linux::memory::HostMemory;
use invar_testkit::null::{NullCq, NullMr, NullNic, NullQp};

/// The records and instructions of a [`Meddler`].
#[derive(Default)]
pub(crate) struct Plan {
    /// Every posted work request, with its queue pair.
    pub(crate) posted: RefCell<Vec<(u32, SendWr)>>,
    /// Every transition of a queue pair. `caps` has the capacities with which queue pairs were created.
    pub(crate) moves: RefCell<Vec<QpTransition>>,
    pub(crate) caps: RefCell<Vec<QpCap>>,
    /// Fake completions, which polls return before the real ones.
    pub(crate) made_up: RefCell<Vec<Wc>>,
    /// The number of polls.
    pub(crate) polls: Cell<usize>,
    /// Whether polls hold the real completions back.
    pub(crate) holding: Cell<bool>,
    pub(crate) failing: Cell<Option<Verb>>,
    /// A work request that goes behind the next post of work requests.
    pub(crate) rider: Cell<Option<SendWr>>,
    /// Whether queue pairs cannot be connected.
    pub(crate) refuses_peers: Cell<bool>,
    /// A fake asynchronous event: of the device for ever, or of the queue pairs that exist.
    pub(crate) event: Cell<Option<(Verb, &'static str)>>,
    /// The ECE capability of the driver. `eces_set` has the peers' values that the driver was told.
    pub(crate) ece: Cell<Option<Ece>>,
    pub(crate) eces_set: RefCell<Vec<Ece>>,
    /// Whether new queue pairs get the fake event too.
    pub(crate) keeps_event: Cell<bool>,
    /// Fake attributes of the port.
    pub(crate) port: Cell<Option<PortAttr>>,
    /// Fake notices of events on the port.
    pub(crate) notices: Cell<PortNotices>,
    /// The number of the device's reports about its port.
    pub(crate) port_changes: Cell<u32>,
    /// The most completions of a completion queue, if there is a limit.
    pub(crate) cq_depth_max: Cell<Option<usize>>,
}

/// A null NIC under a [`Plan`].
#[derive(Clone)]
pub(crate) struct Meddler {
    nic: NullNic,
    pub(crate) plan: Rc<Plan>,
}

impl Meddler {
    pub(crate) fn new(nic: NullNic) -> Self {
        Meddler { nic, plan: Rc::default() }
    }

    /// Lets the port be down, or up again.
    pub(crate) fn set_down(&self, is_down: bool) {
        let port = self.nic.query_port().expect("a port");
        let down = PortAttr { state: PortState::Down, ..port };
        self.plan.port.set(is_down.then_some(down));
    }

    /// Adds a fake completion with this status.
    pub(crate) fn complete_with(&self, status: WcStatus) {
        self.plan.made_up.borrow_mut().push(Wc { status, ..Wc::default() });
    }

    fn permit(&self, verb: Verb) -> Result<(), NicError> {
        if self.plan.failing.get() == Some(verb) {
            return Err(NicError::new(verb, 5, "a test wants it so"));
        }
        Ok(())
    }
}

impl Nic for Meddler {
    type Memory = HostMemory;
    type Pd = usize;
    type Mr = NullMr;
    type Cq = NullCq;
    type Qp = NullQp;

    fn name(&self) -> &str {
        self.nic.name()
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        self.permit(Verb::QueryPort)?;
        self.plan.port.get().map_or_else(|| self.nic.query_port(), Ok)
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        self.permit(Verb::AllocMemory)?;
        self.nic.alloc(len)
    }

    fn alloc_pd(&self) -> Result<usize, NicError> {
        self.nic.alloc_pd()
    }

    fn reg_mr(&self, pd: &usize, memory: &HostMemory, access: Access) -> Result<NullMr, NicError> {
        self.permit(Verb::RegMr)?;
        self.nic.reg_mr(pd, memory, access)
    }

    fn cq_depth_max(&self) -> usize {
        self.plan.cq_depth_max.get().unwrap_or(usize::MAX)
    }

    fn create_cq(&self, depth: usize) -> Result<NullCq, NicError> {
        self.permit(Verb::CreateCq)?;
        assert!(depth <= self.cq_depth_max(), "{depth} completions are too many for the device");
        self.nic.create_cq(depth)
    }

    fn create_qp(&self, pd: &usize, cq: &NullCq, cap: &QpCap) -> Result<NullQp, NicError> {
        self.permit(Verb::CreateQp)?;
        self.plan.caps.borrow_mut().push(*cap);
        if let Some((Verb::QpEvent, _)) = self.plan.event.get()
            && !self.plan.keeps_event.get()
        {
            self.plan.event.set(None);
        }
        self.nic.create_qp(pd, cq, cap)
    }

    fn qp_num(&self, qp: &NullQp) -> u32 {
        self.nic.qp_num(qp)
    }

    fn modify_qp(&self, qp: &NullQp, transition: &QpTransition) -> Result<(), NicError> {
        self.permit(Verb::ModifyQp)?;
        if self.plan.refuses_peers.get() && matches!(transition, QpTransition::Rtr(_)) {
            return Err(NicError::new(Verb::ModifyQp, 5, "a test wants it so"));
        }
        self.plan.moves.borrow_mut().push(*transition);
        self.nic.modify_qp(qp, transition)
    }

    /// After a peer's ECE is set, returns the options that both drivers have.
    fn query_ece(&self, _: &NullQp) -> Option<Ece> {
        let ours = self.plan.ece.get()?;
        let theirs = self.plan.eces_set.borrow().last().map_or(u32::MAX, |ece| ece.options);
        Some(Ece { options: ours.options & theirs, ..ours })
    }

    fn set_ece(&self, _: &NullQp, ece: &Ece) -> Result<(), NicError> {
        self.permit(Verb::SetEce)?;
        assert!(!matches!(self.plan.moves.borrow().last(), Some(QpTransition::Rtr(_))));
        self.plan.eces_set.borrow_mut().push(*ece);
        Ok(())
    }

    fn post_send(&self, qp: &NullQp, wrs: &[SendWr]) -> Result<(), NicError> {
        self.permit(Verb::PostSend)?;
        let qpn = self.nic.qp_num(qp);
        self.plan.posted.borrow_mut().extend(wrs.iter().map(|wr| (qpn, *wr)));
        self.nic.post_send(qp, wrs)?;
        self.plan.rider.take().map_or(Ok(()), |rider| self.nic.post_send(qp, &[rider]))
    }

    fn post_recv(&self, qp: &NullQp, wr: &RecvWr) -> Result<(), NicError> {
        self.permit(Verb::PostRecv)?;
        self.nic.post_recv(qp, wr)
    }

    fn poll(&self, cq: &NullCq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        self.plan.polls.update(|polls| polls + 1);
        if self.plan.failing.get() == Some(Verb::PollCq) {
            return Err(PollError { errno: 75 });
        }
        let mut made_up = self.plan.made_up.borrow_mut();
        let n = made_up.len().min(wcs.len());
        wcs.iter_mut().zip(made_up.drain(..n)).for_each(|(to, wc)| *to = wc);
        match n {
            0 if self.plan.holding.get() => Ok(0),
            0 => self.nic.poll(cq, wcs),
            _ => Ok(n as u32),
        }
    }

    fn check(&self, _: &NullQp) -> Result<(), NicError> {
        let failed = |(verb, cause)| Err(NicError::new(verb, 0, cause));
        self.plan.event.get().map_or(Ok(()), failed)
    }

    fn port_changes(&self) -> u32 {
        self.plan.port_changes.get()
    }

    fn notices(&self) -> PortNotices {
        self.plan.notices.get()
    }
}
