//! What a user may choose about connections.

mod remarks;
mod unknown;

use std::collections::HashMap;
use std::time::Duration;

use invar_core::auth::Secret;
use invar_core::conn;
use invar_core::nic::LinkLayer;
use invar_core::param::{
    AddressFamily, LogLevel, ParamError, Params, PortRange, TABLE, TransportChoice, Wire,
};
use invar_linux::tcp::Congestion;
use invar_verbs::GidRules;

use crate::device::ROCE_UDP_PORT;
use crate::error::Kind;
use crate::gpu::{GpuRules, GpuSupport};
use crate::{Device, DeviceInfo, DeviceKind, Error};

/// How connections are made: from the environment, then as the program says.
///
/// Each end has its own. What the two must agree on they agree on while they connect: the smaller
/// FIFO depth, the connector's number of queue pairs, the options that both allow.
///
/// ```
/// let settings = invar::Settings::from_env()?.qps(4);
/// # Ok::<(), invar::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    conn: conn::Settings,
    /// `None`: where the device could reach GPUs.
    flush: Option<bool>,
    /// `None`: on InfiniBand.
    adaptive_routing: Option<bool>,
    ar_threshold_bytes: u32,
    transport: TransportChoice,
    log_level: LogLevel,
    pub(crate) rdma: RdmaRules,
    pub(crate) gpu: GpuRules,
    pub(crate) proxy: ProxyRules,
    pub(crate) coll: CollRules,
    /// The device of a communicator, by its name.
    pub(crate) coll_nic: Option<String>,
    pub(crate) socket_ifname: String,
    pub(crate) socket_family: AddressFamily,
    pub(crate) socket_nthreads: Option<u32>,
    pub(crate) nsocks_perthread: Option<u32>,
    socket_congestion: Option<String>,
    soft_ports: PortRange,
    listen_ports: PortRange,
    remarks: Vec<String>,
}

/// What is said about RDMA devices before one is open.
#[derive(Clone, Debug)]
pub(crate) struct RdmaRules {
    /// `NCCL_IB_DISABLE`.
    pub(crate) disabled: bool,
    /// `NCCL_IB_HCA`.
    pub(crate) hca: String,
    pub(crate) gid: GidRules,
    /// `NCCL_IB_PCI_RELAXED_ORDERING`.
    pub(crate) relaxed_ordering: u8,
}

/// How a proxy runs.
#[derive(Clone, Debug)]
pub(crate) struct ProxyRules {
    /// `NCCL_PROXY_APPEND_BATCH_SIZE`.
    pub(crate) append_batch: u32,
    /// `NCCL_PROGRESS_APPENDOP_FREQ`.
    pub(crate) append_every: u32,
    /// `NCCL_PROXY_DUMP_SIGNAL`.
    pub(crate) dump_signal: Option<u8>,
    /// `INVAR_PROXY_TRACE`.
    pub(crate) trace: Option<String>,
}

/// How ranks work together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollRules {
    /// `NCCL_SHM_DISABLE`.
    pub(crate) shm_disable: bool,
    /// `NCCL_CHUNK_SIZE`, where it is set.
    pub(crate) chunk_bytes: Option<u32>,
    /// `INVAR_COLL_TIMEOUT_MS`.
    pub(crate) timeout: Duration,
}

impl Settings {
    /// From the environment: `NCCL_IB_*`, `NCCL_SOCKET_*` and `INVAR_*`, all in
    /// [`invar_core::param::TABLE`]. It logs [remarks](Self::take_remarks).
    ///
    /// # Errors
    /// A variable that is set to what it cannot be, by name, with what is allowed.
    pub fn from_env() -> Result<Self, Error> {
        let mut settings = Self::from_lookup(invar_linux::env::var)?;
        settings.remarks.extend(unknown::remarks(invar_linux::env::names()));
        remarks::log_once(&settings.remarks);
        Ok(settings)
    }

    /// As [`Settings::from_env`], from elsewhere; `None` is a variable that is not set.
    pub fn from_lookup(
        mut lookup: impl FnMut(&'static str) -> Option<String>,
    ) -> Result<Self, Error> {
        let set: HashMap<&str, String> =
            TABLE.iter().filter_map(|row| Some((row.name, lookup(row.name)?))).collect();
        let params = Params::from_lookup(|name| set.get(name).map(String::as_str))
            .map_err(|error: ParamError<'_>| Kind::Setting(error.to_string()))?;
        let list = |name| set.get(name).cloned().unwrap_or_default();
        Ok(Self::from_params(&params, list("NCCL_SOCKET_IFNAME"), list("NCCL_IB_HCA")))
    }

    fn from_params(params: &Params<'_>, socket_ifname: String, hca: String) -> Self {
        let conn = conn::Settings {
            wire: match params.wire {
                Wire::Invar => conn::Wire::Invar,
                Wire::Nccl214 => conn::Wire::Nccl214,
            },
            fifo_depth: params.fifo_depth,
            qps: u16::from(params.ib_qps_per_connection),
            pkey_index: params.ib_pkey_index,
            sl: params.ib_sl,
            traffic_class: params.ib_tc,
            timeout: params.ib_timeout,
            retry_cnt: params.ib_retry_cnt,
            use_inline: params.ib_use_inline,
            ece: params.ib_ece_enable,
            long_mtu: params.long_mtu,
            packet_auth: match params.soft_auth {
                None => conn::PacketAuth::Network,
                Some(false) => conn::PacketAuth::Off,
                Some(true) => conn::PacketAuth::Always,
            },
            timeout_ns: u64::from(params.connect_timeout_ms) * 1_000_000,
            ..conn::Settings::default()
        };
        Settings {
            conn,
            flush: None,
            adaptive_routing: params.ib_adaptive_routing,
            ar_threshold_bytes: u32::try_from(params.ib_ar_threshold).unwrap_or(u32::MAX),
            transport: params.transport,
            log_level: params.log,
            rdma: RdmaRules {
                disabled: params.ib_disable,
                hca,
                gid: GidRules::from(params),
                relaxed_ordering: params.ib_pci_relaxed_ordering,
            },
            gpu: GpuRules::from(params),
            proxy: ProxyRules {
                append_batch: params.proxy_append_batch,
                append_every: params.progress_appendop_freq,
                dump_signal: params.proxy_dump_signal,
                trace: params.proxy_trace.map(str::to_owned),
            },
            coll: CollRules {
                shm_disable: params.shm_disable,
                chunk_bytes: Some(params.chunk_bytes).filter(|bytes| *bytes > 0),
                timeout: Duration::from_millis(params.coll_timeout_ms.into()),
            },
            coll_nic: None,
            socket_ifname,
            socket_family: params.socket_family,
            socket_nthreads: params.socket_nthreads,
            nsocks_perthread: params.nsocks_perthread,
            socket_congestion: params.socket_congestion.map(str::to_owned),
            soft_ports: params.soft_port,
            listen_ports: params.port_range,
            remarks: remarks::on(params),
        }
    }

    /// Queue pairs of a connection, 1 to 128; each message is split over them
    /// (`NCCL_IB_QPS_PER_CONNECTION`).
    #[must_use]
    pub fn qps(mut self, qps: u16) -> Self {
        self.conn.qps = qps;
        self
    }

    /// Requests that may be under way, a power of two up to 256 (`INVAR_FIFO_DEPTH`).
    #[must_use]
    pub fn fifo_depth(mut self, fifo_depth: u16) -> Self {
        self.conn.fifo_depth = fifo_depth;
        self
    }

    /// Whether the network routes adaptively (`NCCL_IB_ADAPTIVE_ROUTING`): then the data of a long
    /// message goes apart from its immediate.
    #[must_use]
    pub fn adaptive_routing(mut self, on: bool) -> Self {
        self.adaptive_routing = Some(on);
        self
    }

    /// Time until a packet that is not acknowledged is sent again, 4.096 µs × 2^`timeout`, and
    /// how often (`NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT`).
    #[must_use]
    pub fn retry(mut self, timeout: u8, retry_cnt: u8) -> Self {
        (self.conn.timeout, self.conn.retry_cnt) = (timeout, retry_cnt);
        self
    }

    /// Time in which a connection must come about (`INVAR_CONNECT_TIMEOUT_MS`).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.conn.timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Whether ranks of one host exchange data through memory that they share (`NCCL_SHM_DISABLE`).
    #[must_use]
    pub fn shared_memory(mut self, on: bool) -> Self {
        self.coll.shm_disable = !on;
        self
    }

    /// The device, by its name in `invar devices`, over which a communicator reaches ranks that it
    /// shares no memory with. Without one it takes every RDMA device with a link, else the software
    /// NIC, or TCP, on the way to the rendezvous.
    #[must_use]
    pub fn communicator_nic(mut self, name: &str) -> Self {
        self.coll_nic = Some(name.to_owned());
        self
    }

    /// Time that a rank waits in a collective for one that does not do its part
    /// (`INVAR_COLL_TIMEOUT_MS`).
    #[must_use]
    pub fn collective_timeout(mut self, timeout: Duration) -> Self {
        self.coll.timeout = timeout;
        self
    }

    /// UDP ports from which a software NIC takes one (`INVAR_SOFT_PORT`).
    #[must_use]
    pub fn soft_ports(mut self, ports: PortRange) -> Self {
        self.soft_ports = ports;
        self
    }

    /// Whether a software NIC authenticates the packets of its connections (`INVAR_SOFT_AUTH`). If
    /// nothing is set, it does so between hosts, if the peer does too.
    #[must_use]
    pub fn soft_auth(mut self, on: bool) -> Self {
        use conn::PacketAuth::{Always, Off};
        self.conn.packet_auth = if on { Always } else { Off };
        self
    }

    /// TCP ports from which a listener takes one (`INVAR_PORT_RANGE`).
    #[must_use]
    pub fn listen_ports(mut self, ports: PortRange) -> Self {
        self.listen_ports = ports;
        self
    }

    /// IP type of service of a RoCE connection: DSCP × 4 + ECN (`NCCL_IB_TC`).
    #[must_use]
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.conn.traffic_class = traffic_class;
        self
    }

    /// Whether a send longer than its receive is cut to it, rather than refused.
    #[must_use]
    pub fn truncate(mut self, on: bool) -> Self {
        self.conn.truncate = on;
        self
    }

    /// Whether [`RecvComm::iflush`](crate::RecvComm::iflush) reads back through the NIC. Host
    /// memory does not need it. Otherwise it does where the device could reach GPUs, unless
    /// `NCCL_GDR_FLUSH_DISABLE` is set.
    #[must_use]
    pub fn flush(mut self, on: bool) -> Self {
        self.flush = Some(on);
        self
    }

    /// A key that both ends share beside the handle. Others may then read the handle: it lets nobody
    /// in who does not know the key. On the wire of NCCL 2.14 it has no meaning.
    #[must_use]
    pub fn key(mut self, key: Secret) -> Self {
        self.conn.key = Some(key);
        self
    }

    /// What a user should hear about these settings, a line each: a wire without authentication,
    /// variables that look like settings and that nobody reads.
    /// The library logs each line as a warning, once a process, when it reads the environment or
    /// makes a connection. A program that takes the lines shows them itself.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// What is to be logged (`INVAR_LOG`). The library logs through the `log` crate; to print it
    /// is the program's part.
    pub fn log_level(&self) -> LogLevel {
        self.log_level
    }

    /// The signal on which ranks and proxies say how they stand (`NCCL_PROXY_DUMP_SIGNAL`).
    pub fn dump_signal(&self) -> Option<u8> {
        self.proxy.dump_signal
    }

    /// Time in which a connection must come about.
    pub fn connect_within(&self) -> Duration {
        Duration::from_nanos(self.conn.timeout_ns)
    }

    /// Queue pairs of a connection that this end makes.
    pub fn queue_pairs(&self) -> u16 {
        self.conn.qps
    }

    /// Requests that may be under way, as the wire allows.
    pub fn requests_max(&self) -> u16 {
        match self.conn.wire {
            conn::Wire::Invar => self.conn.fifo_depth,
            conn::Wire::Nccl214 => 64,
        }
    }

    /// Payload bytes of a full packet that a device offers to a peer.
    pub fn mtu_bytes(&self, device: &DeviceInfo) -> u32 {
        let long = self.conn.long_mtu && self.conn.wire == conn::Wire::Invar;
        device.mtu.bytes().max(if long { device.long_mtu_bytes } else { 0 })
    }

    /// Whether `INVAR_TRANSPORT` allows a device of this kind.
    pub fn takes(&self, kind: DeviceKind) -> bool {
        match self.transport {
            TransportChoice::Auto => true,
            TransportChoice::Ib => kind == DeviceKind::Verbs,
            TransportChoice::Soft => kind == DeviceKind::Soft,
            TransportChoice::Socket => kind == DeviceKind::Socket,
        }
    }

    /// Which kind of device (`INVAR_TRANSPORT`).
    pub fn transport(&self) -> TransportChoice {
        self.transport
    }

    /// What is spoken (`INVAR_WIRE`).
    pub fn wire(&self) -> conn::Wire {
        self.conn.wire
    }

    /// Of connections over TCP (`INVAR_SOCKET_CONGESTION`).
    pub(crate) fn socket_congestion(&self) -> Result<Congestion, Error> {
        let Some(name) = &self.socket_congestion else { return Ok(Congestion::default()) };
        Congestion::named(name).map_err(|refused| {
            Kind::Setting(format!("INVAR_SOCKET_CONGESTION={name}: {refused}")).into()
        })
    }

    /// For a connection of this device.
    pub(crate) fn for_device(&self, device: &Device) -> conn::Settings {
        let mut conn = self.for_port(device.info().link_layer);
        // Whether there is a GPU at all is not asked (`net_ib.cc ncclIbAccept`).
        let reached = || device.gpu_support(self) != GpuSupport::default();
        conn.flush = self.flush.unwrap_or_else(|| !self.gpu.flush.disable && reached());
        conn
    }

    /// Whether a device's network routes adaptively (`NCCL_IB_ADAPTIVE_ROUTING`, or
    /// [`Settings::adaptive_routing`]; else as its link layer has it).
    pub fn routes_adaptively(&self, device: &DeviceInfo) -> bool {
        self.is_adaptive(device.link_layer)
    }

    fn is_adaptive(&self, link_layer: LinkLayer) -> bool {
        self.adaptive_routing.unwrap_or(link_layer == LinkLayer::Infiniband)
    }

    /// For a port of this kind.
    fn for_port(&self, link_layer: LinkLayer) -> conn::Settings {
        let mut conn = self.conn;
        let adaptive = self.is_adaptive(link_layer);
        // Where the network keeps packets in order one WRITE_WITH_IMM does. NCCL 2.14 looks at the
        // threshold alone, so its wire does unless told otherwise.
        let apart =
            adaptive || self.adaptive_routing.is_none() && self.conn.wire == conn::Wire::Nccl214;
        conn.ar_threshold_bytes = if apart { self.ar_threshold_bytes } else { u32::MAX };
        conn
    }

    /// UDP ports from which a software NIC takes one. On the wire of NCCL 2.14, which does not tell
    /// the port to peers, it is [`ROCE_UDP_PORT`] if nothing else is set.
    pub fn udp_ports(&self) -> PortRange {
        match self.conn.wire {
            conn::Wire::Nccl214 if self.soft_ports.is_any() => PortRange::only(ROCE_UDP_PORT),
            _ => self.soft_ports,
        }
    }

    /// TCP ports from which a listener takes one, as [`Hub::listen`](crate::Hub::listen) wants them.
    pub fn tcp_ports(&self) -> PortRange {
        self.listen_ports
    }

    /// Refuses a device of another transport than the one asked for (`INVAR_TRANSPORT`), and one
    /// that peers do not find (`INVAR_WIRE`).
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), Error> {
        remarks::log_once(&self.remarks);
        let DeviceInfo { name, kind, .. } = device;
        if !self.takes(*kind) {
            let asked = self.transport.as_str();
            let text = format!("INVAR_TRANSPORT={asked}: {name} is a device of transport {kind}");
            return Err(Kind::Setting(text).into());
        }
        match (self.conn.wire, device.udp_port) {
            (conn::Wire::Nccl214, Some(port)) if port != ROCE_UDP_PORT => {
                let text = format!(
                    "INVAR_WIRE=nccl-2.14: {name} is open at UDP port {port}, and on that wire \
                     peers know only {ROCE_UDP_PORT}: set INVAR_SOFT_PORT={ROCE_UDP_PORT}"
                );
                Err(Kind::Setting(text).into())
            }
            _ => Ok(()),
        }
    }
}

/// What holds where the environment says nothing.
impl Default for Settings {
    fn default() -> Self {
        Self::from_params(&Params::default(), String::new(), String::new())
    }
}

#[cfg(test)]
mod tests;
