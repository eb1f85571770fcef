//! A NIC without a network. It carries out every work request while it is posted.
//!
//! All ports of the NIC live in one [`Fabric`], in one thread. The NIC costs next to nothing, so a
//! measurement over it shows the cost of the protocol. It checks states, keys and bounds as hardware
//! does.

mod fabric;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use invar_core::nic::{
    Access, Gid, LinkLayer, Memory, MemoryKeys, Mtu, Nic, NicError, PollError, PortAttr, PortState,
    QpCap, QpOptions, QpTransition, RecvWr, SendWr, Verb, Wc,
};
use invar_linux::memory::HostMemory;

pub use fabric::Fabric;

/// A port of a [`Fabric`]. Clones are the same port.
#[derive(Clone)]
pub struct NullNic {
    fabric: Rc<RefCell<Fabric>>,
    port: u8,
    name: Rc<str>,
}

impl NullNic {
    /// Creates `N` ports on a fabric of their own.
    pub fn ports<const N: usize>() -> [NullNic; N] {
        let fabric = Rc::new(RefCell::new(Fabric::default()));
        std::array::from_fn(|i| NullNic {
            fabric: Rc::clone(&fabric),
            port: i as u8 + 1,
            name: format!("null{i}").into(),
        })
    }

    fn handle(&self, index: usize) -> Handle {
        Handle { fabric: Rc::clone(&self.fabric), index }
    }
}

/// A resource of the fabric.
struct Handle {
    fabric: Rc<RefCell<Fabric>>,
    index: usize,
}

/// A completion queue of [`NullNic`].
pub struct NullCq(Handle);
/// A queue pair of [`NullNic`].
pub struct NullQp(Handle);
/// A memory region of [`NullNic`].
pub struct NullMr(Handle);

impl Drop for NullCq {
    fn drop(&mut self) {
        self.0.fabric.borrow_mut().destroy_cq(self.0.index);
    }
}

impl Drop for NullQp {
    fn drop(&mut self) {
        self.0.fabric.borrow_mut().destroy_qp(self.0.index);
    }
}

impl Drop for NullMr {
    fn drop(&mut self) {
        self.0.fabric.borrow_mut().dereg_mr(self.0.index);
    }
}

impl MemoryKeys for NullMr {
    fn lkey(&self) -> u32 {
        Fabric::key(self.0.index)
    }

    fn rkey(&self) -> u32 {
        Fabric::key(self.0.index)
    }
}

impl Nic for NullNic {
    type Memory = HostMemory;
    type Pd = usize;
    type Mr = NullMr;
    type Cq = NullCq;
    type Qp = NullQp;

    fn name(&self) -> &str {
        &self.name
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        Ok(PortAttr {
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            port_num: 1,
            lid: 0,
            needs_grh: false,
            active_mtu: Mtu::Mtu4096,
            max_message_bytes: 0,
            long_mtu_bytes: 0,
            gid: Gid::from(IpAddr::V4(Ipv4Addr::new(127, 0, 0, self.port))),
            gid_index: 0,
            speed_mbps: 100_000,
            udp_port: 0,
            udp_source_ports: Default::default(),
            options: QpOptions::empty(),
        })
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        HostMemory::for_nic(len)
    }

    fn alloc_pd(&self) -> Result<usize, NicError> {
        Ok(self.fabric.borrow_mut().alloc_pd())
    }

    fn reg_mr(&self, pd: &usize, memory: &HostMemory, access: Access) -> Result<NullMr, NicError> {
        if memory.is_empty() {
            return Err(NicError::new(Verb::RegMr, 22, "a region of no bytes"));
        }
        let (start, memory) = (memory.addr(), memory.clone());
        let index = self.fabric.borrow_mut().reg_mr(*pd, start, memory, access);
        Ok(NullMr(self.handle(index)))
    }

    fn create_cq(&self, depth: usize) -> Result<NullCq, NicError> {
        Ok(NullCq(self.handle(self.fabric.borrow_mut().create_cq(depth))))
    }

    fn create_qp(&self, pd: &usize, cq: &NullCq, cap: &QpCap) -> Result<NullQp, NicError> {
        let index = self.fabric.borrow_mut().create_qp(*pd, cq.0.index, *cap);
        Ok(NullQp(self.handle(index)))
    }

    fn qp_num(&self, qp: &NullQp) -> u32 {
        Fabric::qpn(qp.0.index)
    }

    fn modify_qp(&self, qp: &NullQp, transition: &QpTransition) -> Result<(), NicError> {
        self.fabric.borrow_mut().modify_qp(qp.0.index, transition)
    }

    #[inline(never)]
    fn post_send(&self, qp: &NullQp, wrs: &[SendWr]) -> Result<(), NicError> {
        self.fabric.borrow_mut().post_send(qp.0.index, wrs)
    }

    #[inline(never)]
    fn post_recv(&self, qp: &NullQp, wr: &RecvWr) -> Result<(), NicError> {
        self.fabric.borrow_mut().post_recv(qp.0.index, wr)
    }

    #[inline(never)]
    fn poll(&self, cq: &NullCq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        Ok(self.fabric.borrow_mut().poll(cq.0.index, wcs))
    }
}
