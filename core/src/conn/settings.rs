//! The settings of a connection.

use crate::auth::Secret;
use crate::fifo::{DEPTH_MAX, DEPTH_NCCL_2_14};
use crate::nic::QpOptions;
use crate::stall::StallSettings;

/// The largest number of queue pairs of a connection (`NCCL_IB_MAX_QPS`).
pub const QPS_MAX: usize = 128;

/// The protocol that both ends speak over TCP, with its effects on the data path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Invar's own wire: a preface names version and features, and grouped receives learn real sizes.
    #[default]
    Invar,
    /// The bare QP info of NCCL 2.14.3, with FIFO depth 64 and without a preface. A comm is given
    /// before the handshake is over. The rest of the handshake has no deadline: this end waits while
    /// the peer's TCP connection is open. A peer that first sends after an hour sends its ready word
    /// after that hour.
    Nccl214,
}

/// Whether software NICs authenticate the packets of a connection ([`QpOptions::PACKET_TAGS`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PacketAuth {
    /// Packets are not authenticated.
    Off,
    /// Packets between hosts are authenticated if the peer agrees, but not over a loopback address.
    /// Over loopback the kernel prevents unprivileged users from sending from the address and port of
    /// another socket.
    #[default]
    Network,
    /// Packets are always authenticated, and a peer that does not agree is refused.
    Always,
}

/// Settings of a connection; the defaults are those of NCCL's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommSettings {
    /// The protocol of the connection.
    pub wire: Wire,
    /// Number of FIFO rows and requests, a power of two up to 256. The smaller number of both ends
    /// applies; on the wire of NCCL 2.14 it is 64.
    pub fifo_depth: u16,
    /// Number of queue pairs, 1 to [`QPS_MAX`] (`NCCL_IB_QPS_PER_CONNECTION`). On Invar's wire the
    /// connector chooses; the acceptor grants at most 16, or its own number if that is larger. On NCCL
    /// 2.14's wire both ends must be set to the same number.
    pub qps: u16,
    /// Index of the partition key: `NCCL_IB_PKEY`.
    pub pkey_index: u16,
    /// Service level: `NCCL_IB_SL`.
    pub sl: u8,
    /// Traffic class: `NCCL_IB_TC`.
    pub traffic_class: u8,
    /// Local ACK timeout: `NCCL_IB_TIMEOUT`; 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Number of retries: `NCCL_IB_RETRY_CNT`.
    pub retry_cnt: u8,
    /// Whether slots are posted inline: `NCCL_IB_USE_INLINE`.
    pub use_inline: bool,
    /// Whether ECE is used on Invar's wire: `NCCL_IB_ECE_ENABLE`.
    pub ece: bool,
    /// Whether packets may be longer than the verbs' path MTUs, if both NICs support this.
    pub long_mtu: bool,
    /// `NCCL_IB_AR_THRESHOLD`: a larger message is sent as a WRITE and then an empty WRITE_WITH_IMM.
    pub ar_threshold_bytes: u32,
    /// Whether `iflush` reads back through a loopback queue pair. Set this for GPU memory on this
    /// device, unless `NCCL_GDR_FLUSH_DISABLE` is set.
    pub flush: bool,
    /// Whether a send that is longer than its receive is cut to the receive instead of refused.
    pub truncate: bool,
    /// Options that this end allows. A connection uses the options that both ends and both NICs have.
    pub options: QpOptions,
    /// Whether packets carry tags, if this end's NIC supports tags.
    pub packet_auth: PacketAuth,
    /// Time limit for connect or accept, in nanoseconds.
    pub timeout_ns: u64,
    /// Nanoseconds for which a connection tries to make new queue pairs after a failure; 0 to fail at
    /// once. A connection recovers only if this is not 0 at both ends (not on NCCL 2.14's wire).
    pub recovery_timeout_ns: u64,
    /// How the connection looks for stalls.
    pub stall: StallSettings,
    /// A key that both ends share in addition to the handle. With such a key, others may read the
    /// handle.
    pub key: Option<Secret>,
}

impl Default for CommSettings {
    fn default() -> Self {
        CommSettings {
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
            recovery_timeout_ns: 60_000_000_000,
            stall: StallSettings::default(),
            key: None,
        }
    }
}

impl CommSettings {
    /// The number of FIFO rows that this end offers.
    pub(crate) fn depth(&self) -> u16 {
        match self.wire {
            Wire::Invar => self.fifo_depth,
            Wire::Nccl214 => DEPTH_NCCL_2_14 as u16,
        }
    }

    /// Whether this end makes new queue pairs after a failure.
    pub(crate) fn recovers(&self) -> bool {
        self.recovery_timeout_ns > 0 && self.wire == Wire::Invar
    }

    /// A message about the first setting that is out of its range.
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

/// Returns whether a FIFO may have `depth` rows.
pub(crate) const fn is_depth(depth: usize) -> bool {
    depth.is_power_of_two() && depth <= DEPTH_MAX
}
