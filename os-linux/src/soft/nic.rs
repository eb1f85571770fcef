//! The software NIC, as the protocol uses it.

mod handles;
mod verbs;

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use invar_core::nic::{
    Access, Gid, LinkLayer, Memory, Mtu, Nic, NicCounters, NicError, PollError, PortAttr,
    PortNotices, PortState, QpCap, QpOptions, QpTransition, RecvWr, Refusal, Refused, RtrAttr,
    SendList, SendWr, SourcePorts, Verb, Wc,
};
use invar_core::param::PortRange;
use invar_core::roce::qp::{
    MESSAGE_BYTES_MAX, RNR_NS_MAX, Tuning, WINDOW_PACKETS_MAX, ack_timeout_ns,
};

use super::capture::Capture;
use super::device::{
    Awaited, Device, DeviceConfig, DeviceCounters, LocalAddress, QpConfig, QpnRange,
};
use super::impair::{Impairment, ImpairmentConfig};
use super::port::{Port, RxSockets};
use super::shared_ports;
use super::sockets::Sockets;
use crate::interface::{Interface, may_lead_to};
use crate::memory::HostMemory;
use crate::own_thread::OwnThread;
use crate::ports::bind_in_range;
use crate::random::random;
use crate::udp::{OTHERS_MAX, RxSocket};
use handles::OwnedPd;

pub use handles::{Cq, Mr, Pd, Qp, Srq, Window};
pub use verbs::QpInit;

/// Speed assumed for a link whose driver does not report one, such as loopback.
const SPEED_MBPS: u32 = 10_000;

/// Least ACK timeout of a queue pair: 33.6 ms. Other programs may hold a peer's processors for milliseconds.
const ACK_TIMEOUT_NS_MIN: u64 = ack_timeout_ns(13).unwrap();

/// The configuration of a software NIC.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Name for messages.
    pub name: String,
    /// An address of this host. The UDP port is the one that receives packets. Port 4791 serves peers
    /// that are no software NIC of Invar; port 0 means a port of `ports`.
    pub address: SocketAddr,
    /// More addresses of the same interface, at most [`OTHERS_MAX`]: the GIDs with the indices from 1 on.
    /// An address that the interface has lost is left out.
    pub more_addresses: Vec<SocketAddr>,
    /// If the port of `address` is 0, the NIC takes the first free port of this range.
    pub ports: PortRange,
    /// Maximum path MTU, if it is to be less than the interface carries. Below 4096, the NIC agrees on
    /// no longer packets either.
    pub path_mtu_max: Mtu,
    /// Number of sockets for sending, each with its own port: 1 to [`SourcePorts::MAX`].
    pub source_ports: usize,
    /// Tuning of the queue pairs; `None` means values that suit the interface and the receive buffer.
    pub tuning: Option<Tuning>,
    /// Whether a queue pair with `rnr_retry` 7 waits for ever for a receive, as the IBTA has it. Otherwise it
    /// fails after [`RNR_NS_MAX`]. If there is a `tuning`, its `rnr_ns_max` counts instead.
    pub waits_for_receives: bool,
    /// A simulated bad network.
    pub impairment: Option<ImpairmentConfig>,
    /// Whether queue pair numbers tell the UDP port of this NIC. Then the port must be one of [`shared_ports`],
    /// and all peers must be software NICs of Invar.
    pub numbers_tell_port: bool,
    /// Whether the application may stop polling, and spin on memory until a peer writes there. The NIC's thread
    /// then takes over within microseconds. Leave this off for other applications, because it takes processor
    /// time from those that poll.
    pub spins_on_memory: bool,
}

impl SoftConfig {
    /// Makes the default configuration: the largest MTU that the interface carries, and four sockets for
    /// sending.
    pub fn new(name: impl Into<String>, address: SocketAddr) -> Self {
        SoftConfig {
            name: name.into(),
            address,
            more_addresses: Vec::new(),
            ports: PortRange::ANY,
            path_mtu_max: Mtu::Mtu4096,
            source_ports: SourcePorts::MAX,
            tuning: None,
            waits_for_receives: false,
            impairment: None,
            numbers_tell_port: false,
            spins_on_memory: false,
        }
    }
}

/// The counters of a software NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftCounters {
    /// The counters of packets, which the device keeps.
    pub device: DeviceCounters,
    /// Number of trains that the kernel refused to send.
    pub send_errors: u64,
    /// Reason for the last refusal.
    pub last_send_error: Option<String>,
}

/// A RoCEv2 NIC in software; clones share the NIC. When the last clone and the last of its objects are
/// gone, the NIC ends its thread and closes its sockets.
///
/// Any thread may call any method; one lock protects all of them.
#[derive(Clone)]
pub struct SoftNic(Arc<Owner>);

struct Owner {
    name: String,
    attr: PortAttr,
    gids: Vec<Gid>,
    port: Arc<Port>,
    thread: OwnThread,
    /// The last GID that a peer was allowed to name, with the address of that peer. A connection has many queue
    /// pairs, and the check lists all interfaces.
    allowed: Mutex<Option<(Gid, IpAddr)>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.handle() {
            self.port.stop(thread);
        }
    }
}

impl SoftNic {
    /// Opens the sockets and starts the thread.
    pub fn open(config: &SoftConfig) -> io::Result<SoftNic> {
        let ip = config.address.ip();
        let interface = Interface::holding(ip)?.ok_or_else(|| {
            let text = format!("{}: no interface of this host has the address {ip}", config.name);
            io::Error::new(io::ErrorKind::AddrNotAvailable, text)
        })?;
        let mtu = interface.path_mtu().ok_or_else(|| {
            let Interface { name, mtu, .. } = &interface;
            let text = format!("{name}: an MTU of {mtu} is too small for RoCE packets");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let mtu = mtu.min(config.path_mtu_max);
        let long_mtu_bytes =
            if config.path_mtu_max == Mtu::Mtu4096 { interface.long_mtu_bytes(ip) } else { 0 };
        let (rx, more) =
            bind_in_range(config.address, config.ports, "INVAR_SOFT_PORT", |at| bind(at, config))?;
        let address = rx.local_addr()?;
        let more_addresses =
            more.iter().map(RxSocket::local_addr).collect::<io::Result<Vec<_>>>()?;
        let impairment = config.impairment.map(Impairment::new);
        let sockets = Sockets::bind(
            config.address,
            config.source_ports,
            more_addresses.iter().copied(),
            impairment,
        )?;
        let tuning = match config.tuning {
            Some(tuning) => tuning,
            None => Tuning {
                window_packets_max: window_packets(rx.buffer_bytes()?, mtu),
                ack_timeout_ns_min: ACK_TIMEOUT_NS_MIN,
                rnr_ns_max: if config.waits_for_receives { u64::MAX } else { RNR_NS_MAX },
                ..Tuning::default()
            },
        };
        let udp_source_ports = sockets.ports()?;
        let (qpns, datagram_options) = match config.numbers_tell_port {
            true => {
                let qpns = shared_ports::qpns(address.port()).ok_or_else(|| {
                    let text = format!("{}: port {} is not shared", config.name, address.port());
                    io::Error::new(io::ErrorKind::InvalidInput, text)
                })?;
                (qpns, QpOptions::ICRC_MASKS_IP_ID)
            }
            false => (QpnRange::ALL, QpOptions::empty()),
        };
        let gids = [address].iter().chain(&more_addresses).map(|at| Gid::from(at.ip())).collect();
        let local =
            |(address, (source, source_port))| LocalAddress { address, source, source_port };
        let device = Device::new(DeviceConfig {
            more_addresses: more_addresses.into_iter().zip(sockets.more()?).map(local).collect(),
            qpns,
            address,
            source_ports: udp_source_ports,
            datagram_options,
            seed: random()?,
            tuning,
        });
        let attr = PortAttr {
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            port_num: 1,
            lid: 0,
            needs_grh: false,
            active_mtu: mtu,
            max_message_bytes: MESSAGE_BYTES_MAX,
            long_mtu_bytes,
            gid: Gid::from(ip),
            gid_index: 0,
            speed_mbps: interface.speed_mbps(Path::new("/sys")).unwrap_or(SPEED_MBPS),
            udp_port: address.port(),
            udp_source_ports,
            options: QpOptions::all(),
        };
        let port = Arc::new(Port::new(RxSockets { first: rx, more }, sockets, device));
        let (serving, spins_on_memory) = (Arc::clone(&port), config.spins_on_memory);
        let serve = move || serving.serve(spins_on_memory);
        let thread = OwnThread::start(&config.name, serve)?;
        let (name, allowed) = (config.name.clone(), Mutex::default());
        Ok(SoftNic(Arc::new(Owner { name, attr, gids, port, thread, allowed })))
    }

    /// Returns the GIDs, by index. Each is an address of the interface.
    pub fn gids(&self) -> &[Gid] {
        &self.0.gids
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> SoftCounters {
        let moving = self.port().lock();
        let (send_errors, last) = moving.sockets.errors();
        SoftCounters {
            device: moving.device.counters(),
            send_errors,
            last_send_error: last.map(|(error, _)| error.to_string()),
        }
    }

    /// From now on, writes all sent and received packets into a pcap file, which starts empty. For a
    /// received packet, only the addresses of the IP header are known. So the ICRC of a packet from a
    /// foreign IPv4 peer does not match the recorded header.
    pub fn capture(&self, file: File) -> io::Result<()> {
        let attr = self.0.attr;
        let capture = Capture::new(file, SocketAddr::new(attr.gid.ip(), attr.udp_port))?;
        self.port().lock().sockets.capture = Some(capture);
        Ok(())
    }

    /// Ends [`SoftNic::capture`]; returns an error if packets are missing in the file.
    pub fn end_capture(&self) -> io::Result<()> {
        let capture = self.port().lock().sockets.capture.take();
        capture.map_or(Ok(()), Capture::finish)
    }

    #[inline]
    fn port(&self) -> &Port {
        &self.0.port
    }

    /// Returns an error if an object belongs to another NIC.
    fn check(&self, other: &SoftNic, verb: Verb) -> Result<(), NicError> {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ok(());
        }
        Err(NicError::new(verb, libc::EINVAL, "an object of another device"))
    }

    /// Returns an error if a peer on another host names an address of this host: the packets would reach services
    /// of this host. Those of a queue pair that is connected to itself reach this NIC alone.
    fn check_place(&self, RtrAttr { ah, peer_host, .. }: &RtrAttr) -> Result<(), NicError> {
        let Owner { attr, gids, allowed, .. } = &*self.0;
        let Some(peer) = *peer_host else { return Ok(()) };
        let is_own = gids.contains(&ah.dgid) && ah.udp_port == attr.udp_port;
        let mut allowed = allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_own || *allowed == Some((ah.dgid, peer)) {
            return Ok(());
        }
        if may_lead_to(ah.dgid.ip(), peer, attr.gid.ip()) {
            *allowed = Some((ah.dgid, peer));
            return Ok(());
        }
        let cause =
            "the peer's GID is of this host, and its TCP connection comes from another host";
        Err(NicError::new(Verb::ModifyQp, libc::EINVAL, cause))
    }
}

impl Nic for SoftNic {
    type Memory = HostMemory;
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Qp = Qp;

    const GRANTS: bool = true;

    fn name(&self) -> &str {
        &self.0.name
    }

    fn query_port(&self) -> Result<PortAttr, NicError> {
        let attr = self.0.attr;
        let failed = |error: io::Error| {
            let errno = error.raw_os_error().unwrap_or(0);
            NicError::new(Verb::QueryPort, errno, "listing the network interfaces")
        };
        let up = Interface::holding(attr.gid.ip()).map_err(failed)?.is_some_and(|i| i.up);
        Ok(PortAttr { state: if up { PortState::Active } else { PortState::Down }, ..attr })
    }

    fn is_software(&self, _rail: usize) -> bool {
        true
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        HostMemory::for_nic(len)
    }

    fn alloc_pd(&self) -> Result<Pd, NicError> {
        let number = self.port().lock().device.alloc_pd();
        Ok(Pd(Arc::new(OwnedPd { nic: self.clone(), number })))
    }

    fn connection_pd(&self, parent: &Pd) -> Result<Pd, NicError> {
        self.check(&parent.0.nic, Verb::AllocPd)?;
        let number = self.port().lock().device.alloc_connection_pd(parent.0.number);
        Ok(Pd(Arc::new(OwnedPd { nic: self.clone(), number })))
    }

    fn grant(&self, pd: &Pd, rkey: u32) {
        pd.0.nic.port().lock().device.grant(pd.0.number, rkey);
    }

    fn reg_mr(&self, pd: &Pd, memory: &HostMemory, access: Access) -> Result<Mr, NicError> {
        self.reg_mr_at(pd, memory, memory.addr(), access)
    }

    fn create_cq(&self, depth: usize) -> Result<Cq, NicError> {
        let number = self.port().lock().device.create_cq(depth)?;
        Ok(Cq::new(self, number))
    }

    fn create_qp(&self, pd: &Pd, cq: &Cq, cap: &QpCap) -> Result<Qp, NicError> {
        self.check(&pd.0.nic, Verb::CreateQp)?;
        self.check(&cq.nic, Verb::CreateQp)?;
        let config = QpConfig::new(pd.0.number, cq.number, *cap);
        let qpn = self.port().lock().device.create_qp(&config)?;
        Ok(Qp { nic: self.clone(), qpn })
    }

    fn qp_num(&self, qp: &Qp) -> u32 {
        qp.qpn
    }

    fn modify_qp(&self, qp: &Qp, transition: &QpTransition) -> Result<(), NicError> {
        self.check(&qp.nic, Verb::ModifyQp)?;
        if let QpTransition::Rtr(attr) = transition {
            self.check_place(attr)?;
        }
        if matches!(transition, QpTransition::Err | QpTransition::Reset) {
            // The program may have seen messages complete. Their sender must hear of it.
            self.port().flush();
        }
        self.port().post(|device| device.modify_qp(qp.qpn, transition))
    }

    /// Posts the requests. Before the call returns, it sends as much as the window allows.
    #[inline]
    fn post_send(&self, qp: &Qp, wrs: &[SendWr]) -> Result<(), NicError> {
        self.check(&qp.nic, Verb::PostSend)?;
        self.port().post(|device| post_each(device, qp.qpn, wrs))
    }

    #[inline]
    fn post_list_ahead<const L: usize>(
        &self,
        qp: &Qp,
        list: &mut SendList<L>,
        from: usize,
        refusal: &mut Refusal,
    ) -> Result<(), Refused> {
        let wrs = list.wrs_from(from);
        let checked = self.check(&qp.nic, Verb::PostSend);
        let post = || self.port().post_ahead(|device| post_each(device, qp.qpn, wrs));
        checked.and_then(|()| post()).map_err(|error| refusal.because(error))
    }

    #[inline]
    fn post_recv(&self, qp: &Qp, wr: &RecvWr) -> Result<(), NicError> {
        self.check(&qp.nic, Verb::PostRecv)?;
        self.port().post_ahead(|device| device.post_recv(qp.qpn, wr))
    }

    /// Takes completions. If there are none, the call receives packets that have arrived and sends the
    /// answers.
    #[inline]
    fn poll(&self, cq: &Cq, wcs: &mut [Wc]) -> Result<u32, PollError> {
        cq.nic.port().poll(cq.number, wcs)
    }

    fn arm(&self, cq: &Cq, writes: bool, ready: &mut dyn FnMut(RawFd)) -> bool {
        let awaited = if writes { Awaited::CompletionOrWrite } else { Awaited::Completion };
        let Some(event) = cq.arm(awaited) else { return false };
        ready(event.as_raw_fd());
        true
    }

    fn notices(&self) -> PortNotices {
        let moving = self.port().lock();
        let last =
            moving.sockets.errors().1.map(|(error, at)| {
                (error.reason().unwrap_or("the kernel refuses it"), at.elapsed())
            });
        let could_not_send = last.filter(|(_, ago)| *ago < PortNotices::WITHIN);
        PortNotices { could_not_send, ..PortNotices::default() }
    }

    fn counters(&self) -> NicCounters {
        let all = self.port().lock().device.counters();
        let DeviceCounters { qps, .. } = all;
        NicCounters {
            sent_bytes: all.bytes_sent,
            received_bytes: all.bytes_received,
            sent_packets: all.packets_sent,
            received_packets: all.packets_received,
            retransmitted_packets: qps.packets_retransmitted,
            out_of_order_packets: qps.out_of_order,
            rnr: qps.rnr_naks_sent + qps.rnr_naks_received,
            ack_timeouts: qps.timeouts,
            corrupt_packets: all.malformed + all.icrc_bad + all.tag_bad,
            dropped_packets: qps.dropped
                + all.unknown_qp
                + all.unconnected
                + all.wrong_source
                + all.wrong_pkey,
        }
    }

    #[inline]
    fn progress(&self) {
        // The error occurs again in a poll, which can report it.
        let _ = self.port().progress();
    }
}

fn post_each(device: &mut Device, qpn: u32, wrs: &[SendWr]) -> Result<(), NicError> {
    wrs.iter().zip(0..).try_for_each(|(wr, index)| {
        device.post_send(qpn, wr).map_err(|error| NicError { index, ..error })
    })
}

/// Binds at an address, and at the same port of the configured other addresses.
fn bind(at: SocketAddr, config: &SoftConfig) -> io::Result<(RxSocket, Vec<RxSocket>)> {
    let first = RxSocket::bind(at)?;
    let port = first.local_addr()?.port();
    let mut more = Vec::new();
    for &(mut address) in config.more_addresses.iter().take(OTHERS_MAX) {
        address.set_port(port);
        match RxSocket::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
            bound => more.push(bound?),
        }
    }
    Ok((first, more))
}

/// Returns the number of packets that fit into a receive buffer by the kernel's accounting. A packet
/// that arrives alone counts up to twice its length. Both ends usually have `buffer_bytes`.
fn window_packets(buffer_bytes: usize, mtu: Mtu) -> u32 {
    let packet_bytes = 2 * mtu.bytes() as usize + 1024;
    let packets = u32::try_from(buffer_bytes / packet_bytes).unwrap_or(u32::MAX);
    packets.clamp(16, Tuning::default().window_packets_max.min(WINDOW_PACKETS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_fits_into_the_receive_buffer_and_stays_within_its_limits() {
        // Linux's default of net.core.rmem_max, doubled as the kernel does.
        assert_eq!(window_packets(2 * 212_992, Mtu::Mtu4096), 46);
        assert_eq!(window_packets(2 * 212_992, Mtu::Mtu1024), 138);
        assert_eq!(window_packets(32 << 20, Mtu::Mtu4096), Tuning::default().window_packets_max);
        assert_eq!(window_packets(2304, Mtu::Mtu4096), 16);
    }
}
