//! The list of joined ranks.

use core::fmt;

/// Maximum number of ranks of a rendezvous.
pub const RANKS_MAX: u32 = 4096;

/// The ranks that have joined, out of all expected ranks.
#[derive(Debug)]
pub struct Roster {
    nranks: u32,
    joined: [u64; RANKS_MAX as usize / 64],
}

/// Why a rank may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// The message does not say which rank its sender is.
    #[error("it does not say which rank it is")]
    NoJoin,
    /// The rank expects another number of ranks.
    #[error("rank {rank} counts on {theirs} ranks, the communicator has {ours}")]
    Size {
        /// Number of the refused rank.
        rank: u32,
        /// Number of ranks that the refused rank expects.
        theirs: u32,
        /// Number of ranks that the communicator has.
        ours: u32,
    },
    /// The communicator has no such rank.
    #[error("there is no rank {rank}: of {nranks} ranks the first is 0")]
    Rank {
        /// Number of the refused rank.
        rank: u32,
        /// Number of ranks that the communicator has.
        nranks: u32,
    },
    /// Another process has joined as this rank.
    #[error("rank {0} has joined already: does another process have the same rank?")]
    Duplicate(u32),
}

impl Roster {
    /// Creates a roster for `nranks` ranks. `None` means that `nranks` is 0 or exceeds [`RANKS_MAX`].
    pub fn new(nranks: u32) -> Option<Self> {
        let fits = (1..=RANKS_MAX).contains(&nranks);
        fits.then_some(Roster { nranks, joined: [0; RANKS_MAX as usize / 64] })
    }

    /// Number of expected ranks.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// Adds a rank that expects `nranks` ranks.
    ///
    /// # Errors
    /// The number of ranks differs, the rank is out of range, or it has joined already.
    pub fn join(&mut self, rank: u32, nranks: u32) -> Result<(), JoinRefusal> {
        if nranks != self.nranks {
            return Err(JoinRefusal::Size { rank, theirs: nranks, ours: self.nranks });
        }
        if rank >= nranks {
            return Err(JoinRefusal::Rank { rank, nranks });
        }
        if self.has(rank) {
            return Err(JoinRefusal::Duplicate(rank));
        }
        self.joined[rank as usize / 64] |= 1 << (rank % 64);
        Ok(())
    }

    /// Returns whether all ranks have joined.
    pub fn is_complete(&self) -> bool {
        self.joined.iter().map(|word| word.count_ones()).sum::<u32>() == self.nranks
    }

    /// Formats the missing ranks for people: `ranks 2, 3 of 4`.
    pub fn missing(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            let mut missing = (0..self.nranks).filter(|rank| !self.has(*rank));
            let count = missing.clone().count();
            f.write_str(if count == 1 { "rank" } else { "ranks" })?;
            const SHOWN: usize = 8;
            for (i, rank) in missing.by_ref().take(SHOWN).enumerate() {
                write!(f, "{} {rank}", if i > 0 { "," } else { "" })?;
            }
            if count > SHOWN {
                write!(f, " and {} more", count - SHOWN)?;
            }
            write!(f, " of {}", self.nranks)
        })
    }

    fn has(&self, rank: u32) -> bool {
        self.joined[rank as usize / 64] >> (rank % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn each_rank_joins_once_and_knows_how_many_there_are() {
        let mut roster = Roster::new(3).unwrap();
        assert_eq!(roster.join(1, 3), Ok(()));
        assert_eq!(roster.join(1, 3), Err(JoinRefusal::Duplicate(1)));
        assert_eq!(roster.join(0, 4), Err(JoinRefusal::Size { rank: 0, theirs: 4, ours: 3 }));
        assert_eq!(roster.join(3, 3), Err(JoinRefusal::Rank { rank: 3, nranks: 3 }));
        assert_eq!(roster.missing().to_string(), "ranks 0, 2 of 3");
        assert_eq!((roster.join(0, 3), roster.is_complete()), (Ok(()), false));
        assert_eq!(roster.missing().to_string(), "rank 2 of 3");
        assert_eq!((roster.join(2, 3), roster.is_complete()), (Ok(()), true));
    }

    #[test]
    fn as_many_ranks_as_there_may_be_fit() {
        assert!(Roster::new(0).is_none() && Roster::new(RANKS_MAX + 1).is_none());
        let mut roster = Roster::new(RANKS_MAX).unwrap();
        assert_eq!(
            roster.missing().to_string(),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4088 more of 4096"
        );
        assert!((0..RANKS_MAX).all(|rank| roster.join(rank, RANKS_MAX).is_ok()));
        assert!(roster.is_complete());
    }
}
