//! The effect of the settings, for programs that ask and for each connection.

use std::net::SocketAddr;
use std::time::Duration;

use invar_core::conn;
use invar_core::device::NameFilter;
use invar_core::nic::LinkLayer;
use invar_core::param::{LogFormat, LogLevel, PortRange, TransportChoice};
use invar_linux::interface::{self, Found, Interface, Rules};
use invar_linux::tcp::{Congestion, SILENCE_MAX};

use super::Settings;
use super::log_filter::LogFilter;
use crate::Error;
use crate::device_info::{DeviceInfo, DeviceKind, ROCE_UDP_PORT};
use crate::error::Kind;
use crate::metrics;

/// Returns the time after which the sockets of a connection over TCP give up a silent host.
pub(crate) fn tcp_silence(settings: &conn::CommSettings) -> Duration {
    match settings.recovery_timeout_ns {
        0 => SILENCE_MAX,
        within_ns => Duration::from_nanos(within_ns),
    }
}

impl Settings {
    /// Returns the most detailed level of messages to log (`INVAR_LOG`, or else `NCCL_DEBUG`). The library
    /// logs through the `log` crate; the program prints the messages.
    pub fn log_level(&self) -> LogLevel {
        self.log_level
    }

    /// Returns the messages to log (`INVAR_LOG`, `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`), for the program's logger.
    pub fn log_filter(&self) -> LogFilter {
        LogFilter::new(self.log_level, &self.log_subsystems)
    }

    /// Returns the format of log lines (`INVAR_LOG_FORMAT`).
    pub fn log_format(&self) -> LogFormat {
        self.log_format
    }

    /// Whether the user has asked for a log.
    pub fn asks_for_log(&self) -> bool {
        let is_set = |name| self.set.get(name).is_some_and(|set| !set.text.is_empty());
        is_set("INVAR_LOG") || is_set("NCCL_DEBUG")
    }

    /// Returns the signal on which ranks and proxies print their state (`NCCL_PROXY_DUMP_SIGNAL`).
    pub fn dump_signal(&self) -> Option<u8> {
        self.links.dump_signal
    }

    /// Returns the file for a trace (`INVAR_PROXY_TRACE`), as the user wrote it.
    pub fn trace_file(&self) -> Option<&str> {
        self.links.trace.as_deref()
    }

    /// Returns the number of operations that a proxy's progress thread takes over at a time
    /// (`NCCL_PROXY_APPEND_BATCH_SIZE`).
    pub fn append_batch(&self) -> u32 {
        self.links.append_batch
    }

    /// Returns the number of rounds between two looks of a proxy's progress thread for new operations
    /// (`NCCL_PROGRESS_APPENDOP_FREQ`).
    pub fn append_every(&self) -> u32 {
        self.links.append_every
    }

    /// Returns the time limit for making a connection.
    pub fn connect_within(&self) -> Duration {
        Duration::from_nanos(self.conn.timeout_ns)
    }

    /// Returns the time after which a TCP connection drops a silent host: that of
    /// [`Settings::recovery_timeout`], or 25 s without recovery.
    pub fn silence(&self) -> Duration {
        tcp_silence(&self.conn)
    }

    /// Returns the most time that a wait spins before it sleeps (`INVAR_SPIN_US`).
    pub fn spin(&self) -> Duration {
        self.spin
    }

    /// Returns the number of queue pairs of a connection that this end makes.
    pub fn queue_pairs(&self) -> u16 {
        self.conn.qps
    }

    /// Returns the most requests that may be pending on a connection, as the wire allows.
    pub fn requests_max(&self) -> u16 {
        match self.conn.wire {
            conn::Wire::Invar => self.conn.fifo_depth,
            conn::Wire::Nccl214 => 64,
        }
    }

    /// Returns the payload bytes of a full packet that a device offers to a peer.
    pub fn mtu_bytes(&self, device: &DeviceInfo) -> usize {
        let long = self.conn.long_mtu && self.conn.wire == conn::Wire::Invar;
        (device.mtu.bytes() as usize).max(if long { device.long_mtu_bytes } else { 0 })
    }

    /// Returns whether `INVAR_TRANSPORT` allows a device of this kind.
    pub fn takes(&self, kind: DeviceKind) -> bool {
        match self.transport {
            TransportChoice::Auto => true,
            TransportChoice::Ib => kind == DeviceKind::Verbs,
            TransportChoice::Soft => kind == DeviceKind::Soft,
            TransportChoice::Socket => kind == DeviceKind::Socket,
            TransportChoice::Custom => kind == DeviceKind::Custom,
        }
    }

    /// Returns the transport to use (`INVAR_TRANSPORT`).
    pub fn transport(&self) -> TransportChoice {
        self.transport
    }

    /// Whether the plugin offers NCCL's CollNet (`NCCL_COLLNET_ENABLE`).
    pub fn offers_collnet(&self) -> bool {
        self.collnet
    }

    /// Whether NCCL may join ports to one device (`NCCL_IB_MERGE_NICS`).
    pub fn merges_nics(&self) -> bool {
        self.merge_nics
    }

    /// Returns the protocol between NICs (`INVAR_WIRE`).
    pub fn wire(&self) -> conn::Wire {
        self.conn.wire
    }

    /// Returns the congestion control of connections over TCP (`INVAR_SOCKET_CONGESTION`).
    pub(crate) fn socket_congestion(&self) -> Result<Congestion, Error> {
        let Some(name) = &self.socket_congestion else { return Ok(Congestion::default()) };
        Congestion::named(name).map_err(|refused| {
            Kind::Setting(format!("INVAR_SOCKET_CONGESTION={name}: {refused}")).into()
        })
    }

    /// Returns the network interfaces that `NCCL_SOCKET_IFNAME`, `NCCL_COMM_ID` and `NCCL_SOCKET_FAMILY`
    /// allow: one or more, the best first.
    pub(crate) fn allowed_interfaces<'a>(
        &self,
        interfaces: &'a [Interface],
    ) -> Result<Vec<Found<'a>>, Error> {
        let names = NameFilter::parse(&self.socket_ifname)
            .map_err(|error| Kind::Setting(format!("NCCL_SOCKET_IFNAME: {error}")))?;
        let rules = Rules { names, family: self.socket_family, comm_id: self.rank_zero() };
        Ok(interface::find(interfaces, &rules).map_err(Kind::NoInterface)?)
    }

    /// Returns the address that `NCCL_COMM_ID` names. NCCL refuses a name that nobody knows.
    fn rank_zero(&self) -> Option<SocketAddr> {
        if self.comm_id.is_empty() || !self.socket_ifname.is_empty() {
            return None;
        }
        interface::resolve(&self.comm_id, None).ok()?.first().copied()
    }

    /// Returns whether a listener of the device listens at the device's own address, and not at that of the
    /// best interface.
    pub(crate) fn listens_on(&self, device: &DeviceInfo) -> bool {
        self.socket_ifname.is_empty() && self.socket_family.takes(device.address)
    }

    /// Returns the settings for a connection of this device. `reaches_gpus` says whether the device can
    /// register GPU memory.
    pub(crate) fn for_device(
        &self,
        device: &DeviceInfo,
        reaches_gpus: impl FnOnce() -> bool,
    ) -> conn::CommSettings {
        let mut conn = self.for_port(device.link_layer);
        conn.flush = self.flush.unwrap_or_else(|| !self.gpu.flush.disable && reaches_gpus());
        conn
    }

    /// Returns whether a device's network routes adaptively (`NCCL_IB_ADAPTIVE_ROUTING`, or
    /// [`Settings::adaptive_routing`]). By default InfiniBand does. On the wire of NCCL 2.14 each network
    /// does, since NCCL 2.14 looks only at `NCCL_IB_AR_THRESHOLD`.
    pub fn routes_adaptively(&self, device: &DeviceInfo) -> bool {
        self.is_adaptive(device.link_layer)
    }

    fn is_adaptive(&self, link_layer: LinkLayer) -> bool {
        let by_default =
            link_layer == LinkLayer::Infiniband || self.conn.wire == conn::Wire::Nccl214;
        self.adaptive_routing.unwrap_or(by_default)
    }

    /// Returns the settings for a port of this link layer.
    pub(super) fn for_port(&self, link_layer: LinkLayer) -> conn::CommSettings {
        let mut conn = self.conn;
        // If the network keeps packets in order, one WRITE_WITH_IMM suffices.
        let apart = self.is_adaptive(link_layer);
        conn.ar_threshold_bytes = if apart { self.ar_threshold_bytes } else { u32::MAX };
        conn
    }

    /// Returns the UDP ports from which a software NIC takes one. The wire of NCCL 2.14 does not tell
    /// peers the port, so there the default is [`ROCE_UDP_PORT`].
    pub fn udp_ports(&self) -> PortRange {
        match self.conn.wire {
            conn::Wire::Nccl214 if self.soft_ports.is_any() => PortRange::only(ROCE_UDP_PORT),
            _ => self.soft_ports,
        }
    }

    /// Returns the TCP ports from which a listener takes one, as [`Hub::listen`](crate::Hub::listen)
    /// needs them.
    pub fn tcp_ports(&self) -> PortRange {
        self.listen_ports
    }

    /// Shows metrics from now on, if `INVAR_METRICS` asks for that.
    pub(crate) fn show_metrics(&self) {
        self.metrics.iter().for_each(metrics::start);
    }

    /// Returns an error if the device belongs to another transport than `INVAR_TRANSPORT` asks for.
    /// Also returns an error if peers can't find the device (`INVAR_WIRE`).
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), Error> {
        self.usable()?;
        self.log_remarks();
        self.show_metrics();
        let DeviceInfo { name, kind, .. } = device;
        if !self.takes(*kind) {
            let asked = self.transport.as_str();
            let text = format!(
                "INVAR_TRANSPORT={asked}: {name} is a device of transport {kind}; open a device of \
                 transport {asked} (`invar devices` lists them), or unset INVAR_TRANSPORT"
            );
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
