//! What a program sets: a method for each variable, and for what has no variable.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use invar_core::auth::Secret;
use invar_core::conn::{self, PacketAuth};
use invar_core::device::PciDistance;
use invar_core::param::{AddressFamily, LogLevel, PortRange, Subnet, TransportChoice, Wire};

use super::{Settings, remarks};

/// Versions of RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceVersion {
    /// RoCEv1: Ethernet frames.
    V1,
    /// RoCEv2: UDP packets.
    V2,
}

/// PCIe relaxed ordering of user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaxedOrdering {
    /// No memory has it.
    Never,
    /// All memory has it; a driver without it refuses the memory.
    Always,
    /// All memory has it where the driver does.
    IfSupported,
}

/// RDMA devices.
impl Settings {
    /// Whether RDMA devices are used at all (`NCCL_IB_DISABLE`).
    #[must_use]
    pub fn rdma(self, on: bool) -> Self {
        self.flag("NCCL_IB_DISABLE", !on)
    }

    /// Names of the RDMA devices and ports to use, as `mlx5_0,mlx5_1:1` (`NCCL_IB_HCA`). `^` before the
    /// list takes all but these; `=` takes exact names only; an empty list takes all.
    #[must_use]
    pub fn rdma_devices(self, list: &str) -> Self {
        self.with("NCCL_IB_HCA", list)
    }

    /// Index of the local GID on RoCE (`NCCL_IB_GID_INDEX`).
    #[must_use]
    pub fn gid_index(self, index: u8) -> Self {
        self.with("NCCL_IB_GID_INDEX", index)
    }

    /// Version of RoCE that a GID must have to be picked (`NCCL_IB_ROCE_VERSION_NUM`).
    #[must_use]
    pub fn roce_version(self, version: RoceVersion) -> Self {
        let number = match version {
            RoceVersion::V1 => 1,
            RoceVersion::V2 => 2,
        };
        self.with("NCCL_IB_ROCE_VERSION_NUM", number)
    }

    /// Address family that a GID must have to be picked (`NCCL_IB_ADDR_FAMILY`).
    #[must_use]
    pub fn gid_family(self, family: AddressFamily) -> Self {
        self.with("NCCL_IB_ADDR_FAMILY", family.as_str())
    }

    /// Subnet that a GID must be in to be picked (`NCCL_IB_ADDR_RANGE`).
    #[must_use]
    pub fn gid_subnet(self, subnet: Subnet) -> Self {
        self.with("NCCL_IB_ADDR_RANGE", subnet)
    }

    /// Time that a NIC waits for an acknowledge before it sends a packet again (`NCCL_IB_TIMEOUT`).
    /// Devices have 31 times, 4.096 µs × 2^n: the next longer one holds. Beyond 2.4 hours a NIC waits
    /// for ever.
    #[must_use]
    pub fn ack_timeout(self, timeout: Duration) -> Self {
        let reaches = |exponent: &u32| (4096_u128 << exponent) >= timeout.as_nanos();
        self.with("NCCL_IB_TIMEOUT", (1..=31).find(reaches).unwrap_or(0))
    }

    /// How often a NIC sends a packet again before the connection fails, 0 to 7
    /// (`NCCL_IB_RETRY_CNT`).
    #[must_use]
    pub fn retry_count(self, retries: u8) -> Self {
        self.with("NCCL_IB_RETRY_CNT", retries)
    }

    /// Index of the partition key (`NCCL_IB_PKEY`).
    #[must_use]
    pub fn pkey_index(self, index: u16) -> Self {
        self.with("NCCL_IB_PKEY", index)
    }

    /// Whether FIFO slots go inline in the work request (`NCCL_IB_USE_INLINE`).
    #[must_use]
    pub fn inline_slots(self, on: bool) -> Self {
        self.flag("NCCL_IB_USE_INLINE", on)
    }

    /// Service level on InfiniBand, 0 to 15 (`NCCL_IB_SL`).
    #[must_use]
    pub fn service_level(self, level: u8) -> Self {
        self.with("NCCL_IB_SL", level)
    }

    /// IP type of service of a RoCE connection: DSCP × 4 + ECN (`NCCL_IB_TC`).
    #[must_use]
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        self.with("NCCL_IB_TC", traffic_class)
    }

    /// Queue pairs of a connection, 1 to 128; each message is split over them
    /// (`NCCL_IB_QPS_PER_CONNECTION`).
    #[must_use]
    pub fn qps(self, qps: u16) -> Self {
        self.with("NCCL_IB_QPS_PER_CONNECTION", qps)
    }

    /// Whether the network routes adaptively (`NCCL_IB_ADAPTIVE_ROUTING`): then the data of a long
    /// message goes apart from its immediate.
    #[must_use]
    pub fn adaptive_routing(self, on: bool) -> Self {
        self.flag("NCCL_IB_ADAPTIVE_ROUTING", on)
    }

    /// Length above which a message is long, where the network routes adaptively
    /// (`NCCL_IB_AR_THRESHOLD`).
    #[must_use]
    pub fn adaptive_routing_threshold(self, bytes: usize) -> Self {
        self.with("NCCL_IB_AR_THRESHOLD", bytes)
    }

    /// Whether the drivers of both ends may agree on features beyond the verbs
    /// (`NCCL_IB_ECE_ENABLE`).
    #[must_use]
    pub fn ece(self, on: bool) -> Self {
        self.flag("NCCL_IB_ECE_ENABLE", on)
    }

    /// Whether memory has PCIe relaxed ordering (`NCCL_IB_PCI_RELAXED_ORDERING`).
    #[must_use]
    pub fn relaxed_ordering(self, ordering: RelaxedOrdering) -> Self {
        let number = match ordering {
            RelaxedOrdering::Never => 0,
            RelaxedOrdering::Always => 1,
            RelaxedOrdering::IfSupported => 2,
        };
        self.with("NCCL_IB_PCI_RELAXED_ORDERING", number)
    }
}

/// GPU memory.
impl Settings {
    /// How far apart GPU and NIC may be for the NIC to reach the GPU's memory
    /// (`NCCL_NET_GDR_LEVEL`); [`PciDistance::Loc`] is never.
    #[must_use]
    pub fn gpu_distance(self, most: PciDistance) -> Self {
        self.with("NCCL_NET_GDR_LEVEL", most)
    }

    /// Whether GPU memory may be registered as a DMA-BUF (`NCCL_DMABUF_ENABLE`).
    #[must_use]
    pub fn dma_buf(self, on: bool) -> Self {
        self.flag("NCCL_DMABUF_ENABLE", on)
    }

    /// Whether received GPU memory is flushed where the GPU needs it (`NCCL_GDR_FLUSH_DISABLE`).
    #[must_use]
    pub fn gpu_flush(self, on: bool) -> Self {
        self.flag("NCCL_GDR_FLUSH_DISABLE", !on)
    }

    /// Whether received GPU memory is flushed even where the GPU does not need it
    /// (`NCCL_NET_FORCE_FLUSH`).
    #[must_use]
    pub fn force_gpu_flush(self, on: bool) -> Self {
        self.flag("NCCL_NET_FORCE_FLUSH", on)
    }

    /// Whether [`RecvComm::iflush`](crate::RecvComm::iflush) reads back through the NIC. Host
    /// memory does not need it. Otherwise it does where the device could reach GPUs, unless
    /// `NCCL_GDR_FLUSH_DISABLE` is set.
    #[must_use]
    pub fn flush(mut self, on: bool) -> Self {
        self.flush = Some(on);
        self
    }

    /// Length of the pieces in which GPU memory goes through host memory, a power of two
    /// (`INVAR_STAGING_CHUNK_BYTES`). Both ends need the same.
    #[must_use]
    pub fn staging_chunk_bytes(self, bytes: usize) -> Self {
        self.with("INVAR_STAGING_CHUNK_BYTES", bytes)
    }

    /// Such pieces at each end of a connection, 2 to 32 (`INVAR_STAGING_SLOTS`).
    #[must_use]
    pub fn staging_slots(self, slots: usize) -> Self {
        self.with("INVAR_STAGING_SLOTS", slots)
    }

    /// Host memory that all connections of the process together may pin for such pieces
    /// (`INVAR_STAGING_BYTES`); 0 forbids staging.
    #[must_use]
    pub fn staging_bytes(self, bytes: usize) -> Self {
        self.with("INVAR_STAGING_BYTES", bytes)
    }

    /// Folder in which the kernel describes devices (`INVAR_SYSFS`).
    #[must_use]
    pub fn sysfs(self, folder: &Path) -> Self {
        self.with("INVAR_SYSFS", folder.display())
    }
}

/// TCP.
impl Settings {
    /// Names of the network interfaces to use, a list as for [`Settings::rdma_devices`]
    /// (`NCCL_SOCKET_IFNAME`).
    #[must_use]
    pub fn interfaces(self, list: &str) -> Self {
        self.with("NCCL_SOCKET_IFNAME", list)
    }

    /// Address family that an interface must have (`NCCL_SOCKET_FAMILY`).
    #[must_use]
    pub fn address_family(self, family: AddressFamily) -> Self {
        self.with("NCCL_SOCKET_FAMILY", family.as_str())
    }

    /// Helper threads of each connection over TCP (`NCCL_SOCKET_NTHREADS`).
    #[must_use]
    pub fn socket_threads(self, threads: usize) -> Self {
        self.with("NCCL_SOCKET_NTHREADS", threads)
    }

    /// Sockets of each helper thread (`NCCL_NSOCKS_PERTHREAD`).
    #[must_use]
    pub fn sockets_per_thread(self, sockets: usize) -> Self {
        self.with("NCCL_NSOCKS_PERTHREAD", sockets)
    }

    /// Congestion control of connections over TCP, by its name in the kernel
    /// (`INVAR_SOCKET_CONGESTION`).
    #[must_use]
    pub fn congestion_control(self, name: &str) -> Self {
        self.with("INVAR_SOCKET_CONGESTION", name)
    }

    /// TCP ports from which a listener takes one (`INVAR_PORT_RANGE`).
    #[must_use]
    pub fn listen_ports(self, ports: PortRange) -> Self {
        self.with("INVAR_PORT_RANGE", ports)
    }
}

/// The software NIC.
impl Settings {
    /// Whether packets may be longer than RoCE's path MTUs (`INVAR_LONG_MTU`).
    #[must_use]
    pub fn long_packets(self, on: bool) -> Self {
        self.flag("INVAR_LONG_MTU", on)
    }

    /// UDP ports from which a software NIC takes one (`INVAR_SOFT_PORT`).
    #[must_use]
    pub fn soft_ports(self, ports: PortRange) -> Self {
        self.with("INVAR_SOFT_PORT", ports)
    }

    /// Whether software NICs authenticate packets (`INVAR_SOFT_AUTH`). With [`PacketAuth::Always`]
    /// peers that do not are refused.
    #[must_use]
    pub fn soft_auth(self, auth: PacketAuth) -> Self {
        let number = match auth {
            PacketAuth::Network => -2,
            PacketAuth::Off => 0,
            PacketAuth::Always => 1,
        };
        self.with("INVAR_SOFT_AUTH", number)
    }
}

/// Connections over any device.
impl Settings {
    /// Transport to use (`INVAR_TRANSPORT`).
    #[must_use]
    pub fn use_transport(self, transport: TransportChoice) -> Self {
        self.with("INVAR_TRANSPORT", transport.as_str())
    }

    /// Protocol between NICs, the same at both ends (`INVAR_WIRE`).
    #[must_use]
    pub fn use_wire(self, wire: conn::Wire) -> Self {
        let word = match wire {
            conn::Wire::Invar => Wire::Invar,
            conn::Wire::Nccl214 => Wire::Nccl214,
        };
        let mut settings = self.with("INVAR_WIRE", word.as_str());
        settings.remarks.extend(remarks::on(wire));
        settings
    }

    /// Requests that may be pending on a connection, a power of two up to 256 (`INVAR_FIFO_DEPTH`).
    #[must_use]
    pub fn fifo_depth(self, fifo_depth: u16) -> Self {
        self.with("INVAR_FIFO_DEPTH", fifo_depth)
    }

    /// Time in which a connection must come about, in steps of a millisecond
    /// (`INVAR_CONNECT_TIMEOUT_MS`).
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with("INVAR_CONNECT_TIMEOUT_MS", milliseconds(timeout))
    }

    /// Whether a send longer than its receive is cut to it, rather than refused.
    #[must_use]
    pub fn truncate(mut self, on: bool) -> Self {
        self.conn.truncate = on;
        self
    }

    /// A key that both ends share beside the handle. Others may then read the handle: it lets nobody
    /// in who does not know the key. On the wire of NCCL 2.14 it has no meaning.
    #[must_use]
    pub fn key(mut self, key: Secret) -> Self {
        self.conn.key = Some(key);
        self
    }

    /// The most detailed level of messages that are logged (`INVAR_LOG`), for a program that asks
    /// [`Settings::log_level`].
    #[must_use]
    pub fn log_up_to(self, level: LogLevel) -> Self {
        self.with("INVAR_LOG", level.as_str())
    }
}

/// Communicators.
impl Settings {
    /// Whether ranks of one host exchange data through memory that they share (`NCCL_SHM_DISABLE`).
    #[must_use]
    pub fn shared_memory(self, on: bool) -> Self {
        self.flag("NCCL_SHM_DISABLE", !on)
    }

    /// The device, by its name in `invar devices`, over which a communicator reaches ranks that it
    /// shares no memory with. Without one it takes every RDMA device with a link, else the software
    /// NIC, or TCP, on the way to the rendezvous.
    #[must_use]
    pub fn communicator_nic(mut self, name: &str) -> Self {
        self.coll_nic = Some(name.to_owned());
        self
    }

    /// Length of the chunks in which a message goes from one rank to another; 0 is a slot's length
    /// (`NCCL_CHUNK_SIZE`). All ranks need the same.
    #[must_use]
    pub fn message_chunk_bytes(self, bytes: usize) -> Self {
        self.with("NCCL_CHUNK_SIZE", bytes)
    }

    /// Time that a rank waits in a collective for one that does not do its part
    /// (`INVAR_COLL_TIMEOUT_MS`).
    #[must_use]
    pub fn collective_timeout(self, timeout: Duration) -> Self {
        self.with("INVAR_COLL_TIMEOUT_MS", milliseconds(timeout))
    }

    /// Operations that a progress thread takes over at a time (`NCCL_PROXY_APPEND_BATCH_SIZE`).
    #[must_use]
    pub fn proxy_batch(self, operations: usize) -> Self {
        self.with("NCCL_PROXY_APPEND_BATCH_SIZE", operations)
    }

    /// Rounds of progress between looking for new operations (`NCCL_PROGRESS_APPENDOP_FREQ`).
    #[must_use]
    pub fn proxy_rounds(self, rounds: usize) -> Self {
        self.with("NCCL_PROGRESS_APPENDOP_FREQ", rounds)
    }

    /// File into which each rank writes a trace of its proxy (`INVAR_PROXY_TRACE`), from the root;
    /// `%r` stands for the rank.
    #[must_use]
    pub fn proxy_trace(self, file: &Path) -> Self {
        self.with("INVAR_PROXY_TRACE", file.display())
    }

    /// Signal on which ranks print their pending operations, 1 to 64 (`NCCL_PROXY_DUMP_SIGNAL`).
    #[must_use]
    pub fn dump_on_signal(self, signal: u8) -> Self {
        self.with("NCCL_PROXY_DUMP_SIGNAL", signal)
    }

    /// Sets a variable that is 0 or 1.
    fn flag(self, name: &'static str, on: bool) -> Self {
        self.with(name, u8::from(on))
    }
}

/// At least as long as the time.
fn milliseconds(time: Duration) -> impl fmt::Display {
    time.as_nanos().div_ceil(1_000_000).max(1)
}
