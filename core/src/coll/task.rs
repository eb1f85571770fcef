//! What is to be done, and by which algorithm.

use super::DataType;

/// Most ranks for [`Algorithm::OneShot`] and [`Algorithm::TwoShot`].
pub const ONE_SHOT_RANKS_MAX: u32 = 8;

/// What a communicator does for its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The reduced inputs, to all.
    AllReduce,
    /// Every rank's input, one behind the other, to all.
    AllGather,
    /// To each rank its block of the reduced inputs.
    ReduceScatter,
    /// The root's input, to all.
    Broadcast {
        /// Whose.
        root: u32,
    },
    /// The reduced inputs, to the root.
    Reduce {
        /// To whom.
        root: u32,
    },
    /// A block of its own to each rank from each.
    AllToAll,
    /// The input, to a peer.
    Send {
        /// To whom.
        peer: u32,
    },
    /// The output, from a peer.
    Recv {
        /// From whom.
        peer: u32,
    },
}

impl Operation {
    /// Elements that `rank` puts in, of a task of `count` among `nranks`; `None` beyond `usize`.
    pub fn input_count(self, count: usize, rank: u32, nranks: u32) -> Option<usize> {
        match self {
            Operation::ReduceScatter | Operation::AllToAll => count.checked_mul(nranks as usize),
            Operation::Broadcast { root } if root != rank => Some(0),
            Operation::Recv { .. } => Some(0),
            _ => Some(count),
        }
    }

    /// Elements that `rank` gets out; see [`input_count`](Operation::input_count).
    pub fn output_count(self, count: usize, rank: u32, nranks: u32) -> Option<usize> {
        match self {
            Operation::AllGather | Operation::AllToAll => count.checked_mul(nranks as usize),
            Operation::Reduce { root } if root != rank => Some(0),
            Operation::Send { .. } => Some(0),
            _ => Some(count),
        }
    }

    /// Whether it is between two ranks, each of which says how much it is.
    pub fn is_transfer(self) -> bool {
        matches!(self, Operation::Send { .. } | Operation::Recv { .. })
    }
}

/// How the ranks exchange data.
///
/// The result of an all-reduce is the same on all ranks, bit for bit, by each of them: one rank
/// alone reduces an element, or all do in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Around the ring: every link carries the least that is possible, after as many hops as there
    /// are ranks.
    Ring,
    /// Two binary trees, over even and over odd channels: few hops. For an all-reduce; a broadcast
    /// and a reduce take one tree, which has their root.
    Tree,
    /// Whoever needs a rank's data gets it from that rank: one hop, for little data and few ranks.
    OneShot,
    /// An all-reduce as a reduce-scatter and an all-gather, of one hop each.
    TwoShot,
}

/// A share of an operation: one rank's, on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// What.
    pub operation: Operation,
    /// How. [`Operation::AllToAll`], [`Operation::Send`] and [`Operation::Recv`] are the same by
    /// any.
    pub algorithm: Algorithm,
    /// Elements, as NCCL counts them: of a rank's block where the operation has a block for each
    /// rank, else of the whole.
    pub count: usize,
    /// Of which type.
    pub data_type: DataType,
    /// Whose share.
    pub rank: u32,
    /// On which channel.
    pub channel: u32,
    /// How many channels share the elements.
    pub nchannels: u32,
    /// Most bytes of a slot.
    pub slot_bytes: usize,
}

/// Why there is no schedule for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// A rank that does not exist.
    #[error("{what} is rank {rank}: the communicator has {nranks}, from 0")]
    Rank {
        /// Which of the ranks of the task.
        what: &'static str,
        /// What it is.
        rank: u32,
        /// How many there are.
        nranks: u32,
    },
    /// A transfer to oneself.
    #[error("rank {0} sends to or receives from itself: such data is copied, not scheduled")]
    Oneself(u32),
    /// A channel that does not exist.
    #[error("channel {channel} of {nchannels}: channels count from 0")]
    Channel {
        /// Which.
        channel: u32,
        /// How many there are.
        nchannels: u32,
    },
    /// A slot holds no element.
    #[error("slots of {slot_bytes} bytes hold no element of type {data_type}")]
    Slot {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// The type.
        data_type: DataType,
    },
    /// The elements of all ranks pass what memory can hold.
    #[error("{count} elements of type {data_type} for each of {nranks} ranks are too many")]
    Count {
        /// Elements.
        count: usize,
        /// The type.
        data_type: DataType,
        /// Ranks.
        nranks: u32,
    },
    /// The algorithm does not do this.
    #[error("{operation:?} is not done by {algorithm:?}")]
    Algorithm {
        /// What.
        operation: Operation,
        /// How.
        algorithm: Algorithm,
    },
    /// The algorithm is for fewer ranks.
    #[error("{algorithm:?} is for {ONE_SHOT_RANKS_MAX} ranks at most, not for {nranks}")]
    TooManyRanks {
        /// How.
        algorithm: Algorithm,
        /// Ranks.
        nranks: u32,
    },
}

impl Task {
    /// Whether it can be scheduled among so many ranks at all.
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
