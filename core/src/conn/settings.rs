//! What a connection is set up with.

use crate::auth::Secret;
use crate::fifo::{DEPTH_MAX, DEPTH_NCCL_2_14};
use crate::nic::QpOptions;

/// Queue pairs that a connection may have (`NCCL_IB_MAX_QPS`).
pub const QPS_MAX: usize = 128;

/// What the two ends of a connection speak over TCP, and what of it the data path honours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Ours: a preface names version and features; grouped receives learn real sizes.
    #[default]
    Invar,
    /// The bare QP info of NCCL 2.14.3, FIFO depth 64, no preface. What is left of the handshake
    /// when a comm is given waits as long as the peer's TCP connection is there, and not until a
    /// deadline: a peer that has nothing to send for an hour sends its ready word after that hour.
    Nccl214,
}

/// Whether software NICs authenticate the packets of a connection ([`QpOptions::PACKET_TAGS`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PacketAuth {
    /// No.
    Off,
    /// Between hosts, if the peer does so too; not over a loopback address. There the kernel lets no
    /// unprivileged user send from the address and port of another socket.
    #[default]
    Network,
    /// Always: a peer that does not is refused.
    Always,
}

/// Settings of a connection; the defaults are those of NCCL's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What is spoken.
    pub wire: Wire,
    /// FIFO rows and requests, a power of two up to 256. The smaller of both ends holds; 64 on
    /// the wire of NCCL 2.14.
    pub fifo_depth: u16,
    /// Queue pairs, 1 to [`QPS_MAX`] (`NCCL_IB_QPS_PER_CONNECTION`). The connector's number
    /// holds on our wire; on NCCL 2.14's both ends must agree beforehand.
    pub qps: u16,
    /// `NCCL_IB_PKEY`.
    pub pkey_index: u16,
    /// `NCCL_IB_SL`.
    pub sl: u8,
    /// `NCCL_IB_TC`.
    pub traffic_class: u8,
    /// `NCCL_IB_TIMEOUT`: 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// `NCCL_IB_RETRY_CNT`.
    pub retry_cnt: u8,
    /// `NCCL_IB_USE_INLINE`.
    pub use_inline: bool,
    /// `NCCL_IB_ECE_ENABLE`, on our wire.
    pub ece: bool,
    /// Whether packets may be longer than the verbs' path MTUs where both NICs can do so.
    pub long_mtu: bool,
    /// `NCCL_IB_AR_THRESHOLD`: a larger message goes as a WRITE, then an empty WRITE_WITH_IMM.
    pub ar_threshold_bytes: u32,
    /// Whether `iflush` reads back through a loopback queue pair: GPU memory on this device and
    /// not `NCCL_GDR_FLUSH_DISABLE`.
    pub flush: bool,
    /// Whether a send longer than its receive is cut to the receive, rather than refused.
    pub truncate: bool,
    /// Options that this end allows; used are those that both ends and both NICs have.
    pub options: QpOptions,
    /// Whether packets carry tags, where this end's NIC can do that.
    pub packet_auth: PacketAuth,
    /// Time in which connect or accept must come to an end.
    pub timeout_ns: u64,
    /// A key that both ends share beside the handle, which others may read then.
    pub key: Option<Secret>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            wire: Wire::Invar,
            fifo_depth: DEPTH_MAX as u16,
            qps: 1,
            pkey_index: 0,
            sl: 0,
            traffic_class: 0,
            timeout: 20,
            retry_cnt: 7,
            use_inline: false,
            ece: true,
            long_mtu: true,
            ar_threshold_bytes: 8192,
            flush: false,
            truncate: false,
            options: QpOptions::all(),
            packet_auth: PacketAuth::default(),
            timeout_ns: 30_000_000_000,
            key: None,
        }
    }
}

impl Settings {
    /// FIFO rows that this end offers.
    pub(crate) fn depth(&self) -> u16 {
        match self.wire {
            Wire::Invar => self.fifo_depth,
            Wire::Nccl214 => DEPTH_NCCL_2_14 as u16,
        }
    }

    /// The name of the first setting that is out of its range.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let depth = usize::from(self.depth());
        if !is_depth(depth) {
            Some("fifo_depth is not a power of two from 1 to 256")
        } else if !(1..=QPS_MAX).contains(&usize::from(self.qps)) {
            Some("qps is not from 1 to 128")
        } else if self.timeout > 31 {
            Some("timeout is not from 0 to 31")
        } else if self.retry_cnt > 7 {
            Some("retry_cnt is not from 0 to 7")
        } else {
            None
        }
    }
}

/// Whether a FIFO may have `depth` rows.
pub(crate) const fn is_depth(depth: usize) -> bool {
    depth.is_power_of_two() && depth <= DEPTH_MAX
}
