//! The report of an end with several rails.

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::conn::wire::{PREFACE_BYTES, Preface, PrefaceBytes, QpInfo};
use crate::conn::{QPS_MAX, RAILS_MAX, RailSet};
use crate::error::Error;
use crate::nic::{Gid, LinkLayer, Mtu};

/// Words of a set of rows: one bit for each row of the longest FIFO.
pub(in crate::comm) const ROW_SET_WORDS: usize = crate::fifo::DEPTH_MAX / 64;

/// Rows of the FIFO, by their index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::comm) struct RowSet(pub(in crate::comm) [u64; ROW_SET_WORDS]);

impl RowSet {
    pub(in crate::comm) fn has(&self, row: u64) -> bool {
        self.0[row as usize / 64 % ROW_SET_WORDS] >> (row % 64) & 1 == 1
    }

    pub(in crate::comm) fn add(&mut self, row: u64) {
        self.0[row as usize / 64 % ROW_SET_WORDS] |= 1 << (row % 64);
    }
}

/// A report on stopped queue pairs, and on the rails of the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::comm) struct RailsReport {
    pub(in crate::comm) attempt: u32,
    /// From the sender: the number of rows that it has sent. From the receiver: the number of the first row
    /// that has not arrived.
    pub(in crate::comm) rows: u64,
    /// From the receiver: the rows that have arrived. Over several rails a row may overtake another.
    pub(in crate::comm) arrived: RowSet,
    /// Whether nothing has failed, and the end only wants another set of rails.
    pub(in crate::comm) planned: bool,
    /// The rails on which this end has new queue pairs.
    pub(in crate::comm) usable: RailSet,
    /// The rails of which this end knows nothing bad.
    pub(in crate::comm) trusted: RailSet,
    /// The new queue pairs, in the order of the rails.
    pub(in crate::comm) ends: heapless::Vec<RailEnd, RAILS_MAX>,
}

/// The queue pairs of one rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::comm) struct RailEnd {
    pub(in crate::comm) preface: Preface,
    pub(in crate::comm) info: QpInfo,
    pub(in crate::comm) speed_mbps: u32,
}

/// The body of [`RailsReport`], which follows its head.
///
/// ```text
/// byte 0      8         40        41       42        43    44       48        1264
///      +------+---------+---------+--------+---------+-----+--------+---------+-----------+
///      | rows | arrived | planned | usable | trusted | qps |  zero  | ends[8] | qpns[128] |
///      +------+---------+---------+--------+---------+-----+--------+---------+-----------+
/// ```
///
/// The ends are those of the usable rails; the rest is zero. `qps` is the number of queue pairs of each.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RailsReportBytes {
    rows: U64,
    arrived: [U64; ROW_SET_WORDS],
    planned: u8,
    usable: u8,
    trusted: u8,
    qps: u8,
    zero: [u8; 4],
    ends: [RailEndBytes; RAILS_MAX],
    qpns: [U32; QPS_MAX],
}

/// ```text
/// byte 0         120   136   140     144   146       147          148    152
///      +---------+-----+-----+-------+-----+---------+------------+------+
///      | preface | gid | mtu | speed | lid | ib_port | link_layer | zero |
///      +---------+-----+-----+-------+-----+---------+------------+------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RailEndBytes {
    preface: [u8; PREFACE_BYTES],
    gid: [u8; 16],
    mtu: U32,
    speed_mbps: U32,
    lid: U16,
    ib_port: u8,
    link_layer: u8,
    zero: [u8; 4],
}

pub(super) const RAILS_REPORT_BYTES: usize = size_of::<RailsReportBytes>();

assert_eq_size!(RailEndBytes, [u8; 152]);
assert_eq_size!(RailsReportBytes, [u8; 48 + 8 * 152 + 4 * QPS_MAX]);

impl RailsReport {
    pub(super) fn to_bytes(&self) -> RailsReportBytes {
        let mut ends = [RailEndBytes::new_zeroed(); RAILS_MAX];
        for (bytes, end) in ends.iter_mut().zip(&self.ends) {
            *bytes = RailEndBytes {
                preface: zerocopy::transmute!(end.preface.to_bytes()),
                gid: end.info.gid.0,
                mtu: (end.info.mtu as u32).into(),
                speed_mbps: end.speed_mbps.into(),
                lid: end.info.lid.into(),
                ib_port: end.info.ib_port,
                link_layer: end.info.link_layer as u8,
                zero: [0; 4],
            };
        }
        let mut qpns = [U32::ZERO; QPS_MAX];
        let numbers = self.ends.iter().flat_map(|end| end.info.qpns.iter());
        qpns.iter_mut().zip(numbers).for_each(|(to, qpn)| *to = (*qpn).into());
        RailsReportBytes {
            rows: self.rows.into(),
            arrived: self.arrived.0.map(U64::new),
            planned: self.planned.into(),
            usable: self.usable.0,
            trusted: self.trusted.0,
            qps: self.ends.first().map_or(0, |end| end.info.qpns.len() as u8),
            zero: [0; 4],
            ends,
            qpns,
        }
    }

    pub(super) fn parse(attempt: u32, b: &RailsReportBytes) -> Result<Self, Error> {
        let (usable, qps) = (RailSet(b.usable), usize::from(b.qps));
        if usable.is_empty() || qps == 0 || usable.len() * qps > QPS_MAX {
            return Err(Error::Unexpected);
        }
        let mut ends = heapless::Vec::new();
        for (end, qpns) in b.ends.iter().zip(b.qpns.chunks(qps)).take(usable.len()) {
            let preface: PrefaceBytes = zerocopy::transmute!(end.preface);
            let preface = Preface::parse(&preface).map_err(Error::Preface)?;
            let link_layer = match end.link_layer {
                1 => LinkLayer::Infiniband,
                2 => LinkLayer::Ethernet,
                _ => return Err(Error::Unexpected),
            };
            let info = QpInfo {
                lid: end.lid.get(),
                ib_port: end.ib_port,
                link_layer,
                qpns: qpns.iter().map(|qpn| qpn.get()).collect(),
                gid: Gid(end.gid),
                mtu: Mtu::from_code(end.mtu.get()).ok_or(Error::Unexpected)?,
                fifo_rkey: 0,
                fifo_addr: 0,
            };
            // The same checks as in the handshake.
            let info = QpInfo::parse(&info.to_bytes(), qps, false).map_err(Error::QpInfo)?;
            let end = RailEnd { preface, info, speed_mbps: end.speed_mbps.get() };
            ends.push(end).map_err(|_| Error::Unexpected)?;
        }
        Ok(RailsReport {
            attempt,
            rows: b.rows.get(),
            arrived: RowSet(b.arrived.map(U64::get)),
            planned: b.planned != 0,
            usable,
            trusted: RailSet(b.trusted).and(usable),
            ends,
        })
    }

    /// The queue pairs of a usable rail.
    pub(in crate::comm) fn end(&self, rail: usize) -> Option<&RailEnd> {
        let before = self.usable.and(RailSet::first(rail)).len();
        self.usable.has(rail).then(|| self.ends.get(before)).flatten()
    }
}
