//! The neighbours of a rank, by which collectives and proxies are planned.

/// Most children of a rank in a tree (`NCCL_MAX_TREE_ARITY`).
pub const TREE_ARITY_MAX: usize = 3;

/// Direction in which data goes over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this rank to the peer.
    Send,
    /// From the peer to this rank.
    Recv,
}

/// A rank's neighbours on a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// The rank that data comes from.
    pub prev: u32,
    /// The rank that data goes to.
    pub next: u32,
}

/// A rank's neighbours in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The parent's rank; `None` at the root.
    pub up: Option<u32>,
    /// The children's ranks.
    pub down: [Option<u32>; TREE_ARITY_MAX],
}
