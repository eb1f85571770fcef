//! The ranks of a communicator in a row, and the ring and the trees that it makes.

use crate::proxy::{Ring, Tree};

/// All ranks, each once, so that neighbours are close to each other.
///
/// The ring goes along it and from its end to its beginning. The trees are NCCL's (`trees.cc`), over
/// places in the row. To make one takes time; whoever has many tasks for the same ranks clones one of
/// a row that is borrowed or shared.
#[derive(Clone, Copy, Debug)]
pub struct Order<R>(R);

/// Most ranks of a communicator.
pub const RANKS_MAX: u32 = 1 << 24;

/// Why a row of ranks is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// It is empty.
    #[error("no ranks: a communicator has one at least")]
    Empty,
    /// It is too long.
    #[error("{0} ranks: at most {RANKS_MAX}")]
    TooMany(usize),
    /// One is in it twice, or never.
    #[error("rank {rank} is {times} times among the {nranks} ranks in order: must be once")]
    NotOnce {
        /// Which.
        rank: u32,
        /// How many times.
        times: usize,
        /// Length of the row.
        nranks: u32,
    },
}

impl<R: AsRef<[u32]>> Order<R> {
    /// `ranks` must be 0 to their number, each once. Takes time by its square.
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

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.0.as_ref().len() as u32
    }

    /// The place of a rank; `None` if there is no such rank.
    pub fn place(&self, rank: u32) -> Option<u32> {
        self.0.as_ref().iter().position(|other| *other == rank).map(|place| place as u32)
    }

    /// The rank at a place, counted around the ring.
    pub fn rank(&self, place: u32) -> u32 {
        self.0.as_ref()[(place % self.nranks()) as usize]
    }

    /// The neighbours on the ring of the rank at `place`.
    pub fn ring(&self, place: u32) -> Ring {
        let before = place + self.nranks() - 1;
        Ring { prev: self.rank(before), next: self.rank(place + 1) }
    }

    /// The neighbours of the rank at `place` in one of the two trees that an all-reduce uses at
    /// once (`ncclGetDtree`). What is an inner node of one is a leaf of the other, so that
    /// together they load all ranks alike. The second is the first mirrored for an even number of
    /// ranks, and moved on by one for an odd number.
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

    /// The neighbours of the rank at `place` in the first of these trees, turned so that its root
    /// is at the place `root`.
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

/// A node of the binary tree whose inner nodes are even (`ncclGetBtree`): 0 is the root and has one
/// child. A node with the lowest set bit 2^k is k levels above the leaves.
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
            // The greatest power of two among the nodes.
            return Node {
                up: None,
                down: [(nnodes - 1).checked_ilog2().map(|bit| 1 << bit), None],
            };
        }
        let bit = node & node.wrapping_neg();
        let above = node ^ bit;
        // The nearest node with a higher lowest bit: on the right, or beyond the end the left one.
        let up = bit
            .checked_mul(2)
            .map(|higher| above | higher)
            .filter(|right| *right < nnodes)
            .unwrap_or(above);
        let left = (bit > 1).then(|| node - bit / 2);
        // Whole subtrees may be missing on the right: the child is then the next lower one.
        let right =
            (0..bit.ilog2()).rev().map(|level| node + (1 << level)).find(|right| *right < nnodes);
        Node { up: Some(up), down: [left, right] }
    }
}

#[cfg(test)]
mod tests;
