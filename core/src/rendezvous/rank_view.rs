//! What a rank says of itself when ranks wait for each other, and its bytes on the wire.

use static_assertions::assert_eq_size;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::message::NOBODY;
use crate::stall::{HOST_BYTES, Process};

/// Bytes of an operation's description in a view. A longer description is cut.
pub const OPERATION_BYTES: usize = 64;
/// Bytes of a [`RankView`].
pub const RANK_VIEW_BYTES: usize = size_of::<RankViewBytes>();

/// Description of an operation, such as `all_reduce of 1000 F32, Sum`.
pub type OperationText = heapless::String<OPERATION_BYTES>;

/// The knowledge of a rank about its own operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankView {
    /// The rank's process.
    pub process: Process,
    /// Number of collectives that the rank has entered.
    pub entered: u64,
    /// The operation that the rank runs, or the last one.
    pub operation: OperationText,
    /// Whether all ranks must run this operation.
    pub is_collective: bool,
    /// Whether the rank runs the operation now.
    pub is_inside: bool,
    /// The rank whose part this rank waits for.
    pub waits_for: Option<u32>,
    /// A rank to which this rank has sent data that is not acknowledged.
    pub in_flight_to: Option<u32>,
    /// Milliseconds for which the rank has waited, or since its last operation.
    pub still_ms: u32,
    /// Whether the rank has waited so long that it wants to know why.
    pub is_stuck: bool,
}

/// A view on the wire, little-endian.
///
/// ```text
/// byte 0         8       12      16           20      24    28     32     64
///      +---------+-------+-------+------------+-------+-----+------+------+-----------+
///      | entered | still | waits | in flight  | flags | pid | zero | host | operation |
///      |         | ms    | for   | to         |       |     |      |      |           |
///      +---------+-------+-------+------------+-------+-----+------+------+-----------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RankViewBytes {
    entered: U64,
    still_ms: U32,
    waits_for: U32,
    in_flight_to: U32,
    flags: U32,
    pid: U32,
    zero: [u8; 4],
    host: [u8; HOST_BYTES],
    operation: [u8; OPERATION_BYTES],
}

assert_eq_size!(RankViewBytes, [u8; 128]);

const IS_COLLECTIVE: u32 = 1;
const IS_INSIDE: u32 = 1 << 1;
const IS_STUCK: u32 = 1 << 2;

impl RankView {
    /// Converts the view to the bytes of the wire.
    pub fn to_bytes(&self) -> [u8; RANK_VIEW_BYTES] {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(self.is_collective, IS_COLLECTIVE)
            | flag(self.is_inside, IS_INSIDE)
            | flag(self.is_stuck, IS_STUCK);
        let mut operation = [0; OPERATION_BYTES];
        operation[..self.operation.len()].copy_from_slice(self.operation.as_bytes());
        transmute!(RankViewBytes {
            entered: self.entered.into(),
            still_ms: self.still_ms.into(),
            waits_for: self.waits_for.unwrap_or(NOBODY).into(),
            in_flight_to: self.in_flight_to.unwrap_or(NOBODY).into(),
            flags: flags.into(),
            pid: self.process.pid.into(),
            zero: [0; 4],
            host: self.process.host,
            operation,
        })
    }

    /// Reads a rank's view; `None` if the length is wrong. Characters that cannot be printed become question
    /// marks.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let b = RankViewBytes::read_from_bytes(bytes).ok()?;
        let rank = |rank: U32| Some(rank.get()).filter(|rank| *rank != NOBODY);
        let flags = b.flags.get();
        let operation = b.operation.iter().take_while(|byte| **byte != 0);
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        };
        Some(RankView {
            process: Process { pid: b.pid.get(), host: b.host },
            entered: b.entered.get(),
            operation: operation.map(printable).collect(),
            is_collective: flags & IS_COLLECTIVE != 0,
            is_inside: flags & IS_INSIDE != 0,
            waits_for: rank(b.waits_for),
            in_flight_to: rank(b.in_flight_to),
            still_ms: b.still_ms.get(),
            is_stuck: flags & IS_STUCK != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_view_survives_the_wire_and_any_bytes_of_its_length_are_one(bytes: [[u8; 32]; 4]) {
            let view = RankView::parse(&bytes.concat()).unwrap();
            prop_assert_eq!(RankView::parse(&view.to_bytes()), Some(view));
            prop_assert_eq!(RankView::parse(&bytes.concat()[1..]), None);
        }
    }
}
