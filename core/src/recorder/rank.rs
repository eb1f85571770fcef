//! The record of one rank of a communicator: its numbers, and the last operations that took long enough to be
//! timed.

use static_assertions::{assert_eq_size, const_assert};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, transmute};

use super::{RecordError, cut, text};
use crate::metrics::RankNumbers;
use crate::rendezvous::NOBODY;

/// Number of operations that a rank's record keeps.
pub const OPERATIONS: usize = 40;
/// Bytes of the description of an operation. A longer description is cut.
pub const OPERATION_TEXT_BYTES: usize = 48;
/// Bytes of a rank's record.
pub const RANK_RECORD_BYTES: usize = size_of::<RankRecordBytes>();

/// The kind of a rank's record. In the record of a connection the role stands there.
const RANK: u16 = 3;
/// The time of an operation that is not done.
const RUNS: u64 = u64::MAX;

/// The record of one rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankRecord {
    /// The number by which all ranks know the communicator.
    pub communicator: u64,
    /// Number of the rank.
    pub rank: u32,
    /// Number of ranks of the communicator.
    pub nranks: u32,
    /// Time of the last look, on the clock of the process.
    pub looked_ns: u64,
    /// Whether the rank has left its communicator.
    pub has_left: bool,
    /// The rank's numbers at the last look.
    pub numbers: RankNumbers,
    /// The last operations, oldest first.
    pub operations: heapless::Vec<RankOperation, OPERATIONS>,
}

/// An operation of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankOperation {
    /// Number of collectives that the rank had entered by then. The ranks count alike.
    pub number: u64,
    /// When the operation began, on the clock of the process.
    pub begun_ns: u64,
    /// How long it took; `None` while it runs.
    pub took_ns: Option<u64>,
    /// Bytes of the operation, as its count says.
    pub bytes: u64,
    /// The operation, its count, type, reduction and algorithm.
    pub text: heapless::String<OPERATION_TEXT_BYTES>,
    /// For how long it has waited for other ranks, in microseconds.
    pub waited_us: u32,
    /// The longest of these waits, if there was any.
    pub longest: Option<RankWait>,
}

/// A wait of an operation for another rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankWait {
    /// The rank that was waited for.
    pub rank: u32,
    /// Microseconds from the begin of the operation to that of the wait.
    pub after_us: u32,
    /// Microseconds of the wait.
    pub lasted_us: u32,
}

/// ```text
/// byte 0      8      12    14        16     24       28     32           3872      3880      3912
///      +------+------+-----+---------+------+--------+------+------------+---------+---------+------+
///      | turn | rank | 3   | number  | look | number | has  | operations | commu-  | rank's  | turn |
///      |      |      |     | of oper-| ed   | of     | left |            | nicator | numbers |      |
///      |      |      |     | ations  |      | ranks  |      |            |         |         |      |
///      +------+------+-----+---------+------+--------+------+------------+---------+---------+------+
/// ```
///
/// Both turns are equal unless the writer is at work. The third field has the place of a role.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RankRecordBytes {
    turn: U64,
    rank: U32,
    kind: U16,
    operations_len: U16,
    looked_ns: U64,
    nranks: U32,
    has_left: U32,
    operations: [OperationBytes; OPERATIONS],
    communicator: U64,
    numbers: [U64; 4],
    turn_again: U64,
}

/// ```text
/// byte 0        8       16     24      32     80       84     88      92     96
///      +--------+-------+------+-------+------+--------+------+-------+------+
///      | number | begun | took | bytes | text | waited | rank | after | long |
///      +--------+-------+------+-------+------+--------+------+-------+------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OperationBytes {
    number: U64,
    begun_ns: U64,
    took_ns: U64,
    bytes: U64,
    text: [u8; OPERATION_TEXT_BYTES],
    waited_us: U32,
    longest_rank: U32,
    longest_after_us: U32,
    longest_us: U32,
}

assert_eq_size!(OperationBytes, [u8; 96]);
assert_eq_size!(RankRecordBytes, [u8; 3920]);
const_assert!(OPERATIONS <= u16::MAX as usize);

impl RankRecord {
    /// Whether bytes are those of a rank's record, and not of a connection's.
    pub fn is_one(bytes: &[u8]) -> bool {
        RankRecordBytes::ref_from_prefix(bytes).is_ok_and(|(b, _)| b.kind.get() == RANK)
    }

    /// Converts the record to bytes. `turn` is another number for each write.
    pub fn to_bytes(&self, turn: u64) -> [u8; RANK_RECORD_BYTES] {
        let mut b = RankRecordBytes::new_zeroed();
        (b.turn, b.turn_again) = (turn.into(), turn.into());
        (b.rank, b.nranks, b.kind) = (self.rank.into(), self.nranks.into(), RANK.into());
        b.operations_len = (self.operations.len() as u16).into();
        (b.looked_ns, b.has_left) = (self.looked_ns.into(), u32::from(self.has_left).into());
        b.communicator = self.communicator.into();
        let RankNumbers { operations, bytes, waited_ns, stalls } = self.numbers;
        b.numbers = [operations, bytes, waited_ns, stalls].map(U64::from);
        for (to, operation) in b.operations.iter_mut().zip(&self.operations) {
            *to = operation.to_bytes();
        }
        transmute!(b)
    }

    /// Reads a record that [is one](Self::is_one). Text that cannot be printed becomes question marks.
    ///
    /// # Errors
    /// The bytes are no record of a rank.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let (b, _) =
            RankRecordBytes::ref_from_prefix(bytes).map_err(|_| RecordError::Short(bytes.len()))?;
        if b.turn.get() != b.turn_again.get() {
            return Err(RecordError::Torn);
        }
        let len = usize::from(b.operations_len.get());
        let Some(operations) = b.operations.get(..len) else {
            let what = "the number of operations";
            return Err(RecordError::Field { what, value: len as u64 });
        };
        let [done, bytes, waited_ns, stalls] = b.numbers.map(U64::get);
        Ok(RankRecord {
            communicator: b.communicator.get(),
            rank: b.rank.get(),
            nranks: b.nranks.get(),
            looked_ns: b.looked_ns.get(),
            has_left: b.has_left.get() != 0,
            numbers: RankNumbers { operations: done, bytes, waited_ns, stalls },
            operations: operations.iter().map(RankOperation::parse).collect(),
        })
    }
}

impl RankOperation {
    /// Describes an operation. A text that is too long is cut.
    pub fn describe(&mut self, operation: &str) {
        self.text = cut(operation);
    }

    fn to_bytes(&self) -> OperationBytes {
        let nobody = RankWait { rank: NOBODY, ..RankWait::default() };
        let RankWait { rank, after_us, lasted_us } = self.longest.unwrap_or(nobody);
        let mut text = [0; OPERATION_TEXT_BYTES];
        text[..self.text.len()].copy_from_slice(self.text.as_bytes());
        OperationBytes {
            number: self.number.into(),
            begun_ns: self.begun_ns.into(),
            took_ns: self.took_ns.unwrap_or(RUNS).into(),
            bytes: self.bytes.into(),
            text,
            waited_us: self.waited_us.into(),
            longest_rank: rank.into(),
            longest_after_us: after_us.into(),
            longest_us: lasted_us.into(),
        }
    }

    fn parse(b: &OperationBytes) -> Self {
        let longest = RankWait {
            rank: b.longest_rank.get(),
            after_us: b.longest_after_us.get(),
            lasted_us: b.longest_us.get(),
        };
        RankOperation {
            number: b.number.get(),
            begun_ns: b.begun_ns.get(),
            took_ns: Some(b.took_ns.get()).filter(|took_ns| *took_ns != RUNS),
            bytes: b.bytes.get(),
            text: text(&b.text),
            waited_us: b.waited_us.get(),
            longest: Some(longest).filter(|wait| wait.rank != NOBODY),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;
    use crate::recorder::Record;
    use crate::stall::{EndView, Role};

    fn record() -> RankRecord {
        let longest = Some(RankWait { rank: 0, after_us: 5, lasted_us: 600 });
        let mut done = RankOperation {
            number: 7,
            begun_ns: 1_000,
            took_ns: Some(2_000_000),
            bytes: 4_000,
            waited_us: 900,
            longest,
            ..RankOperation::default()
        };
        done.describe("all_reduce of 1000 F32, Sum by Ring");
        let runs = RankOperation { took_ns: None, longest: None, ..done.clone() };
        let operations = [done, runs].into_iter().collect();
        let numbers = RankNumbers { operations: 8, bytes: 16_000, waited_ns: 900_000, stalls: 2 };
        RankRecord {
            communicator: 0xabc,
            rank: 1,
            nranks: 4,
            looked_ns: 9,
            has_left: true,
            numbers,
            operations,
        }
    }

    #[test]
    fn a_ranks_record_survives_a_file_and_is_no_connections() {
        let bytes = record().to_bytes(3);
        assert!(RankRecord::is_one(&bytes));
        assert_eq!(RankRecord::parse(&bytes), Ok(record()));
        assert!(Record::parse(&bytes).is_err());
        let connection = Record::new(Role::Sender, 1, "ends", EndView::default(), 5);
        assert!(!RankRecord::is_one(&connection.to_bytes(3)));
        assert!(!RankRecord::is_one(&[0; RANK_RECORD_BYTES]));
    }

    #[test]
    fn a_record_that_is_being_written_is_torn_and_a_text_is_cut() {
        let mut bytes = record().to_bytes(3);
        bytes[0] = 4;
        assert_eq!(RankRecord::parse(&bytes), Err(RecordError::Torn));
        let mut operation = RankOperation::default();
        operation.describe(&"é".repeat(40));
        assert_eq!(operation.text.len(), OPERATION_TEXT_BYTES);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..RANK_RECORD_BYTES + 8), len: u16, same: bool,
        ) {
            let mut bytes = bytes;
            bytes.resize(RANK_RECORD_BYTES, 0);
            bytes[14..16].copy_from_slice(&(len % 50).to_le_bytes());
            if same {
                bytes.copy_within(..8, RANK_RECORD_BYTES - 8);
            }
            let parsed = RankRecord::parse(&bytes);
            prop_assert_eq!(parsed.is_ok(), bytes[..8] == bytes[RANK_RECORD_BYTES - 8..] && len % 50 <= 40);
        }
    }
}
