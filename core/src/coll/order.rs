//! Puts the ranks of a communicator in a row, which determines the ring and the trees.

use crate::topology::{Ring, Tree};

/// A row that contains each rank once, so that neighbours in the row are close to each other.
///
/// The ring goes along the row, and from its end back to its beginning. The trees are NCCL's
/// (`trees.cc`), over places in the row. `new` takes time that grows with the square of the length. If
/// many tasks use the same ranks, create one order over a borrowed or shared row and clone it.
#[derive(Clone, Copy, Debug)]
pub struct Order<R>(R);

/// Most ranks of a communicator.
pub const RANKS_MAX: u32 = 1 << 24;

/// The reason why a row of ranks is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The row is empty.
    #[error("no ranks: a communicator has one at least")]
    Empty,
    /// The row has more than [`RANKS_MAX`] ranks.
    #[error("{0} ranks: at most {RANKS_MAX}")]
    TooMany(usize),
    /// A rank occurs twice in the row, or never.
    #[error("rank {rank} is {times} times among the {nranks} ranks in order: must be once")]
    NotOnce {
        /// The rank that does not occur once.
        rank: u32,
        /// Number of times that the rank occurs.
        times: usize,
        /// Length of the row.
        nranks: u32,
    },
}

impl<R: AsRef<[u32]>> Order<R> {
    /// Creates an order. `ranks` must contain each number from 0 to its length - 1 once. The time grows
    /// with the square of the length.
    pub fn new(ranks: R) -> Result<Self, OrderError> {
        let row = ranks.as_ref();
        let nranks = row.len() as u32;
        if row.len() > RANKS_MAX as usize {
            return Err(OrderError::TooMany(row.len()));
        }
        if nranks == 0 {
            return Err(OrderError::Empty);
        }
        for rank in 0..nranks {
            let times = row.iter().filter(|other| **other == rank).count();
            if times != 1 {
                return Err(OrderError::NotOnce { rank, times, nranks });
            }
        }
        Ok(Order(ranks))
    }

    /// Returns the number of ranks.
    pub fn nranks(&self) -> u32 {
        self.0.as_ref().len() as u32
    }

    /// Returns the place of a rank, or `None` if there is no such rank.
    pub fn place(&self, rank: u32) -> Option<u32> {
        self.0.as_ref().iter().position(|other| *other == rank).map(|place| place as u32)
    }

    /// Returns the rank at a place. Places count around the ring.
    pub fn rank(&self, place: u32) -> u32 {
        self.0.as_ref()[(place % self.nranks()) as usize]
    }

    /// Returns the neighbours, on the ring, of the rank at `place`.
    pub fn ring(&self, place: u32) -> Ring {
        let before = place + self.nranks() - 1;
        Ring { prev: self.rank(before), next: self.rank(place + 1) }
    }

    /// Returns the neighbours of the rank at `place` in one of the two trees that an all-reduce uses at
    /// once (`ncclGetDtree`). An inner node of one tree is a leaf of the other, so both trees together
    /// load all ranks equally. For an even number of ranks, the second tree mirrors the first. For an
    /// odd number, the second tree is the first shifted by one place.
    pub fn double_tree(&self, place: u32, second: bool) -> Tree {
        let nranks = self.nranks();
        match (second, nranks % 2) {
            (false, _) => self.tree(place, 0),
            (true, 1) => self.tree(place, 1),
            (true, _) => {
                let mirror = |place: u32| nranks - 1 - place;
                self.named(Node::of(mirror(place), nranks), mirror)
            }
        }
    }

    /// Returns the neighbours of the rank at `place` in the first of the two trees, rotated so that the
    /// root is at the place `root`.
    pub fn tree(&self, place: u32, root: u32) -> Tree {
        let nranks = self.nranks();
        let node = Node::of((place + nranks - root % nranks) % nranks, nranks);
        self.named(node, |node| node + root)
    }

    fn named(&self, node: Node, place: impl Fn(u32) -> u32) -> Tree {
        let rank = |node: Option<u32>| node.map(|node| self.rank(place(node)));
        Tree { up: rank(node.up), down: [rank(node.down[0]), rank(node.down[1]), None] }
    }
}

/// A node of the binary tree whose inner nodes are even (`ncclGetBtree`). Node 0 is the root and has
/// one child. A node whose lowest set bit is 2^k is k levels above the leaves.
///
/// ```text
/// 0 ──────── 4           of six
///           ╱ ╲
///          2   5
///         ╱ ╲
///        1   3
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    up: Option<u32>,
    down: [Option<u32>; 2],
}

impl Node {
    fn of(node: u32, nnodes: u32) -> Self {
        if node == 0 {
            // The root's child is the greatest power of two among the nodes.
            return Node {
                up: None,
                down: [(nnodes - 1).checked_ilog2().map(|bit| 1 << bit), None],
            };
        }
        let bit = node & node.wrapping_neg();
        let above = node ^ bit;
        // The parent is the nearest node one level up. If that node is beyond the last one, the parent
        // is the node to the left, at a higher level.
        let up = bit
            .checked_mul(2)
            .map(|higher| above | higher)
            .filter(|right| *right < nnodes)
            .unwrap_or(above);
        let left = (bit > 1).then(|| node - bit / 2);
        // Whole subtrees may be missing on the right. The right child is then the next lower node that
        // exists.
        let right =
            (0..bit.ilog2()).rev().map(|level| node + (1 << level)).find(|right| *right < nnodes);
        Node { up: Some(up), down: [left, right] }
    }
}

#[cfg(test)]
mod tests;
