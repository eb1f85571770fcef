//! The methods with which a program sets variables, and settings that have no variable.

mod communicators;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use invar_core::auth::Secret;
use invar_core::conn::{self, PacketAuth};
use invar_core::device::PciDistance;
use invar_core::param::{
    AddressFamily, LogFormat, LogLevel, MetricsPlace, NcclDebug, PortRange, Subnet,
    TransportChoice, Wire,
};
use invar_core::stall::FlightRecorder;

use super::{Settings, remarks};

/// A version of RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceVersion {
    /// RoCEv1: Ethernet frames.
    V1,
    /// RoCEv2: UDP packets.
    V2,
}

/// The memory of the program that the device accesses with PCIe relaxed ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaxedOrdering {
    /// No memory has relaxed ordering.
    Never,
    /// All memory has relaxed ordering; a driver that does not support it refuses the memory.
    Always,
    /// All memory has relaxed ordering if the driver supports it.
    IfSupported,
}

/// Settings of RDMA devices.
impl Settings {
    /// Sets whether connections use RDMA devices at all (`NCCL_IB_DISABLE`).
    pub fn rdma(self, on: bool) -> Self {
        self.flag("NCCL_IB_DISABLE", !on)
    }

    /// Sets the names of the RDMA devices and ports to use, as `mlx5_0,mlx5_1:1` (`NCCL_IB_HCA`). A
    /// list that begins with `^` excludes its devices; `=` matches exact names only. An empty list
    /// allows all devices.
    pub fn rdma_devices(self, list: &str) -> Self {
        self.with("NCCL_IB_HCA", list)
    }

    /// Sets the index of the local GID on RoCE (`NCCL_IB_GID_INDEX`).
    pub fn gid_index(self, index: u8) -> Self {
        self.with("NCCL_IB_GID_INDEX", index)
    }

    /// Sets the version of RoCE that a GID must have to be picked (`NCCL_IB_ROCE_VERSION_NUM`).
    pub fn roce_version(self, version: RoceVersion) -> Self {
        let number = match version {
            RoceVersion::V1 => 1,
            RoceVersion::V2 => 2,
        };
        self.with("NCCL_IB_ROCE_VERSION_NUM", number)
    }

    /// Sets the address family that a GID must have to be picked (`NCCL_IB_ADDR_FAMILY`).
    pub fn gid_family(self, family: AddressFamily) -> Self {
        self.with("NCCL_IB_ADDR_FAMILY", family.as_str())
    }

    /// Sets the subnet that a GID must be in to be picked (`NCCL_IB_ADDR_RANGE`).
    pub fn gid_subnet(self, subnet: Subnet) -> Self {
        self.with("NCCL_IB_ADDR_RANGE", subnet)
    }

    /// Sets the time that a NIC waits for an acknowledge before it sends a packet again
    /// (`NCCL_IB_TIMEOUT`). Devices have 31 times, 4.096 µs × 2^n; the next longer time applies. For a
    /// time beyond 2.4 hours a NIC waits for ever.
    pub fn ack_timeout(self, timeout: Duration) -> Self {
        let reaches = |exponent: &u32| (4096_u128 << exponent) >= timeout.as_nanos();
        self.with("NCCL_IB_TIMEOUT", (1..=31).find(reaches).unwrap_or(0))
    }

    /// Sets how often a NIC sends a packet again before the connection fails, 0 to 7
    /// (`NCCL_IB_RETRY_CNT`).
    pub fn retry_count(self, retries: u8) -> Self {
        self.with("NCCL_IB_RETRY_CNT", retries)
    }

    /// Sets the index of the partition key (`NCCL_IB_PKEY`).
    pub fn pkey_index(self, index: u16) -> Self {
        self.with("NCCL_IB_PKEY", index)
    }

    /// Sets whether the work request carries FIFO slots inline (`NCCL_IB_USE_INLINE`).
    pub fn inline_slots(self, on: bool) -> Self {
        self.flag("NCCL_IB_USE_INLINE", on)
    }

    /// Sets the service level on InfiniBand, 0 to 15 (`NCCL_IB_SL`).
    pub fn service_level(self, level: u8) -> Self {
        self.with("NCCL_IB_SL", level)
    }

    /// Sets the IP type of service of a RoCE connection: DSCP × 4 + ECN (`NCCL_IB_TC`).
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        self.with("NCCL_IB_TC", traffic_class)
    }

    /// Sets the number of queue pairs of a connection, 1 to 128 (`NCCL_IB_QPS_PER_CONNECTION`). Each
    /// message is split over them.
    pub fn qps(self, qps: u16) -> Self {
        self.with("NCCL_IB_QPS_PER_CONNECTION", qps)
    }

    /// Sets whether the network routes adaptively (`NCCL_IB_ADAPTIVE_ROUTING`). If it does, the data of
    /// a long message is sent apart from its immediate.
    pub fn adaptive_routing(self, on: bool) -> Self {
        self.flag("NCCL_IB_ADAPTIVE_ROUTING", on)
    }

    /// Sets the length above which a message is long, if the network routes adaptively
    /// (`NCCL_IB_AR_THRESHOLD`).
    pub fn adaptive_routing_threshold(self, bytes: usize) -> Self {
        self.with("NCCL_IB_AR_THRESHOLD", bytes)
    }

    /// Sets whether the drivers of both ends may agree on features beyond the verbs
    /// (`NCCL_IB_ECE_ENABLE`).
    pub fn ece(self, on: bool) -> Self {
        self.flag("NCCL_IB_ECE_ENABLE", on)
    }

    /// Sets whether NCCL may join ports to one device, whose connections run over all of them
    /// (`NCCL_IB_MERGE_NICS`).
    pub fn merge_nics(self, on: bool) -> Self {
        self.flag("NCCL_IB_MERGE_NICS", on)
    }

    /// Sets whether all functions of a PCI bus, virtual ones too, count as one card (`NCCL_IB_MERGE_VFS`).
    /// Otherwise only functions of one PCI device do. NCCL joins ports of one card.
    pub fn merge_vfs(self, on: bool) -> Self {
        self.flag("NCCL_IB_MERGE_VFS", on)
    }

    /// Sets whether memory has PCIe relaxed ordering (`NCCL_IB_PCI_RELAXED_ORDERING`).
    pub fn relaxed_ordering(self, ordering: RelaxedOrdering) -> Self {
        let number = match ordering {
            RelaxedOrdering::Never => 0,
            RelaxedOrdering::Always => 1,
            RelaxedOrdering::IfSupported => 2,
        };
        self.with("NCCL_IB_PCI_RELAXED_ORDERING", number)
    }
}

/// Settings of GPU memory.
impl Settings {
    /// Sets how far apart GPU and NIC may be for the NIC to access the GPU's memory directly
    /// (`NCCL_NET_GDR_LEVEL`). [`PciDistance::Loc`] means never.
    pub fn gpu_distance(self, most: PciDistance) -> Self {
        self.with("NCCL_NET_GDR_LEVEL", most)
    }

    /// Sets whether GPU memory may be registered as a DMA-BUF (`NCCL_DMABUF_ENABLE`).
    pub fn dma_buf(self, on: bool) -> Self {
        self.flag("NCCL_DMABUF_ENABLE", on)
    }

    /// Sets whether received GPU memory is flushed if the GPU needs it (`NCCL_GDR_FLUSH_DISABLE`).
    pub fn gpu_flush(self, on: bool) -> Self {
        self.flag("NCCL_GDR_FLUSH_DISABLE", !on)
    }

    /// Sets whether received GPU memory is flushed even if the GPU does not need it
    /// (`NCCL_NET_FORCE_FLUSH`).
    pub fn force_gpu_flush(self, on: bool) -> Self {
        self.flag("NCCL_NET_FORCE_FLUSH", on)
    }

    /// Sets whether [`RecvComm::iflush`](crate::RecvComm::iflush) reads back through the NIC. Host
    /// memory does not need this. By default `iflush` reads back if the device could reach GPUs, unless
    /// `NCCL_GDR_FLUSH_DISABLE` is set.
    pub fn flush(mut self, on: bool) -> Self {
        self.flush = Some(on);
        self
    }

    /// Sets the length of the chunks in which GPU memory goes through host memory, a power of two
    /// (`INVAR_STAGING_CHUNK_BYTES`). Both ends need the same length.
    pub fn staging_chunk_bytes(self, bytes: usize) -> Self {
        self.with("INVAR_STAGING_CHUNK_BYTES", bytes)
    }

    /// Sets the number of staging chunks at each end of a connection, 2 to 32 (`INVAR_STAGING_SLOTS`).
    pub fn staging_slots(self, slots: usize) -> Self {
        self.with("INVAR_STAGING_SLOTS", slots)
    }

    /// Sets the host memory that all connections of the process, and collNet, together may pin for staging
    /// (`INVAR_STAGING_BYTES`); 0 forbids staging.
    pub fn staging_bytes(self, bytes: usize) -> Self {
        self.with("INVAR_STAGING_BYTES", bytes)
    }

    /// Sets the folder in which the kernel describes devices (`INVAR_SYSFS`).
    pub fn sysfs(self, folder: &Path) -> Self {
        self.with("INVAR_SYSFS", folder.display())
    }
}

/// Settings of connections over TCP.
impl Settings {
    /// Sets the names of the network interfaces to use, a list as for [`Settings::rdma_devices`]
    /// (`NCCL_SOCKET_IFNAME`).
    pub fn interfaces(self, list: &str) -> Self {
        self.with("NCCL_SOCKET_IFNAME", list)
    }

    /// Sets the address of rank 0, as NCCL takes it. Unless names are set with [`Settings::interfaces`], the
    /// interface in its subnet is used (`NCCL_COMM_ID`).
    pub fn comm_id(self, host_port: &str) -> Self {
        self.with("NCCL_COMM_ID", host_port)
    }

    /// Sets the address family that an interface must have (`NCCL_SOCKET_FAMILY`).
    pub fn address_family(self, family: AddressFamily) -> Self {
        self.with("NCCL_SOCKET_FAMILY", family.as_str())
    }

    /// Sets the number of helper threads of each connection over TCP (`NCCL_SOCKET_NTHREADS`).
    pub fn socket_threads(self, threads: usize) -> Self {
        self.with("NCCL_SOCKET_NTHREADS", threads)
    }

    /// Sets the number of sockets of each helper thread (`NCCL_NSOCKS_PERTHREAD`).
    pub fn sockets_per_thread(self, sockets: usize) -> Self {
        self.with("NCCL_NSOCKS_PERTHREAD", sockets)
    }

    /// Sets the congestion control of connections over TCP, by its name in the kernel
    /// (`INVAR_SOCKET_CONGESTION`).
    pub fn congestion_control(self, name: &str) -> Self {
        self.with("INVAR_SOCKET_CONGESTION", name)
    }

    /// Sets the TCP ports from which a listener takes one (`INVAR_PORT_RANGE`).
    pub fn listen_ports(self, ports: PortRange) -> Self {
        self.with("INVAR_PORT_RANGE", ports)
    }
}

/// Settings of the software NIC.
impl Settings {
    /// Sets whether packets may be longer than RoCE's path MTUs (`INVAR_LONG_MTU`).
    pub fn long_packets(self, on: bool) -> Self {
        self.flag("INVAR_LONG_MTU", on)
    }

    /// Sets the software NICs to list, and their order: names of interfaces or devices, as `eth1,eth0`
    /// (`INVAR_SOFT_DEVICES`). Empty text lists all.
    pub fn soft_devices(self, list: &str) -> Self {
        self.with("INVAR_SOFT_DEVICES", list)
    }

    /// Sets the UDP ports from which a software NIC takes one (`INVAR_SOFT_PORT`).
    pub fn soft_ports(self, ports: PortRange) -> Self {
        self.with("INVAR_SOFT_PORT", ports)
    }

    /// Sets whether software NICs authenticate packets (`INVAR_SOFT_AUTH`). With [`PacketAuth::Always`]
    /// this end refuses peers that do not authenticate packets.
    pub fn soft_auth(self, auth: PacketAuth) -> Self {
        let number = match auth {
            PacketAuth::Network => -2,
            PacketAuth::Off => 0,
            PacketAuth::Always => 1,
        };
        self.with("INVAR_SOFT_AUTH", number)
    }
}

/// Settings of connections over any device.
impl Settings {
    /// Sets the transport to use (`INVAR_TRANSPORT`).
    pub fn use_transport(self, transport: TransportChoice) -> Self {
        self.with("INVAR_TRANSPORT", transport.as_str())
    }

    /// Sets the protocol between NICs, which must be the same at both ends (`INVAR_WIRE`).
    pub fn use_wire(self, wire: conn::Wire) -> Self {
        let word = match wire {
            conn::Wire::Invar => Wire::Invar,
            conn::Wire::Nccl214 => Wire::Nccl214,
        };
        let mut settings = self.with("INVAR_WIRE", word.as_str());
        settings.remarks.extend(remarks::on(wire));
        settings
    }

    /// Sets the number of requests that may be pending on a connection, a power of two from 8 to 256
    /// (`INVAR_FIFO_DEPTH`).
    pub fn fifo_depth(self, fifo_depth: u16) -> Self {
        self.with("INVAR_FIFO_DEPTH", fifo_depth)
    }

    /// Sets the time limit for making a connection, in whole milliseconds (`INVAR_CONNECT_TIMEOUT_MS`).
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with("INVAR_CONNECT_TIMEOUT_MS", milliseconds(timeout))
    }

    /// Sets for how long a connection whose queue pairs or sockets fail tries to make new ones, in whole milliseconds
    /// (`INVAR_RECOVERY_TIMEOUT_MS`). With zero the first failure ends the connection, and TCP drops a silent host
    /// after 25 s.
    pub fn recovery_timeout(self, timeout: Duration) -> Self {
        self.with("INVAR_RECOVERY_TIMEOUT_MS", timeout.as_nanos().div_ceil(1_000_000))
    }

    /// Sets after which time without progress a connection suspects its queue pairs, in whole milliseconds
    /// (`INVAR_SUSPECT_AFTER_MS`). With zero only the device's own reports count.
    pub fn suspect_after(self, time: Duration) -> Self {
        self.with("INVAR_SUSPECT_AFTER_MS", time.as_nanos().div_ceil(1_000_000))
    }

    /// Sets how long a wait spins at most before it sleeps, in whole microseconds (`INVAR_SPIN_US`).
    pub fn spin_for(self, time: Duration) -> Self {
        self.with("INVAR_SPIN_US", time.as_micros())
    }

    /// Sets whether the program sleeps while it waits, which is the default. A program that only polls sets
    /// `false`. A connection over an RDMA device then needs one file descriptor less. Calls that wait then
    /// poll from time to time, because no descriptor wakes them.
    pub fn sleeps(mut self, on: bool) -> Self {
        self.sleeps = on;
        self
    }

    /// Sets after how long a connection or a collective that stands still is reported, in whole
    /// milliseconds (`INVAR_STALL_MS`). With zero it is never reported.
    pub fn stall_after(self, time: Duration) -> Self {
        self.with("INVAR_STALL_MS", time.as_nanos().div_ceil(1_000_000))
    }

    /// Sets what the flight recorder keeps (`INVAR_RECORDER`). By default it keeps events.
    pub fn recorder(self, recorder: FlightRecorder) -> Self {
        self.with("INVAR_RECORDER", recorder as u8)
    }

    /// Shows the metrics of this user's processes for Prometheus (`INVAR_METRICS`). Only the first place
    /// of a process counts.
    pub fn metrics(self, place: MetricsPlace<'_>) -> Self {
        self.with("INVAR_METRICS", place)
    }

    /// Sets whether a send that is longer than its receive is truncated rather than refused.
    pub fn truncate(mut self, on: bool) -> Self {
        self.conn.truncate = on;
        self
    }

    /// Says that the program judges its own waits, as the ranks of a communicator do. Connections then
    /// report only stalls for which neither end's program is at fault.
    pub(crate) fn judging_waits(mut self) -> Self {
        self.conn.stall.is_judged_above = true;
        self
    }

    /// Sets the devices that work together, as `mlx5_0+mlx5_1` (`INVAR_RAILS`). Each connection of such a
    /// device runs over all its ports, and goes on while one of them works. Ports after a `/` are standby: they
    /// carry data only while no other port works.
    pub fn rails(self, groups: &str) -> Self {
        self.with("INVAR_RAILS", groups)
    }

    /// Sets a key that both ends share in addition to the handle. Others may then read the handle,
    /// because nobody can connect without the key. On the wire of NCCL 2.14 the key has no effect.
    pub fn key(mut self, key: Secret) -> Self {
        self.conn.key = Some(key);
        self
    }

    /// Sets how a line of the log looks (`INVAR_LOG_FORMAT`), for a program that follows
    /// [`Settings::log_format`].
    pub fn log_as(self, format: LogFormat) -> Self {
        self.with("INVAR_LOG_FORMAT", format.as_str())
    }

    /// Sets the level of the log in NCCL's words (`NCCL_DEBUG`). [`Settings::log_up_to`] wins over it.
    pub fn nccl_debug(self, level: NcclDebug) -> Self {
        self.with("NCCL_DEBUG", level.as_str())
    }

    /// Sets NCCL's subsystems whose messages are logged (`NCCL_DEBUG_SUBSYS`), for a program that follows
    /// [`Settings::log_filter`].
    pub fn nccl_debug_subsystems(self, list: &str) -> Self {
        self.with("NCCL_DEBUG_SUBSYS", list)
    }

    /// Sets the most detailed level of messages to log (`INVAR_LOG`), for a program that asks
    /// [`Settings::log_level`].
    pub fn log_up_to(self, level: LogLevel) -> Self {
        self.with("INVAR_LOG", level.as_str())
    }
}

impl Settings {
    /// Sets a variable to 0 or 1.
    fn flag(self, name: &'static str, on: bool) -> Self {
        self.with(name, u8::from(on))
    }
}

/// Displays the time in milliseconds, rounded up, at least 1.
fn milliseconds(time: Duration) -> impl fmt::Display {
    time.as_nanos().div_ceil(1_000_000).max(1)
}
