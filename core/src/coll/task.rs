//! The operations of a communicator, the algorithms for them, and one rank's task.

use super::DataType;

/// Most ranks for [`Algorithm::OneShot`] and [`Algorithm::TwoShot`].
pub const ONE_SHOT_RANKS_MAX: u32 = 8;

/// An operation that a communicator runs for its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// All ranks receive the reduced inputs.
    AllReduce,
    /// All ranks receive every rank's input, one input behind the other.
    AllGather,
    /// Each rank receives its block of the reduced inputs.
    ReduceScatter,
    /// All ranks receive the root's input.
    Broadcast {
        /// The rank whose input all ranks receive.
        root: u32,
    },
    /// The root receives the reduced inputs.
    Reduce {
        /// The rank that receives the result.
        root: u32,
    },
    /// Each rank sends a different block of its input to each rank.
    AllToAll,
    /// The rank sends its input to a peer.
    Send {
        /// The rank that receives the input.
        peer: u32,
    },
    /// The rank receives its output from a peer.
    Recv {
        /// The rank that sends the output.
        peer: u32,
    },
}

impl Operation {
    /// Returns the number of input elements of `rank`, for a task of `count` elements among `nranks`.
    /// Returns `None` if the number exceeds `usize`.
    pub fn input_count(self, count: usize, rank: u32, nranks: u32) -> Option<usize> {
        match self {
            Operation::ReduceScatter | Operation::AllToAll => count.checked_mul(nranks as usize),
            Operation::Broadcast { root } if root != rank => Some(0),
            Operation::Recv { .. } => Some(0),
            _ => Some(count),
        }
    }

    /// Returns the number of output elements of `rank`, for a task of `count` elements among `nranks`.
    /// Returns `None` if the number exceeds `usize`.
    pub fn output_count(self, count: usize, rank: u32, nranks: u32) -> Option<usize> {
        match self {
            Operation::AllGather | Operation::AllToAll => count.checked_mul(nranks as usize),
            Operation::Reduce { root } if root != rank => Some(0),
            Operation::Send { .. } => Some(0),
            _ => Some(count),
        }
    }

    /// Returns whether the operation is between two ranks, each of which gives its own count.
    pub fn is_transfer(self) -> bool {
        matches!(self, Operation::Send { .. } | Operation::Recv { .. })
    }
}

/// The algorithm by which the ranks exchange data.
///
/// With each algorithm, the result of an all-reduce is the same on all ranks, bit for bit. Either one
/// rank alone reduces an element, or all ranks reduce it in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The data goes around the ring. Every link carries the least possible number of bytes, and the
    /// number of hops grows with the number of ranks.
    Ring,
    /// Two binary trees, one for even and one for odd channels, need few hops. An all-reduce uses both
    /// trees. A broadcast and a reduce use one tree, whose root is theirs.
    Tree,
    /// Each rank gets data directly from the rank that has it. One hop suffices, which suits little
    /// data and few ranks.
    OneShot,
    /// An all-reduce is a reduce-scatter and an all-gather, each of one hop.
    TwoShot,
}

/// One rank's share of an operation on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The operation that all ranks run.
    pub operation: Operation,
    /// The algorithm. [`Operation::AllToAll`], [`Operation::Send`] and [`Operation::Recv`] ignore it.
    pub algorithm: Algorithm,
    /// Number of elements, as NCCL counts them. If the operation has a block for each rank, this is the
    /// size of a block; otherwise it is the size of the whole.
    pub count: usize,
    /// The type of the elements.
    pub data_type: DataType,
    /// The rank whose share this is.
    pub rank: u32,
    /// The channel of this share.
    pub channel: u32,
    /// Number of channels that share the elements.
    pub nchannels: u32,
    /// Most bytes of a slot.
    pub slot_bytes: usize,
}

/// The reason why there is no schedule for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The task names a rank that does not exist.
    #[error("{what} is rank {rank}: the communicator has {nranks}, from 0")]
    Rank {
        /// The role of the rank in the task.
        what: &'static str,
        /// The number of the rank.
        rank: u32,
        /// Number of ranks.
        nranks: u32,
    },
    /// The task sends to its own rank or receives from it.
    #[error("rank {0} sends to or receives from itself: such data is copied, not scheduled")]
    Oneself(u32),
    /// The task names a channel that does not exist.
    #[error("channel {channel} of {nchannels}: channels count from 0")]
    Channel {
        /// Number of the channel.
        channel: u32,
        /// Number of channels.
        nchannels: u32,
    },
    /// A slot is too small for one element.
    #[error("slots of {slot_bytes} bytes hold no element of type {data_type}")]
    Slot {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// The type of the elements.
        data_type: DataType,
    },
    /// The elements of all ranks together need more bytes than memory can hold.
    #[error("{count} elements of type {data_type} for each of {nranks} ranks are too many")]
    Count {
        /// Number of elements.
        count: usize,
        /// The type of the elements.
        data_type: DataType,
        /// Number of ranks.
        nranks: u32,
    },
    /// The algorithm can't run this operation.
    #[error("{operation:?} is not done by {algorithm:?}")]
    Algorithm {
        /// The operation that was asked for.
        operation: Operation,
        /// The algorithm that does not have the operation.
        algorithm: Algorithm,
    },
    /// There are more ranks than the algorithm allows.
    #[error("{algorithm:?} is for {ONE_SHOT_RANKS_MAX} ranks at most, not for {nranks}")]
    TooManyRanks {
        /// The algorithm that allows fewer ranks.
        algorithm: Algorithm,
        /// Number of ranks.
        nranks: u32,
    },
}

impl Task {
    /// Returns an error if the task can't be scheduled among `nranks` ranks.
    pub(super) fn check(&self, nranks: u32) -> Result<(), TaskError> {
        use {Algorithm as A, Operation as O};
        let Task { operation, algorithm, count, data_type, rank, channel, nchannels, .. } = *self;
        let check_rank = |what, rank| match rank < nranks {
            true => Ok(()),
            false => Err(TaskError::Rank { what, rank, nranks }),
        };
        check_rank("this", rank)?;
        match operation {
            O::Broadcast { root } | O::Reduce { root } => check_rank("the root", root)?,
            O::Send { peer } | O::Recv { peer } => {
                check_rank("the peer", peer)?;
                if peer == rank {
                    return Err(TaskError::Oneself(rank));
                }
            }
            _ => {}
        }
        if channel >= nchannels {
            return Err(TaskError::Channel { channel, nchannels });
        }
        if self.slot_bytes < data_type.bytes() {
            return Err(TaskError::Slot { slot_bytes: self.slot_bytes, data_type });
        }
        let bytes = count
            .checked_mul(data_type.bytes())
            .and_then(|bytes| bytes.checked_mul(nranks as usize));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(TaskError::Count { count, data_type, nranks });
        }
        match (algorithm, operation) {
            (_, O::AllToAll | O::Send { .. } | O::Recv { .. }) => Ok(()),
            (A::Tree, O::AllGather | O::ReduceScatter) => {
                Err(TaskError::Algorithm { operation, algorithm })
            }
            (
                A::TwoShot,
                O::AllGather | O::ReduceScatter | O::Broadcast { .. } | O::Reduce { .. },
            ) => Err(TaskError::Algorithm { operation, algorithm }),
            (A::OneShot | A::TwoShot, _) if nranks > ONE_SHOT_RANKS_MAX => {
                Err(TaskError::TooManyRanks { algorithm, nranks })
            }
            _ => Ok(()),
        }
    }
}
