//! What a user may set, all of it, in one table.
//!
//! Each row below becomes a field of [`Params`], an entry of [`TABLE`], and its parsing, and a
//! default goes through the same parser as what a user sets. NCCL's parameters keep NCCL's names;
//! where a default is not that of NCCL 2.14.3 the row says so under `differs`.
//!
//! Where the text comes from (environment, a file) is the host's business: [`Params::from_lookup`]
//! asks for it by name. As in NCCL, an empty value is no value, and numbers may be written in
//! decimal, octal (`017`) or hexadecimal (`0x1f`). Unlike NCCL, which takes the default or the
//! leading digits in silence, anything else is an error.

mod choice;
mod nccl;
mod ports;
mod subnet;
mod value;

#[cfg(test)]
mod tests;

pub use choice::{AddressFamily, LogLevel, TransportChoice, Wire};
pub use nccl::NCCL_ONLY;
pub use ports::PortRange;
pub use subnet::Subnet;
pub use value::Allowed;

use crate::device::{NameFilter, PciDistance};
use choice::GDR_LEVELS;
use value::Value;

/// A row of the table, for documentation and diagnosis.
#[derive(Clone, Copy, Debug)]
pub struct ParamInfo {
    /// The variable.
    pub name: &'static str,
    /// What an unset variable stands for, as a user would write it.
    pub default: &'static str,
    /// What may be written.
    pub allowed: Allowed,
    /// What it does.
    pub meaning: &'static str,
    /// How and why the default differs from NCCL 2.14.3's; empty where it does not.
    pub differs: &'static str,
}

/// A variable is set to something that it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: must be {allowed}")]
pub struct ParamError<'a> {
    /// The variable.
    pub name: &'static str,
    /// What it was set to.
    pub value: &'a str,
    /// What it may be.
    pub allowed: Allowed,
}

macro_rules! params {
    ($(
        $(#[doc = $meaning:literal])+
        $name:ident => $field:ident: $type:ty = $default:literal, $allowed:expr
            $(, differs: $differs:literal)?;
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
    /// Leave RDMA devices alone.
    NCCL_IB_DISABLE => ib_disable: bool = "0", FLAG;
    /// Which RDMA devices and ports to use.
    NCCL_IB_HCA => ib_hca: NameFilter<'a> = "", Allowed::Names;
    /// Index of the local GID (RoCE); -1 chooses by version, family and range.
    NCCL_IB_GID_INDEX => ib_gid_index: Option<u8> = "-1", auto_or_int(-1, 0, 255),
        differs: "0 in 2.14.3, which is often RoCEv1 or link-local; automatic in later NCCL.";
    /// Version of RoCE that an automatically chosen GID must have.
    NCCL_IB_ROCE_VERSION_NUM => ib_roce_version: u8 = "2", int(1, 2),
        differs: "Not in 2.14.3.";
    /// Family of address that an automatically chosen GID must have.
    NCCL_IB_ADDR_FAMILY => ib_addr_family: AddressFamily = "AF_INET", AddressFamily::ALLOWED,
        differs: "Not in 2.14.3.";
    /// Subnet that an automatically chosen GID must be in.
    NCCL_IB_ADDR_RANGE => ib_addr_range: Option<Subnet> = "", Allowed::Subnet,
        differs: "Not in 2.14.3.";
    /// Time until an unacknowledged packet is sent again: 4.096 µs × 2^this; 0 is for ever.
    NCCL_IB_TIMEOUT => ib_timeout: u8 = "20", int(0, 31),
        differs: "18 (1.07 s) in 2.14.3, too short where routes change; 20 (4.29 s) since 2.23.";
    /// How often a packet is sent again before the connection fails.
    NCCL_IB_RETRY_CNT => ib_retry_cnt: u8 = "7", int(0, 7);
    /// Index of the partition key.
    NCCL_IB_PKEY => ib_pkey_index: u16 = "0", int(0, 65_535);
    /// Send FIFO slots inline in the work request.
    NCCL_IB_USE_INLINE => ib_use_inline: bool = "0", FLAG;
    /// Service level (InfiniBand).
    NCCL_IB_SL => ib_sl: u8 = "0", int(0, 15);
    /// Traffic class (RoCE): DSCP × 4 + ECN.
    NCCL_IB_TC => ib_tc: u8 = "0", int(0, 255);
    /// Queue pairs of a connection; each message is split over them.
    NCCL_IB_QPS_PER_CONNECTION => ib_qps_per_connection: u8 = "1", int(1, 128);
    /// Bytes above which the data goes in a WRITE of its own before the WRITE_WITH_IMM.
    NCCL_IB_AR_THRESHOLD => ib_ar_threshold: u64 = "8192", int(0, i64::MAX);
    /// Whether the network routes adaptively; -2 is yes on InfiniBand and no on RoCE.
    NCCL_IB_ADAPTIVE_ROUTING => ib_adaptive_routing: Option<bool> = "-2", auto_or_int(-2, 0, 1),
        differs: "Not in 2.14.3, which looks at NCCL_IB_AR_THRESHOLD alone.";
    /// Let the drivers of both ends agree on what they can do beyond the verbs (ECE). Not where
    /// the wire is nccl-2.14.
    NCCL_IB_ECE_ENABLE => ib_ece_enable: bool = "1", FLAG,
        differs: "Not in 2.14.3.";
    /// PCIe relaxed ordering of user memory: 0 never, 1 always, 2 where it can be had.
    NCCL_IB_PCI_RELAXED_ORDERING => ib_pci_relaxed_ordering: u8 = "2", int(0, 2);
    /// How far apart GPU and NIC may be for the NIC to reach the GPU's memory: nearer or as near as
    /// this; LOC is never.
    NCCL_NET_GDR_LEVEL => net_gdr_level: PciDistance = "PXB", GDR_LEVELS;
    /// Whether GPU memory may be registered as a DMA-BUF.
    NCCL_DMABUF_ENABLE => dmabuf_enable: bool = "1", FLAG;
    /// Leave out the flush of received GPU memory.
    NCCL_GDR_FLUSH_DISABLE => gdr_flush_disable: bool = "0", FLAG;
    /// Flush received GPU memory where the GPU needs it not, too.
    NCCL_NET_FORCE_FLUSH => net_force_flush: bool = "0", FLAG,
        differs: "Not in 2.14.3.";

    /// Which network interfaces to use.
    NCCL_SOCKET_IFNAME => socket_ifname: NameFilter<'a> = "", Allowed::Names;
    /// Family of address that an interface must have.
    NCCL_SOCKET_FAMILY => socket_family: AddressFamily = "any", AddressFamily::ALLOWED;
    /// Helper threads of a socket connection, at most 16; -2 chooses by host.
    NCCL_SOCKET_NTHREADS => socket_nthreads: Option<u32> = "-2", auto_or_int(-2, 0, INT_MAX);
    /// Sockets of each helper thread, at most 64 on all; -2 chooses by host.
    NCCL_NSOCKS_PERTHREAD => nsocks_perthread: Option<u32> = "-2", auto_or_int(-2, 1, INT_MAX);

    /// TCP congestion control of socket connections, one of the kernel's
    /// `net.ipv4.tcp_allowed_congestion_control`; unset, it is the system's default between hosts,
    /// and reno, which does not pace, within one.
    INVAR_SOCKET_CONGESTION => socket_congestion: Option<&'a str> = "", Allowed::Name;

    /// Leave shared memory alone: ranks of one host go over the network too.
    NCCL_SHM_DISABLE => shm_disable: bool = "0", FLAG;
    /// Bytes of the chunks in which a message goes from one rank to another, rounded up to 64 and no
    /// more than a slot has; 0 is a slot. All ranks must have the same.
    NCCL_CHUNK_SIZE => chunk_bytes: u32 = "0", int(0, 1 << 30);
    /// Operations that a progress thread takes over at a time.
    NCCL_PROXY_APPEND_BATCH_SIZE => proxy_append_batch: u32 = "16", int(1, 1 << 20);
    /// Rounds of progress between looking for new operations.
    NCCL_PROGRESS_APPENDOP_FREQ => progress_appendop_freq: u32 = "8", int(1, 1 << 20);
    /// Signal on which the proxy's state is printed (10 is SIGUSR1, 12 SIGUSR2); -1 is none.
    NCCL_PROXY_DUMP_SIGNAL => proxy_dump_signal: Option<u8> = "-1", auto_or_int(-1, 1, 64);

    /// Protocol between NICs: Invar's own, or that of NCCL 2.14, which has no authentication. Both
    /// ends must have the same. TCP has Invar's own in any case.
    INVAR_WIRE => wire: Wire = "invar", Wire::ALLOWED;
    /// Requests of a connection that may be under way, eight buffers each counting; the smaller
    /// of both sides holds, and 64 where the wire is nccl-2.14.
    INVAR_FIFO_DEPTH => fifo_depth: u16 = "256", Allowed::PowerOfTwo { min: 1, max: 256 };
    /// Let packets between software NICs be longer than the path MTUs that RoCE has, where the
    /// network carries them.
    INVAR_LONG_MTU => long_mtu: bool = "1", FLAG;
    /// UDP port of a software NIC. Of a range, each NIC takes the first port that is free; 0 takes
    /// any. Peers that are no software NIC of Invar send to 4791.
    INVAR_SOFT_PORT => soft_port: PortRange = "0", Allowed::Ports;
    /// Whether a software NIC authenticates the packets of its connections: 0 never, 1 always, so that
    /// a peer that does not is refused; -2 between hosts, if the peer does not set 0.
    INVAR_SOFT_AUTH => soft_auth: Option<bool> = "-2", auto_or_int(-2, 0, 1);
    /// TCP ports of listeners: each takes the first of the range that is free; 0 takes any. A
    /// communicator needs one for its rendezvous, and each rank one for each link from another rank
    /// over the network.
    INVAR_PORT_RANGE => port_range: PortRange = "0", Allowed::Ports;
    /// Milliseconds until a connection that does not come about is an error.
    INVAR_CONNECT_TIMEOUT_MS => connect_timeout_ms: u32 = "30000", int(1, 86_400_000);
    /// Where a rank writes what its proxy does, as a trace for Chrome and Perfetto; `%r` is the rank,
    /// which is put at the end where there is no `%r`. Its links over the network all go through the
    /// proxy then, which takes longer; ranks that share memory have no proxy for that.
    INVAR_PROXY_TRACE => proxy_trace: Option<&'a str> = "", Allowed::Path;
    /// Milliseconds that a rank waits in a collective for one that does not do its part.
    INVAR_COLL_TIMEOUT_MS => coll_timeout_ms: u32 = "600000", int(1, 86_400_000),
        differs: "Not in 2.14.3, which waits for ever.";
    /// Bytes of the pieces in which GPU memory goes through host memory where the NIC cannot reach
    /// it; both sides must have the same.
    INVAR_STAGING_CHUNK_BYTES => staging_chunk_bytes: u32 = "524288",
        Allowed::PowerOfTwo { min: 4096, max: 1 << 28 };
    /// Pieces of pinned host memory that each end of a connection has for that.
    INVAR_STAGING_SLOTS => staging_slots: u8 = "4", int(2, 32);
    /// Bytes of pinned host memory that all connections of a process may have together for that;
    /// an end that comes when little is left has fewer pieces, at least one. 0 forbids it.
    INVAR_STAGING_BYTES => staging_bytes: u64 = "1073741824", int(0, i64::MAX);
    /// Where the kernel tells about devices, by which it is decided how NICs reach GPUs, and how
    /// fast network interfaces are. In a container it may be elsewhere.
    INVAR_SYSFS => sysfs: &'a str = "/sys", Allowed::Path;
    /// Transport to use; auto takes the best that the host has.
    INVAR_TRANSPORT => transport: TransportChoice = "auto", TransportChoice::ALLOWED;
    /// What is logged.
    INVAR_LOG => log: LogLevel = "warn", LogLevel::ALLOWED;
}

impl Default for Params<'_> {
    fn default() -> Self {
        Self::from_lookup(|_| None).expect("every default is allowed")
    }
}

/// The value of one variable.
fn read<'a, T: Value<'a>>(info: &ParamInfo, set: Option<&'a str>) -> Result<T, ParamError<'a>> {
    let value = set.filter(|text| !text.is_empty()).unwrap_or(info.default);
    let error = ParamError { name: info.name, value, allowed: info.allowed };
    T::from_text(value.trim_ascii(), &info.allowed).ok_or(error)
}
