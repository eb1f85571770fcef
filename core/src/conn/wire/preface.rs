//! The preface, which precedes the QP info on Invar's wire.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::device_name::{DEVICE_NAME_BYTES, DeviceName, decode, encode};
use crate::conn::QPS_MAX;
use crate::conn::rails::RAILS_MAX;
use crate::conn::settings::is_depth;
use crate::nic::{Ece, QpOptions, SourcePorts};

/// Bytes of [`PrefaceBytes`].
pub const PREFACE_BYTES: usize = size_of::<PrefaceBytes>();

/// Feature: grouped receives learn real sizes, which the sender writes to `sizes_addr`.
const GROUP_SIZES: u32 = 1;
/// Feature: `ece` holds the offer of this end's driver, or the agreed options.
const ECE: u32 = 1 << 1;
/// Feature: this end makes new queue pairs when old ones fail.
const RECOVERY: u32 = 1 << 2;
/// Feature: this end answers a peer that asks what it waits for.
const VIEWS: u32 = 1 << 3;
/// Feature: the acceptor's message is followed by the time of its clock, if both ends have this feature.
const TIME: u32 = 1 << 5;
/// Feature: this end has several rails, and lays out their keys as this version does. Bit 4 meant another
/// layout.
const RAILS: u32 = 1 << 6;
/// Feature: packets to this end's port need a global route header, also within an InfiniBand subnet. Older versions
/// ignore this bit.
const GRH: u32 = 1 << 7;

/// The preface on the wire, little-endian.
///
/// ```text
/// byte 0            8            12           14         16         20        24         26
///      +------------+------------+------------+----------+----------+---------+----------+------+
///      | sizes_addr | sizes_rkey | fifo_depth | qp_count | features | options | udp_port | more |
///      +------------+------------+------------+----------+----------+---------+----------+------+
///      32    44         48             56            120
///      | ece | long mtu | source ports | device name |
/// ```
///
/// `more` has six bytes: the renewal port (2 bytes), the number of rails, the rail that the message
/// describes, the set of standby rails, and a zero. An end with one rail sends zeros instead of these three.
///
/// `ece` has three words: vendor, options and mask. The long MTU is one word. The source ports are four
/// UDP ports of two bytes; unused ports are zero.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PrefaceBytes {
    sizes_addr: U64,
    sizes_rkey: U32,
    fifo_depth: U16,
    qp_count: U16,
    features: U32,
    options: U32,
    udp_port: U16,
    renewal_port: U16,
    rails: u8,
    rail: u8,
    standby: u8,
    zero: u8,
    ece: [U32; 3],
    long_mtu_bytes: U32,
    udp_source_ports: [U16; SourcePorts::MAX],
    device: [u8; DEVICE_NAME_BYTES],
}

assert_eq_size!(PrefaceBytes, [u8; 120]);

/// An end's description of itself and its offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preface {
    /// Number of FIFO rows. The connector makes an offer, and the acceptor decides on at most that
    /// number.
    pub fifo_depth: u16,
    /// Number of queue pairs. The connector asks for a number, and the acceptor may grant fewer.
    pub qp_count: u16,
    /// Options that this end's NIC and settings allow.
    pub options: QpOptions,
    /// UDP port of a software NIC; 0 for a real NIC.
    pub udp_port: u16,
    /// UDP ports from which a software NIC sends.
    pub udp_source_ports: SourcePorts,
    /// Address at which the acceptor takes the sizes of grouped receives: rows of eight `u32`.
    pub sizes_addr: u64,
    /// Remote key of the memory at `sizes_addr`.
    pub sizes_rkey: u32,
    /// The offer of this end's driver or, from an acceptor, the agreed options. `None` if the driver
    /// does not know ECE.
    pub ece: Option<Ece>,
    /// Whether this end makes new queue pairs when old ones fail. Both ends must.
    pub recovers: bool,
    /// TCP port at which the acceptor answers a connector that makes their TCP connection anew; 0 for
    /// none. In a handshake it is a port of the address that the connector has called. In a report of a
    /// recovery it is a port of the rail's address.
    pub renewal_port: u16,
    /// Whether this end exchanges views; see [`stall`](crate::stall).
    pub shares_views: bool,
    /// Whether this end tells or takes the acceptor's time. From an acceptor in a handshake: whether its time
    /// follows.
    pub tells_time: bool,
    /// Payload bytes of packets longer than any path MTU of the verbs, if this end's NIC and settings
    /// allow them; 0 for none. The two ends agree on the smaller of their values.
    pub long_mtu_bytes: u32,
    /// Number of rails that this end offers or, from an acceptor, that the connection has.
    pub rails: u8,
    /// The rail that this message describes.
    pub rail: u8,
    /// The rails that this end wants to keep for the time when no other rail works: one bit for each. `None`
    /// from an end that has one rail, or whose version has another layout of keys.
    pub standby: Option<u8>,
    /// Whether packets to this end's port must have a global route header on InfiniBand (`IBV_QPF_GRH_REQUIRED`). The
    /// packets of both ends have one if either end needs it.
    pub needs_grh: bool,
    /// Name of this end's device.
    pub device: DeviceName,
}

/// The reason for refusing a preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefaceError {
    /// The peer speaks Invar's wire, in this version, but NCCL 2.14's wire is expected.
    OtherWire(u16),
    /// The peer lacks real sizes for grouped receives, a feature that Invar's wire requires.
    Features(u32),
    /// The depth is not a power of two up to 256, or it is larger than this end's offer.
    FifoDepth(u16),
    /// The number is not from 1 to 128, or it is larger than this end's offer.
    QpCount(u16),
    /// The acceptor takes no sizes: their address or key is 0.
    Sizes(u64),
}

impl Preface {
    /// Converts the preface to the bytes of the wire.
    pub fn to_bytes(&self) -> PrefaceBytes {
        let Ece { vendor_id, options, comp_mask } = self.ece.unwrap_or_default();
        let ece = if self.ece.is_some() { ECE } else { 0 };
        let recovery = if self.recovers { RECOVERY } else { 0 };
        let views = if self.shares_views { VIEWS } else { 0 };
        let rails = if self.standby.is_some() { RAILS } else { 0 };
        let time = if self.tells_time { TIME } else { 0 };
        let grh = if self.needs_grh { GRH } else { 0 };
        PrefaceBytes {
            fifo_depth: self.fifo_depth.into(),
            qp_count: self.qp_count.into(),
            features: (GROUP_SIZES | ece | recovery | views | time | rails | grh).into(),
            options: self.options.bits().into(),
            udp_port: self.udp_port.into(),
            renewal_port: self.renewal_port.into(),
            rails: if self.rails == 1 { 0 } else { self.rails },
            rail: self.rail,
            standby: self.standby.unwrap_or(0),
            zero: 0,
            sizes_rkey: self.sizes_rkey.into(),
            sizes_addr: self.sizes_addr.into(),
            ece: [vendor_id, options, comp_mask].map(U32::new),
            long_mtu_bytes: self.long_mtu_bytes.into(),
            udp_source_ports: self.udp_source_ports.0.map(U16::new),
            device: encode(&self.device),
        }
    }

    /// Reads a peer's preface.
    pub fn parse(b: &PrefaceBytes) -> Result<Self, PrefaceError> {
        let fifo_depth = b.fifo_depth.get();
        if !is_depth(usize::from(fifo_depth)) {
            return Err(PrefaceError::FifoDepth(fifo_depth));
        }
        let qp_count = b.qp_count.get();
        if !(1..=QPS_MAX).contains(&usize::from(qp_count)) {
            return Err(PrefaceError::QpCount(qp_count));
        }
        if b.features.get() & GROUP_SIZES == 0 {
            return Err(PrefaceError::Features(b.features.get()));
        }
        let [vendor_id, options, comp_mask] = b.ece.map(U32::get);
        let ece = Ece { vendor_id, options, comp_mask };
        Ok(Preface {
            fifo_depth,
            qp_count,
            options: QpOptions::from_bits_truncate(b.options.get()),
            udp_port: b.udp_port.get(),
            udp_source_ports: SourcePorts(b.udp_source_ports.map(U16::get)),
            sizes_addr: b.sizes_addr.get(),
            sizes_rkey: b.sizes_rkey.get(),
            ece: (b.features.get() & ECE != 0).then_some(ece),
            recovers: b.features.get() & RECOVERY != 0,
            renewal_port: b.renewal_port.get(),
            shares_views: b.features.get() & VIEWS != 0,
            tells_time: b.features.get() & TIME != 0,
            long_mtu_bytes: b.long_mtu_bytes.get(),
            rails: b.rails.clamp(1, RAILS_MAX as u8),
            rail: b.rail % RAILS_MAX as u8,
            standby: (b.features.get() & RAILS != 0).then_some(b.standby),
            needs_grh: b.features.get() & GRH != 0,
            device: decode(&b.device),
        })
    }
}

impl fmt::Display for PrefaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefaceError::OtherWire(theirs) => write!(
                f,
                "the peer speaks Invar's wire (version {theirs}), this side NCCL 2.14's: set \
                 INVAR_WIRE alike on both"
            ),
            PrefaceError::Features(got) => {
                write!(f, "the peer's features {got:#x} lack {GROUP_SIZES:#x} (group sizes)")
            }
            PrefaceError::FifoDepth(got) => write!(
                f,
                "FIFO depth {got} is not a power of two from 1 to 256, or is more than was offered"
            ),
            PrefaceError::QpCount(got) => {
                write!(f, "{got} queue pairs are not from 1 to 128, or not as many as were offered")
            }
            PrefaceError::Sizes(addr) => {
                write!(f, "the peer takes the sizes of grouped receives at {addr:#x} with no key")
            }
        }
    }
}

impl core::error::Error for PrefaceError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn preface(depth_log: u16, qp_count: u16, options: u32, device: &str) -> Preface {
        Preface {
            fifo_depth: 1 << depth_log,
            qp_count,
            options: QpOptions::from_bits_truncate(options),
            udp_port: 4791,
            udp_source_ports: SourcePorts([1, 2, 3, 4]),
            sizes_addr: 0x1000,
            sizes_rkey: 7,
            ece: (options & 1 != 0).then_some(Ece { vendor_id: 0x15b3, options, comp_mask: 0 }),
            recovers: options & 2 != 0,
            renewal_port: qp_count,
            shares_views: options & 4 != 0,
            tells_time: options & 16 != 0,
            long_mtu_bytes: options >> 4,
            rails: 1 + (options >> 8) as u8 % RAILS_MAX as u8,
            rail: (options >> 16) as u8 % RAILS_MAX as u8,
            standby: (options & 8 != 0).then_some((options >> 24) as u8),
            needs_grh: options & 32 != 0,
            device: heapless::String::try_from(device).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn a_preface_survives_the_wire(
            depth_log in 0u16..=8, qp_count in 1u16..=128, options: u32, device in "[!-~]{0,64}",
        ) {
            let sent = preface(depth_log, qp_count, options, &device);
            prop_assert_eq!(Preface::parse(&sent.to_bytes()), Ok(sent));
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), PREFACE_BYTES),
        ) {
            let _ = Preface::parse(&PrefaceBytes::read_from_bytes(&bytes).unwrap());
        }
    }
}
