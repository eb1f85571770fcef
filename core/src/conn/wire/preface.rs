//! The preface: what our wire says before QP info, so that mismatched peers fail loudly.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::device_name::{DEVICE_NAME_BYTES, DeviceName, decode, encode};
use crate::conn::QPS_MAX;
use crate::conn::settings::is_depth;
use crate::nic::{Ece, QpOptions};

/// Version of the wire. Another one is another protocol.
pub const VERSION: u16 = 2;
/// Bytes of [`PrefaceBytes`].
pub const PREFACE_BYTES: usize = size_of::<PrefaceBytes>();

/// Not text, and no QP info of NCCL's: its first word would be a LID above 0xffff.
const MAGIC: [u8; 8] = *b"\x89INVAR\r\n";
/// Feature: grouped receives learn real sizes, which the sender writes to `sizes_addr`.
const GROUP_SIZES: u32 = 1;
/// Feature: `ece` is what this end's driver offers, or has agreed to.
const ECE: u32 = 1 << 1;

/// The preface on the wire, little-endian.
///
/// ```text
/// byte 0      8        10     12          14        16        20       24
///      +------+--------+------+-----------+---------+---------+--------+----------+
///      |magic |version |bytes |fifo_depth |qp_count |features |options |udp_port… |
///      +------+--------+------+-----------+---------+---------+--------+----------+
///      28          32          40     52     64           128
///      | sizes_rkey | sizes_addr | ece | long mtu, zero | device name |
/// ```
///
/// `ece` is vendor, options and mask, a word each. The long MTU is a word.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PrefaceBytes {
    magic: [u8; 8],
    version: U16,
    bytes: U16,
    fifo_depth: U16,
    qp_count: U16,
    features: U32,
    options: U32,
    udp_port: U16,
    zero: [u8; 2],
    sizes_rkey: U32,
    sizes_addr: U64,
    ece: [U32; 3],
    long_mtu_bytes: U32,
    reserved: [u8; 8],
    device: [u8; DEVICE_NAME_BYTES],
}

assert_eq_size!(PrefaceBytes, [u8; 128]);

/// What an end is and offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preface {
    /// FIFO rows: the connector offers, the acceptor decides on no more.
    pub fifo_depth: u16,
    /// Queue pairs, the connector's choice.
    pub qp_count: u16,
    /// What this end's NIC and settings allow.
    pub options: QpOptions,
    /// UDP port of a software NIC, 0 for a real one.
    pub udp_port: u16,
    /// Where the acceptor wants the sizes of grouped receives: rows of eight `u32`.
    pub sizes_addr: u64,
    /// Its key.
    pub sizes_rkey: u32,
    /// What this end's driver offers, or as acceptor has agreed to, where it knows of that.
    pub ece: Option<Ece>,
    /// Payload of packets longer than any path MTU of the verbs, which this end's NIC and settings
    /// allow; 0 for none. Agreed is the smaller of both ends'.
    pub long_mtu_bytes: u32,
    /// Name of this end's device.
    pub device: DeviceName,
}

/// Why a preface is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefaceError {
    /// The first bytes are not ours.
    Magic([u8; 8]),
    /// The peer speaks another version of our wire: theirs.
    Version(u16),
    /// The peer speaks our wire, of that version, where NCCL 2.14's is expected.
    OtherWire(u16),
    /// The peer lacks the feature of real sizes for grouped receives, which our wire requires.
    Features(u32),
    /// Not a power of two up to 256, or more than we offered.
    FifoDepth(u16),
    /// Not from 1 to 128, or not as many as we offered.
    QpCount(u16),
    /// An acceptor that takes no sizes: their address, or key, is 0.
    Sizes(u64),
}

impl Preface {
    /// The bytes of the wire.
    pub fn to_bytes(&self) -> PrefaceBytes {
        let Ece { vendor_id, options, comp_mask } = self.ece.unwrap_or_default();
        let ece = if self.ece.is_some() { ECE } else { 0 };
        PrefaceBytes {
            magic: MAGIC,
            version: VERSION.into(),
            bytes: (PREFACE_BYTES as u16).into(),
            fifo_depth: self.fifo_depth.into(),
            qp_count: self.qp_count.into(),
            features: (GROUP_SIZES | ece).into(),
            options: self.options.bits().into(),
            udp_port: self.udp_port.into(),
            zero: [0; 2],
            sizes_rkey: self.sizes_rkey.into(),
            sizes_addr: self.sizes_addr.into(),
            ece: [vendor_id, options, comp_mask].map(U32::new),
            long_mtu_bytes: self.long_mtu_bytes.into(),
            reserved: [0; 8],
            device: encode(&self.device),
        }
    }

    /// Judges the first bytes of a peer's preface, as soon as magic and version are there: a peer
    /// of another version need not send as much as we would wait for.
    pub fn check_head(bytes: &[u8]) -> Result<(), PrefaceError> {
        if let Some(magic) = bytes.first_chunk::<8>()
            && *magic != MAGIC
        {
            return Err(PrefaceError::Magic(*magic));
        }
        match bytes.get(8..10).map(|v| u16::from_le_bytes([v[0], v[1]])) {
            Some(version) if version != VERSION => Err(PrefaceError::Version(version)),
            _ => Ok(()),
        }
    }

    /// Judges the first bytes of a peer that should send bare QP info.
    pub fn check_absent(bytes: &[u8]) -> Result<(), PrefaceError> {
        match bytes.strip_prefix(&MAGIC) {
            Some([low, high, ..]) => {
                Err(PrefaceError::OtherWire(u16::from_le_bytes([*low, *high])))
            }
            _ => Ok(()),
        }
    }

    /// Reads a peer's preface.
    pub fn parse(b: &PrefaceBytes) -> Result<Self, PrefaceError> {
        Self::check_head(b.as_bytes())?;
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
            sizes_addr: b.sizes_addr.get(),
            sizes_rkey: b.sizes_rkey.get(),
            ece: (b.features.get() & ECE != 0).then_some(ece),
            long_mtu_bytes: b.long_mtu_bytes.get(),
            device: decode(&b.device),
        })
    }
}

impl fmt::Display for PrefaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefaceError::Magic(got) => write!(
                f,
                "it begins with {got:02x?}, which is not Invar's preface: is the transport \
                 (INVAR_TRANSPORT) the same on both sides? if it is NCCL 2.14, set \
                 INVAR_WIRE=nccl-2.14 here"
            ),
            PrefaceError::Version(theirs) => write!(
                f,
                "the peer speaks version {theirs} of Invar's wire, this side version {VERSION}; \
                 run the same Invar on both"
            ),
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
            sizes_addr: 0x1000,
            sizes_rkey: 7,
            ece: (options & 1 != 0).then_some(Ece { vendor_id: 0x15b3, options, comp_mask: 0 }),
            long_mtu_bytes: options >> 4,
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
            mut bytes in prop::collection::vec(any::<u8>(), PREFACE_BYTES), ours: bool,
        ) {
            if ours {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
            }
            let _ = Preface::parse(&PrefaceBytes::read_from_bytes(&bytes).unwrap());
        }
    }

    #[test]
    fn another_version_is_named_from_its_first_ten_bytes() {
        let mut bytes = preface(8, 1, 0, "soft0").to_bytes();
        bytes.version = 9.into();
        assert_eq!(Preface::check_head(&bytes.as_bytes()[..9]), Ok(()));
        assert_eq!(Preface::check_head(&bytes.as_bytes()[..10]), Err(PrefaceError::Version(9)));
    }

    #[test]
    fn the_magic_is_no_lid() {
        assert!(u32::from_le_bytes([MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3]]) > 0xffff);
    }
}
