//! QP info in exactly the layout of NCCL 2.14.3 (`net_ib.cc ncclIbQpInfo`).

use core::fmt;

use static_assertions::{assert_eq_size, const_assert_eq};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::conn::QPS_MAX;
use crate::nic::{Gid, LinkLayer, Mtu};

/// Bytes of [`QpInfoBytes`].
pub const QP_INFO_BYTES: usize = size_of::<QpInfoBytes>();

/// The C struct on a 64-bit little-endian host.
///
/// ```text
/// byte 0    4        5           6    8            520  528  536  540       544       552
///      +----+--------+-----------+----+-------------+----+----+----+---------+---------+
///      |lid |ib_port |link_layer |pad | qpn[128]    |spn |iid |mtu |fifoRkey |fifoAddr |
///      +----+--------+-----------+----+-------------+----+----+----+---------+---------+
/// ```
///
/// NCCL does not initialise the padding, the unused `qpn` entries and, when it accepts, the FIFO
/// fields. Invar never reads these bytes. `spn` and `iid` are the halves of the GID in wire order.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpInfoBytes {
    lid: U32,
    ib_port: u8,
    link_layer: u8,
    pad: [u8; 2],
    qpn: [U32; QPS_MAX],
    spn: [u8; 8],
    iid: [u8; 8],
    mtu: U32,
    fifo_rkey: U32,
    fifo_addr: U64,
}

assert_eq_size!(QpInfoBytes, [u8; 552]);
const_assert_eq!(core::mem::offset_of!(QpInfoBytes, qpn), 8);
const_assert_eq!(core::mem::offset_of!(QpInfoBytes, spn), 520);
const_assert_eq!(core::mem::offset_of!(QpInfoBytes, iid), 528);
const_assert_eq!(core::mem::offset_of!(QpInfoBytes, mtu), 536);
const_assert_eq!(core::mem::offset_of!(QpInfoBytes, fifo_rkey), 540);
const_assert_eq!(core::mem::offset_of!(QpInfoBytes, fifo_addr), 544);

/// The queue pairs of an end and, from a connector, its FIFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// Local identifier (InfiniBand).
    pub lid: u16,
    /// Port on the device, from 1.
    pub ib_port: u8,
    /// Link layer: InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Queue pair numbers, in the order in which both ends use them.
    pub qpns: heapless::Vec<u32, QPS_MAX>,
    /// Global identifier (Ethernet).
    pub gid: Gid,
    /// Path MTU that this end offers, or has agreed to.
    pub mtu: Mtu,
    /// Remote key of the connector's FIFO.
    pub fifo_rkey: u32,
    /// Address of the connector's FIFO.
    pub fifo_addr: u64,
}

/// A field of the QP info with a value that no working peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpInfoError {
    /// `link_layer` is neither InfiniBand (1) nor Ethernet (2).
    LinkLayer(u8),
    /// `mtu` is not a code from 1 to 5.
    Mtu(u32),
    /// A queue pair number needs more than 24 bits, or is 0 or 1 (management).
    Qpn {
        /// Index of the queue pair.
        index: u8,
        /// Number of the queue pair.
        qpn: u32,
    },
    /// An Ethernet peer has no GID.
    NoGid,
    /// The connector's FIFO has no address or no key, or its address is no multiple of 32.
    Fifo {
        /// Address of the FIFO.
        addr: u64,
        /// Remote key of the FIFO.
        rkey: u32,
    },
}

impl QpInfo {
    /// Converts the info to the bytes of the wire; unused bytes are zero.
    pub fn to_bytes(&self) -> QpInfoBytes {
        let (spn, iid) = self.gid.0.split_at(8);
        let half = |bytes: &[u8]| core::array::from_fn(|i| bytes[i]);
        QpInfoBytes {
            lid: u32::from(self.lid).into(),
            ib_port: self.ib_port,
            link_layer: self.link_layer as u8,
            pad: [0; 2],
            qpn: core::array::from_fn(|i| self.qpns.get(i).copied().unwrap_or(0).into()),
            spn: half(spn),
            iid: half(iid),
            mtu: (self.mtu as u32).into(),
            fifo_rkey: self.fifo_rkey.into(),
            fifo_addr: self.fifo_addr.into(),
        }
    }

    /// Reads the info of a peer with `qps` queue pairs; `with_fifo` says whether the peer is a
    /// connector.
    pub fn parse(b: &QpInfoBytes, qps: usize, with_fifo: bool) -> Result<Self, QpInfoError> {
        let link_layer = match b.link_layer {
            1 => LinkLayer::Infiniband,
            2 => LinkLayer::Ethernet,
            other => return Err(QpInfoError::LinkLayer(other)),
        };
        let mtu = Mtu::from_code(b.mtu.get()).ok_or(QpInfoError::Mtu(b.mtu.get()))?;
        let mut qpns = heapless::Vec::new();
        for (index, qpn) in b.qpn.iter().take(qps).map(|qpn| qpn.get()).enumerate() {
            if !(2..1 << 24).contains(&qpn) {
                return Err(QpInfoError::Qpn { index: index as u8, qpn });
            }
            let room = qpns.push(qpn);
            debug_assert!(room.is_ok(), "as many as the array has");
        }
        let mut gid = Gid::default();
        gid.0[..8].copy_from_slice(&b.spn);
        gid.0[8..].copy_from_slice(&b.iid);
        if link_layer == LinkLayer::Ethernet && gid == Gid::default() {
            return Err(QpInfoError::NoGid);
        }
        let (fifo_rkey, fifo_addr) =
            if with_fifo { (b.fifo_rkey.get(), b.fifo_addr.get()) } else { (0, 0) };
        if with_fifo && (fifo_rkey == 0 || fifo_addr == 0 || fifo_addr % 32 != 0) {
            return Err(QpInfoError::Fifo { addr: fifo_addr, rkey: fifo_rkey });
        }
        let lid = b.lid.get() as u16;
        Ok(QpInfo { lid, ib_port: b.ib_port, link_layer, qpns, gid, mtu, fifo_rkey, fifo_addr })
    }
}

impl fmt::Display for QpInfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QpInfoError::LinkLayer(got) => {
                write!(f, "link layer {got} is neither InfiniBand (1) nor Ethernet (2)")
            }
            QpInfoError::Mtu(got) => write!(f, "MTU code {got} is not from 1 (256) to 5 (4096)"),
            QpInfoError::Qpn { index, qpn } => {
                write!(f, "queue pair number {index} is {qpn:#x}, not from 0x2 to 0xffffff")
            }
            QpInfoError::NoGid => f.write_str("the Ethernet peer's GID is zero"),
            QpInfoError::Fifo { addr, rkey } => write!(
                f,
                "a FIFO at address {addr:#x} with rkey {rkey:#x} (neither may be 0, and the \
                 address must be a multiple of 32)"
            ),
        }
    }
}

impl core::error::Error for QpInfoError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info(qpns: &[u32], gid: [u8; 16], mtu: u32, fifo: (u32, u64)) -> QpInfo {
        QpInfo {
            lid: 7,
            ib_port: 1,
            link_layer: LinkLayer::Ethernet,
            qpns: heapless::Vec::from_slice(qpns).unwrap(),
            gid: Gid(gid),
            mtu: Mtu::from_code(mtu).unwrap(),
            fifo_rkey: fifo.0,
            fifo_addr: fifo.1,
        }
    }

    proptest! {
        #[test]
        fn valid_info_survives_the_wire(
            qpns in prop::collection::vec(2u32..1 << 24, 1..=QPS_MAX),
            gid in any::<[u8; 16]>().prop_filter("zero GID", |gid| *gid != [0; 16]),
            mtu in 1u32..=5, rkey in 1u32.., row in 1u64..1 << 59,
        ) {
            let sent = info(&qpns, gid, mtu, (rkey, row * 32));
            prop_assert_eq!(QpInfo::parse(&sent.to_bytes(), qpns.len(), true), Ok(sent));
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), QP_INFO_BYTES), qps in 1usize..=128,
        ) {
            let bytes = QpInfoBytes::read_from_bytes(&bytes).unwrap();
            let _ = QpInfo::parse(&bytes, qps, true);
        }
    }

    #[test]
    fn bytes_are_those_of_the_c_struct() {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[15] = 9;
        let bytes = info(&[0x1234, 0xab_cdef], gid, 5, (0x55, 0x7f00_0000_1000)).to_bytes();
        let bytes = bytes.as_bytes();
        assert_eq!(bytes[..16], [7, 0, 0, 0, 1, 2, 0, 0, 0x34, 0x12, 0, 0, 0xef, 0xcd, 0xab, 0]);
        assert_eq!(bytes[520..522], [0xfe, 0x80]);
        assert_eq!(bytes[535], 9);
        assert_eq!(bytes[536..552], [5, 0, 0, 0, 0x55, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x7f, 0, 0]);
    }

    #[test]
    fn what_nccl_leaves_uninitialised_is_not_looked_at() {
        let mut bytes = info(&[0x11], [1; 16], 3, (1, 32)).to_bytes();
        bytes.pad = [0xff; 2];
        bytes.qpn[1..].fill(u32::MAX.into());
        bytes.fifo_addr = 1.into();
        let parsed = QpInfo::parse(&bytes, 1, false).unwrap();
        assert_eq!((parsed.qpns.as_slice(), parsed.fifo_addr), (&[0x11][..], 0));
    }

    #[test]
    fn a_field_out_of_range_is_named() {
        let good = info(&[0x11], [1; 16], 3, (1, 32));
        let check = |change: fn(&mut QpInfoBytes), want| {
            let mut bytes = good.to_bytes();
            change(&mut bytes);
            assert_eq!(QpInfo::parse(&bytes, 1, true), Err(want));
        };
        check(|b| b.link_layer = 3, QpInfoError::LinkLayer(3));
        check(|b| b.mtu = 6.into(), QpInfoError::Mtu(6));
        check(|b| b.qpn[0] = 1.into(), QpInfoError::Qpn { index: 0, qpn: 1 });
        check(|b| (b.spn, b.iid) = ([0; 8], [0; 8]), QpInfoError::NoGid);
        check(|b| b.fifo_addr = 33.into(), QpInfoError::Fifo { addr: 33, rkey: 1 });
    }
}
