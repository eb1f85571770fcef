//! The NIC: what the verbs create, number and destroy.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use invar_core::nic::{
    Access, Gid, LinkLayer, MemoryKeys, Mtu, Nic, NicError, PollError, PortAttr, PortState, QpCap,
    QpTransition, RecvWr, SendWr, Verb, Wc,
};
use invar_linux::memory::HostMemory;
use invar_linux::random::random;

use crate::domain::Domain;
use crate::queue_pair::{CompletionQueue as Cq, PACKET_BYTES_MAX, QueuePair, failed};

type Pd = Arc<Domain>;
/// A queue pair, which the NIC drives as long as somebody has it.
pub type UnixQp = Arc<Mutex<QueuePair>>;

/// A NIC over Unix sockets. It reaches all NICs of its kind in the same network namespace.
#[derive(Clone)]
pub struct UnixNic {
    gid: Gid,
    /// How many queue pairs were created.
    created: Arc<AtomicU32>,
    /// All queue pairs, since a poll drives them all.
    qps: Arc<Mutex<Vec<Weak<Mutex<QueuePair>>>>>,
}

/// A registered memory region of [`UnixNic`].
pub struct UnixMr {
    pd: Pd,
    key: u32,
}

impl UnixNic {
    /// Opens a NIC with a random GID.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn open() -> io::Result<Self> {
        let mut gid: [u8; 16] = random()?;
        // The first byte of a private address (RFC 4193).
        gid[0] = 0xfd;
        Ok(UnixNic { gid: Gid(gid), created: Arc::default(), qps: Arc::default() })
    }
}

impl Nic for UnixNic {
    type Memory = HostMemory;
    type Pd = Pd;
    type Mr = UnixMr;
    type Cq = Cq;
    type Qp = UnixQp;

    fn name(&self) -> &str {
        "unix0"
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        Ok(PortAttr {
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            port_num: 1,
            active_mtu: Mtu::Mtu4096,
            gid: self.gid,
            speed_mbps: 10_000,
            ..PortAttr::default()
        })
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        HostMemory::for_nic(len)
    }

    fn alloc_pd(&self) -> Result<Pd, NicError> {
        Ok(Arc::default())
    }

    fn reg_mr(&self, pd: &Pd, memory: &HostMemory, access: Access) -> Result<UnixMr, NicError> {
        let key = pd.add(memory, access).map_err(|error| failed(Verb::RegMr, &error))?;
        Ok(UnixMr { pd: pd.clone(), key })
    }

    /// Creates a queue without a bound, so that it has room for any depth.
    fn create_cq(&self, _: usize) -> Result<Cq, NicError> {
        Ok(Arc::default())
    }

    fn create_qp(&self, pd: &Pd, cq: &Cq, cap: &QpCap) -> Result<UnixQp, NicError> {
        // A number has 24 bits, and the verbs reserve the first two numbers.
        let qpn = 2 + self.created.fetch_add(1, Ordering::Relaxed) % 0xff_fffe;
        let qp = QueuePair::new((self.gid, qpn), pd.clone(), cq.clone(), *cap)?;
        let qp = Arc::new(Mutex::new(qp));
        let mut qps = lock(&self.qps);
        qps.retain(|qp| qp.strong_count() > 0);
        qps.push(Arc::downgrade(&qp));
        Ok(qp)
    }

    fn qp_num(&self, qp: &UnixQp) -> u32 {
        lock(qp).number()
    }

    fn modify_qp(&self, qp: &UnixQp, transition: &QpTransition) -> Result<(), NicError> {
        lock(qp).modify(transition)
    }

    fn post_send(&self, qp: &UnixQp, wrs: &[SendWr]) -> Result<(), NicError> {
        let mut qp = lock(qp);
        wrs.iter().zip(0..).try_for_each(|(wr, index)| {
            qp.post_send(wr).map_err(|error| NicError { index, ..error })
        })?;
        qp.drive(&mut [0; PACKET_BYTES_MAX]);
        Ok(())
    }

    fn post_recv(&self, qp: &UnixQp, wr: &RecvWr) -> Result<(), NicError> {
        lock(qp).post_recv(wr)
    }

    fn poll(&self, cq: &Cq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        self.progress();
        let mut cq = cq.lock();
        let n = wcs.len().min(cq.len());
        wcs.iter_mut().zip(cq.drain(..n)).for_each(|(to, wc)| *to = wc);
        Ok(n as u32)
    }

    /// Drives all queue pairs: the peer of one may wait while the program polls for another.
    fn progress(&self) {
        let mut buffer = [0; PACKET_BYTES_MAX];
        for qp in lock(&self.qps).iter().filter_map(Weak::upgrade) {
            lock(&qp).drive(&mut buffer);
        }
    }
}

impl MemoryKeys for UnixMr {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

impl Drop for UnixMr {
    fn drop(&mut self) {
        self.pd.remove(self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
