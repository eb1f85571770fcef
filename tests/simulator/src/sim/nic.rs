//! A host's port as the protocol sees it.

use std::sync::Arc;

use invar_core::nic::{
    Access, Gid, LinkLayer, Memory, MemoryKeys, Nic, NicError, PollError, PortAttr, PortState,
    QpCap, QpOptions, QpTransition, RecvWr, Resolution, SendWr, Verb, Wc,
};
use invar_linux::memory::HostMemory;
use invar_linux::soft::{Device, QpConfig};

use super::{Host, World, memory};

/// The port of a host in a [`World`]. Clones are the same port.
#[derive(Clone)]
pub struct SimNic {
    world: World,
    host: usize,
    name: Arc<str>,
}

/// Names an object of a host's device, and destroys the object when dropped.
struct Handle {
    world: World,
    host: usize,
    number: u32,
}

/// A completion queue of [`SimNic`].
pub struct SimCq(Handle);
/// A queue pair of [`SimNic`].
pub struct SimQp(Handle);
/// A memory region of [`SimNic`].
pub struct SimMr(Handle);

impl SimNic {
    pub(super) fn new(world: World, host: usize) -> Self {
        SimNic { world, host, name: format!("sim{host}").into() }
    }

    /// The host's number in its world.
    pub fn host(&self) -> usize {
        self.host
    }

    fn handle(&self, number: u32) -> Handle {
        Handle { world: self.world.clone(), host: self.host, number }
    }

    fn device<R>(&self, call: impl FnOnce(&mut Device) -> R) -> R {
        call(&mut self.world.net().hosts[self.host].device)
    }

    /// Makes a call that may produce packets, and sends them.
    fn post<R>(&self, call: impl FnOnce(&mut Device) -> R) -> R {
        let mut net = self.world.net();
        let result = call(&mut net.hosts[self.host].device);
        net.transmit(self.host);
        result
    }
}

impl Handle {
    fn end<R>(&self, call: impl FnOnce(&mut Device, u32) -> R) -> R {
        call(&mut self.world.net().hosts[self.host].device, self.number)
    }
}

impl Drop for SimCq {
    fn drop(&mut self) {
        self.0.end(Device::destroy_cq);
        self.0.world.net().hosts[self.0.host].unseen.remove(&self.0.number);
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        let Handle { world, host, number } = &self.0;
        let mut net = world.net();
        let now_ns = net.now_ns;
        net.hosts[*host].device.destroy_qp(now_ns, *number);
        // The providers of libibverbs drop these completions too.
        let unseen = net.hosts[*host].unseen.values_mut();
        unseen.for_each(|unseen| unseen.retain(|(_, wc)| wc.qp_num != *number));
        net.transmit(*host);
    }
}

impl Drop for SimMr {
    fn drop(&mut self) {
        self.0.end(Device::dereg_mr);
    }
}

impl MemoryKeys for SimMr {
    fn lkey(&self) -> u32 {
        self.0.number
    }

    fn rkey(&self) -> u32 {
        self.0.number
    }
}

impl Nic for SimNic {
    type Memory = HostMemory;
    type Pd = u32;
    type Mr = SimMr;
    type Cq = SimCq;
    type Qp = SimQp;

    const GRANTS: bool = true;

    fn name(&self) -> &str {
        &self.name
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        let net = self.world.net();
        let host = &net.hosts[self.host];
        let address = host.device.config().address;
        let up = net.wire.is_up(self.host);
        Ok(PortAttr {
            state: if up { PortState::Active } else { PortState::Down },
            link_layer: LinkLayer::Ethernet,
            port_num: 1,
            lid: 0,
            needs_grh: false,
            active_mtu: host.mtu,
            max_message_bytes: net.message_bytes_max,
            long_mtu_bytes: host.long_mtu_bytes,
            gid: Gid::from(address.ip()),
            gid_index: 0,
            speed_mbps: 100_000,
            udp_port: address.port(),
            udp_source_ports: host.device.config().source_ports,
            options: QpOptions::all(),
        })
    }

    fn port_changes(&self) -> u32 {
        let net = self.world.net();
        if net.reports_ports { net.hosts[self.host].downs } else { 0 }
    }

    /// Each second question gets an answer. The way to a port that is down is not found.
    fn resolve(&self, _rail: usize, gid: &Gid) -> Resolution {
        let net = &mut *self.world.net();
        let knows_way = &mut net.hosts[self.host].knows_way;
        *knows_way = !*knows_way;
        if *knows_way {
            return Resolution::Pending;
        }
        let of_peer = |host: &Host| host.device.config().address.ip() == gid.ip();
        let peer = net.hosts.iter().position(of_peer);
        match peer.is_some_and(|peer| net.wire.is_up(peer)) {
            true => Resolution::Done,
            false => Resolution::Failed,
        }
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        memory::alloc(len)
    }

    fn alloc_pd(&self) -> Result<u32, NicError> {
        Ok(self.device(Device::alloc_pd))
    }

    fn connection_pd(&self, parent: &u32) -> Result<u32, NicError> {
        Ok(self.device(|device| device.alloc_connection_pd(*parent)))
    }

    fn grant(&self, pd: &u32, rkey: u32) {
        self.device(|device| device.grant(*pd, rkey));
    }

    /// Registers memory. A device whose port is down may be gone, so it refuses.
    fn reg_mr(&self, pd: &u32, memory: &HostMemory, access: Access) -> Result<SimMr, NicError> {
        if !self.world.net().wire.is_up(self.host) {
            return Err(NicError::new(Verb::RegMr, 0, "the port of this simulated device is down"));
        }
        let key = self.device(|device| device.reg_mr(*pd, memory, memory.addr(), access))?;
        Ok(SimMr(self.handle(key)))
    }

    fn create_cq(&self, depth: usize) -> Result<SimCq, NicError> {
        let number = self.device(|device| device.create_cq(depth))?;
        Ok(SimCq(self.handle(number)))
    }

    fn create_qp(&self, pd: &u32, cq: &SimCq, cap: &QpCap) -> Result<SimQp, NicError> {
        let qpn = self.device(|device| device.create_qp(&QpConfig::new(*pd, cq.0.number, *cap)))?;
        Ok(SimQp(self.handle(qpn)))
    }

    fn qp_num(&self, qp: &SimQp) -> u32 {
        qp.0.number
    }

    fn modify_qp(&self, qp: &SimQp, transition: &QpTransition) -> Result<(), NicError> {
        if let QpTransition::Rtr(attr) = transition {
            self.world.net().learn_peer(self.host, qp.0.number, attr);
        }
        self.post(|device| device.modify_qp(qp.0.number, transition))
    }

    fn post_send(&self, qp: &SimQp, wrs: &[SendWr]) -> Result<(), NicError> {
        self.world.net().note_lengths(wrs);
        self.post(|device| {
            wrs.iter().zip(0..).try_for_each(|(wr, index)| {
                device.post_send(qp.0.number, wr).map_err(|error| NicError { index, ..error })
            })
        })
    }

    fn post_recv(&self, qp: &SimQp, wr: &RecvWr) -> Result<(), NicError> {
        self.post(|device| device.post_recv(qp.0.number, wr))
    }

    fn poll(&self, cq: &SimCq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        self.world.net().poll(self.host, cq.0.number, wcs)
    }
}
