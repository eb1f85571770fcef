//! A RoCEv2 NIC without sockets, threads or clock.
//!
//! The resources of the verbs and their checks, around the engine of [`invar_core::roce::qp`].
//! Datagrams, time and work requests go in; completions, and trains of datagrams for a
//! [`TransmitSink`], come out. [`SoftNic`](super::SoftNic) puts it on UDP sockets, a simulator can
//! put it on wires of its own.
//!
//! After any batch of calls, call [`Device::transmit`], and [`Device::handle_timers`] at
//! [`Device::next_deadline_ns`]. Nothing here costs more with more queue pairs, but for
//! [`Device::counters`].

mod completion;
mod counters;
mod linger;
mod queue_pair;
mod receive;
mod region;
mod table;
mod tags;
mod timers;
mod train;
mod transmit;

use std::collections::VecDeque;
use std::net::SocketAddr;

use invar_core::nic::{
    Access, NicError, PollError, QpCap, QpState, QpTransition, RecvWr, SendFlags, SendWr,
    SourcePorts, Verb, Wc,
};
use invar_core::roce::qp::{Side, Tuning};

use crate::memory::HostMemory;
use completion::CompletionQueue;
use linger::Lingerers;
use queue_pair::{Path, QueuePair, Surroundings};
use region::{MemoryRegion, Regions};
use table::{Names, Table};
use timers::Timers;
use transmit::Staging;

pub use counters::DeviceCounters;
pub use train::{Datagram, Route, Train, TransmitSink};
pub use transmit::Patience;

/// Queue pairs that a device may have: of their numbers of 24 bits one in 256 is in use.
pub const QPS_MAX: usize = 1 << 16;
/// Memory regions that a device may have: of their keys of 32 bits one in 256 is in use.
pub const REGIONS_MAX: usize = 1 << 24;
/// Completion queues that a device may have.
const CQS_MAX: usize = 1 << 24;
/// Completions that a queue may hold.
pub const CQ_DEPTH_MAX: usize = 1 << 22;

/// The configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The address to which peers send. Its IP address is the GID.
    pub address: SocketAddr,
    /// UDP ports from which packets leave; at least one.
    pub source_ports: SourcePorts,
    /// The seed of the random numbers of queue pairs and keys. If strangers reach the device,
    /// only it may know the seed.
    pub seed: [u8; 32],
    /// For each queue pair.
    pub tuning: Tuning,
}

/// The device; see the [module](self). Names of objects are those that the verbs give: queue pair
/// number, key, and numbers of their own kind for the others.
pub struct Device {
    config: DeviceConfig,
    regions: Regions,
    cqs: Table<CompletionQueue>,
    qps: Table<QueuePair>,
    lingerers: Lingerers,
    /// Queue pairs that may have something to send.
    ready: VecDeque<u32>,
    /// The one of them that goes first.
    posted: Option<u32>,
    timers: Timers,
    staging: Staging,
    counters: DeviceCounters,
}

impl Device {
    /// A device without any objects.
    ///
    /// # Panics
    /// Without a source port.
    pub fn new(config: DeviceConfig) -> Self {
        assert!(config.source_ports.port(0) != 0, "a device sends from at least one port");
        let names = |kind, bits| Names::new(&config.seed, kind, bits);
        Device {
            regions: Regions::new(Table::new(REGIONS_MAX, names(b'r', 32))),
            cqs: Table::new(CQS_MAX, names(b'c', 32)),
            qps: Table::new(QPS_MAX, names(b'q', 24)),
            lingerers: Lingerers::default(),
            ready: VecDeque::new(),
            posted: None,
            timers: Timers::default(),
            staging: Staging::new(),
            counters: DeviceCounters::default(),
            config,
        }
    }

    /// The configuration of the device.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// `ibv_alloc_pd`. A protection domain is only a number, never given again.
    pub fn alloc_pd(&mut self) -> u32 {
        self.regions.alloc_pd()
    }

    /// [`Nic::connection_pd`](invar_core::nic::Nic::connection_pd) of a domain.
    pub fn alloc_connection_pd(&mut self, parent: u32) -> u32 {
        self.regions.alloc_connection_pd(parent)
    }

    /// `ibv_dealloc_pd`.
    pub fn dealloc_pd(&mut self, pd: u32) {
        self.regions.dealloc_pd(pd);
    }

    /// [`Nic::grant`](invar_core::nic::Nic::grant): lets the peer of a connection, which has this
    /// domain, reach a region.
    pub fn grant(&mut self, pd: u32, key: u32) {
        self.regions.grant(pd, key);
    }

    /// `ibv_reg_mr`: the answer is lkey and rkey in one.
    ///
    /// # Errors
    /// `EINVAL`: remote writes without local ones. `ENOMEM`: 2^24 regions are registered.
    pub fn reg_mr(
        &mut self,
        pd: u32,
        memory: &HostMemory,
        access: Access,
    ) -> Result<u32, NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::RegMr, errno, cause));
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return refuse(libc::EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
        }
        let region = MemoryRegion { memory: memory.clone(), access, pd };
        match self.regions.table.insert(|_| false, |_| Ok::<_, NicError>(region)) {
            Some(key) => key,
            None => refuse(libc::ENOMEM, "too many memory regions"),
        }
    }

    /// `ibv_dereg_mr`: at once, whatever is under way; uses from now on are access errors. Gives
    /// the memory back, so that the caller decides where it is freed.
    pub fn dereg_mr(&mut self, key: u32) -> Option<HostMemory> {
        self.regions.remove(key).map(|region| region.memory)
    }

    /// `ibv_create_cq`.
    ///
    /// # Errors
    /// `EINVAL`: depth 0 or beyond [`CQ_DEPTH_MAX`].
    pub fn create_cq(&mut self, depth: usize) -> Result<u32, NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::CreateCq, errno, cause));
        if !(1..=CQ_DEPTH_MAX).contains(&depth) {
            return refuse(libc::EINVAL, "the depth is not from 1 to 2^22");
        }
        match self.cqs.insert(|_| false, |_| Ok::<_, NicError>(CompletionQueue::new(depth))) {
            Some(cq) => cq,
            None => refuse(libc::ENOMEM, "too many completion queues"),
        }
    }

    /// `ibv_destroy_cq`. What its queue pairs still complete is lost.
    pub fn destroy_cq(&mut self, cq: u32) {
        self.cqs.remove(cq);
    }

    /// `ibv_create_qp`; the answer is the queue pair number.
    ///
    /// # Errors
    /// `EINVAL`: more than 2048 work requests on a queue, or 1024 bytes inline. `ENOMEM`: there
    /// are [`QPS_MAX`] queue pairs.
    pub fn create_qp(&mut self, pd: u32, cq: u32, cap: &QpCap) -> Result<u32, NicError> {
        let Device { qps, lingerers, .. } = self;
        let lingers = |qpn| lingerers.contains(qpn);
        match qps.insert(lingers, |qpn| QueuePair::new(qpn, pd, cq, cap)) {
            Some(qpn) => qpn,
            None => Err(NicError::new(Verb::CreateQp, libc::ENOMEM, "too many queue pairs")),
        }
    }

    /// `ibv_destroy_qp`. Work requests under way vanish. The next [`Device::transmit`] sends the
    /// acknowledge that was due, and requests that the peer sends again are acknowledged for as long
    /// as it may retry.
    pub fn destroy_qp(&mut self, now_ns: u64, qpn: u32) {
        if let Some(qp) = self.qps.remove(qpn) {
            self.counters.retire(qp.counters());
            self.lingerers.add(now_ns, qpn, qp);
        }
    }

    /// `ibv_query_qp`, as far as the state goes; `None` where there is no such queue pair.
    pub fn qp_state(&self, qpn: u32) -> Option<QpState> {
        self.qps.get(qpn).map(QueuePair::state)
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// `EINVAL`: a move that does not exist, or an attribute out of range.
    pub fn modify_qp(&mut self, qpn: u32, transition: &QpTransition) -> Result<(), NicError> {
        let connected = match transition {
            QpTransition::Rtr(attr) => {
                let ports = self.config.source_ports;
                let source = (ports.place(qpn).unwrap_or(0), ports.port(qpn));
                let path = Path::new(self.config.address, source, attr)?;
                Some((path, self.config.tuning.scaled(attr)))
            }
            _ => None,
        };
        self.with_qp(qpn, Verb::ModifyQp, |qp, env| {
            qp.modify(transition, env)?;
            if let Some((path, tuning)) = connected {
                qp.set_tuning(tuning);
                qp.path = Some(path);
            }
            Ok(())
        })
    }

    /// `ibv_post_send` of one request. The bytes of an inline one are taken now, and as safe code
    /// reads no memory that it was not given, they too have to lie in registered memory.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: the state is not RTS, SQD or ERR, or the request
    /// could never be carried out.
    pub fn post_send(&mut self, qpn: u32, wr: &SendWr) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::PostSend, |qp, env| {
            if !wr.flags.contains(SendFlags::INLINE) || wr.sge.length == 0 {
                return qp.post_send(wr, env).map(|_| ());
            }
            let sge = &wr.sge;
            let regions = env.regions;
            let bytes = regions
                .resolve((env.pd, Side::Local), sge.lkey, sge.addr, sge.length, Access::empty())
                .map_err(|_| {
                    let cause = "inline bytes outside of registered memory";
                    NicError::new(Verb::PostSend, libc::EINVAL, cause)
                })?;
            let slot = qp.post_send(wr, env)?;
            regions.fetch(bytes, qp.inline.get_mut(slot, sge.length));
            Ok(())
        })?;
        // Before the acknowledges that others owe: somebody waits for this one.
        self.posted = Some(qpn);
        Ok(())
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: in state RESET.
    pub fn post_recv(&mut self, qpn: u32, wr: &RecvWr) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::PostRecv, |qp, env| qp.post_recv(wr, env))
    }

    /// `ibv_poll_cq`: takes up to `wcs.len()` completions, oldest first, and says how many.
    ///
    /// # Errors
    /// `EOVERFLOW`: more completed than the queue holds. `EINVAL`: there is no such queue.
    #[inline]
    pub fn poll(&mut self, cq: u32, wcs: &mut [Wc]) -> Result<u32, PollError> {
        match self.cqs.get_mut(cq) {
            Some(cq) => cq.poll(wcs),
            None => Err(PollError { errno: libc::EINVAL as u16 }),
        }
    }

    /// Whether it has no queue pairs, completion queues and regions.
    pub fn is_empty(&self) -> bool {
        let Device { regions, cqs, qps, .. } = self;
        regions.table.is_empty() && cqs.is_empty() && qps.is_empty()
    }

    /// Whether [`Device::transmit`] may have something to send.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty() || self.lingerers.is_ready() || self.is_blocked()
    }

    /// Whether acknowledges [wait](Device::transmit_urgent), or a poll left something to be sent.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        (!self.ready.is_empty() || self.lingerers.is_ready()) && !self.is_blocked()
    }

    /// The counters so far, summed over all queue pairs.
    pub fn counters(&self) -> DeviceCounters {
        self.counters.total(self.qps.iter().map(QueuePair::counters))
    }

    /// Runs one call on a queue pair, and sees to what may follow from it.
    #[inline]
    fn with_qp<R>(
        &mut self,
        qpn: u32,
        verb: Verb,
        call: impl FnOnce(&mut QueuePair, &mut Surroundings<'_>) -> Result<R, NicError>,
    ) -> Result<R, NicError> {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return Err(NicError::new(verb, libc::EINVAL, "no such queue pair"));
        };
        let (pd, cq) = (qp.pd, qp.cq);
        let mut env = Surroundings { regions: &self.regions, cqs: &mut self.cqs, pd, cq };
        let result = call(qp, &mut env);
        qp.follow_up(qpn, &mut env, &mut self.ready);
        result
    }
}

impl QueuePair {
    /// After any call on the engine: lists the queue pair for [`Device::transmit`], and ends it
    /// where its completions are lost.
    #[inline]
    fn follow_up(&mut self, qpn: u32, env: &mut Surroundings<'_>, ready: &mut VecDeque<u32>) {
        if env.cqs.get(self.cq).is_some_and(CompletionQueue::overrun)
            && self.state() != QpState::Err
        {
            // A move that exists from every state.
            let moved = self.modify(&QpTransition::Err, env);
            debug_assert_eq!(moved, Ok(()));
        }
        if !self.listed {
            self.listed = true;
            ready.push_back(qpn);
        }
    }
}
