//! Every variable that Invar reads, in one table.
//!
//! Each row below becomes a field of [`Params`], an entry of [`TABLE`] and its parser. A default goes
//! through the same parser as a value that the user sets. NCCL's variables keep NCCL's names. Where
//! a default is not that of NCCL 2.14.3, the row says so under `differs`.
//!
//! The parser, the warning about unknown names, `docs/settings.md` and `invar settings` all read
//! [`TABLE`]. Variables of Invar's own tests and benchmarks are not in it.
//!
//! Where the text comes from (environment, a file) is the host's business: [`Params::from_lookup`]
//! asks for it by name. As in NCCL, an empty value is no value, and numbers may be written in
//! decimal, octal (`017`) or hexadecimal (`0x1f`). Unlike NCCL, which takes the default or the
//! leading digits in silence, anything else is an error.

mod choice;
mod metrics;
mod nccl;
mod nccl_debug;
mod ports;
mod subnet;
mod value;

#[cfg(test)]
mod tests;

pub use choice::{AddressFamily, LogFormat, LogLevel, TransportChoice, Wire};
pub use metrics::MetricsPlace;
pub use nccl::NCCL_ONLY;
pub use nccl_debug::NcclDebug;
pub use ports::PortRange;
pub use subnet::Subnet;
pub use value::Allowed;

use core::fmt;

use crate::device::{NameFilter, PciDistance};
use crate::stall::FlightRecorder;
use choice::GDR_LEVELS;
use value::Value;

/// A row of the table: one variable.
#[derive(Clone, Copy, Debug)]
pub struct ParamInfo {
    /// Name of the variable in the environment.
    pub name: &'static str,
    /// The value of an unset variable, as a user would write it.
    pub default: &'static str,
    /// The values that the parser takes.
    pub allowed: Allowed,
    /// The unit of a number; empty where the value is a switch, a word or a list.
    pub unit: &'static str,
    /// The programs of Invar that read the variable.
    pub readers: Readers,
    /// A sentence that says what the variable does.
    pub meaning: &'static str,
    /// How and why the default differs from NCCL 2.14.3's; empty where it does not.
    pub differs: &'static str,
}

impl ParamInfo {
    /// The value in force, given what the variable is set to. An empty value counts as unset.
    pub fn in_force<'a>(&self, set: Option<&'a str>) -> &'a str {
        set.filter(|text| !text.is_empty()).unwrap_or(self.default)
    }
}

/// The programs of Invar that read a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The plugin, programs that link the library, and the command.
    All,
    /// The plugin alone.
    Plugin,
    /// Programs that link the library, and the command; NCCL does this work itself.
    Library,
    /// Programs that link the library and run a proxy.
    Proxy,
}

impl fmt::Display for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Readers::All => "plugin, library, command",
            Readers::Plugin => "plugin",
            Readers::Library => "library, command",
            Readers::Proxy => "library",
        })
    }
}

/// A variable is set to something that it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: must be {allowed}")]
pub struct ParamError<'a> {
    /// Name of the variable in the environment.
    pub name: &'static str,
    /// The value that it was set to.
    pub value: &'a str,
    /// The values that it may have.
    pub allowed: Allowed,
}

macro_rules! params {
    ($(
        $(#[doc = $meaning:literal])+
        $name:ident => $field:ident: $type:ty = $default:literal, $allowed:expr
            $(, unit: $unit:literal)? $(, readers: $readers:ident)? $(, differs: $differs:literal)?;
    )+) => {
        /// Every parameter, parsed. It borrows the text of lists.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Params<'a> {
            $(
                $(#[doc = $meaning])+
                #[doc = concat!(
                    "\n\n`", stringify!($name), "`, default `", $default, "`.", $(" ", $differs)?
                )]
                pub $field: $type,
            )+
        }

        /// Every parameter, described.
        pub const TABLE: &[ParamInfo] = &[$($name),+];

        $(
            const $name: ParamInfo = ParamInfo {
                name: stringify!($name),
                default: $default,
                allowed: $allowed,
                unit: concat!($($unit)?),
                readers: [$(Readers::$readers,)? Readers::All][0],
                meaning: concat!($($meaning),+).trim_ascii(),
                differs: concat!($($differs)?),
            };
        )+

        impl<'a> Params<'a> {
            /// Asks `lookup` for each variable; `None` is an unset one.
            pub fn from_lookup(
                mut lookup: impl FnMut(&'static str) -> Option<&'a str>,
            ) -> Result<Self, ParamError<'a>> {
                Ok(Params { $($field: read(&$name, lookup(stringify!($name)))?,)+ })
            }
        }
    };
}

const FLAG: Allowed = Allowed::Integer { min: 0, max: 1 };

const INT_MAX: i64 = i32::MAX as i64;

const fn int(min: i64, max: i64) -> Allowed {
    Allowed::Integer { min, max }
}

const fn auto_or_int(auto: i64, min: i64, max: i64) -> Allowed {
    Allowed::AutoOrInteger { auto, min, max }
}

params! {
    /// 1 hides RDMA devices from Invar.
    NCCL_IB_DISABLE => ib_disable: bool = "0", FLAG;
    /// Names the RDMA devices and ports to use; empty takes all. An entry a:PORT:RAIL:PLANE also tells NCCL the rail
    /// and the plane of its ports; each part may be empty.
    NCCL_IB_HCA => ib_hca: NameFilter<'a> = "", Allowed::Names;
    /// Index of the local GID on RoCE; -1 picks a GID by version, address family and subnet.
    NCCL_IB_GID_INDEX => ib_gid_index: Option<u8> = "-1", auto_or_int(-1, 0, 255), unit: "index",
        differs: "0 in 2.14.3, which is often RoCEv1 or link-local; automatic in later NCCL.";
    /// RoCE version that a GID must have to be picked.
    NCCL_IB_ROCE_VERSION_NUM => ib_roce_version: u8 = "2", int(1, 2), unit: "version",
        differs: "Not in 2.14.3.";
    /// Address family that a GID must have to be picked.
    NCCL_IB_ADDR_FAMILY => ib_addr_family: AddressFamily = "AF_INET", AddressFamily::ALLOWED,
        differs: "Not in 2.14.3.";
    /// Subnet that a GID must be in to be picked; empty takes all.
    NCCL_IB_ADDR_RANGE => ib_addr_range: Option<Subnet> = "", Allowed::Subnet,
        differs: "Not in 2.14.3.";
    /// A NIC waits 4.096 µs × 2^value for an acknowledge before it sends a packet again; 0 waits
    /// for ever.
    NCCL_IB_TIMEOUT => ib_timeout: u8 = "20", int(0, 31), unit: "exponent",
        differs: "18 (1.07 s) in 2.14.3, too short where routes change; 20 (4.29 s) since 2.23.";
    /// A NIC sends a packet again this often before the queue pair fails.
    NCCL_IB_RETRY_CNT => ib_retry_cnt: u8 = "7", int(0, 7), unit: "retries";
    /// Index of the partition key.
    NCCL_IB_PKEY => ib_pkey_index: u16 = "0", int(0, 65_535), unit: "index";
    /// 1 sends FIFO slots inline in the work request.
    NCCL_IB_USE_INLINE => ib_use_inline: bool = "0", FLAG;
    /// Service level of the queue pairs on InfiniBand. Unless it is set, or with -1, the plugin takes the traffic class of
    /// a communicator that has one.
    NCCL_IB_SL => ib_sl: Option<u8> = "0", auto_or_int(-1, 0, 15), unit: "level";
    /// Traffic class of the packets on RoCE: DSCP × 4 + ECN. Unless it is set, or with -1, the plugin takes that of a
    /// communicator that has one.
    NCCL_IB_TC => ib_tc: Option<u8> = "0", auto_or_int(-1, 0, 255), unit: "class";
    /// Each connection has this many queue pairs and splits each message over them.
    NCCL_IB_QPS_PER_CONNECTION => ib_qps_per_connection: u8 = "1", int(1, 128),
        unit: "queue pairs";
    /// On a network that routes adaptively, a message longer than this goes as a WRITE and then an
    /// empty WRITE_WITH_IMM.
    NCCL_IB_AR_THRESHOLD => ib_ar_threshold: u64 = "8192", int(0, i64::MAX), unit: "bytes";
    /// 1 says that the network routes adaptively, 0 that it does not; -2 assumes it on InfiniBand,
    /// and always on the wire of NCCL 2.14.
    NCCL_IB_ADAPTIVE_ROUTING => ib_adaptive_routing: Option<bool> = "-2", auto_or_int(-2, 0, 1),
        differs: "Not in 2.14.3, which looks at NCCL_IB_AR_THRESHOLD alone.";
    /// 1 lets the drivers of both ends agree on features beyond the verbs (ECE), on Invar's own wire.
    NCCL_IB_ECE_ENABLE => ib_ece_enable: bool = "1", FLAG,
        differs: "Not in 2.14.3.";
    /// 1 lets NCCL join ports, such as those of one card, to one device whose connections run over all of them.
    NCCL_IB_MERGE_NICS => ib_merge_nics: bool = "1", FLAG, readers: Plugin,
        differs: "Not in 2.14.3.";
    /// 1 counts all functions of a PCI bus, virtual ones too, as one card. 0 counts only functions of one PCI
    /// device as one card. NCCL joins ports of one card.
    NCCL_IB_MERGE_VFS => ib_merge_vfs: bool = "1", FLAG,
        differs: "Not in 2.14.3, which compares all but the last digit of the PCI device.";
    /// PCIe relaxed ordering of user memory: 0 never, 1 always, 2 where the driver has it.
    NCCL_IB_PCI_RELAXED_ORDERING => ib_pci_relaxed_ordering: u8 = "2", int(0, 2);
    /// A NIC reaches GPU memory directly if both are at most this far apart on the PCIe tree; LOC is
    /// never.
    NCCL_NET_GDR_LEVEL => net_gdr_level: PciDistance = "PXB", GDR_LEVELS;
    /// 1 lets Invar register GPU memory as a DMA-BUF.
    NCCL_DMABUF_ENABLE => dmabuf_enable: bool = "1", FLAG;
    /// 1 leaves out the flush of received GPU memory.
    NCCL_GDR_FLUSH_DISABLE => gdr_flush_disable: bool = "0", FLAG;
    /// 1 flushes received GPU memory even where the GPU does not need it.
    NCCL_NET_FORCE_FLUSH => net_force_flush: bool = "0", FLAG,
        differs: "Not in 2.14.3.";

    /// Names the network interfaces to use; empty takes all.
    NCCL_SOCKET_IFNAME => socket_ifname: NameFilter<'a> = "", Allowed::Interfaces;
    /// Address of rank 0, as NCCL takes it. Without NCCL_SOCKET_IFNAME the interface in its subnet is used.
    NCCL_COMM_ID => comm_id: Option<&'a str> = "", Allowed::Name;
    /// Address family that an interface must have.
    NCCL_SOCKET_FAMILY => socket_family: AddressFamily = "any", AddressFamily::ALLOWED;
    /// Helper threads of each connection over TCP, 16 at most; -2 decides by the host.
    NCCL_SOCKET_NTHREADS => socket_nthreads: Option<u32> = "-2", auto_or_int(-2, 0, INT_MAX),
        unit: "threads";
    /// Sockets of each helper thread, 64 at most in a connection; -2 decides by the host.
    NCCL_NSOCKS_PERTHREAD => nsocks_perthread: Option<u32> = "-2", auto_or_int(-2, 1, INT_MAX),
        unit: "sockets";
    /// Congestion control of connections over TCP, one of `net.ipv4.tcp_allowed_congestion_control`.
    /// Empty takes reno within a host and the system's default between hosts.
    INVAR_SOCKET_CONGESTION => socket_congestion: Option<&'a str> = "", Allowed::Name;

    /// 1 sends data between ranks of one host over the network, not through shared memory.
    NCCL_SHM_DISABLE => shm_disable: bool = "0", FLAG;
    /// Messages between two ranks go in chunks of this length, rounded up to 64 and at most a slot
    /// long, or a part of a slot where dozens of ranks share memory. 0 takes the longest. All ranks need the same
    /// value.
    NCCL_CHUNK_SIZE => chunk_bytes: u32 = "0", int(0, 1 << 30), unit: "bytes", readers: Library;
    /// A proxy's progress thread takes over at most this many operations at a time. Only programs that use
    /// `invar_linux::proxy` have one.
    NCCL_PROXY_APPEND_BATCH_SIZE => proxy_append_batch: u32 = "16", int(1, 1 << 20),
        unit: "operations", readers: Proxy;
    /// A proxy's progress thread looks for new operations once in this many rounds. Only programs that use
    /// `invar_linux::proxy` have one.
    NCCL_PROGRESS_APPENDOP_FREQ => progress_appendop_freq: u32 = "8", int(1, 1 << 20),
        unit: "rounds", readers: Proxy;
    /// On this signal ranks and proxies print what is pending (10 is SIGUSR1, 12 is SIGUSR2); -1 is no
    /// signal.
    NCCL_PROXY_DUMP_SIGNAL => proxy_dump_signal: Option<u8> = "-1", auto_or_int(-1, 1, 64),
        unit: "signal";

    /// 1 lets the plugin offer NCCL's CollNet: the processors of the hosts reduce, not a switch.
    NCCL_COLLNET_ENABLE => collnet_enable: bool = "0", FLAG, readers: Plugin;

    /// Protocol between NICs, the same at both ends: Invar's own, or that of NCCL 2.14, which has no
    /// authentication. To a peer that is NCCL itself, set NCCL_IB_GID_INDEX at both ends: NCCL 2.14 takes GID 0
    /// unless it is set, and Invar picks one.
    INVAR_WIRE => wire: Wire = "invar", Wire::ALLOWED;
    /// A connection has at most this many requests pending, of eight buffers each. The smaller value
    /// of both ends holds, and 64 on the wire of NCCL 2.14.
    INVAR_FIFO_DEPTH => fifo_depth: u16 = "256", Allowed::PowerOfTwo { min: 8, max: 256 },
        unit: "requests";
    /// 1 lets packets between software NICs be longer than RoCE's path MTUs, up to what the network
    /// carries.
    INVAR_LONG_MTU => long_mtu: bool = "1", FLAG;
    /// The software NICs that programs see, in this order: names of interfaces or devices, as in
    /// `eth1,eth0`. Empty takes all. Also holds for programs of `invar run`.
    INVAR_SOFT_DEVICES => soft_devices: Option<&'a str> = "", Allowed::Devices;
    /// UDP ports of software NICs: each NIC takes the first free port. Peers other than Invar's
    /// software NIC send to port 4791 only. Programs of `invar run` take one port, or 0.
    INVAR_SOFT_PORT => soft_port: PortRange = "0", Allowed::Ports;
    /// 1 has software NICs authenticate all packets and refuse peers that do not; 0 never does; -2
    /// does between hosts, unless the peer has 0.
    INVAR_SOFT_AUTH => soft_auth: Option<bool> = "-2", auto_or_int(-2, 0, 1);
    /// TCP ports of listeners: each takes the first free port. A communicator needs a port for its
    /// rendezvous, and each rank one for each link from another rank over the network. Each address with
    /// connections over a NIC needs one more, unless the range is a single port.
    INVAR_PORT_RANGE => port_range: PortRange = "0", Allowed::Ports;
    /// A connection that is not complete after this time fails. If the peer's port refuses, TCP is tried for a tenth
    /// of this time. If the peer's host does not answer, TCP is tried for all of it. Both end after 60 s, and the
    /// last try may take 25 s more. Unless this is set, the plugin's connections wait for a day, since NCCL's ranks
    /// may come late; its collNet does not.
    INVAR_CONNECT_TIMEOUT_MS => connect_timeout_ms: u32 = "30000", int(1, 86_400_000),
        unit: "ms";
    /// A connection whose queue pairs fail makes new ones, and sends again what has not arrived. The
    /// connection fails if this does not succeed within this time. 0: the first failure ends the
    /// connection, as it does if the peer has 0, or on NCCL 2.14's wire. A connection over TCP whose sockets
    /// are lost goes on over new ones for as long. Each rank's connection to the rendezvous drops a silent
    /// host after this time. With 0 TCP drops a silent host after 25 s.
    INVAR_RECOVERY_TIMEOUT_MS => recovery_timeout_ms: u32 = "60000", int(0, 86_400_000),
        unit: "ms";
    /// A connection replaces its queue pairs if nothing is acknowledged for this time and the peer says twice
    /// that nothing has come. Long messages get more time. 0: only the device's own reports count.
    INVAR_SUSPECT_AFTER_MS => suspect_after_ms: u32 = "500", int(0, 86_400_000), unit: "ms";
    /// A wait of the library spins at most this long before it sleeps. 0 sleeps at once, which leaves the
    /// processor to others. Waits that outlast the spin soon sleep at once, too. A wait for one message over the
    /// software NIC spins four times as long, since a sleep costs more there.
    INVAR_SPIN_US => spin_us: u32 = "50", int(0, 1_000_000), unit: "µs", readers: Library;
    /// A connection or a collective that stands still for this time is reported, with its cause, and again
    /// after twice the time. 0: never.
    INVAR_STALL_MS => stall_ms: u32 = "10000", int(0, 86_400_000), unit: "ms";
    /// Level of the flight recorder, which `invar inspect` and `invar trace` read. 0 keeps nothing, 1 keeps events. 2
    /// also keeps the times of each connection's last 40 messages, which makes every call slower. Of a link between
    /// ranks over TCP it keeps one direction.
    INVAR_RECORDER => recorder: FlightRecorder = "1", int(0, 2);
    /// Shows the metrics of this user's processes for Prometheus: `127.0.0.1:PORT` or `unix:PATH` over HTTP,
    /// `file:PATH` in a file for node_exporter. Empty shows none. Needs INVAR_RECORDER=1 or 2.
    INVAR_METRICS => metrics: Option<MetricsPlace<'a>> = "", Allowed::Metrics;
    /// Each rank writes to this file what each message over the network waited for, as a trace for Chrome
    /// and Perfetto. `%c` stands for the communicator's number, as `invar top` shows it, and `%r` for the
    /// rank. A number that the path does not ask for follows the name. Links are slower with it, and
    /// messages in shared memory are not traced.
    INVAR_PROXY_TRACE => proxy_trace: Option<&'a str> = "", Allowed::Path;
    /// A collective fails if a rank does not do its part for this time. Unless this is set, collNet in the
    /// plugin waits for a day, since NCCL's ranks may come late.
    INVAR_COLL_TIMEOUT_MS => coll_timeout_ms: u32 = "600000", int(1, 86_400_000), unit: "ms",
        differs: "Not in 2.14.3, which waits for ever.";
    /// Secret word that lets ranks on other hosts in. Without it rank 0 of `invar coll` makes one up and prints
    /// it, and ranks that a launcher starts derive or exchange one.
    INVAR_COLL_SECRET => coll_secret: Option<&'a str> = "", Allowed::Secret, readers: Library;
    /// GPU memory that the NIC cannot reach goes through host memory in pieces of this length, the
    /// same at both ends.
    INVAR_STAGING_CHUNK_BYTES => staging_chunk_bytes: u32 = "524288",
        Allowed::PowerOfTwo { min: 4096, max: 1 << 28 }, unit: "bytes", readers: Library;
    /// Each end of a connection pins this many such pieces of host memory.
    INVAR_STAGING_SLOTS => staging_slots: u8 = "4", int(2, 32), unit: "pieces", readers: Library;
    /// All connections of a process together pin at most this much for such pieces, and collNet in the
    /// plugin for the GPU memory that it reduces. Late connections get fewer pieces, at least one. 0
    /// forbids both.
    INVAR_STAGING_BYTES => staging_bytes: u64 = "1073741824", int(0, i64::MAX), unit: "bytes";
    /// Folder in which the kernel describes PCI devices and network interfaces; containers may mount
    /// it elsewhere.
    INVAR_SYSFS => sysfs: &'a str = "/sys", Allowed::Path;
    /// Transport to use: RDMA (ib), TCP (socket), the software NIC (soft), a NIC that the program brings
    /// (custom), or the first that the host has (auto): a NIC of the program, RDMA, then TCP in the plugin and
    /// the software NIC in `invar perf` and communicators.
    INVAR_TRANSPORT => transport: TransportChoice = "auto", TransportChoice::ALLOWED;
    /// Devices that work together: `mlx5_0+mlx5_1,mlx5_2+mlx5_3` makes two devices of four. Each connection
    /// runs over all ports of its device, its rails, and goes on while one of them works. Rails after a `/` are
    /// standby: of `mlx5_0/mlx5_1` the second carries data only while the first does not work, or if the peer
    /// says so. Software NICs are rails too: with `mlx5_0/soft0` the data goes through the operating system while
    /// the RDMA port does not work. The peer's rails are matched in the same order. Empty joins none.
    INVAR_RAILS => rails: Option<&'a str> = "", Allowed::Name;
    /// The most detailed level of messages that are logged. Empty follows NCCL_DEBUG; without both, a program's own
    /// logger gets warnings, and the command logs the warnings that no error repeats, such as on stalls. In the plugin
    /// NCCL_DEBUG counts.
    INVAR_LOG => log: Option<LogLevel> = "", LogLevel::ALLOWED, readers: Library;
    /// The format of the log's lines: text, or a JSON object each.
    INVAR_LOG_FORMAT => log_format: LogFormat = "text", LogFormat::ALLOWED, readers: Library;
    /// The most detailed level of messages that are logged, in any case of letters. Any other word logs nothing,
    /// as in NCCL.
    NCCL_DEBUG => nccl_debug: Option<NcclDebug> = "", NcclDebug::ALLOWED;
    /// The subsystems whose messages below warnings are logged: `INIT,NET`, or `^COLL` for all but these.
    /// Empty logs all.
    NCCL_DEBUG_SUBSYS => nccl_debug_subsys: Option<&'a str> = "", Allowed::Subsystems;
}

impl Default for Params<'_> {
    fn default() -> Self {
        Self::from_lookup(|_| None).expect("every default is allowed")
    }
}

/// The value of one variable.
fn read<'a, T: Value<'a>>(info: &ParamInfo, set: Option<&'a str>) -> Result<T, ParamError<'a>> {
    let value = info.in_force(set);
    T::from_text(value.trim_ascii(), &info.allowed).ok_or(ParamError {
        name: info.name,
        value,
        allowed: info.allowed,
    })
}
