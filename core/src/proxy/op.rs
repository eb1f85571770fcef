//! An operation, and the cell of shared memory that holds it.

use super::link::{AtomicU32, OpLink, Ordering};
use super::{BANK_LEN, Pattern};
use crate::math::{Protocol, STEPS};

/// Number of a proxy's connection. It combines a bank with an index in that bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

impl core::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}-{}", self.0 as usize / BANK_LEN, self.0 as usize % BANK_LEN)
    }
}

/// One direction of a transfer with one peer on one channel (`ncclProxyOp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Number of the communicator's operation that this one belongs to. The engine merges operations of
    /// one `op_count` over connections that share their buffers.
    pub op_count: u64,
    /// Total number of steps, a multiple of `slice_steps`.
    pub nsteps: u64,
    /// Most bytes of a slice (`nbytes`).
    pub slice_bytes: u64,
    /// The proxy's connection that the operation goes over.
    pub connection: ConnectionId,
    /// The peer's rank (`root`).
    pub peer: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// The channel's number.
    pub channel: u16,
    /// Steps of a slice, from 1 to [`STEPS`]. The engine moves one slice at once.
    pub slice_steps: u8,
    /// Steps of a chunk, a multiple of `slice_steps` and at most [`STEPS`]. Each operation begins at a
    /// chunk boundary.
    pub chunk_steps: u8,
    /// The pattern by which the data travels.
    pub pattern: Pattern,
    /// The protocol that the data is in.
    pub protocol: Protocol,
    /// Type of the reduced data (`ncclDataType_t`). The engine compares it but does not interpret it.
    pub dtype: u8,
    /// The reduction (`ncclRedOp_t`). The engine compares it but does not interpret it.
    pub red_op: u8,
}

/// The reason why an operation is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// No pattern has this code.
    #[error("pattern {0}: known are 0 to {max}", max = Pattern::ALL.len() - 1)]
    Pattern(u8),
    /// No protocol has this code.
    #[error("protocol {0}: known are 0 (LL), 1 (LL128) and 2 (simple)")]
    Protocol(u8),
    /// A chunk is not a whole number of slices, or a chunk is larger than the buffer.
    #[error(
        "slices of {slice_steps} steps in chunks of {chunk_steps}: a chunk is whole slices and at \
         most {STEPS} steps"
    )]
    Chunk {
        /// Steps of a slice.
        slice_steps: u8,
        /// Steps of a chunk.
        chunk_steps: u8,
    },
    /// The operation is not a whole number of slices, or it has no step.
    #[error("{nsteps} steps in slices of {slice_steps}: must be whole slices, and one at least")]
    Steps {
        /// Total number of steps.
        nsteps: u64,
        /// Steps of a slice.
        slice_steps: u8,
    },
}

/// The protocols by their codes: `NCCL_PROTO_LL`, `NCCL_PROTO_LL128`, `NCCL_PROTO_SIMPLE`.
const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// The cell stores an operation in these words:
///
/// ```text
///  0 connection   1 peer         2 chunk_bytes
///  3 op_count     5 nsteps       7 slice_bytes   low half first
///  9 channel << 16 | slice_steps << 8 | chunk_steps
/// 10 pattern << 24 | protocol << 16 | dtype << 8 | red_op
/// ```
const WORDS: usize = 11;

impl Op {
    /// Returns an error if the operation is invalid and so could never be moved.
    pub const fn check(&self) -> Result<(), OpError> {
        let Op { slice_steps, chunk_steps, nsteps, .. } = *self;
        if slice_steps == 0
            || !chunk_steps.is_multiple_of(slice_steps)
            || chunk_steps == 0
            || chunk_steps as u32 > STEPS
        {
            return Err(OpError::Chunk { slice_steps, chunk_steps });
        }
        if nsteps == 0 || !nsteps.is_multiple_of(slice_steps as u64) {
            return Err(OpError::Steps { nsteps, slice_steps });
        }
        Ok(())
    }

    fn to_words(self) -> [u32; WORDS] {
        let halves = |n: u64| [n as u32, (n >> 32) as u32];
        let [op_count, nsteps, bytes] =
            [halves(self.op_count), halves(self.nsteps), halves(self.slice_bytes)];
        [
            self.connection.0,
            self.peer,
            self.chunk_bytes,
            op_count[0],
            op_count[1],
            nsteps[0],
            nsteps[1],
            bytes[0],
            bytes[1],
            (self.channel as u32) << 16 | (self.slice_steps as u32) << 8 | self.chunk_steps as u32,
            u32::from_be_bytes([self.pattern as u8, self.protocol as u8, self.dtype, self.red_op]),
        ]
    }

    fn from_words(words: [u32; WORDS]) -> Result<Self, OpError> {
        let wide = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        let [_, _, slice_steps, chunk_steps] = words[9].to_be_bytes();
        let [pattern, protocol, dtype, red_op] = words[10].to_be_bytes();
        let op = Op {
            op_count: wide(3),
            nsteps: wide(5),
            slice_bytes: wide(7),
            connection: ConnectionId(words[0]),
            peer: words[1],
            chunk_bytes: words[2],
            channel: (words[9] >> 16) as u16,
            slice_steps,
            chunk_steps,
            pattern: *Pattern::ALL.get(pattern as usize).ok_or(OpError::Pattern(pattern))?,
            protocol: *PROTOCOLS.get(protocol as usize).ok_or(OpError::Protocol(protocol))?,
            dtype,
            red_op,
        };
        op.check()?;
        Ok(op)
    }
}

/// A cache line of shared memory: an operation, and a link to the next cell of the list that holds this
/// one.
///
/// Only the process that holds the cell accesses it. The lists order the accesses of one holder after
/// those of the previous holder, so relaxed accesses suffice. A cell of zero bytes is valid.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Cell {
    next: AtomicU32,
    words: [AtomicU32; WORDS],
}

#[cfg(not(all(loom, test)))]
static_assertions::const_assert_eq!(size_of::<Cell>(), 64);

impl Cell {
    pub(super) fn next(&self) -> OpLink {
        OpLink::from_word(self.next.load(Ordering::Relaxed))
    }

    pub(super) fn set_next(&self, next: OpLink) {
        self.next.store(next.word(), Ordering::Relaxed);
    }

    pub(super) fn write(&self, op: &Op) {
        for (cell, word) in self.words.iter().zip(op.to_words()) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// Another process wrote the cell, so the words may have any value.
    pub(super) fn read(&self) -> Result<Op, OpError> {
        Op::from_words(self.words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OP: Op = Op {
        op_count: 0x0102_0304_0506_0708,
        nsteps: 0x1112_1314_1516_1718,
        slice_bytes: 0x2122_2324_2526_2728,
        connection: ConnectionId(0x3132_3334),
        peer: 0x4142_4344,
        chunk_bytes: 0x5152_5354,
        channel: 0x6162,
        slice_steps: 2,
        chunk_steps: 4,
        pattern: Pattern::CollnetDirect,
        protocol: Protocol::Simple,
        dtype: 7,
        red_op: 3,
    };

    #[test]
    fn the_words_of_an_operation_stand_where_the_table_says() {
        let words = [
            0x3132_3334,
            0x4142_4344,
            0x5152_5354,
            0x0506_0708,
            0x0102_0304,
            0x1516_1718,
            0x1112_1314,
            0x2526_2728,
            0x2122_2324,
            0x6162_0204,
            0x0802_0703,
        ];
        assert_eq!(OP.to_words(), words);
        assert_eq!(Op::from_words(words), Ok(OP));
    }

    #[test]
    fn a_connection_is_named_by_bank_and_place() {
        extern crate std;
        assert_eq!(std::format!("{}", ConnectionId(3 * 128 + 5)), "3-5");
    }

    #[test]
    fn operations_that_could_never_end_are_refused() {
        let chunk = |slice_steps, chunk_steps| {
            (
                Op { slice_steps, chunk_steps, ..OP }.check(),
                OpError::Chunk { slice_steps, chunk_steps },
            )
        };
        for (slice_steps, chunk_steps) in [(0, 4), (3, 4), (2, 0), (4, 12), (9, 9)] {
            let (found, expected) = chunk(slice_steps, chunk_steps);
            assert_eq!(found, Err(expected));
        }
        for nsteps in [0, 5] {
            let error = OpError::Steps { nsteps, slice_steps: 2 };
            assert_eq!(Op { nsteps, ..OP }.check(), Err(error));
        }
        assert_eq!(Op { slice_steps: 8, chunk_steps: 8, nsteps: 8, ..OP }.check(), Ok(()));
    }

    proptest! {
        #[test]
        fn any_words_give_an_operation_that_gives_the_same_words_or_an_error(words: [u32; WORDS]) {
            if let Ok(op) = Op::from_words(words) {
                prop_assert_eq!(op.to_words(), words);
            }
        }

        #[test]
        fn a_cell_gives_back_what_was_written(
            wide: [u64; 3],
            narrow: [u32; 3],
            channel: u16,
            codes in (0usize..11, 0usize..3, any::<[u8; 2]>()),
        ) {
            let op = Op {
                op_count: wide[0],
                nsteps: (wide[1] | 1) << 1,
                slice_bytes: wide[2],
                connection: ConnectionId(narrow[0]),
                peer: narrow[1],
                chunk_bytes: narrow[2],
                channel,
                pattern: Pattern::ALL[codes.0],
                protocol: PROTOCOLS[codes.1],
                dtype: codes.2[0],
                red_op: codes.2[1],
                ..OP
            };
            let cell = Cell::default();
            cell.write(&op);
            prop_assert_eq!(cell.read(), Ok(op));
        }
    }
}
