//! A RoCEv2 NIC without sockets, threads or clock.
//!
//! The device has the resources of the verbs and their checks, around the engine of
//! [`invar_core::roce::qp`]. Its input is datagrams, time and work requests. Its output is completions,
//! and trains of datagrams for a [`TransmitSink`]. [`SoftNic`](super::SoftNic) runs the device on UDP
//! sockets. A simulator can run it on simulated wires.
//!
//! After any batch of calls, call [`Device::transmit`]. Call [`Device::handle_timers`] at
//! [`Device::next_deadline_ns`]. The cost of a call does not grow with the number of queue pairs; only
//! [`Device::counters`] is an exception.

mod atomic;
mod completion;
mod counters;
mod datagram;
mod linger;
mod lists;
mod local;
mod modify;
mod notice;
mod path;
mod posted;
mod queue_pair;
mod receive;
mod region;
mod shared_receive;
mod table;
mod tags;
mod timers;
mod train;
mod transmit;
mod window;

use std::collections::VecDeque;
use std::net::SocketAddr;

use invar_core::nic::{
    Access, NicError, PollError, QpOptions, QpState, QpType, RecvWr, SendFlags, SendWr, Sge,
    SourcePorts, Verb, Wc,
};
use invar_core::roce::qp::{QpSide, RequesterPhase, ResponderPhase, Tuning};

use crate::memory::HostMemory;
use completion::CompletionQueue;
use datagram::DatagramPaths;
use linger::Lingerers;
use posted::DeviceEnv;
use queue_pair::QueuePair;
use region::{MemoryRegion, Regions, check_access};
use shared_receive::SharedQueue;
use table::{Names, Table};
use timers::Timers;
use transmit::Staging;
use window::Windows;

pub use completion::Awaited;
pub use counters::DeviceCounters;
pub use datagram::Receiver;
pub use local::LocalAddress;
pub use notice::{AsyncEvent, Subject};

pub use queue_pair::{INLINE_BYTES_MAX, QpConfig, SGES_MAX, WORK_REQUESTS_MAX};
pub use region::MrChange;
pub use shared_receive::{SHARED_RECEIVES_MAX, SrqConfig};
pub use train::{Datagram, Route, Train, TransmitSink};
pub use transmit::AckDelay;
pub use window::{Bind, LocalWork, WINDOWS_MAX, WindowType};

/// Maximum number of queue pairs of a device: 1 in 256 of the 24-bit queue pair numbers is in use.
pub const QPS_MAX: usize = 1 << 16;
/// Maximum number of memory regions of a device: 1 in 256 of the 32-bit keys is in use.
pub const REGIONS_MAX: usize = 1 << 24;
/// Maximum number of completion queues of a device.
const CQS_MAX: usize = 1 << 24;
/// Maximum number of completions that a queue can hold.
pub const CQ_DEPTH_MAX: usize = 1 << 22;

/// The configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The address to which peers send. Its IP address is the GID.
    pub address: SocketAddr,
    /// The addresses with the GID indices from 1 on. They have the UDP port of `address`.
    pub more_addresses: Vec<LocalAddress>,
    /// UDP ports that packets from `address` leave from; at least one.
    pub source_ports: SourcePorts,
    /// Seed of the random queue pair numbers and keys. If strangers can reach the device, only the
    /// device may know the seed.
    pub seed: [u8; 32],
    /// Tuning of each queue pair.
    pub tuning: Tuning,
    /// The numbers that queue pairs get.
    pub qpns: QpnRange,
    /// The options that all peers of datagrams have, such as [`QpOptions::ICRC_MASKS_IP_ID`].
    pub datagram_options: QpOptions,
}

/// Numbers of queue pairs that have their upper bits in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnRange {
    /// The lowest number.
    pub first: u32,
    /// Number of lower bits that the device chooses.
    pub bits: u32,
}

impl QpnRange {
    /// All 24-bit numbers.
    pub const ALL: QpnRange = QpnRange { first: 0, bits: 24 };
}

/// A software RoCEv2 device; see the [module](self). A queue pair is named by its number, a region by
/// its key, and each other object by a number of its own kind.
pub struct Device {
    config: DeviceConfig,
    regions: Regions,
    windows: Windows,
    cqs: Table<CompletionQueue>,
    /// Completion queues that have raised an event.
    events: Vec<u32>,
    /// Number of completion queues that are armed, and of events not taken.
    armed: usize,
    srqs: Table<SharedQueue>,
    /// Asynchronous events that nobody took yet.
    notices: Vec<(Subject, AsyncEvent)>,
    qps: Table<QueuePair>,
    lingerers: Lingerers,
    /// Queue pairs that may have something to send.
    ready: VecDeque<u32>,
    /// The queue pair with the latest posted send, which sends first.
    posted: Option<u32>,
    timers: Timers,
    staging: Staging,
    counters: DeviceCounters,
    /// A bit for each address that a queue pair has used, from the first one on.
    used_addresses: u64,
}

impl Device {
    /// Makes a device without any objects.
    ///
    /// # Panics
    /// Panics if `config` has no source port.
    pub fn new(config: DeviceConfig) -> Self {
        assert!(config.source_ports.port(0) != 0, "a device sends from at least one port");
        let names = |kind, bits| Names::new(&config.seed, kind, bits);
        let qpns = names(b'q', config.qpns.bits).from(config.qpns.first);
        Device {
            regions: Regions::new(Table::new(REGIONS_MAX, names(b'r', 32))),
            windows: Windows::new(names(b'w', 24)),
            cqs: Table::new(CQS_MAX, names(b'c', 32)),
            events: Vec::new(),
            armed: 0,
            srqs: Table::new(CQS_MAX, names(b's', 32)),
            notices: Vec::new(),
            qps: Table::new(QPS_MAX.min(1 << (config.qpns.bits - 1)), qpns),
            lingerers: Lingerers::default(),
            ready: VecDeque::new(),
            posted: None,
            timers: Timers::default(),
            staging: Staging::new(),
            counters: DeviceCounters::default(),
            used_addresses: 0,
            config,
        }
    }

    /// Returns the configuration of the device.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Returns a bit for each address at which packets may come, from the first one on.
    #[inline]
    pub(super) fn used_addresses(&self) -> u64 {
        self.used_addresses
    }

    /// Allocates a protection domain (`ibv_alloc_pd`): a number that the device never reuses.
    pub fn alloc_pd(&mut self) -> u32 {
        self.regions.alloc_pd()
    }

    /// Allocates the domain of one connection
    /// ([`Nic::connection_pd`](invar_core::nic::Nic::connection_pd)).
    pub fn alloc_connection_pd(&mut self, parent: u32) -> u32 {
        self.regions.alloc_connection_pd(parent)
    }

    /// Frees a protection domain (`ibv_dealloc_pd`).
    pub fn dealloc_pd(&mut self, pd: u32) {
        self.regions.dealloc_pd(pd);
    }

    /// Lets the peer of a connection access a region ([`Nic::grant`](invar_core::nic::Nic::grant)). `pd`
    /// is the connection's domain.
    pub fn grant(&mut self, pd: u32, key: u32) {
        self.regions.grant(pd, key);
    }

    /// Registers memory (`ibv_reg_mr`) and returns the key, which is both lkey and rkey. Work requests
    /// and peers name its first byte by `addr`, usually the memory's own address.
    ///
    /// # Errors
    /// `EINVAL`: the access flags allow remote writes but no local writes. `ENOMEM`: 2^24 regions are
    /// registered.
    pub fn reg_mr(
        &mut self,
        pd: u32,
        memory: &HostMemory,
        addr: u64,
        access: Access,
    ) -> Result<u32, NicError> {
        check_access(access)?;
        let region = MemoryRegion { memory: memory.clone(), addr, access, pd };
        let Device { regions, windows, .. } = self;
        let is_of_window = |key| windows.has_index_of(key);
        match regions.table.insert(is_of_window, |_| Ok::<_, NicError>(region)) {
            Some(key) => key,
            None => Err(NicError::new(Verb::RegMr, libc::ENOMEM, "too many memory regions")),
        }
    }

    /// Deregisters memory (`ibv_dereg_mr`) immediately, even during transfers; later uses of the key are
    /// access errors. Returns the memory, so the caller decides where it is freed.
    pub fn dereg_mr(&mut self, key: u32) -> Option<HostMemory> {
        self.regions.remove(key).map(|region| region.memory)
    }

    /// Creates a completion queue (`ibv_create_cq`).
    ///
    /// # Errors
    /// `EINVAL`: the depth is 0 or exceeds [`CQ_DEPTH_MAX`].
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

    /// Changes the depth of a completion queue (`ibv_resize_cq`).
    ///
    /// # Errors
    /// `EINVAL`: the depth is 0, exceeds [`CQ_DEPTH_MAX`], or is less than the completions in the queue.
    pub fn resize_cq(&mut self, cq: u32, depth: usize) -> Result<(), NicError> {
        let refuse = |cause| Err(NicError::new(Verb::CreateCq, libc::EINVAL, cause));
        if !(1..=CQ_DEPTH_MAX).contains(&depth) {
            return refuse("the depth is not from 1 to 2^22");
        }
        match self.cqs.get_mut(cq) {
            Some(cq) => match cq.resize(depth) {
                true => Ok(()),
                false => refuse("more completions are in the queue"),
            },
            None => refuse("no such completion queue"),
        }
    }

    /// Lets the next completion that nobody has taken raise an event (`ibv_req_notify_cq`).
    pub fn arm_cq(&mut self, number: u32, awaited: Awaited) {
        if let Some(cq) = self.cqs.get_mut(number) {
            self.armed += usize::from(!cq.is_armed());
            self.events.extend(cq.arm(awaited).then_some(number));
        }
    }

    /// Whether a completion queue waits for a completion that raises an event.
    pub(super) fn is_awaited(&self) -> bool {
        self.armed > 0
    }

    #[inline]
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.notices.is_empty()
    }

    /// Takes the numbers of completion queues that have raised an event since the last call.
    #[inline]
    pub fn take_events(&mut self) -> std::vec::Drain<'_, u32> {
        // A queue that raises an event is armed no more.
        self.armed -= self.events.len();
        self.events.drain(..)
    }

    /// Destroys a completion queue (`ibv_destroy_cq`). Later completions of its queue pairs are lost.
    pub fn destroy_cq(&mut self, cq: u32) {
        if self.cqs.remove(cq).is_some_and(|cq| cq.is_armed()) {
            self.armed -= 1;
        }
    }

    /// Creates a queue pair (`ibv_create_qp`) and returns its number.
    ///
    /// # Errors
    /// `EINVAL`: the caller asks for more than 2048 work requests on a queue, for more than 1024 bytes
    /// of inline data, or for more than 32 buffers of a work request. `ENOMEM`: the device has [`QPS_MAX`]
    /// queue pairs.
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<u32, NicError> {
        let Device { qps, srqs, lingerers, config: device, used_addresses, .. } = self;
        let shared = config.srq.and_then(|srq| srqs.get(srq));
        let recv_pd = shared.map_or(config.pd, SharedQueue::pd);
        // A receive of a shared queue brings its list along.
        let recv_sges_max = config.recv_sges_max.max(shared.map_or(0, SharedQueue::sges_max));
        let config = &QpConfig { recv_sges_max, ..*config };
        let lingers = |qpn| lingerers.contains(qpn);
        let is_ud = config.qp_type == QpType::Ud;
        let paths = |qpn| is_ud.then(|| DatagramPaths::new(device, qpn).into());
        if is_ud {
            // Datagrams may come to each address.
            *used_addresses = u64::MAX;
        }
        match qps.insert(lingers, |qpn| QueuePair::new(qpn, config, recv_pd, paths(qpn))) {
            Some(qpn) => qpn,
            None => Err(NicError::new(Verb::CreateQp, libc::ENOMEM, "too many queue pairs")),
        }
    }

    /// Destroys a queue pair (`ibv_destroy_qp`). Its pending work requests vanish, and so do completions that
    /// nobody has taken, as with NICs in hardware. The next
    /// [`Device::transmit`] sends the acknowledge that was due. While the peer may retry, the device
    /// still acknowledges its repeated requests.
    pub fn destroy_qp(&mut self, now_ns: u64, qpn: u32) {
        if let Some(qp) = self.qps.remove(qpn) {
            self.counters.retire(qp.counters());
            qp.posted.forget_completions(&mut self.cqs);
            self.windows.forget_qp(qpn);
            self.lingerers.add(now_ns, qpn, qp);
        }
    }

    /// Returns the state of a queue pair (`ibv_query_qp`), or `None` if the queue pair does not exist.
    pub fn qp_state(&self, qpn: u32) -> Option<QpState> {
        self.qps.get(qpn).map(QueuePair::state)
    }

    /// Whether no send of a queue pair that has begun is left, or `None` if the queue pair does not exist.
    pub fn is_drained(&self, qpn: u32) -> Option<bool> {
        self.qps.get(qpn).map(QueuePair::is_drained)
    }

    /// Returns the phases of a queue pair's requester and responder, or `None` if the queue pair does
    /// not exist.
    pub fn qp_phases(&self, qpn: u32) -> Option<(RequesterPhase, ResponderPhase)> {
        self.qps.get(qpn).map(QueuePair::phases)
    }

    /// Returns the number of sends that a queue pair has room for.
    pub fn send_room(&self, qpn: u32) -> u32 {
        self.qps.get(qpn).map_or(0, QueuePair::send_room)
    }

    /// Takes back the last `count` sends of a queue pair. The caller has posted them since the last
    /// [`Device::transmit`].
    pub fn withdraw_sends(&mut self, qpn: u32, count: u32) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.withdraw_sends(count);
        }
    }

    /// Posts one send request (`ibv_post_send`). The call copies inline data immediately. Inline data
    /// must lie in registered memory too, because safe code reads no other memory.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: the state is not RTS, SQD or ERR, or the request can never
    /// succeed.
    pub fn post_send(&mut self, qpn: u32, wr: &SendWr) -> Result<(), NicError> {
        self.with_sender(qpn, |qp, env| {
            if !wr.flags.contains(SendFlags::INLINE) || wr.sge.length == 0 {
                return qp.post_send(wr, env).map(|_| ());
            }
            let sge = &wr.sge;
            let regions = env.regions;
            let bytes = qp.posted.resolve(regions, QpSide::Local, sge, Access::empty());
            let bytes = bytes.map_err(|_| {
                let cause = "inline bytes outside of registered memory";
                NicError::new(Verb::PostSend, libc::EINVAL, cause)
            })?;
            let slot = qp.post_send(wr, env)?;
            regions.fetch(bytes, qp.posted.inline_mut(slot, sge.length));
            Ok(())
        })
    }

    /// Posts one send request with several buffers. The buffer of `wr` has no meaning.
    ///
    /// # Errors
    /// The errors of [`Device::post_send`]. `EINVAL`: there are too many buffers or bytes, or the request has
    /// [`SendFlags::INLINE`], for which there is [`Device::post_send_filled`].
    pub fn post_send_list(&mut self, qpn: u32, wr: &SendWr, list: &[Sge]) -> Result<(), NicError> {
        self.with_sender(qpn, |qp, env| qp.post_send_list(wr, list, env))
    }

    /// Posts one send request with `wr.sge.length` bytes of inline data, which `fill` writes. The request
    /// must have [`SendFlags::INLINE`].
    ///
    /// # Errors
    /// The errors of [`Device::post_send`].
    pub fn post_send_filled(
        &mut self,
        qpn: u32,
        wr: &SendWr,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), NicError> {
        debug_assert!(wr.flags.contains(SendFlags::INLINE));
        self.with_sender(qpn, |qp, env| {
            let slot = qp.post_send(wr, env)?;
            fill(qp.posted.inline_mut(slot, wr.sge.length));
            Ok(())
        })
    }

    /// Posts a receive request with several buffers. The buffer of `wr` has no meaning.
    ///
    /// # Errors
    /// The errors of [`Device::post_recv`]. `EINVAL`: there are too many buffers or bytes.
    pub fn post_recv_list(&mut self, qpn: u32, wr: &RecvWr, list: &[Sge]) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::PostRecv, |qp, env| qp.post_recv_list(wr, list, env))
    }

    /// Posts a receive request (`ibv_post_recv`).
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: the queue pair is in state RESET.
    pub fn post_recv(&mut self, qpn: u32, wr: &RecvWr) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::PostRecv, |qp, env| qp.post_recv(wr, env))
    }

    /// Takes up to `wcs.len()` completions, oldest first, and returns their number (`ibv_poll_cq`).
    ///
    /// # Errors
    /// `EOVERFLOW`: the queue overflowed. `EINVAL`: the queue does not exist.
    #[inline]
    pub fn poll(&mut self, cq: u32, wcs: &mut [Wc]) -> Result<u32, PollError> {
        match self.cqs.get_mut(cq) {
            Some(cq) => cq.poll(wcs),
            None => Err(PollError { errno: libc::EINVAL as u16 }),
        }
    }

    /// Whether the device has no queue pairs, no completion queues and no regions.
    pub fn is_empty(&self) -> bool {
        let Device { regions, cqs, qps, .. } = self;
        regions.table.is_empty() && cqs.is_empty() && qps.is_empty()
    }

    /// Whether [`Device::transmit`] may have something to send.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty() || self.lingerers.is_ready() || self.is_blocked()
    }

    /// Whether postponed acknowledges [wait](Device::transmit_urgent), or a poll left packets to send.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        (!self.ready.is_empty() || self.lingerers.is_ready()) && !self.is_blocked()
    }

    /// Returns the counters so far, summed over all queue pairs.
    pub fn counters(&self) -> DeviceCounters {
        self.counters.total(self.qps.iter().map(QueuePair::counters))
    }

    /// Runs a call that posts a send. The queue pair then sends before the acknowledges of others, because
    /// the caller waits for its request.
    #[inline]
    fn with_sender(
        &mut self,
        qpn: u32,
        post: impl FnOnce(&mut QueuePair, &mut DeviceEnv<'_>) -> Result<(), NicError>,
    ) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::PostSend, post)?;
        self.posted = Some(qpn);
        Ok(())
    }

    /// Runs one call on a queue pair and handles its consequences.
    #[inline]
    fn with_qp<R>(
        &mut self,
        qpn: u32,
        verb: Verb,
        call: impl FnOnce(&mut QueuePair, &mut DeviceEnv<'_>) -> Result<R, NicError>,
    ) -> Result<R, NicError> {
        let Device { qps, regions, windows, cqs, events, srqs, notices, ready, .. } = self;
        let Some(qp) = qps.get_mut(qpn) else {
            return Err(NicError::new(verb, libc::EINVAL, "no such queue pair"));
        };
        let mut env = DeviceEnv { regions, windows, cqs, events, srqs, notices };
        let result = call(qp, &mut env);
        qp.follow_up(qpn, &mut env, ready);
        result
    }
}
